#pragma once

#include <bit>
#include <cstdint>

#include "headwater/options.hpp"

namespace headwater::core {

/// SCORE-4: nearest even; overflow to infinity; subnormals kept; NaN becomes 0x7FC0.
inline std::uint16_t bf16_from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0u;
  // Adding half an ulp less one, plus the last kept bit, carries exactly when nearest-even rounds up.
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float float_from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

/// IEEE binary16 to binary32, exact.
inline float float_from_f16(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000u) << 16;
  const std::uint32_t magnitude = x & 0x7FFFu;
  // Exponent and fraction moved into place; 2^112 repairs the exponent bias and normalises subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = 0x7F800000u | (magnitude << 13);
  return std::bit_cast<float>(sign | (magnitude >= 0x7C00u ? special : finite));
}

/// IEEE binary32 to binary16: nearest even; overflow to infinity; subnormals kept; NaN becomes 0x7E00.
std::uint16_t f16_from_float(float x);

/// `count` contiguous elements of `type` at `from` (any alignment) to floats; exact.
void widen(const void* from, DType type, std::int64_t count, float* to);

/// `count` floats to elements of `type` at `to` (any alignment), each rounded once to nearest even.
void narrow(const float* from, std::int64_t count, DType type, void* to);

}  // namespace headwater::core
