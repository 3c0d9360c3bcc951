#pragma once

#include "cuda/kernels/blocks/place.hpp"

namespace headwater::cuda {

inline constexpr int kPoolThreads = 128;

/// Mean of column x over the rows [begin, end) of a query head.
HEADWATER_CUDA_FUNCTION float pooled_column(const PoolParams& p, std::int64_t begin, std::int64_t end,
                                            int head, int x) {
  float sum = 0.0f;
  for (std::int64_t position = begin; position < end; ++position) {
    sum += load_element(p.q.data, p.q.type,
                        (position - p.at.base) * p.q.row_stride + head * p.q.head_stride + x);
  }
  return sum * (1.0f / static_cast<float>(end - begin));
}

template <class Context>
HEADWATER_CUDA_FUNCTION void pool_queries(Context& ctx, const PoolParams& p) {
  const QueryBlock block = query_block(p.at, ctx.block_x() % p.at.count);
  const std::int64_t set = ctx.block_x();
  const int first_head = ctx.block_x() / p.at.count * p.group;
  const int groups = column_groups(p.d);
  const int rows = pools_of(block, p.pool) * p.group;  // none of a block that is not there
  for (int r = ctx.warp(); r < rows; r += kPoolThreads / kWarp) {
    const std::int64_t to = set * p.stride + static_cast<std::int64_t>(r) * p.width;
    const std::int64_t begin = pool_begin(block, r / p.group, p.pool);
    const std::int64_t end = pool_begin(block, r / p.group + 1, p.pool);
    for (int group = ctx.lane(); group < groups; group += kWarp) {
      float squares = 0.0f;
      for (int x = group * kGroupColumns; x < p.d && x < (group + 1) * kGroupColumns; ++x) {
        const float mean = pooled_column(p, begin, end, first_head + r % p.group, x) * p.scale;
        squares += mean * mean;
        store_element(p.pooled, p.type, to + x, mean);
      }
      store_element(p.pooled, p.type, to + p.d + group, 0.5f * squares);
    }
    for (int x = p.d + groups + ctx.lane(); x < p.width; x += kWarp)
      store_element(p.pooled, p.type, to + x, 0.0f);
  }
  if (p.halves == nullptr) return;
  const int half_rows = pools_of(block, p.half) * p.group;
  for (int r = ctx.warp(); r < half_rows; r += kPoolThreads / kWarp) {
    const std::int64_t to = set * p.half_stride + static_cast<std::int64_t>(r) * p.half_width;
    const std::int64_t begin = pool_begin(block, r / p.group, p.half);
    const std::int64_t end = pool_begin(block, r / p.group + 1, p.half);
    for (int x = ctx.lane(); x < p.half_width; x += kWarp) {
      const float mean = x < p.d ? pooled_column(p, begin, end, first_head + r % p.group, x) : 0.0f;
      store_element(p.halves, p.type, to + x, mean);
    }
  }
}

}  // namespace headwater::cuda
