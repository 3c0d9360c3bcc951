#pragma once

/// The kernels of table.hpp for votes by sketches (SKE), in loops that compilers vectorise. Included by one file per ISA:
/// everything sits in an unnamed namespace and nothing of the standard library is used, as in wide/kernels.hpp.

#include "cpu/kernels/table.hpp"

namespace headwater::cpu {
namespace {

/// Adding and subtracting it rounds |x| < 2^22 to the nearest integer, ties to even.
inline constexpr float kRoundsToInteger = 12582912.0f;

/// The columns of a row, widened. Bits: the type of a stored element.
template <class Bits, class Widen>
inline void take_columns(const unsigned char* row, const SketchColumns& columns, const Widen& widen,
                         float* to) {
  for (std::int64_t x = 0; x < columns.n; ++x) {
    Bits bits = 0;
    __builtin_memcpy(&bits, row + columns.column[x] * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    to[x] = widen(bits);
  }
}

/// SKE-4. One: one_f16() and one_bf16() widen an element.
template <class One>
void sketch_rows(const void* rows, std::int64_t stride, std::int64_t n_rows, DType type,
                 const SketchColumns& columns, float* integers, float* units) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const auto* row = static_cast<const unsigned char*>(rows) + r * stride;
    float taken[kMostSketchColumns] = {};
    switch (type) {
      case DType::f32:
        take_columns<std::uint32_t>(
            row, columns, [](std::uint32_t bits) { return __builtin_bit_cast(float, bits); }, taken);
        break;
      case DType::f16: take_columns<std::uint16_t>(row, columns, One::one_f16, taken); break;
      case DType::bf16: take_columns<std::uint16_t>(row, columns, One::one_bf16, taken); break;
    }
    std::uint32_t largest = 0;
    for (std::int64_t x = 0; x < columns.width; ++x) {
      const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, taken[x]) & 0x7FFFFFFFu;
      largest = magnitude > largest ? magnitude : largest;
    }
    const bool exists = largest < kInfinity;
    const float a = __builtin_bit_cast(float, largest);
    const float per_unit = kSketchInteger / a;
    units[r] = exists ? a / kSketchInteger : __builtin_nanf("");
    const bool zero = !exists || per_unit > __FLT_MAX__;
    for (std::int64_t x = 0; x < columns.width; ++x) {
      const float rounded = taken[x] * per_unit + kRoundsToInteger - kRoundsToInteger;
      integers[r * columns.width + x] = zero ? 0.0f : rounded;
    }
  }
}

/// SketchTable::pack_rows(): the integers plus Bias.
template <int Bias>
void pack_sketched_rows(const float* integers, std::int64_t n, std::uint8_t* bytes) {
  for (std::int64_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(integers[i]) + Bias);
}

inline void scale_lanes(float* block, std::int64_t n_rows, const float* factor, const float* unit) {
  for (std::int64_t row = 0; row < n_rows; ++row) {
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
      block[row * kBlockRows + lane] *= factor[row] * unit[lane];
    }
  }
}

/// x * y - z, rounded once where the processor can.
inline float times_less(float x, float y, float z) {
#ifdef __FMA__
  return __builtin_fmaf(x, y, -z);
#else
  return x * y - z;
#endif
}

inline void raise_lane_votes(const float* block, std::int64_t n_rows, const float* factor, const float* unit,
                             const float* offset, float* votes) {
  float best[kBlockRows];
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) best[lane] = votes[lane];
  const auto raise = [&](std::int64_t lane, float vote) {
    best[lane] = vote > best[lane] ? vote : best[lane];
  };
  for (std::int64_t row = 0; row < n_rows; ++row) {
    const float* line = block + row * kBlockRows;
    if (factor) {
      for (std::int64_t lane = 0; lane < kBlockRows; ++lane)
        raise(lane, times_less(line[lane], factor[row] * unit[lane], offset[row]));
    } else {
      for (std::int64_t lane = 0; lane < kBlockRows; ++lane) raise(lane, line[lane] - offset[row]);
    }
  }
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) votes[lane] = best[lane];
}

}  // namespace
}  // namespace headwater::cpu
