#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "headwater/options.hpp"
#include "reference/logits.hpp"
#include "reference/numbers.hpp"

/// Chapter 18 of the spec: memory sets by sketches (SKE-2 .. SKE-8). The set of one query block and one key/value head;
/// these functions know no other. Votes are not rounded before rounded_once() (numbers.hpp).
namespace headwater::reference {

/// SKE-2: positions of a chunk's fixed part and of its candidates, each ascending.
struct SketchedPast {
  std::vector<std::int32_t> fixed;
  std::vector<std::int32_t> candidates;
};

/// SKE-2: of a chunk that begins at `begin`.
[[nodiscard]] SketchedPast sketched_past(std::int64_t begin, std::int64_t local, std::int64_t heavy,
                                         std::int64_t pinned);

/// SKE-3: the columns of a sketch of a row of d elements, and the first positions that choose them.
inline std::int64_t sketch_size(std::int64_t d) {
  return std::min({d, std::int64_t{256}, 32 * ((d + 63) / 64)});
}
inline constexpr std::int64_t kColumnChoosers = 256;

/// SKE-3: X, ascending. k: row j is the stored key of position j, of all positions before the chunk.
[[nodiscard]] std::vector<std::int64_t> sketch_columns(const Matrix& k);

/// SKE-4
struct Sketch {
  bool exists = false;
  float unit = 0.0F;
  std::vector<std::int32_t> integers;  ///< of the columns of X, -127 .. 127
};

/// SKE-4: of a row whose elements are floats.
[[nodiscard]] Sketch sketch(std::span<const double> row, std::span<const std::int64_t> columns);

/// The rows of a query block in one of the query heads of the key/value head.
struct VotingHead {
  LogitRule rule;
  Matrix q;                 ///< row r is position begin + r
  std::vector<double> own;  ///< SKE-5: D of each row
};

/// SKE-5 of the row at position i. k: stored keys by position, up to i; `own_begin`: where the chunk begins.
[[nodiscard]] double own_weight(const LogitRule& rule, std::span<const double> query, std::int64_t i,
                                const Matrix& k, std::span<const std::int32_t> fixed, std::int64_t own_begin);

/// SKE-6: t(j) of the candidates, not yet rounded. `begin`: position of the first row; k: stored keys by position.
[[nodiscard]] std::vector<double> sketch_votes(std::span<const VotingHead> heads, std::int64_t begin,
                                               const Matrix& k, std::span<const std::int32_t> candidates,
                                               std::span<const std::int64_t> columns);

/// SKE-7: ascending; votes[r] is that of candidates[r].
[[nodiscard]] std::vector<std::int32_t> chosen_by_votes(std::span<const std::int32_t> candidates,
                                                        std::span<const float> votes, double least_weight,
                                                        std::int64_t most);

}  // namespace headwater::reference
