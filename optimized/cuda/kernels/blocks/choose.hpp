#pragma once

#include "cuda/kernels/blocks/place.hpp"
#include "cuda/kernels/select.hpp"

namespace headwater::cuda {

/// SEL-6 to SEL-8 and SEL-12: the best regions, blocks, or tokens, and with these the set of a query block.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void choose_of_set(Context& ctx, const ChooseParams& p) {
  const QueryBlock block = query_block(p.at, ctx.block_x() % p.at.count);
  if (block.begin >= block.end) return;
  const std::int64_t set = ctx.block_x();
  const std::int64_t votes = set * p.votes_stride;
  const std::int64_t listed = set * p.listed_stride;
  const std::int64_t chosen = set * p.chosen_stride;
  const auto key = [&](int i) -> std::uint32_t {
    return i < p.pinned ? kPinnedKey : order_key(static_cast<float>(p.votes[votes + i]));
  };
  const auto token = [&](int i) -> int {
    const int first = p.listed[listed + i / p.at.key_block];
    return first * p.at.key_block + i % p.at.key_block;
  };
  int count = block.candidates;
  int budget = block.kept;
  if (p.kind == VoteKind::regions) {
    count = block.regions;
    budget = static_cast<int>(smaller(p.at.most_regions, count));
  } else if (p.kind == VoteKind::tokens) {
    count = block.tokens;
    budget = static_cast<int>(smaller(p.at.heavy, count));
  }
  const Candidates<Shape, decltype(key)> candidates{
      count, budget, 0, ctx.template shared<std::uint32_t>(0, Shape::kCached), key};
  const Shared<std::uint32_t> warps = ctx.template shared<std::uint32_t>(4 * Shape::kCached, Shape::kWarps);
  if (count > 0) {
    choose<Shape>(ctx, candidates, warps,
                  [&](int at, int i) { p.chosen[chosen + at] = p.kind == VoteKind::tokens ? token(i) : i; });
  }
  if (p.kind != VoteKind::tokens) return;
  const int local = static_cast<int>(block.chunk_begin - block.local_begin);
  const int heavy = block.entries - local;
  for (int i = (count > 0 ? heavy : 0) + ctx.thread(); i < p.chosen_stride; i += Shape::kThreads) {
    int entry = -1;
    if (i < heavy) {
      entry = token(i);  // all of the kept blocks'
    } else if (i < block.entries) {
      entry = static_cast<int>(block.local_begin) + i - heavy;
    }
    p.chosen[chosen + i] = entry;
  }
}

}  // namespace headwater::cuda
