#pragma once

#include <string>
#include <vector>

#include "cli/commands/bench/checked_run.hpp"
#include "cli/commands/bench/flags.hpp"
#include "cli/commands/bench/peak.hpp"
#include "headwater/engine.hpp"

namespace headwater::bench {

/// One way of attention, timed round by round.
struct Timed {
  Checked checked;
  double pairs = 0.0;           ///< per query head
  std::vector<double> seconds;  ///< of each round, by the wall
  std::vector<double> judged;   ///< of each round, by the clock that ratios are taken with
  std::int64_t memory_bytes = 0;
};

/// What `headwater bench` measures.
struct Comparison {
  const Engine* engine = nullptr;
  EffectiveOptions effective;
  /// Ratios are taken of processor times: one thread, whose clock other work on the machine does not move.
  bool by_processor_time = false;
  const Arithmetic* arithmetic = nullptr;  ///< of the engine for rows of this type
  std::string arithmetic_missing;          ///< why its loop does not run here, else empty
  std::vector<double> peak;  ///< flops a second of each round; empty where the loop does not run
  Timed sparse;
  Timed dense;  ///< no seconds where it was not asked for
};

/// Warns, checks, then times. Errors: headwater::Error of open(), cli::Failure (memory, nothing to compare),
/// conformance::Violation.
[[nodiscard]] Comparison compare(const Flags& flags, const Engine& engine);

}  // namespace headwater::bench
