#include "selection.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "headwater/testing/sabotage.hpp"

namespace headwater::reference {

// MEM-3
bool ranks_before(const Candidate& a, const Candidate& b) {
  const bool a_is_nan = std::isnan(a.score);
  const bool b_is_nan = std::isnan(b.score);
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a.score != b.score) return a.score > b.score;  // -0 != +0 is false
  return a.position < b.position;
}

std::vector<std::int32_t> select_heavy(std::span<const Candidate> candidates, std::int64_t heavy) {
  std::vector<Candidate> ranked(candidates.begin(), candidates.end());
  if (HEADWATER_SABOTAGE("ref.selection.ties_to_higher_position")) {
    for (Candidate& candidate : ranked) candidate.position = -candidate.position;
    std::sort(ranked.begin(), ranked.end(), ranks_before);
    for (Candidate& candidate : ranked) candidate.position = -candidate.position;
  } else {
    std::sort(ranked.begin(), ranked.end(), ranks_before);
  }
  if (HEADWATER_SABOTAGE("ref.selection.lowest_scores")) std::reverse(ranked.begin(), ranked.end());
  auto kept = static_cast<std::size_t>(std::min(heavy, static_cast<std::int64_t>(ranked.size())));
  if (HEADWATER_SABOTAGE("ref.selection.one_too_few") && kept > 0) --kept;
  std::vector<std::int32_t> positions;
  for (std::size_t rank = 0; rank < kept; ++rank) positions.push_back(ranked[rank].position);
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace headwater::reference
