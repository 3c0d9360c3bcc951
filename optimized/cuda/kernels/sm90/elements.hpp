#pragma once

#include "cuda/kernels/platform/numbers.hpp"

namespace headwater::cuda::sm90 {

/// Type of Q, K and V; products are summed in F32. A pair is a register of an operand, the lower index in its low half.
struct Bf16 {
  static constexpr bool kBf16 = true;
  static HEADWATER_CUDA_FUNCTION std::uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  static HEADWATER_CUDA_FUNCTION float low(std::uint32_t pair) { return low_bf16(pair); }
  static HEADWATER_CUDA_FUNCTION float high(std::uint32_t pair) { return high_bf16(pair); }
};
struct F16 {
  static constexpr bool kBf16 = false;
  static HEADWATER_CUDA_FUNCTION std::uint32_t pack(float low, float high) { return pack_f16(low, high); }
  static HEADWATER_CUDA_FUNCTION float low(std::uint32_t pair) { return low_f16(pair); }
  static HEADWATER_CUDA_FUNCTION float high(std::uint32_t pair) { return high_f16(pair); }
};

}  // namespace headwater::cuda::sm90
