#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headwater::bench {

/// One row of docs/plan-metrics.md that is a time, or a part of one. The text has figures with their units; what they
/// must be is in tests/plan_metrics/rows.json.
struct MetricRow {
  const char* id;
  std::function<std::string(const std::string& engine)> measure;
};

/// All of them, in the order of the table.
[[nodiscard]] std::vector<MetricRow> metric_rows();

// Parts of the core alone, one thread: parts.cpp.
[[nodiscard]] std::string memory_lookup();        ///< P1.2
[[nodiscard]] std::string memory_set_build();     ///< P1.13
[[nodiscard]] std::string score_update();         ///< P1.14
[[nodiscard]] std::string gather_bandwidth();     ///< P7.1, on the CPU
[[nodiscard]] std::string gather_against_copy();  ///< P7.3

// Whole sessions: sessions.cpp.
[[nodiscard]] std::string session_open(const std::string& engine);          ///< P1.12
[[nodiscard]] std::string column_sum_cost(const std::string& engine);       ///< P2.7
[[nodiscard]] std::string selection_cost(const std::string& engine);        ///< P4.4
[[nodiscard]] std::string sparse_against_dense(const std::string& engine);  ///< P8.1
[[nodiscard]] std::string memory_over_length(const std::string& engine);    ///< P8.2
[[nodiscard]] std::string model_against_dense(const std::string& engine);   ///< P8.1 on a model and its text

/// What one process of P8.2 prints: KiB that a prefill of so many tokens in calls of a chunk added to the resident memory
/// at its peak, the session included and the caller's rows left out.
[[nodiscard]] std::int64_t peak_kibibytes(const std::string& engine, std::int64_t tokens, bool dense);

/// Seconds of the processor: everything here runs on one thread, and other work on the machine hardly moves them.
[[nodiscard]] double seconds_of(const std::function<void()>& action);
[[nodiscard]] double median(std::vector<double> values);

/// Medians of the seconds that `runs` runs of each action take, the actions in turn, after a round that is not counted.
[[nodiscard]] std::vector<double> medians_in_turn(int runs,
                                                  const std::vector<std::function<void()>>& actions);

/// Median of the seconds that `runs` runs of the action take, after one that is not counted.
[[nodiscard]] double median_seconds(int runs, const std::function<void()>& action);

}  // namespace headwater::bench
