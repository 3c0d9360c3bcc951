#pragma once

#include <functional>
#include <string>
#include <vector>

namespace headwater::bench {

struct Measured {
  std::string text;  ///< figures with their units
  bool met = false;  ///< whether the row's target held in this run
};

/// One row of docs/plan-metrics.md that is a time.
struct MetricRow {
  const char* id;
  std::function<Measured(const std::string& engine)> measure;
};

/// All of them, in the order of the table.
[[nodiscard]] std::vector<MetricRow> metric_rows();

// Parts of the core alone, one thread: parts.cpp.
[[nodiscard]] Measured memory_lookup();        ///< P1.2
[[nodiscard]] Measured memory_set_build();     ///< P1.13
[[nodiscard]] Measured score_update();         ///< P1.14
[[nodiscard]] Measured gather_bandwidth();     ///< P7.1, on the CPU
[[nodiscard]] Measured gather_against_copy();  ///< P7.3
/// Seconds of the selection of one layer of 32 query heads at a chunk of 1024 with L = H = 256.
[[nodiscard]] double selection_seconds();

// Whole sessions: sessions.cpp.
[[nodiscard]] Measured session_open(const std::string& engine);          ///< P1.12
[[nodiscard]] Measured column_sum_cost(const std::string& engine);       ///< P2.7
[[nodiscard]] Measured selection_share(const std::string& engine);       ///< P4.4
[[nodiscard]] Measured sparse_against_dense(const std::string& engine);  ///< P8.1
[[nodiscard]] Measured memory_over_length(const std::string& engine);    ///< P8.2

/// Medians of the seconds that `runs` runs of each action take, the actions in turn, after a round that is not counted.
[[nodiscard]] std::vector<double> medians_in_turn(int runs,
                                                  const std::vector<std::function<void()>>& actions);

/// Median of the seconds that `runs` runs of the action take, after one that is not counted.
[[nodiscard]] double median_seconds(int runs, const std::function<void()>& action);

}  // namespace headwater::bench
