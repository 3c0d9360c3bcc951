#pragma once

#include <cstddef>
#include <vector>

namespace headwater::cli {

/// Mean of independent values and its standard error.
struct Mean {
  double value = 0;
  double error = 0;  ///< 0 for fewer than two values
  std::size_t count = 0;
};
[[nodiscard]] Mean mean_of(const std::vector<double>& values);

/// Element by element, a - b. Precondition: equal lengths.
[[nodiscard]] std::vector<double> differences(const std::vector<double>& a, const std::vector<double>& b);

/// Where a rate lies with 95 % confidence, seen `hits` times in `count` (Wilson, 1927): unlike a standard error it says
/// something where all or none were seen. Precondition: count > 0.
struct Interval {
  double low = 0;
  double high = 1;
};
[[nodiscard]] Interval wilson(double hits, double count);

/// Order statistics of a list that is not empty.
[[nodiscard]] double median(std::vector<double> values);
/// The nearest rank at a tenth of the way from the smallest.
[[nodiscard]] double tenth(std::vector<double> values);

}  // namespace headwater::cli
