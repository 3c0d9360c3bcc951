#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include <bit>

#include "core/numbers.hpp"
#endif

#include "cuda/kernels/platform/platform.hpp"

/// BF16 and F16 in kernels. Roundings are to nearest even with subnormals kept and overflow to infinity, as in
/// core/numbers.hpp. A pair is one 32-bit register, the element of the lower index in the lower half.
namespace headwater::cuda {

#ifdef __CUDACC__

HEADWATER_CUDA_FUNCTION std::uint32_t bits_of(float x) { return __float_as_uint(x); }
HEADWATER_CUDA_FUNCTION float float_of(std::uint32_t bits) { return __uint_as_float(bits); }

/// Two floats to a pair; NaN becomes 0x7FFF.
HEADWATER_CUDA_FUNCTION std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
HEADWATER_CUDA_FUNCTION std::uint32_t pack_f16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
HEADWATER_CUDA_FUNCTION float float_from_f16(std::uint16_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

#else

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

inline std::uint32_t pack_bf16(float low, float high) {
  const auto half = [](float x) -> std::uint32_t { return x != x ? 0x7FFFu : core::bf16_from_float(x); };
  return half(low) | (half(high) << 16);
}
inline std::uint32_t pack_f16(float low, float high) {
  const auto half = [](float x) -> std::uint32_t { return x != x ? 0x7FFFu : core::f16_from_float(x); };
  return half(low) | (half(high) << 16);
}
inline float float_from_f16(std::uint16_t x) { return core::float_from_f16(x); }

#endif

HEADWATER_CUDA_FUNCTION float float_from_bf16(std::uint16_t x) {
  return float_of(static_cast<std::uint32_t>(x) << 16);
}

/// SCORE-4: NaN becomes 0x7FC0, the bits that the reference stores.
HEADWATER_CUDA_FUNCTION std::uint16_t bf16_from_float(float x) {
  return static_cast<std::uint16_t>(x != x ? 0x7FC0u : pack_bf16(x, 0.0f) & 0xFFFFu);
}
/// NaN becomes 0x7E00.
HEADWATER_CUDA_FUNCTION std::uint16_t f16_from_float(float x) {
  return static_cast<std::uint16_t>(x != x ? 0x7E00u : pack_f16(x, 0.0f) & 0xFFFFu);
}

/// The lower and the higher element of a pair.
HEADWATER_CUDA_FUNCTION float low_bf16(std::uint32_t pair) { return float_of(pair << 16); }
HEADWATER_CUDA_FUNCTION float high_bf16(std::uint32_t pair) { return float_of(pair & 0xFFFF0000u); }
HEADWATER_CUDA_FUNCTION float low_f16(std::uint32_t pair) {
  return float_from_f16(static_cast<std::uint16_t>(pair & 0xFFFFu));
}
HEADWATER_CUDA_FUNCTION float high_f16(std::uint32_t pair) {
  return float_from_f16(static_cast<std::uint16_t>(pair >> 16));
}

}  // namespace headwater::cuda
