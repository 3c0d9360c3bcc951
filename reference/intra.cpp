#include "reference/intra.hpp"

#include <cstddef>
#include <span>
#include <vector>

#include "reference/mask.hpp"

namespace headwater::reference {

// INTRA-1, INTRA-2
PassResult intra_pass(const LogitRule& rule, std::int64_t chunk_begin, const Matrix& q, const Matrix& k,
                      const Matrix& v) {
  PassResult result;
  result.column_sums.assign(static_cast<std::size_t>(k.rows), 0.0);
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t i = chunk_begin + row;
    std::vector<double> logits;
    std::vector<std::span<const double>> values;
    std::vector<std::size_t> keys;
    for (std::int64_t column = 0; column < k.rows; ++column) {
      const std::int64_t j = chunk_begin + column;
      if (!visible(chunk_begin, i, j)) continue;  // MASK-1: a masked key is not even read
      logits.push_back(logit(rule, q.row(row), k.row(column), i, j));
      values.push_back(v.row(column));
      keys.push_back(static_cast<std::size_t>(column));
    }
    result.rows.push_back(softmax_row(logits, values, rule.sink, v.columns));  // INTRA-1

    // INTRA-2: the l of the weights has the sink in it (LOGIT-4).
    for (std::size_t seen = 0; seen < keys.size(); ++seen) {
      result.column_sums[keys[seen]] += weight(result.rows.back(), logits[seen]);
    }
  }
  return result;
}

}  // namespace headwater::reference
