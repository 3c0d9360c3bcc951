#include "conformance/products_kinds.hpp"
#define PRODUCTS Eigen_baseline
#include "conformance/products_of.hpp"
