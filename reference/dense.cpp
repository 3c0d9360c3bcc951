#include "reference/dense.hpp"

#include <span>

#include "reference/mask.hpp"

namespace headwater::reference {

// DEC-1: a token sees all stored tokens, the earlier ones of its step, and itself.
std::vector<SoftmaxRow> dense_attention(const LogitRule& rule, std::int64_t begin, const Matrix& q,
                                        const Matrix& k, const Matrix& v) {
  std::vector<SoftmaxRow> rows;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t i = begin + row;
    std::vector<double> logits;
    std::vector<std::span<const double>> values;
    for (std::int64_t j = first_visible(rule.window, i); j <= i; ++j) {
      logits.push_back(logit(rule, q.row(row), k.row(j), i, j));
      values.push_back(v.row(j));
    }
    rows.push_back(softmax_row(logits, values, rule.sink, v.columns));
  }
  return rows;
}

}  // namespace headwater::reference
