#pragma once

#include <cstdint>
#include <vector>

#include "cli/commands/atlas/input.hpp"

namespace headwater::cli {

/// Query-key pairs of one query head, by what the queries read.
struct PairCounts {
  std::uint64_t own = 0;    ///< inside the chunk
  std::uint64_t local = 0;  ///< local window of the memory set
  std::uint64_t heavy = 0;  ///< heavy hitters of the memory set
  std::uint64_t dense = 0;  ///< everything before, of a dense prefill call or a decode step

  [[nodiscard]] std::uint64_t computed() const { return own + local + heavy + dense; }
};

/// The pairs of head `head` (counted as in AtlasTrace).
[[nodiscard]] PairCounts count_pairs(const AtlasTrace& trace, std::int64_t head);

/// For each token, how many memory sets of the head held it as a heavy hitter: [n].
[[nodiscard]] std::vector<std::int32_t> heavy_reads(const AtlasTrace& trace, std::int64_t head);

/// How long tokens survive, by Kaplan and Meier's estimate (1958). A token's age is the number of memory sets since its own
/// chunk; it survives while each of them holds it, local or heavy. at_risk[k - 1]: the tokens that survived k - 1 sets and
/// have a k-th; the share of them that this one holds is the chance to survive it, and share[k - 1] is the product of the
/// chances up to k. So the tokens of the last chunks, whose later sets do not exist, count as long as they are seen. Both
/// end with the last age at which a token was at risk; with rule `blocks` there are none. Dense chunks read everything and are no memory sets.
struct Survival {
  std::vector<double> share;          ///< at most 1, never rises
  std::vector<std::int64_t> at_risk;  ///< tokens, 1 or more
};
[[nodiscard]] Survival survival(const AtlasTrace& trace, std::int64_t head);

}  // namespace headwater::cli
