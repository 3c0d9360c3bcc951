#include "dense.hpp"

#include <limits>
#include <span>

#include "headwater/testing/sabotage.hpp"

namespace headwater::reference {

std::vector<SoftmaxRow> dense_attention(const LogitRule& rule, std::int64_t begin, const Matrix& q,
                                        const Matrix& k, const Matrix& v) {
  double sink = rule.sink;
  if (HEADWATER_SABOTAGE("ref.dense.sink_missing")) sink = -std::numeric_limits<double>::infinity();
  const std::int64_t first_key = HEADWATER_SABOTAGE("ref.dense.skips_first_key") ? 1 : 0;

  std::vector<SoftmaxRow> rows;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t i = begin + row;
    std::vector<double> logits;
    std::vector<std::span<const double>> values;
    const std::int64_t last = i - (HEADWATER_SABOTAGE("ref.dense.misses_own_key") && i > 0 ? 1 : 0);
    for (std::int64_t j = first_key; j <= last;
         ++j) {  // DEC-1: all stored tokens, the step's earlier ones, itself
      logits.push_back(logit(rule, q.row(row), k.row(j), i, j));
      values.push_back(v.row(j));
    }
    rows.push_back(softmax_row(logits, values, sink, v.columns));
  }
  return rows;
}

}  // namespace headwater::reference
