#include "reference/selection.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace headwater::reference {

// MEM-3
bool ranks_before(const Candidate& a, const Candidate& b) {
  if (a.pinned || b.pinned) return a.pinned != b.pinned ? a.pinned : a.position < b.position;  // MEM-7
  const bool a_is_nan = std::isnan(a.score);
  const bool b_is_nan = std::isnan(b.score);
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a.score != b.score) return a.score > b.score;  // -0 != +0 is false
  return a.position < b.position;
}

// MEM-3
std::vector<std::int32_t> select_heavy(std::span<const Candidate> candidates, std::int64_t heavy) {
  std::vector<Candidate> ranked(candidates.begin(), candidates.end());
  std::sort(ranked.begin(), ranked.end(), ranks_before);
  const auto kept = static_cast<std::size_t>(std::min(heavy, static_cast<std::int64_t>(ranked.size())));
  std::vector<std::int32_t> positions;
  for (std::size_t rank = 0; rank < kept; ++rank) positions.push_back(ranked[rank].position);
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace headwater::reference
