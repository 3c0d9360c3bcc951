#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "cli/support/steps.hpp"
#include "headwater/options.hpp"
#include "headwater/session.hpp"

namespace headwater::cli {

/// One begin() .. end() of the session.
struct Call {
  Step step;
  std::int64_t base = 0;  ///< tokens before it
  std::size_t item = 0;   ///< of --steps
  ChunkMode mode = ChunkMode::sparse;
};

/// Walks the calls that carry out `steps`. A sparse prefill step is handed over in whole logical batches, so that no
/// more than one of them needs its output in memory at a time; PLAN-2 makes the results the same bit for bit.
void for_each_call(std::span<const StepItem> steps, const EffectiveOptions& options,
                   const std::function<void(const Call&)>& action);

/// What the steps take altogether (PLAN-1, MEM-1); known before the work from the lengths alone.
struct Work {
  std::int64_t chunks = 0;
  std::int64_t longest_call = 0;    ///< tokens
  std::int64_t memory_entries = 0;  ///< |M_{c-1}| summed over all chunks, per query head
  std::uint64_t pairs = 0;          ///< query-key pairs per query head
};
[[nodiscard]] Work measure(std::span<const StepItem> steps, const EffectiveOptions& options);

/// Pairs per query head of a chunk of n queries that also see `before` keys outside of it.
[[nodiscard]] std::uint64_t pairs_of(std::int64_t n, std::int64_t before);

}  // namespace headwater::cli
