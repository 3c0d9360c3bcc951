#pragma once

#include <Eigen/Core>

namespace headwater::conformance {

/// Doubles of tokens, in memory token by token.
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// a b^T of the first `n` rows of b, and a b of as many rows of b as a has columns: by Eigen, compiled for the newest
/// instructions that this processor has. The Eigen oracle spends most of its time here.
[[nodiscard]] RowMatrix product_transposed(const RowMatrix& a, const RowMatrix& b, Eigen::Index n);
[[nodiscard]] RowMatrix product(const RowMatrix& a, const RowMatrix& b);

}  // namespace headwater::conformance
