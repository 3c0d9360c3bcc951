#include "core/rows_8bit.hpp"

#include <bit>
#include <cstring>

#include "core/numbers.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

constexpr std::uint16_t kF16Infinity = 0x7C00u;
constexpr std::uint16_t kF16NaN = 0x7E00u;
constexpr float kLargestInteger = 127.0f;
constexpr float kRoundsToInteger = 12582912.0f;  // added and subtracted: nearest, ties to even, of |x| < 2^22

std::uint16_t pack_group(const float* x, unsigned char* to) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < kGroupElements; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu;
    largest = magnitude > largest ? magnitude : largest;
  }
  // A NaN or an infinity is larger than any number here, and gives a scale that is not finite.
  const float step = std::bit_cast<float>(largest) / kLargestInteger;
  std::uint16_t scale = f16_from_float(step);
  if (scale >= kF16Infinity) scale = kF16NaN;
  const bool zeros = scale == 0 || scale == kF16NaN;
  const float per_step = zeros ? 0.0f : 1.0f / step;
  std::memcpy(to, &scale, sizeof scale);
  for (std::int64_t i = 0; i < kGroupElements; ++i) {
    const float integer = (zeros ? 0.0f : x[i]) * per_step + kRoundsToInteger - kRoundsToInteger;
    to[2 + i] = static_cast<unsigned char>(static_cast<std::int8_t>(static_cast<std::int32_t>(integer)));
  }
  return scale;
}

}  // namespace

void pack_row(const void* row, DType type, std::int64_t n, void* to) {
  const auto* from = static_cast<const unsigned char*>(row);
  auto* packed = static_cast<unsigned char*>(to);
  const std::int64_t group_bytes = kGroupElements * static_cast<std::int64_t>(dtype_size(type));
  std::uint16_t first = 0;
  for (std::int64_t group = 0; group < n / kGroupElements; ++group) {
    float x[kGroupElements];
    widen(from + group * group_bytes, type, kGroupElements, x);
    const std::uint16_t scale = pack_group(x, packed + group * kGroupBytes);
    if (group == 0) first = scale;
    if (group >= 4 && HEADWATER_SABOTAGE("core.kv8.first_scale_beyond_128"))
      std::memcpy(packed + group * kGroupBytes, &first, sizeof first);
  }
}

void restore_groups(const void* packed, std::int64_t groups, DType type, void* to) {
  const auto* from = static_cast<const unsigned char*>(packed);
  auto* elements = static_cast<unsigned char*>(to);
  for (std::int64_t group = 0; group < groups; ++group) {
    std::uint16_t bits = 0;
    std::int8_t integers[kGroupElements];
    std::memcpy(&bits, from + group * kGroupBytes, sizeof bits);
    std::memcpy(integers, from + group * kGroupBytes + sizeof bits, sizeof integers);
    const float scale = float_from_f16(bits);
    float x[kGroupElements];
    for (std::int64_t i = 0; i < kGroupElements; ++i) x[i] = scale * static_cast<float>(integers[i]);
    narrow(x, kGroupElements, type,
           elements + group * kGroupElements * static_cast<std::int64_t>(dtype_size(type)));
  }
}

}  // namespace headwater::core
