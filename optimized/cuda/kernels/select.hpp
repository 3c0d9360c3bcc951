#pragma once

#include "cuda/kernels/elements.hpp"

/// MEM-1..4 and MEM-7 without a sort: the threshold of the best H scores is found bit by bit, from the top, on ordered keys; then one
/// ordered pass keeps all above it and the first of its equals. Candidates come in ascending position, so what is kept is
/// ascending, and ties go to the lower position.
namespace headwater::cuda {

/// A block serves one head. Keys of up to kCached candidates are kept in shared memory, more are read again.
template <int kWarpsType, int kCachedType>
struct SelectShape {
  static constexpr int kWarps = kWarpsType;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kCached = kCachedType;
  static constexpr int kShared = 4 * (kCached + kWarps);
};

/// What is chosen from: `count` candidates, of which `budget` are kept; key_of(i) is the ordered key of number i.
template <class Shape, class KeyOf>
struct Candidates {
  int count;
  int budget;
  int lowest_bit;  ///< that a key can have
  Shared<std::uint32_t> cache;
  KeyOf key_of;

  HEADWATER_CUDA_FUNCTION bool cached() const { return count <= Shape::kCached; }
  HEADWATER_CUDA_FUNCTION std::uint32_t key(int i) const {
    if (!cached()) return key_of(i);
    const std::uint32_t kept = cache[i];
    return kept;
  }
};

/// Sum over the block, the same in all threads.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION std::uint32_t block_sum(Context& ctx, std::uint32_t value,
                                                Shared<std::uint32_t> warps) {
  value = ctx.reduce_add(value);
  if constexpr (Shape::kWarps == 1) return value;
  ctx.barrier();  // sums of the round before have been read
  if (ctx.lane() == 0) warps[ctx.warp()] = value;
  ctx.barrier();
  std::uint32_t total = 0;
  HEADWATER_CUDA_UNROLL
  for (int w = 0; w < Shape::kWarps; ++w) total += warps[w];
  return total;
}

/// A threshold that `budget` candidates reach and no more are above: where just so many reach it any one, else the largest, the
/// key of the worst one that is kept.
template <class Shape, class Context, class KeyOf>
HEADWATER_CUDA_FUNCTION std::uint32_t find_threshold(Context& ctx, const Candidates<Shape, KeyOf>& candidates,
                                                     Shared<std::uint32_t> warps) {
  std::uint32_t threshold = 0;
  for (int bit = 31; bit >= candidates.lowest_bit; --bit) {
    const std::uint32_t raised = threshold | (1u << bit);
    std::uint32_t reached = 0;
    for (int i = ctx.thread(); i < candidates.count; i += Shape::kThreads)
      reached += candidates.key(i) >= raised ? 1u : 0u;
    const std::uint32_t all = block_sum<Shape>(ctx, reached, warps);
    if (all >= static_cast<std::uint32_t>(candidates.budget)) threshold = raised;
    if (all == static_cast<std::uint32_t>(candidates.budget)) break;
  }
  return threshold;
}

/// Ranks of a thread's candidate among those of its block that are above the threshold (lower half) or at it (upper half),
/// and their totals.
struct Ranks {
  std::uint32_t before;
  std::uint32_t total;
};

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION Ranks rank(Context& ctx, bool above, bool equal, Shared<std::uint32_t> warps) {
  const std::uint32_t lanes_above = ctx.ballot(above);
  const std::uint32_t lanes_equal = ctx.ballot(equal);
  const std::uint32_t lower = (1u << ctx.lane()) - 1u;
  const auto ones = [](std::uint32_t x) {
#ifdef __CUDA_ARCH__
    return static_cast<std::uint32_t>(__popc(x));
#else
    return static_cast<std::uint32_t>(__builtin_popcount(x));
#endif
  };
  Ranks ranks{ones(lanes_above & lower) | ones(lanes_equal & lower) << 16, 0};
  const std::uint32_t own = ones(lanes_above) | ones(lanes_equal) << 16;
  if constexpr (Shape::kWarps == 1) {
    ranks.total = own;
    return ranks;
  }
  ctx.barrier();
  if (ctx.lane() == 0) warps[ctx.warp()] = own;
  ctx.barrier();
  HEADWATER_CUDA_UNROLL
  for (int w = 0; w < Shape::kWarps; ++w) {
    const std::uint32_t count = warps[w];
    if (w < ctx.warp()) ranks.before += count;
    ranks.total += count;
  }
  return ranks;
}

