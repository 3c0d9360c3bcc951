#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/options.hpp"
#include "reference/logits.hpp"
#include "reference/numbers.hpp"

/// Chapter 17 of the spec: memory sets that the queries choose (SEL-2 .. SEL-8, SEL-12). The set of one query block
/// and one key/value head; these functions know no other. Votes are not rounded before rounded_once() (numbers.hpp).
namespace headwater::reference {

/// SEL-2: f, the first position of Local of a chunk that begins at `begin`.
[[nodiscard]] std::int64_t aligned_local_begin(std::int64_t begin, std::int64_t local,
                                               std::int64_t key_block);

/// SEL-2: the number of candidates of a chunk that begins at `begin`: key blocks 0, 1, ...
[[nodiscard]] std::int64_t candidate_blocks(std::int64_t begin, const EffectiveOptions& options);

/// SEL-3: columns of a group.
inline constexpr std::int64_t kGroupColumns = 8;

/// SEL-3 of the key blocks 0, 1, ... of one key/value head.
struct Summaries {
  Matrix mean;      ///< [blocks][d]
  Matrix variance;  ///< [blocks][column groups]
};

/// SEL-3: k: row j is the stored key of position j; the first `blocks` * key_block rows are read.
[[nodiscard]] Summaries summarize(const Matrix& k, std::int64_t blocks, std::int64_t key_block);

/// SEL-4: a pool of one query head.
struct Pool {
  std::vector<double> query;  ///< d: the mean of its rows
  std::int64_t last = 0;      ///< position of its last row
};

/// SEL-4: q: the rows of one query block and query head, row r at position begin + r; pools, or half pools, of `size` rows.
[[nodiscard]] std::vector<Pool> pools(const Matrix& q, std::int64_t begin, std::int64_t size);

/// One of the query heads of the key/value head.
struct PooledHead {
  LogitRule rule;
  std::vector<Pool> pools;
  std::vector<Pool> half_pools;  ///< SEL-7
};

/// SEL-5: e(p,h,b); -infinity instead of NaN. `last_key`: the position of the block's last key.
[[nodiscard]] double estimate(const LogitRule& rule, const Pool& pool, std::span<const double> mean,
                              std::span<const double> variance, std::int64_t last_key);

/// SEL-6: v(b) of all blocks of `summaries`, not yet rounded. SEL-12: -infinity but for those of `searched`, ascending
/// numbers of blocks, which also have the maxima. Without `searched` all are.
[[nodiscard]] std::vector<double> block_votes(std::span<const PooledHead> heads, const Summaries& summaries,
                                              std::int64_t key_block, std::span<const std::int32_t> searched);
[[nodiscard]] std::vector<double> block_votes(std::span<const PooledHead> heads, const Summaries& summaries,
                                              std::int64_t key_block);

/// SEL-12: the most candidates that are all estimated; consecutive blocks of a region; regions searched at least.
inline constexpr std::int64_t kMostEstimated = 2048;
inline constexpr std::int64_t kRegionBlocks = 32;
inline constexpr std::int64_t kLeastSearched = 16;

/// SEL-12: mean and variance of the whole regions of these blocks.
[[nodiscard]] Summaries summarize_regions(const Summaries& blocks);

/// SEL-12: votes on the whole regions of these blocks, not yet rounded; none where there are at most kMostEstimated
/// blocks.
[[nodiscard]] std::vector<double> region_votes(std::span<const PooledHead> heads, const Summaries& summaries,
                                               std::int64_t key_block);

/// SEL-12: the blocks 0, 1, ... `blocks` - 1 that are searched, ascending, by votes on the regions 0, 1, ... : those of
/// the regions with the highest votes, and those in no region. So all where there are no votes.
[[nodiscard]] std::vector<std::int32_t> searched_blocks(std::span<const float> votes, std::int64_t blocks,
                                                        const EffectiveOptions& options);

/// SEL-6, MEM-7: the tokens of the min(kept, |votes|) blocks with the highest votes, those of `pinned` tokens first;
/// ascending.
[[nodiscard]] std::vector<std::int32_t> tokens_of_best_blocks(std::span<const float> votes, std::int64_t kept,
                                                              std::int64_t key_block,
                                                              std::int64_t pinned = 0);

/// SEL-7: t(j) of the tokens, not yet rounded. k: row r is the stored key of position tokens[r].
[[nodiscard]] std::vector<double> token_votes(std::span<const PooledHead> heads,
                                              std::span<const std::int32_t> tokens, const Matrix& k);

/// SEL-7, MEM-7: the min(heavy, |tokens|) tokens with the highest votes, pinned ones first; ascending. votes[r] is that
/// of tokens[r].
[[nodiscard]] std::vector<std::int32_t> best_tokens(std::span<const std::int32_t> tokens,
                                                    std::span<const float> votes, std::int64_t heavy,
                                                    std::int64_t pinned = 0);

/// SEL-8: the kept tokens, ascending and all below Local, and Local = [local_begin, begin); without the -1 padding.
[[nodiscard]] std::vector<std::int32_t> with_local(std::span<const std::int32_t> kept,
                                                   std::int64_t local_begin, std::int64_t begin);

/// The set of one query block and key/value head, and what it follows from (SEL-11).
struct BlockSet {
  std::vector<float> block_votes;  ///< one per candidate
  std::vector<float>
      token_votes;  ///< one per token of the chosen blocks; empty where there is no second stage
  std::vector<std::int32_t> positions;  ///< strictly ascending, without the -1 padding
};

/// SEL-2 .. SEL-8, SEL-12: k: the stored keys of all positions before the chunk, which begins at k.rows; summaries: those of
/// its candidates.
[[nodiscard]] BlockSet choose_set(std::span<const PooledHead> heads, const Matrix& k,
                                  const Summaries& summaries, const EffectiveOptions& options);

}  // namespace headwater::reference
