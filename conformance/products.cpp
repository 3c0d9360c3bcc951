#include "conformance/products.hpp"

#include <cassert>

namespace headwater::conformance {
namespace {

struct Products {
  Product* plain = Eigen_baseline::product;
  Product* transposed = Eigen_baseline::product_transposed;
  Weigh* weigh = Eigen_baseline::weigh;
};

Products best_products() {
#ifndef __clang__
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0) {
    return {Eigen_avx512::product, Eigen_avx512::product_transposed, Eigen_avx512::weigh};
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    return {Eigen_avx2::product, Eigen_avx2::product_transposed, Eigen_avx2::weigh};
  }
#endif
  return {};
}

const Products kBest = best_products();

}  // namespace

RowMatrix product_transposed(const RowMatrix& a, const RowMatrix& b, Eigen::Index n) {
  assert(n <= b.rows() && a.cols() == b.cols());
  RowMatrix c(a.rows(), n);
  kBest.transposed(a.data(), b.data(), c.data(), a.rows(), a.cols(), n);
  return c;
}

RowMatrix product_transposed(const RowMatrix& a, const Eigen::MatrixXd& b) {
  assert(a.cols() == b.cols());
  RowMatrix c(a.rows(), b.rows());  // columns of b, one after the other, are the rows of b^T
  kBest.plain(a.data(), b.data(), c.data(), a.rows(), a.cols(), b.rows());
  return c;
}

RowMatrix product(const RowMatrix& a, const RowMatrix& b) {
  assert(a.cols() <= b.rows());
  RowMatrix c(a.rows(), b.cols());
  kBest.plain(a.data(), b.data(), c.data(), a.rows(), a.cols(), b.cols());
  return c;
}

void weigh(const SeenPart& seen) { kBest.weigh(seen); }

}  // namespace headwater::conformance
