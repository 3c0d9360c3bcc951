#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime::testing {

inline void put_half(std::byte* p, std::uint16_t half) { std::memcpy(p, &half, sizeof half); }

/// The exponent of MXFP4 that makes its scale 1.
inline constexpr unsigned kUnitExponent = 128;

/// Where a block of a quantised type has its halves; MXFP4 has an exponent in its first byte.
inline std::vector<std::size_t> halves_of(TensorType type) {
  if (type == TensorType::mxfp4) return {};
  if (type == TensorType::q6_k) return {208};
  if (type == TensorType::q2_k) return {80, 82};
  if (type == TensorType::q3_k) return {108};
  for (const TensorType two : {TensorType::q4_1, TensorType::q5_1, TensorType::q4_k, TensorType::q5_k}) {
    if (type == two) return {0, 2};
  }
  return {0};
}

/// Stored rows of random bits: every code and every scale code comes; elements that stand alone, and the halves of blocks,
/// are finite and of either sign.
struct RandomRows {
  TensorType type;
  std::int64_t n;
  std::int64_t count;
  std::vector<std::byte> bytes;

  RandomRows(TensorType t, std::int64_t elements, std::int64_t rows) : type(t), n(elements), count(rows) {
    std::mt19937 random(static_cast<unsigned>(17 + n + count));
    bytes.resize(static_cast<std::size_t>(count * row_bytes(type, n)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const auto block = static_cast<std::size_t>(tensor_type_info(type).block_bytes);
    const auto finite = [&] { return static_cast<std::uint16_t>(random() & 0xBBFF); };
    for (std::size_t at = 0; at < bytes.size(); at += block) {
      if (type == TensorType::f32) {
        put_half(bytes.data() + at + 2, finite());
      } else {
        for (const std::size_t half : halves_of(type)) put_half(bytes.data() + at + half, finite());
        if (type == TensorType::mxfp4) bytes[at] = static_cast<std::byte>(kUnitExponent - 16 + random() % 32);
      }
    }
  }
  [[nodiscard]] const std::byte* row(std::int64_t r) const { return bytes.data() + r * row_bytes(type, n); }
};

/// All scales of blocks and all minima are one.
inline RandomRows with_unit_scales(RandomRows rows) {
  const auto block = static_cast<std::size_t>(tensor_type_info(rows.type).block_bytes);
  for (std::size_t at = 0; at < rows.bytes.size(); at += block) {
    for (const std::size_t half : halves_of(rows.type)) put_half(rows.bytes.data() + at + half, 0x3C00);
    if (rows.type == TensorType::mxfp4) rows.bytes[at] = std::byte{kUnitExponent};
  }
  return rows;
}

/// Sixteen rows of 256 elements whose codes have these bits, with scales and minima of one.
inline RandomRows rows_of_bits(TensorType type, int bits) {
  RandomRows rows(type, 256, 16);
  std::fill(rows.bytes.begin(), rows.bytes.end(), static_cast<std::byte>(bits));
  return with_unit_scales(rows);
}

}  // namespace headwater::runtime::testing
