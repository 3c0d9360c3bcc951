#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <limits>
#include <vector>

#include "conformance/products.hpp"
#include "headwater/engine.hpp"

namespace headwater::conformance {

/// The arithmetic of an engine, from which bounds are derived (docs/verification.md).
struct Arithmetic {
  double u = 0x1p-24;      ///< unit round-off of its logits, weights and sums
  double tiny = 0x1p-125;  ///< weights below this may vanish or be clamped (F32 exp near its smallest normal)
  double exp = 4 * 0x1p-24;  ///< relative error of an exponential (4 u: 2 ulp)
  double weight =
      0.0;  ///< rounding of a weight after it was added to its row's sum, before it multiplies a value
  double least_weight =
      0.0;  ///< the same where it is absolute: half the smallest subnormal; the row's maximum weighs 1
  double column_weight = 0.0;  ///< rounding of a weight that column sums add
  double flushed = 0.0;        ///< products and values below this may count as zero
};

/// The arithmetic that an engine's claims promise for queries and stored rows of these types.
[[nodiscard]] Arithmetic arithmetic_of(const Engine& engine, DType query, DType stored);

/// One query head of one chunk, or some of its rows, as plain matrices of doubles: the union of its keys, row by row.
struct HeadChunk {
  RowMatrix q;                          ///< [n][d]
  std::vector<std::int64_t> queries;    ///< n global positions of the queries, ascending
  RowMatrix keys;                       ///< [m][d]: the memory set first, then the chunk's (or all) tokens
  RowMatrix values;                     ///< [m][dv]
  std::vector<std::int64_t> positions;  ///< m global positions of the keys
  std::int64_t memory = 0;              ///< the first `memory` keys are the set that every query sees
  double scale = 1.0;
  double softcap = 0.0;
  double slope = 0.0;
  double sink = -std::numeric_limits<double>::infinity();
  std::int64_t window = 0;  ///< MASK-2; 0: none, and always where there is a memory set
};

/// Values in double and, element by element, how far an engine of that arithmetic may be from them before its result
/// is rounded to the output type. Column sums and lse include their one rounding to F32.
struct HeadTruth {
  Eigen::MatrixXd out, out_bound, out_size;  ///< [n][dv]; out_size = sum_j w_j |v_j|
  Eigen::VectorXd lse, lse_bound;            ///< n
  Eigen::VectorXd intra, intra_bound;        ///< column sums over the n queries: keys after the set
  Eigen::VectorXd inter, inter_bound;        ///< column sums of the set
};

/// The second oracle: one dense softmax over the explicit union mask (FUSE-2), in Eigen matrices, sharing no code and
/// no formulation (no passes, no fusion) with the reference. `threads` > 1 splits the rows over OpenMP threads.
[[nodiscard]] HeadTruth eigen_oracle(const HeadChunk& input, const Arithmetic& arithmetic, int threads = 1);

}  // namespace headwater::conformance