/// Calls keep(rank, i) for the `budget` best candidates i, rank 0, 1, ... in ascending order. By all threads of a block.
template <class Shape, class Context, class KeyOf, class Keep>
HEADWATER_CUDA_FUNCTION void choose(Context& ctx, const Candidates<Shape, KeyOf>& candidates,
                                    Shared<std::uint32_t> warps, const Keep& keep) {
  if (candidates.cached()) {
    for (int i = ctx.thread(); i < candidates.count; i += Shape::kThreads)
      candidates.cache[i] = candidates.key_of(i);
    ctx.barrier();
  }
  const std::uint32_t threshold = find_threshold<Shape>(ctx, candidates, warps);
  // How many are above is known after a pass only; the number of equals to keep follows.
  std::uint32_t above_all = 0;
  std::uint32_t equal_all = 0;
  for (int i = ctx.thread(); i < candidates.count; i += Shape::kThreads) {
    const std::uint32_t key = candidates.key(i);
    above_all += key > threshold ? 1u : 0u;
    equal_all += key == threshold ? 1u : 0u;
  }
  above_all = block_sum<Shape>(ctx, above_all, warps);
  const std::uint32_t ties = static_cast<std::uint32_t>(candidates.budget) - above_all;
  std::uint32_t skipped = 0;
  if (HEADWATER_SABOTAGE("cuda.select.last_ties")) skipped = block_sum<Shape>(ctx, equal_all, warps) - ties;

  std::uint32_t above_before = 0;
  std::uint32_t equal_before = 0;
  for (int first = 0; first < candidates.count; first += Shape::kThreads) {
    const int i = first + ctx.thread();
    const std::uint32_t key = i < candidates.count ? candidates.key(i) : 0u;
    const bool above = i < candidates.count && key > threshold;
    const bool equal = i < candidates.count && key == threshold;
    const Ranks ranks = rank<Shape>(ctx, above, equal, warps);
    const std::uint32_t above_rank = above_before + (ranks.before & 0xFFFFu);
    const std::uint32_t equal_rank = equal_before + (ranks.before >> 16);
    const std::uint32_t equal_kept = equal_rank < skipped          ? 0u
                                     : equal_rank - skipped < ties ? equal_rank - skipped
                                                                   : ties;
    if (above || (equal && equal_rank >= skipped && equal_rank - skipped < ties)) {
      keep(static_cast<int>(above_rank + equal_kept), i);
    }
    above_before += ranks.total & 0xFFFFu;
    equal_before += ranks.total >> 16;
  }
}

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void select_memory(Context& ctx, const SelectParams& p) {
  const Shared<std::uint32_t> cache = ctx.template shared<std::uint32_t>(0, Shape::kCached);
  const Shared<std::uint32_t> warps = ctx.template shared<std::uint32_t>(4 * Shape::kCached, Shape::kWarps);
  const std::int64_t set = static_cast<std::int64_t>(ctx.block_x()) * p.width;
  const std::int64_t scores = ctx.block_x() * p.capacity;
  const auto position = [&](int i) -> int { return i < p.kept ? p.sets[set + i] : p.since + (i - p.kept); };
  const auto key = [&](int i) -> std::uint32_t {
    if (i < p.pinned) return kPinnedKey;
    return order_key(read_score(p.scores, p.scores_bf16, scores + position(i)));
  };
  if (p.heavy > 0) {
    const int lowest_bit = p.scores_bf16 ? 16 : 0;  // a BF16 score has no bits below
    const Candidates<Shape, decltype(key)> candidates{p.candidates, p.heavy, lowest_bit, cache, key};
    choose<Shape>(ctx, candidates, warps, [&](int at, int i) { p.scratch[set + at] = position(i); });
  }
  ctx.barrier();  // the previous set has been read, the new entries are written
  for (int i = ctx.thread(); i < p.width; i += Shape::kThreads) {
    int entry = -1;
    if (i < p.heavy) {
      entry = p.scratch[set + i];
    } else if (i - p.heavy < p.end - p.local_begin) {
      entry = p.local_begin + (i - p.heavy);
    }
    p.sets[set + i] = entry;
  }
}

}  // namespace headwater::cuda
