#include "conformance/products_kinds.hpp"
#ifndef __clang__
#pragma GCC target("avx2,fma,avx512f,avx512dq")
// What Eigen asks. Before version 13 g++ reads the whole file before it heeds the pragma.
#if __GNUC__ < 13
#define __AVX__ 1
#define __AVX2__ 1
#define __FMA__ 1
#define __AVX512F__ 1
#define __AVX512DQ__ 1
#endif
#endif
#define PRODUCTS Eigen_avx512
#include "conformance/products_of.hpp"
