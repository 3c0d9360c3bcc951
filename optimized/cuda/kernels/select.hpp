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

template <class Shape, class Context>
struct Candidates {
  const SelectParams& p;
  std::int64_t set;     ///< first entry of the head's set
  std::int64_t scores;  ///< and score
  Shared<std::uint32_t> cache;

  HEADWATER_CUDA_FUNCTION int position(int i) const {
    return i < p.kept ? p.sets[set + i] : p.since + (i - p.kept);
  }
  HEADWATER_CUDA_FUNCTION std::uint32_t key_from_score(int i) const {
    if (i < p.pinned) return kPinnedKey;
    return order_key(read_score(p.scores, p.scores_bf16, scores + position(i)));
  }
  HEADWATER_CUDA_FUNCTION bool cached() const { return p.candidates <= Shape::kCached; }
  HEADWATER_CUDA_FUNCTION std::uint32_t key(int i) const {
    if (!cached()) return key_from_score(i);
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

/// The largest threshold that `heavy` candidates reach: the key of the worst one that is kept.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION std::uint32_t find_threshold(Context& ctx,
                                                     const Candidates<Shape, Context>& candidates,
                                                     Shared<std::uint32_t> warps) {
  const SelectParams& p = candidates.p;
  const int lowest = p.scores_bf16 ? 16 : 0;  // a BF16 score has no bits below
  std::uint32_t threshold = 0;
  for (int bit = 31; bit >= lowest; --bit) {
    const std::uint32_t raised = threshold | (1u << bit);
    std::uint32_t reached = 0;
    for (int i = ctx.thread(); i < p.candidates; i += Shape::kThreads)
      reached += candidates.key(i) >= raised ? 1u : 0u;
    if (block_sum<Shape>(ctx, reached, warps) >= static_cast<std::uint32_t>(p.heavy)) threshold = raised;
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

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void select_memory(Context& ctx, const SelectParams& p) {
  const Shared<std::uint32_t> cache = ctx.template shared<std::uint32_t>(0, Shape::kCached);
  const Shared<std::uint32_t> warps = ctx.template shared<std::uint32_t>(4 * Shape::kCached, Shape::kWarps);
  const std::int64_t set = static_cast<std::int64_t>(ctx.block_x()) * p.width;
  const Candidates<Shape, Context> candidates{p, set, ctx.block_x() * p.capacity, cache};
  if (p.heavy > 0) {
    if (candidates.cached()) {
      for (int i = ctx.thread(); i < p.candidates; i += Shape::kThreads)
        cache[i] = candidates.key_from_score(i);
      ctx.barrier();
    }
    const std::uint32_t threshold = find_threshold<Shape>(ctx, candidates, warps);
    // How many are above is known after a pass only; the number of equals to keep follows.
    std::uint32_t above_all = 0;
    std::uint32_t equal_all = 0;
    for (int i = ctx.thread(); i < p.candidates; i += Shape::kThreads) {
      const std::uint32_t key = candidates.key(i);
      above_all += key > threshold ? 1u : 0u;
      equal_all += key == threshold ? 1u : 0u;
    }
    above_all = block_sum<Shape>(ctx, above_all, warps);
    const std::uint32_t ties = static_cast<std::uint32_t>(p.heavy) - above_all;
    std::uint32_t skipped = 0;
    if (HEADWATER_SABOTAGE("cuda.select.last_ties")) skipped = block_sum<Shape>(ctx, equal_all, warps) - ties;

    std::uint32_t above_before = 0;
    std::uint32_t equal_before = 0;
    for (int first = 0; first < p.candidates; first += Shape::kThreads) {
      const int i = first + ctx.thread();
      const std::uint32_t key = i < p.candidates ? candidates.key(i) : 0u;
      const bool above = i < p.candidates && key > threshold;
      const bool equal = i < p.candidates && key == threshold;
      const Ranks ranks = rank<Shape>(ctx, above, equal, warps);
      const std::uint32_t above_rank = above_before + (ranks.before & 0xFFFFu);
      const std::uint32_t equal_rank = equal_before + (ranks.before >> 16);
      const std::uint32_t equal_kept = equal_rank < skipped          ? 0u
                                       : equal_rank - skipped < ties ? equal_rank - skipped
                                                                     : ties;
      if (above || (equal && equal_rank >= skipped && equal_rank - skipped < ties)) {
        p.scratch[set + above_rank + equal_kept] = candidates.position(i);
      }
      above_before += ranks.total & 0xFFFFu;
      equal_before += ranks.total >> 16;
    }
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
