#pragma once

#include <bit>
#include <cstdint>

namespace headwater::core {

/// Monotone key of a score (MEM-3): larger key = better; NaN is 0, below every number; -0 equals +0.
/// The upper 16 bits alone order BF16 scores.
inline std::uint32_t order_key(float score) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(score);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0;
  if (bits == 0x80000000u) return 0x80000000u;
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

/// The key of a pinned candidate (MEM-7): above that of every score.
inline constexpr std::uint32_t kPinnedKey = 0xFFFFFFFFu;

/// The loops of select_best; kernels may bring faster ones.
struct SelectionLoops {
  /// How many of the keys are `threshold` or more.
  std::int64_t (*count_at_least)(const std::uint32_t* keys, std::int64_t count, std::uint32_t threshold);
  /// Writes the indices, ascending, of the keys that are above `threshold` in the bits of `mask`, and of the first `ties` of
  /// those that equal it there: `wanted` together.
  void (*collect)(const std::uint32_t* keys, std::int64_t count, std::uint32_t mask, std::uint32_t threshold,
                  std::int64_t ties, std::int64_t wanted, std::int32_t* chosen);
  /// Writes the indices, ascending, and the order keys of the scores that are `threshold` or more and not NaN, with room for
  /// `count` of each; returns how many there are.
  std::int64_t (*collect_scores)(const float* scores, std::int64_t count, float threshold,
                                 std::int32_t* indices, std::uint32_t* keys);
};
std::int64_t count_at_least(const std::uint32_t* keys, std::int64_t count, std::uint32_t threshold);
void collect(const std::uint32_t* keys, std::int64_t count, std::uint32_t mask, std::uint32_t threshold,
             std::int64_t ties, std::int64_t wanted, std::int32_t* chosen);
std::int64_t collect_scores(const float* scores, std::int64_t count, float threshold, std::int32_t* indices,
                            std::uint32_t* keys);

/// The min(budget, count) best of `count` keys without a sort: the threshold is searched bit by bit from the top
/// (KERNELS-CUDA "Top-H: no sort"), then one pass keeps all above it and the first equal ones.
/// `key_bits`: only the upper key_bits of a key differ (16 for BF16 scores, else 32).
/// Calls are made in ascending index order, so equal keys keep the lower position.
/// Writes the chosen indices, ascending, to `chosen` (room for min(budget, count)) and returns their number.
std::int64_t select_best(const std::uint32_t* keys, std::int64_t count, std::int64_t budget, int key_bits,
                         std::int32_t* chosen,
                         const SelectionLoops& loops = {count_at_least, collect, collect_scores});

}  // namespace headwater::core
