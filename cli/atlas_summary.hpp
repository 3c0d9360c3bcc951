#pragma once

#include <cstdint>
#include <vector>

#include "atlas_input.hpp"

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

/// How long tokens survive: entry k - 1 is the share of the tokens with a k-th memory set after their own chunk that
/// this set still held, local or heavy; k = 1, 2, ... [number of memory sets]. Dense chunks read everything and are not
/// counted, neither as readers nor as sets.
[[nodiscard]] std::vector<double> survival(const AtlasTrace& trace, std::int64_t head);

}  // namespace headwater::cli
