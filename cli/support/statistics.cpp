#include "cli/support/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace headwater::cli {

Mean mean_of(const std::vector<double>& values) {
  Mean mean{0, 0, values.size()};
  if (values.empty()) return mean;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) mean.value += value;
  mean.value /= n;
  double squares = 0;
  for (const double value : values) squares += (value - mean.value) * (value - mean.value);
  if (values.size() > 1) mean.error = std::sqrt(squares / (n - 1) / n);
  return mean;
}

std::vector<double> differences(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

Interval wilson(double hits, double count) {
  constexpr double kZ = 1.959963984540054;  // of 95 %
  const double rate = hits / count;
  const double shrink = 1 + kZ * kZ / count;
  const double middle = (rate + kZ * kZ / (2 * count)) / shrink;
  const double half = kZ / shrink * std::sqrt(rate * (1 - rate) / count + kZ * kZ / (4 * count * count));
  // Exactly 0 and 1 where nothing and everything was seen: rounding must not exclude them.
  return {hits > 0 ? std::max(0.0, middle - half) : 0.0, hits < count ? std::min(1.0, middle + half) : 1.0};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

double tenth(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(0.1 * static_cast<double>(values.size())));
  return values[std::max<std::size_t>(rank, 1) - 1];
}

}  // namespace headwater::cli
