#pragma once

/// The kernels of table.hpp for votes by sketches (SKE), in loops that compilers vectorise. Included by one file per ISA:
/// everything sits in an unnamed namespace and nothing of the standard library is used, as in wide/kernels.hpp.

#include "cpu/kernels/table.hpp"

namespace headwater::cpu {
namespace {

/// Adding and subtracting it rounds |x| < 2^22 to the nearest integer, ties to even.
inline constexpr float kRoundsToInteger = 12582912.0f;

/// The columns of a row from the first on, widened. Bits: the type of a stored element.
template <class Bits, class Widen>
inline void take_columns(const unsigned char* row, const SketchColumns& columns, std::int64_t first,
                         const Widen& widen, float* to) {
  for (std::int64_t x = first; x < columns.n; ++x) {
    Bits bits = 0;
    __builtin_memcpy(&bits, row + columns.column[x] * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    to[x] = widen(bits);
  }
}

/// Columns in whole vectors of a row, for ISAs whose V::store_chosen() packs lanes.
template <class V>
struct ChosenLanes {
  explicit ChosenLanes(const SketchColumns& columns) {
    const std::int64_t whole = columns.of / V::kWidth;
    const std::int64_t end = (whole < kMostVectors ? whole : kMostVectors) * V::kWidth;
    for (; n < columns.n && columns.column[n] < end; ++n) {
      const std::int32_t column = columns.column[n];
      while (vectors <= column / V::kWidth) first[vectors] = n, mask[vectors++] = 0;
      mask[vectors - 1] |= static_cast<typename V::Mask>(1u << column % V::kWidth);
    }
  }

  template <DType Type>
  void take(const unsigned char* row, float* to) const {
    constexpr std::int64_t kVectorBytes = V::kWidth * (Type == DType::f32 ? 4 : 2);
    for (std::int64_t v = 0; v < vectors; ++v, row += kVectorBytes) {
      if constexpr (Type == DType::f32)
        V::store_chosen(to + first[v], mask[v], V::load(reinterpret_cast<const float*>(row)));
      if constexpr (Type == DType::f16) V::store_chosen(to + first[v], mask[v], V::load_f16(row));
      if constexpr (Type == DType::bf16) V::store_chosen(to + first[v], mask[v], V::load_bf16(row));
    }
  }

  static constexpr std::int64_t kMostVectors = 64;
  std::int64_t n = 0;  // columns in them
  std::int64_t vectors = 0;
  std::int64_t first[kMostVectors];  // columns before the vector
  typename V::Mask mask[kMostVectors];
};

/// The same where the ISA has no such instruction: none.
struct NoLanes {
  explicit NoLanes(const SketchColumns&) {}
  template <DType>
  void take(const unsigned char*, float*) const {}
  static constexpr std::int64_t n = 0;
};

/// SKE-4. V: one_f16() and one_bf16() widen an element.
template <class V>
void sketch_rows(const void* rows, std::int64_t stride, std::int64_t n_rows, DType type,
                 const SketchColumns& columns, float* integers, float* units) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  constexpr std::int64_t kPadding = 16;  // lanes after the chosen ones become zeros
  float taken[kMostSketchColumns + kPadding] = {};
  const auto lanes = [&] {
    if constexpr (requires { V::store_chosen; })
      return ChosenLanes<V>(columns);
    else
      return NoLanes(columns);
  }();
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const auto* row = static_cast<const unsigned char*>(rows) + r * stride;
    switch (type) {
      case DType::f32:
        lanes.template take<DType::f32>(row, taken);
        take_columns<std::uint32_t>(
            row, columns, lanes.n, [](std::uint32_t bits) { return __builtin_bit_cast(float, bits); }, taken);
        break;
      case DType::f16:
        lanes.template take<DType::f16>(row, taken);
        take_columns<std::uint16_t>(row, columns, lanes.n, V::one_f16, taken);
        break;
      case DType::bf16:
        lanes.template take<DType::bf16>(row, taken);
        take_columns<std::uint16_t>(row, columns, lanes.n, V::one_bf16, taken);
        break;
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
