#pragma once

#include "cuda/kernels/blocks/place.hpp"

namespace headwater::cuda {

inline constexpr int kSummariseThreads = 256;

/// SEL-3 of one key block, by one warp: a lane takes a column group at a time.
template <class Context>
HEADWATER_CUDA_FUNCTION void summarise_block(Context& ctx, const SummariseParams& p, int head, int block) {
  const std::int64_t key =
      head * p.keys.head_stride + static_cast<std::int64_t>(block) * p.key_block * p.keys.width;
  const std::int64_t row = head * p.blocks_stride + static_cast<std::int64_t>(block) * p.width;
  const int groups = column_groups(p.d);
  for (int group = ctx.lane(); group < groups; group += kWarp) {
    const int first = group * kGroupColumns;
    const int columns = p.d - first < kGroupColumns ? p.d - first : kGroupColumns;
    float squares = 0.0f;
    for (int x = first; x < first + columns; ++x) {
      float sum = 0.0f;
      for (int k = 0; k < p.key_block; ++k)
        sum += load_element(p.keys.data, p.keys.type, key + static_cast<std::int64_t>(k) * p.keys.width + x);
      const float mean = sum / static_cast<float>(p.key_block);
      for (int k = 0; k < p.key_block; ++k) {
        const float from_mean =
            load_element(p.keys.data, p.keys.type, key + static_cast<std::int64_t>(k) * p.keys.width + x) -
            mean;
        squares += from_mean * from_mean;
      }
      store_element(p.blocks, p.type, row + x, mean);
    }
    const int divisor = HEADWATER_SABOTAGE("cuda.summaries.sample_variance") ? p.key_block - 1 : p.key_block;
    store_element(p.blocks, p.type, row + p.d + group, squares / static_cast<float>(columns * divisor));
  }
  for (int x = p.d + groups + ctx.lane(); x < p.width; x += kWarp)
    store_element(p.blocks, p.type, row + x, 0.0f);
}

/// SEL-12 of one column group of a region, from the stored summaries of its blocks.
HEADWATER_CUDA_FUNCTION void summarise_region(const SummariseParams& p, int head, int region, int group) {
  const std::int64_t block =
      head * p.blocks_stride + static_cast<std::int64_t>(region) * kRegionBlocks * p.width;
  const std::int64_t row = head * p.regions_stride + static_cast<std::int64_t>(region) * p.width;
  const int first = group * kGroupColumns;
  const int columns = p.d - first < kGroupColumns ? p.d - first : kGroupColumns;
  float between = 0.0f;
  for (int x = first; x < first + columns; ++x) {
    float sum = 0.0f;
    for (int b = 0; b < kRegionBlocks; ++b) sum += load_element(p.blocks, p.type, block + b * p.width + x);
    const float mean = sum / kRegionBlocks;
    for (int b = 0; b < kRegionBlocks; ++b) {
      const float from_mean = load_element(p.blocks, p.type, block + b * p.width + x) - mean;
      between += from_mean * from_mean;
    }
    store_element(p.regions, p.type, row + x, mean);
  }
  float within = 0.0f;
  for (int b = 0; b < kRegionBlocks; ++b)
    within += load_element(p.blocks, p.type, block + b * p.width + p.d + group);
  if (HEADWATER_SABOTAGE("cuda.summaries.within_blocks_alone")) between = 0.0f;
  store_element(p.regions, p.type, row + p.d + group,
                (within + between / static_cast<float>(columns)) / kRegionBlocks);
}

template <class Context>
HEADWATER_CUDA_FUNCTION void summarise(Context& ctx, const SummariseParams& p) {
  const int head = ctx.block_x() % p.heads_kv;
  const int region = p.first / kRegionBlocks + ctx.block_x() / p.heads_kv;
  const int begin = region * kRegionBlocks;
  const int end = begin + kRegionBlocks;
  const int first = begin < p.first ? p.first : begin;
  const int last = end < p.last ? end : p.last;
  for (int block = first + ctx.warp(); block < last; block += kSummariseThreads / kWarp)
    summarise_block(ctx, p, head, block);
  if (last < end) return;  // not whole yet
  ctx.barrier();
  const int groups = column_groups(p.d);
  for (int group = ctx.thread(); group < groups; group += ctx.threads())
    summarise_region(p, head, region, group);
  const std::int64_t row = head * p.regions_stride + static_cast<std::int64_t>(region) * p.width;
  for (int x = p.d + groups + ctx.thread(); x < p.width; x += ctx.threads())
    store_element(p.regions, p.type, row + x, 0.0f);
}

}  // namespace headwater::cuda
