#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

/// The state of one softmax over a set of keys (INTRA-1), which the intra pass, the inter pass and dense
/// attention have in common.
namespace headwater::reference {

/// m = max s, l = sum exp(s - m), o = sum exp(s - m) v / l. No key seen: m = -inf, l = 0, o = 0 (INTER-3),
/// the neutral element of fuse(). All keys seen with logit -inf: the same. A NaN logit: m, l and o are NaN
/// (NUM-2).
struct SoftmaxRow {
  double m = -std::numeric_limits<double>::infinity();
  double l = 0.0;
  std::vector<double> o;  ///< dv values
};

/// The neutral element with d_value zeros.
[[nodiscard]] SoftmaxRow neutral_row(std::int64_t d_value);

/// INTRA-1 over keys with these logits and value rows; a sink of -inf is none (LOGIT-4), any other is one
/// more column with the value row zero.
[[nodiscard]] SoftmaxRow softmax_row(std::span<const double> logits,
                                     std::span<const std::span<const double>> values, double sink,
                                     std::int64_t d_value);

/// exp(s - m) / l: the weight of one key of the row; 0 in a neutral row.
[[nodiscard]] double weight(const SoftmaxRow& row, double logit);

/// m + ln l, natural logarithm (FUSE-1); -inf for the neutral element.
[[nodiscard]] double log_sum_exp(const SoftmaxRow& row);

/// What a pass over one chunk gives for one query head.
struct PassResult {
  std::vector<SoftmaxRow> rows;     ///< one per query of the chunk
  std::vector<double> column_sums;  ///< one per key, not yet rounded (INTRA-2, INTER-2)
};

}  // namespace headwater::reference
