#include "reference/memory_set.hpp"

#include <algorithm>
#include <cstddef>

#include "reference/selection.hpp"

namespace headwater::reference {

// MEM-1
std::int64_t local_begin(std::int64_t end, std::int64_t local) {
  return std::max<std::int64_t>(0, end - local);
}

// MEM-2
std::vector<std::int32_t> candidates(std::span<const std::int32_t> previous, std::int64_t previous_end,
                                     std::int64_t end, std::int64_t local) {
  const std::int64_t first_local = local_begin(end, local);
  std::vector<std::int32_t> positions;
  for (const std::int32_t position : previous) {
    if (position < first_local) positions.push_back(position);
  }
  // Every token that was processed since, whether in a sparse chunk, a dense turn or a decode step (MEM-5).
  for (std::int64_t position = previous_end; position < first_local; ++position) {
    positions.push_back(static_cast<std::int32_t>(position));
  }
  return positions;
}

// MEM-1 .. MEM-4, MEM-7
std::vector<std::int32_t> build_memory_set(std::span<const std::int32_t> previous, std::int64_t previous_end,
                                           std::int64_t end, std::int64_t local, std::int64_t heavy,
                                           const ScoreOf& score_of, std::int64_t pinned) {
  std::vector<Candidate> ranked;
  for (const std::int32_t position : candidates(previous, previous_end, end, local)) {
    ranked.push_back(Candidate{position, score_of(position), position < pinned});
  }
  std::vector<std::int32_t> set = select_heavy(ranked, heavy);  // MEM-3
  // Heavy lies below Local altogether, so appending keeps the ascending order (MEM-4).
  for (std::int64_t position = local_begin(end, local); position < end; ++position) {
    set.push_back(static_cast<std::int32_t>(position));
  }
  return set;
}

// MEM-4
void store_memory_set(std::span<const std::int32_t> set, std::span<std::int32_t> stored) {
  for (std::size_t entry = 0; entry < stored.size(); ++entry) {
    stored[entry] = entry < set.size() ? set[entry] : -1;
  }
}

}  // namespace headwater::reference
