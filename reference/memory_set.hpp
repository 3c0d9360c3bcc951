#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

/// Chapter 7 of the spec: memory sets (MEM-1, MEM-2, MEM-4, MEM-5). One query head selects alone (MEM-6):
/// these functions know one head.
namespace headwater::reference {

/// The score of a position.
using ScoreOf = std::function<float(std::int64_t position)>;

/// MEM-1: first position of Local, the newest `local` of `end` processed tokens: max(0, end - local).
[[nodiscard]] std::int64_t local_begin(std::int64_t end, std::int64_t local);

/// MEM-2: the positions of `previous` (a set built when `previous_end` tokens were processed; empty and 0 at
/// first) and those in [previous_end, end), without Local; ascending.
[[nodiscard]] std::vector<std::int32_t> candidates(std::span<const std::int32_t> previous,
                                                   std::int64_t previous_end, std::int64_t end,
                                                   std::int64_t local);

/// MEM-1 .. MEM-4, MEM-7: the set from all `end` tokens before a chunk (MEM-5), strictly ascending, without the -1
/// padding.
[[nodiscard]] std::vector<std::int32_t> build_memory_set(std::span<const std::int32_t> previous,
                                                         std::int64_t previous_end, std::int64_t end,
                                                         std::int64_t local, std::int64_t heavy,
                                                         const ScoreOf& score_of, std::int64_t pinned = 0);

/// MEM-4: writes the set, then -1 up to the end of `stored`. |set| <= |stored|.
void store_memory_set(std::span<const std::int32_t> set, std::span<std::int32_t> stored);

}  // namespace headwater::reference
