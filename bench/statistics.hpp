#pragma once

#include <vector>

namespace headwater::bench {

/// Order statistics of a list that is not empty.
[[nodiscard]] double median(std::vector<double> values);
/// The nearest rank at a tenth of the way from the smallest.
[[nodiscard]] double tenth(std::vector<double> values);

}  // namespace headwater::bench
