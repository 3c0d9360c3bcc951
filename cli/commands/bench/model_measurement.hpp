#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands/bench/clock.hpp"
#include "cli/commands/bench/model_flags.hpp"
#include "cli/support/ranks.hpp"
#include "headwater/session.hpp"
#include "runtime/generate/conversation.hpp"

namespace headwater::bench {

/// One prompt and what was generated after it. Rates and ratios are taken of processor times on one thread, which other
/// work on the machine does not move, else of times by the wall.
struct PromptTimes {
  Seconds first_token;         ///< from the first token in to the logits of the last one
  runtime::PhaseTimes phases;  ///< where they went, by the wall
  Seconds decode;              ///< of all decode steps after the prompt
  Seconds together;            ///< of as many decode steps of all slots at once, where there are several
  Seconds reading;             ///< of reading the bytes of one decode step alone
};

/// Prompts of one length in one mode, round by round.
struct PromptRounds {
  std::int64_t tokens = 0;
  bool dense = false;
  runtime::Pairs pairs;
  std::int64_t bytes_per_token = 0;  ///< weights, keys and values that a decode step reads, at the mean depth
  std::vector<PromptTimes> rounds;
  std::int32_t best_token = 0;  ///< after the prompt, and its logit: for comparison with other programs
  float best_logit = 0;

  /// The round whose time to the first token, by the wall, is the (lower) median.
  [[nodiscard]] const PromptTimes& middle() const;
};

struct ModelMeasurement {
  std::string model;
  std::string architecture;
  std::string weights;  ///< "Q8_0", or "F16, F32" of a file's matrices
  std::string engine, isa;
  std::string projections;
  bool by_processor_time = false;
  EffectiveOptions effective;  ///< of the sparse runs
  double load_seconds = 0;     ///< reading or making the weights, and packing
  std::uint64_t weight_bytes = 0;
  MemoryBytes session_memory;
  std::uint64_t workspace_bytes = 0;
  std::vector<PromptRounds> prompts;        ///< of each length sparse, then dense where it was asked for
  std::vector<pipeline::RankReport> ranks;  ///< where there are several
  std::vector<std::string> warnings;
};

/// Errors: cli::Failure (memory, a prompt that does not fit the context), headwater::Error of the runtime.
[[nodiscard]] ModelMeasurement measure_model(const ModelBenchFlags& flags);

/// --save.
void save_random_model(const ModelBenchFlags& flags);

}  // namespace headwater::bench
