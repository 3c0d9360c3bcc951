#pragma once

#include "cuda/kernels/elements.hpp"

namespace headwater::cuda {

inline constexpr int kStoreThreads = 128;
inline constexpr int kStoreTokens = 32;  ///< rows of one head, or scores, that a block writes

/// One row to the stored type, each element rounded at most once (STATE-6); the padding becomes zero. By one warp.
template <class Context>
HEADWATER_CUDA_FUNCTION void store_row(Context& ctx, const InputRows& from, std::int64_t begin, int count,
                                       Global<void> to, DType type, std::int64_t at, int width) {
  const int vector =
      kVectorBytes / static_cast<int>(type == DType::f32 ? sizeof(float) : sizeof(std::uint16_t));
  int done = 0;
  if (from.type == type && from.vectors) {
    const int whole = count / vector * vector;
    for (int x = ctx.lane() * vector; x < whole; x += kWarp * vector) {
      if (type == DType::f32) {
        ctx.store16(elements_of<float>(to) + at + x,
                    ctx.load16(elements_of<const float>(from.data) + begin + x));
      } else {
        ctx.store16(elements_of<std::uint16_t>(to) + at + x,
                    ctx.load16(elements_of<const std::uint16_t>(from.data) + begin + x));
      }
    }
    done = whole;
  }
  for (int x = done + ctx.lane(); x < width; x += kWarp) {
    if (from.type == type && type != DType::f32) {
      elements_of<std::uint16_t>(to)[at + x] =
          x < count ? elements_of<const std::uint16_t>(from.data)[begin + x] : std::uint16_t{0};
    } else {
      store_element(to, type, at + x, x < count ? load_element(from.data, from.type, begin + x) : 0.0f);
    }
  }
}

/// K and V rows of a step into the cache's layout, and zero scores for its tokens. Grid: (2 Hkv + Hq) x token tiles.
template <class Context>
HEADWATER_CUDA_FUNCTION void store_rows(Context& ctx, const StoreRowsParams& p) {
  const int first = ctx.block_y() * kStoreTokens;
  const int last = first + kStoreTokens < p.n ? first + kStoreTokens : p.n;
  const int job = ctx.block_x();
  if (job >= 2 * p.heads_kv) {
    const std::int64_t row = (job - 2 * p.heads_kv) * p.capacity + p.position;
    for (int t = first + ctx.thread(); t < last; t += ctx.threads()) {
      if (p.score_bytes == 2) {
        elements_of<std::uint16_t>(p.scores)[row + t] = 0;
      } else {
        elements_of<float>(p.scores)[row + t] = 0.0f;
      }
    }
    return;
  }
  const bool value = job >= p.heads_kv;
  const int head = value ? job - p.heads_kv : job;
  const InputRows& from = value ? p.v : p.k;
  const int width = value ? p.value_width : p.key_width;
  for (int t = first + ctx.warp(); t < last; t += kStoreThreads / kWarp) {
    store_row(ctx, from, t * from.row_stride + head * from.head_stride, value ? p.dv : p.d,
              value ? p.values : p.keys, p.type, (head * p.capacity + p.position + t) * width, width);
  }
}

}  // namespace headwater::cuda
