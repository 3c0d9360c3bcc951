#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/model/flags.hpp"
#include "headwater/session.hpp"
#include "runtime/generate/conversation.hpp"

namespace headwater::bench {

/// One prompt and what was generated behind it.
struct PromptTimes {
  double first_token = 0;      ///< seconds from the first token in to the logits of the last one
  runtime::PhaseTimes phases;  ///< where they went
  double decode = 0;           ///< seconds of all decode steps behind the prompt
  runtime::PhaseTimes decode_phases;
  double reading = 0;  ///< seconds that reading the bytes of one decode step alone takes
};

/// Prompts of one length in one mode, round by round.
struct PromptRounds {
  std::int64_t tokens = 0;
  bool dense = false;
  runtime::Pairs pairs;
  std::int64_t bytes_per_token = 0;  ///< weights, keys and values that a decode step reads, at the mean depth
  std::vector<PromptTimes> rounds;

  /// Of the round whose time to the first token is the (lower) median.
  [[nodiscard]] const PromptTimes& middle() const;
};

struct ModelMeasurement {
  std::string model;
  std::string architecture;
  std::string weights;  ///< "Q8_0", or "F16, F32" of a file's matrices
  std::string engine, isa;
  std::string projections;
  EffectiveOptions effective;  ///< of the sparse runs
  double load_seconds = 0;     ///< reading or making the weights, and packing
  std::uint64_t weight_bytes = 0;
  MemoryBytes session_memory;
  std::uint64_t workspace_bytes = 0;
  std::vector<PromptRounds> prompts;  ///< of each length sparse, then dense where it was asked for
  std::vector<std::string> warnings;
};

/// Errors: cli::Failure (memory, a prompt that does not fit the context), headwater::Error of the runtime.
[[nodiscard]] ModelMeasurement measure_model(const ModelBenchFlags& flags);

/// --save.
void save_random_model(const ModelBenchFlags& flags);

}  // namespace headwater::bench
