#include "reference/inter.hpp"

#include <cstddef>
#include <limits>
#include <vector>

namespace headwater::reference {

// INTER-1 .. INTER-3
PassResult inter_pass(const LogitRule& rule, std::int64_t chunk_begin, const Matrix& q,
                      std::span<const std::int32_t> memory, const Matrix& k, const Matrix& v) {
  const double no_sink = -std::numeric_limits<double>::infinity();  // LOGIT-4: the intra pass has it
  PassResult result;
  result.column_sums.assign(memory.size(), 0.0);
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const std::int64_t i = chunk_begin + row;
    std::vector<double> logits;
    std::vector<std::span<const double>> values;
    for (std::size_t entry = 0; entry < memory.size(); ++entry) {  // INTER-1: no mask
      const auto r = static_cast<std::int64_t>(entry);
      logits.push_back(logit(rule, q.row(row), k.row(r), i, memory[entry]));
      values.push_back(v.row(r));
    }
    result.rows.push_back(softmax_row(logits, values, no_sink, v.columns));  // INTER-1, INTER-3

    for (std::size_t entry = 0; entry < memory.size(); ++entry) {  // INTER-2
      result.column_sums[entry] += weight(result.rows.back(), logits[entry]);
    }
  }
  return result;
}

}  // namespace headwater::reference
