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

/// Keys that one query sees, all in one part of its softmax. Arrays have `keys` doubles; none overlaps another.
struct SeenPart {
  std::ptrdiff_t keys;
  const double *logit, *error;  // a logit, and how far off it may be
  double u2;                    // times the distance to the maximum: how far off the exponent may be, too
  struct Side {
    double m, l;           // maximum and sum of the softmax
    const double* weight;  // exp(logit - m)
    double error;          // relative error of a weight over l that is the same for all keys
    double* growth;        // for use: expm1 of the whole relative error
  } whole, part;
  double least;                     // absolute error of a weight before it is divided by l
  double tiny;                      // and of a result
  double *weights, *weight_errors;  // results: weights of the whole, and how far off they may be
  double *columns, *column_errors;  // those of the part are added here
};
using Weigh = void(const SeenPart& seen);

namespace Eigen_baseline {
Product product, product_transposed;
Weigh weigh;
}  // namespace Eigen_baseline
namespace Eigen_avx2 {
Product product, product_transposed;
Weigh weigh;
}  // namespace Eigen_avx2
namespace Eigen_avx512 {
Product product, product_transposed;
Weigh weigh;
}  // namespace Eigen_avx512
