#include "reference/softmax.hpp"

#include <cmath>
#include <cstddef>

namespace headwater::reference {

SoftmaxRow neutral_row(std::int64_t d_value) {
  SoftmaxRow row;
  row.o.assign(static_cast<std::size_t>(d_value), 0.0);
  return row;
}

SoftmaxRow softmax_row(std::span<const double> logits, std::span<const std::span<const double>> values,
                       double sink, std::int64_t d_value) {
  SoftmaxRow row = neutral_row(d_value);
  row.m = sink;
  for (const double s : logits) {
    // A NaN logit must show in the row (NUM-2), and no comparison with it is ever true.
    if (s > row.m || std::isnan(s)) row.m = s;
  }
  if (row.m == -std::numeric_limits<double>::infinity()) return row;

  row.l = std::exp(sink - row.m);  // LOGIT-4: the value row of the sink is zero; none is exp(-inf) = 0
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const double p = std::exp(logits[j] - row.m);
    row.l += p;
    for (std::size_t c = 0; c < row.o.size(); ++c) row.o[c] += p * values[j][c];
  }
  for (double& component : row.o) component /= row.l;
  return row;
}

double weight(const SoftmaxRow& row, double logit) {
  if (row.l == 0.0) return 0.0;
  return std::exp(logit - row.m) / row.l;
}

double log_sum_exp(const SoftmaxRow& row) { return row.m + std::log(row.l); }

}  // namespace headwater::reference
