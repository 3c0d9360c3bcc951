#include "inter.hpp"

#include <cstddef>
#include <limits>
#include <vector>

#include "headwater/testing/sabotage.hpp"

namespace headwater::reference {

PassResult inter_pass(const LogitRule& rule, std::int64_t chunk_begin, const Matrix& q,
                      std::span<const std::int32_t> memory, const Matrix& k, const Matrix& v) {
  double sink = -std::numeric_limits<double>::infinity();  // LOGIT-4: no sink in the inter pass
  if (HEADWATER_SABOTAGE("ref.inter.sink_taken_again")) sink = rule.sink;
  const std::int64_t first = HEADWATER_SABOTAGE("ref.inter.bias_by_row_in_chunk") ? 0 : chunk_begin;
  const bool last_query_only = HEADWATER_SABOTAGE("ref.inter.column_sum_of_last_query");
  const bool round_each = HEADWATER_SABOTAGE("ref.inter.column_sum_rounded_per_query");
  std::size_t entries = memory.size();
  if (HEADWATER_SABOTAGE("ref.inter.drops_last_key") && entries > 0) --entries;

  PassResult result;
  result.column_sums.assign(memory.size(), 0.0);
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t i = first + row;
    std::vector<double> logits;
    std::vector<std::span<const double>> values;
    for (std::size_t entry = 0; entry < entries; ++entry) {  // INTER-1: no mask
      const auto r = static_cast<std::int64_t>(entry);
      logits.push_back(logit(rule, q.row(row), k.row(r), i, memory[entry]));
      values.push_back(v.row(r));
    }
    result.rows.push_back(softmax_row(logits, values, sink, v.columns));  // INTER-1, INTER-3

    for (std::size_t entry = 0; entry < entries; ++entry) {  // INTER-2
      if (last_query_only) result.column_sums[entry] = 0.0;
      result.column_sums[entry] += weight(result.rows.back(), logits[entry]);
      if (round_each) result.column_sums[entry] = from_bf16(round_to_bf16(result.column_sums[entry]));
    }
  }
  return result;
}

}  // namespace headwater::reference
