#include "core/selection.hpp"

#include <algorithm>

#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

std::int64_t count_at_least(const std::uint32_t* keys, std::int64_t count, std::uint32_t threshold) {
  // 32-bit lanes: count is below 2^31.
  std::uint32_t total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += keys[i] >= threshold ? 1u : 0u;
  return total;
}

// Every index is written, and the next one over it unless it is chosen: no branch that half of the keys take.
void collect(const std::uint32_t* keys, std::int64_t count, std::uint32_t mask, std::uint32_t threshold,
             std::int64_t ties, std::int64_t wanted, std::int32_t* chosen) {
  std::int64_t ties_skipped = 0;
  if (HEADWATER_SABOTAGE("core.selection.last_ties")) {
    for (std::int64_t i = 0; i < count; ++i) ties_skipped += (keys[i] & mask) == threshold ? 1 : 0;
    ties_skipped -= ties;
  }
  std::int64_t written = 0;
  for (std::int64_t i = 0; i < count && written < wanted; ++i) {
    const std::uint32_t key = keys[i] & mask;
    const std::int64_t tie = key == threshold ? 1 : 0;
    const std::int64_t chosen_tie = tie & (ties_skipped <= 0 ? 1 : 0) & (ties > 0 ? 1 : 0);
    ties_skipped -= tie;
    ties -= chosen_tie;
    chosen[written] = static_cast<std::int32_t>(i);
    written += (key > threshold ? 1 : 0) | chosen_tie;
  }
}

std::int64_t collect_scores(const float* scores, std::int64_t count, float threshold, std::int32_t* indices,
                            std::uint32_t* keys) {
  std::int64_t written = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    indices[written] = static_cast<std::int32_t>(i);
    keys[written] = order_key(scores[i]);
    written += scores[i] >= threshold ? 1 : 0;
  }
  return written;
}

std::int64_t select_best(const std::uint32_t* keys, std::int64_t count, std::int64_t budget, int key_bits,
                         std::int32_t* chosen, const SelectionLoops& loops) {
  if (budget <= 0) return 0;
  if (budget >= count) {
    HEADWATER_MARK("core.selection.all");
    for (std::int64_t i = 0; i < count; ++i) chosen[i] = static_cast<std::int32_t>(i);
    return count;
  }
  if (HEADWATER_SABOTAGE("core.selection.upper_half_only")) key_bits = 16;
  if (HEADWATER_SABOTAGE("core.selection.candidates_beyond_1024"))
    count = std::min<std::int64_t>(count, 1024);
  // Largest threshold that at least `budget` keys reach: the key of the worst chosen one.
  std::uint32_t threshold = 0;
  for (int bit = 31; bit >= 32 - key_bits; --bit) {
    const std::uint32_t raised = threshold | (1u << bit);
    const std::int64_t reached = loops.count_at_least(keys, count, raised);
    if (reached >= budget) threshold = raised;
    if (reached == budget) break;  // no lower bit can tell these from each other
  }
  // Keys below the tested bits are equal by contract, so "above" is exact on the tested bits.
  const std::uint32_t mask = key_bits >= 32 ? 0xFFFFFFFFu : ~(0xFFFFFFFFu >> key_bits);
  const std::int64_t above =
      threshold == mask ? 0 : loops.count_at_least(keys, count, (threshold | ~mask) + 1);
  const std::int64_t ties = budget - above - (HEADWATER_SABOTAGE("core.selection.one_short") ? 1 : 0);
  loops.collect(keys, count, mask, threshold, ties, above + ties, chosen);
  return above + ties;
}

}  // namespace headwater::core
