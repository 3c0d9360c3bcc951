#include "conformance/products_kinds.hpp"
#ifndef __clang__
#pragma GCC target("avx2,fma,avx512f,avx512dq")
#endif
#define PRODUCTS Eigen_avx512
#include "conformance/products_of.hpp"
