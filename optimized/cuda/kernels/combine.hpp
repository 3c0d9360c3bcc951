#pragma once

#include "cuda/kernels/elements.hpp"

namespace headwater::cuda {

inline constexpr int kCombineThreads = 128;

/// Joins the splits of decode rows in the order of their keys (FUSE-1 for several parts). Grid: heads x rows.
template <class Context>
HEADWATER_CUDA_FUNCTION void combine(Context& ctx, const CombineParams& p) {
  const std::int64_t position = p.begin + ctx.block_y();
  const int head = ctx.block_x();
  const auto part = [&](int split) {
    return (static_cast<std::int64_t>(split) * p.heads + head) * p.parts.stride + position - p.parts.base;
  };
  const int splits =
      HEADWATER_SABOTAGE("cuda.combine.last_split_lost") && p.splits > 1 ? p.splits - 1 : p.splits;
  float max = kMinusInfinity;
  for (int split = 0; split < splits; ++split) max = larger(max, p.parts.max[part(split)]);
  const float offset = offset_of(max);
  float sum = 0.0f;
  float divisor = 0.0f;
  for (int split = 0; split < splits; ++split) {
    const float scale = ctx.exp2(p.parts.max[part(split)] - offset);
    sum += p.parts.sum[part(split)] * scale;
    divisor += p.parts.rounded[part(split)] * scale;
  }
  const float inverse = inverse_of(divisor);
  for (int x = ctx.thread(); x < p.dv; x += ctx.threads()) {
    float value = 0.0f;
    for (int split = 0; split < splits; ++split) {
      value += p.parts.out[part(split) * p.dv + x] * ctx.exp2(p.parts.max[part(split)] - offset);
    }
    store_element(p.out.data, p.out.type,
                  (position - p.base) * p.out.row_stride + head * p.out.head_stride + x, value * inverse);
  }
  if (p.lse != nullptr && ctx.thread() == 0) {
    p.lse[head * p.lse_stride + ctx.block_y()] = kLn2 * (max + ctx.log2(sum));
  }
}

}  // namespace headwater::cuda
