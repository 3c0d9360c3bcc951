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

/// Walks the calls that carry out `steps` in a session of one layer. A sparse prefill step is handed over in whole logical batches, so that no
/// more than one of them needs its output in memory at a time; PLAN-2 makes the results the same bit for bit.
void for_each_call(std::span<const StepItem> steps, const EffectiveOptions& options,
                   const std::function<void(const Call&)>& action);

/// What the steps take altogether (PLAN-1, MEM-1, SEL-2); known before the work from the lengths alone.
struct Work {
  std::int64_t chunks = 0;
  std::int64_t longest_call = 0;  ///< tokens
  /// Valid entries of all sets that are read, per query head; rule `blocks`: per key/value head. With rule `sketches`, whose
  /// sets may be shorter, these and the pairs are the most that there can be (SKE-8).
  std::int64_t memory_entries = 0;
  std::uint64_t pairs = 0;  ///< query-key pairs per query head

  // Rules `blocks` and `sketches`.
  std::int64_t query_blocks = 0;     ///< of all chunks (SEL-4)
  std::int64_t most_candidates = 0;  ///< key blocks that one chunk votes on (SEL-2)
  std::int64_t most_voted = 0;       ///< tokens that one chunk votes on (SEL-7, SKE-2)
  std::int64_t block_votes = 0;      ///< all of them, per key/value head
  std::int64_t token_votes = 0;
};
[[nodiscard]] Work measure(std::span<const StepItem> steps, const EffectiveOptions& options);

/// Pairs per query head of a chunk of n queries that also see `before` keys outside of it.
[[nodiscard]] std::uint64_t pairs_of(std::int64_t n, std::int64_t before);

}  // namespace headwater::cli
