#pragma once

#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/sm80/fragments.hpp"

/// Products of tiles: a warp's 16 rows against the rows of a tile in shared memory. A unit says how rows stand in shared
/// memory and multiplies; accumulators have the layout of fragments.hpp in all of them.
///
/// Rows are 16 bytes longer than their elements: an odd multiple of 16 bytes, so that the eight rows that ldmatrix, or
/// eight quads of lanes, read at once fall into different banks.
namespace headwater::cuda {

/// Weights below it are subnormals of F16, which tensor cores keep.
inline constexpr float kLeastNormalF16 = 6.103515625e-05f;

/// mma.sync m16n8k16 with F32 sums.
template <bool kBf16>
struct TensorUnit {
  using Element = std::uint16_t;
  static constexpr DType kType = kBf16 ? DType::bf16 : DType::f16;
  static constexpr int kStep = 16;  ///< elements of a row per product
  static constexpr int kPad = 8;
  static constexpr bool kAsync = true;  ///< rows are copied as they are

  template <class Context>
  HEADWATER_CUDA_FUNCTION static void multiply(Context& ctx, float (&c)[4], const std::uint32_t (&a)[4],
                                               const std::uint32_t (&b)[2]) {
    if constexpr (kBf16) {
      ctx.mma_bf16(c, a, b);
    } else {
      ctx.mma_f16(c, a, b);
    }
  }

  /// c[t] += rows of a (16) times rows of b (8 * kTiles), over `steps` * kStep elements.
  template <int kTiles, class Context>
  HEADWATER_CUDA_FUNCTION static void dot_rows(Context& ctx, float (&c)[kTiles][4], Shared<Element> a,
                                               int a_stride, Shared<Element> b, int b_stride, int steps) {
    static_assert(kTiles % 2 == 0);
    const int lane = ctx.lane();
    const Shared<Element> a_row = a + (lane % 16) * a_stride + (lane / 16) * 8;
    const Shared<Element> b_row = b + (lane % 8 + lane / 16 * 8) * b_stride + lane / 8 % 2 * 8;
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < steps; ++step) {
      std::uint32_t left[4];
      ctx.load_matrix_x4(left, a_row + step * kStep);
      HEADWATER_CUDA_UNROLL
      for (int t = 0; t < kTiles; t += 2) {
        std::uint32_t right[4];
        ctx.load_matrix_x4(right, b_row + t * kFragmentColumns * b_stride + step * kStep);
        multiply(ctx, c[t], left, {right[0], right[1]});
        multiply(ctx, c[t + 1], left, {right[2], right[3]});
      }
    }
  }

  HEADWATER_CUDA_FUNCTION static std::uint32_t pack(float low, float high) {
    if constexpr (kBf16) {
      return pack_bf16(low, high);
    } else {
      if (HEADWATER_SABOTAGE("cuda.f16.small_weights_lost")) {
        low = low < kLeastNormalF16 ? 0.0f : low;
        high = high < kLeastNormalF16 ? 0.0f : high;
      }
      return pack_f16(low, high);
    }
  }
  HEADWATER_CUDA_FUNCTION static float low(std::uint32_t pair) {
    if constexpr (kBf16) {
      return low_bf16(pair);
    } else {
      return low_f16(pair);
    }
  }
  HEADWATER_CUDA_FUNCTION static float high(std::uint32_t pair) {
    if constexpr (kBf16) {
      return high_bf16(pair);
    } else {
      return high_f16(pair);
    }
  }
};

/// F32 arithmetic on CUDA cores; rows of any type are widened when they are loaded.
struct FloatUnit {
  using Element = float;
  static constexpr DType kType = DType::f32;
  static constexpr int kStep = 4;
  static constexpr int kPad = 4;
  static constexpr bool kAsync = false;

  template <int kTiles, class Context>
  HEADWATER_CUDA_FUNCTION static void dot_rows(Context& ctx, float (&c)[kTiles][4], Shared<Element> a,
                                               int a_stride, Shared<Element> b, int b_stride, int steps) {
    const int lane = ctx.lane();
    const Shared<Element> a_row = a + fragment_row(lane, 0) * a_stride;
    const Shared<Element> b_row = b + fragment_column(lane, 0, 0) * b_stride;
    for (int step = 0; step < steps; ++step) {
      const Words4 upper = ctx.load16(a_row + step * kStep);
      const Words4 lower = ctx.load16(a_row + 8 * a_stride + step * kStep);
      HEADWATER_CUDA_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const Shared<Element> b_step = b_row + t * kFragmentColumns * b_stride + step * kStep;
        const Words4 left = ctx.load16(b_step);
        const Words4 right = ctx.load16(b_step + b_stride);
        HEADWATER_CUDA_UNROLL
        for (int x = 0; x < kStep; ++x) {
          c[t][0] = ctx.fma(float_of(upper.word[x]), float_of(left.word[x]), c[t][0]);
          c[t][1] = ctx.fma(float_of(upper.word[x]), float_of(right.word[x]), c[t][1]);
          c[t][2] = ctx.fma(float_of(lower.word[x]), float_of(left.word[x]), c[t][2]);
          c[t][3] = ctx.fma(float_of(lower.word[x]), float_of(right.word[x]), c[t][3]);
        }
      }
    }
  }
};

}  // namespace headwater::cuda
