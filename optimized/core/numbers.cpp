#include "core/numbers.hpp"

#include <cstring>

#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

// Element loops over possibly unaligned memory: memcpy of a fixed size is one load or store.
template <float (*Convert)(std::uint16_t)>
void widen_16(const unsigned char* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = Convert(bits);
  }
}

template <std::uint16_t (*Convert)(float)>
void narrow_16(const float* from, std::int64_t count, unsigned char* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = Convert(from[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

}  // namespace

std::uint16_t f16_from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7E00u;
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // >= 65520 rounds up
  if (magnitude < 0x38800000u) {
    // Subnormal in binary16: adding 0.5 aligns the fraction to units of 2^-24, rounded by the hardware.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3F000000u));
  }
  const std::uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void widen(const void* from, DType type, std::int64_t count, float* to) {
  const auto* bytes = static_cast<const unsigned char*>(from);
  switch (type) {
    case DType::f32: std::memcpy(to, bytes, static_cast<std::size_t>(count) * sizeof(float)); break;
    case DType::f16: widen_16<float_from_f16>(bytes, count, to); break;
    case DType::bf16: widen_16<float_from_bf16>(bytes, count, to); break;
  }
}

void narrow(const float* from, std::int64_t count, DType type, void* to) {
  auto* bytes = static_cast<unsigned char*>(to);
  switch (type) {
    case DType::f32: std::memcpy(bytes, from, static_cast<std::size_t>(count) * sizeof(float)); break;
    case DType::f16:
      narrow_16<f16_from_float>(from, count, bytes);
      if (HEADWATER_SABOTAGE("core.numbers.f16_rounds_up")) {
        for (std::int64_t i = 0; i < count; ++i) bytes[2 * i] |= 1U;
      }
      break;
    case DType::bf16:
      if (HEADWATER_SABOTAGE("core.numbers.truncate_bf16_row")) {
        for (std::int64_t i = 0; i < count; ++i) {
          const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(from[i]) >> 16);
          std::memcpy(bytes + 2 * i, &bits, 2);
        }
        break;
      }
      narrow_16<bf16_from_float>(from, count, bytes);
      break;
  }
}

}  // namespace headwater::core
