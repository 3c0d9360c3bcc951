#pragma once

#ifdef HEADWATER_TESTING
#include <atomic>
#endif

#include "cuda/kernels/params.hpp"
#include "cuda/kernels/platform/context.hpp"
#include "cuda/kernels/platform/numbers.hpp"
#include "headwater/testing/sabotage.hpp"

/// Elements of global memory and small arithmetic that kernels share.
namespace headwater::cuda {

inline constexpr float kMinusInfinity = -__builtin_huge_valf();
inline constexpr float kLn2 = 0.693147180559945309f;
inline constexpr int kVectorBytes = 16;

HEADWATER_CUDA_FUNCTION float load_element(Global<const void> data, DType type, std::int64_t index) {
  if (type == DType::f32) return elements_of<const float>(data)[index];
  const std::uint16_t bits = elements_of<const std::uint16_t>(data)[index];
  return type == DType::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
}

HEADWATER_CUDA_FUNCTION void store_element(Global<void> data, DType type, std::int64_t index, float value) {
  if (type == DType::f32) {
    elements_of<float>(data)[index] = value;
  } else {
    elements_of<std::uint16_t>(data)[index] =
        type == DType::bf16 ? bf16_from_float(value) : f16_from_float(value);
  }
}

HEADWATER_CUDA_FUNCTION float larger(float a, float b) { return a > b ? a : b; }

/// The offset that a maximum stands for: a row that saw nothing has none, and -inf - -inf would be NaN.
HEADWATER_CUDA_FUNCTION float offset_of(float max) { return max == kMinusInfinity ? 0.0f : max; }

/// 1 / sum; a row without keys has no weights. NaN stays.
HEADWATER_CUDA_FUNCTION float inverse_of(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

/// LOGIT-2 by way of exp2: |error| is a few 2^-24. NaN stays.
template <class Context>
HEADWATER_CUDA_FUNCTION float tanh_of(Context& ctx, float x) {
  constexpr float kTwoLog2E = 2.885390081777926815f;
  constexpr float kSaturated = 30.0f;  // (2^30 - 1) / (2^30 + 1) is 1 in F32
  float y = x * kTwoLog2E;
  y = y > kSaturated ? kSaturated : y;
  y = y < -kSaturated ? -kSaturated : y;
  const float e = ctx.exp2(y);
  return (e - 1.0f) / (e + 1.0f);
}

/// The logit of a dot product in units of ln 2 (LOGIT-1..3). `distance` is i - j.
template <class Context>
HEADWATER_CUDA_FUNCTION float map_logit(Context& ctx, const LogitRule& rule, float slope, float dot,
                                        std::int64_t distance) {
  float s = dot * rule.factor;
  if (rule.cap > 0.0f) s = rule.cap * tanh_of(ctx, s);
  if (slope != 0.0f) s -= slope * static_cast<float>(distance);
  return s;
}

/// Monotone key of a score (MEM-3): larger is better; NaN is 0, below every number; -0 equals +0.
HEADWATER_CUDA_FUNCTION std::uint32_t order_key(float score) {
  const std::uint32_t bits = bits_of(score);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0;
  if (bits == 0x80000000u) return 0x80000000u;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The key of a pinned candidate (MEM-7): above that of every score.
inline constexpr std::uint32_t kPinnedKey = 0xFFFFFFFFu;

HEADWATER_CUDA_FUNCTION float read_score(Global<const void> scores, bool bf16, std::int64_t index) {
  return bf16 ? float_from_bf16(elements_of<const std::uint16_t>(scores)[index])
              : elements_of<const float>(scores)[index];
}

/// SCORE-4 for BF16 scores: one rounding to nearest even by integers, NaN to 0x7FC0.
HEADWATER_CUDA_FUNCTION void write_score(Global<void> scores, bool bf16, std::int64_t index, float score) {
  if (bf16) {
    std::uint16_t rounded = bf16_from_float(score);
    if (HEADWATER_SABOTAGE("cuda.scores.truncated"))
      rounded = static_cast<std::uint16_t>(bits_of(score) >> 16);
    elements_of<std::uint16_t>(scores)[index] = rounded;
  } else {
    elements_of<float>(scores)[index] = score;
  }
}

/// For faults whose result depends on the order in which blocks run.
#ifdef HEADWATER_TESTING
inline int arrival() {
  static std::atomic<int> count{0};
  return count.fetch_add(1, std::memory_order_relaxed);
}
#else
HEADWATER_CUDA_FUNCTION int arrival() { return 0; }
#endif

/// Sum and maximum over the four lanes that hold a row of an accumulator.
template <class Context>
HEADWATER_CUDA_FUNCTION float quad_sum(Context& ctx, float x) {
  x += ctx.shuffle_xor(x, 1);
  return x + ctx.shuffle_xor(x, 2);
}
template <class Context>
HEADWATER_CUDA_FUNCTION float quad_max(Context& ctx, float x) {
  if (HEADWATER_SABOTAGE("cuda.lane_mask_of_half_a_warp")) {
    return larger(x, ctx.shuffle_masked(0x0000FFFFu, x, ctx.lane() ^ 1));
  }
  x = larger(x, ctx.shuffle_xor(x, 1));
  return larger(x, ctx.shuffle_xor(x, 2));
}

}  // namespace headwater::cuda
