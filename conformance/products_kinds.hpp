#pragma once

// Standard headers that Eigen/Core includes: before instructions are chosen (products_of.hpp).
#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <climits>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iosfwd>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>

/// c = a b or a b^T: a is [rows][depth], c [rows][columns], row by row.
using Product = void(const double* a, const double* b, double* c, std::ptrdiff_t rows, std::ptrdiff_t depth,
                     std::ptrdiff_t columns);

namespace Eigen_baseline {
Product product, product_transposed;
}
namespace Eigen_avx2 {
Product product, product_transposed;
}
namespace Eigen_avx512 {
Product product, product_transposed;
}
