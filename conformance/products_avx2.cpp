#include "conformance/products_kinds.hpp"
#ifndef __clang__
#pragma GCC target("avx2,fma")
#endif
#define PRODUCTS Eigen_avx2
#include "conformance/products_of.hpp"
