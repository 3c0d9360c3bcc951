#pragma once

#include <Eigen/Core>

#include "conformance/products_kinds.hpp"

namespace headwater::conformance {

/// Doubles of tokens, in memory token by token.
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// a b^T of the first `n` rows of b, and a b of as many rows of b as a has columns: by Eigen, compiled for the newest
/// instructions that this processor has. The Eigen oracle spends most of its time in this file.
[[nodiscard]] RowMatrix product_transposed(const RowMatrix& a, const RowMatrix& b, Eigen::Index n);
/// a b^T of all rows of b, which lie as Eigen stores a matrix by default: column by column.
[[nodiscard]] RowMatrix product_transposed(const RowMatrix& a, const Eigen::MatrixXd& b);
[[nodiscard]] RowMatrix product(const RowMatrix& a, const RowMatrix& b);

/// Weights and their bounds, as SeenPart says.
void weigh(const SeenPart& seen);

}  // namespace headwater::conformance
