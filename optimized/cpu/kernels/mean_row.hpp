#pragma once

/// KernelTable::mean_row of every table. Compiled for the ISA of the file that includes it: everything sits in an unnamed
/// namespace.

#include <cstdint>

#include "headwater/options.hpp"

namespace headwater::cpu {
namespace {

/// `Widen`: KernelTable::widen.
template <void (*Widen)(const void* from, DType type, std::int64_t count, float* to)>
void mean_row(const void* rows, std::int64_t stride, std::int64_t n_rows, DType type, std::int64_t n,
              float count, float scale, float* to) {
  constexpr std::int64_t kPiece = 64;  // columns at a time
  const std::int64_t element = type == DType::f32 ? 4 : 2;
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t some = n - first < kPiece ? n - first : kPiece;
    const auto* from = static_cast<const unsigned char*>(rows) + first * element;
    float sum[kPiece] = {};
    float row[kPiece] = {};
    for (std::int64_t r = 0; r < n_rows; ++r) {
      Widen(from + r * stride, type, some, row);
      for (std::int64_t x = 0; x < kPiece; ++x) sum[x] += row[x];
    }
    for (std::int64_t x = 0; x < kPiece; ++x) sum[x] = sum[x] / count * scale;
    __builtin_memcpy(to + first, sum, static_cast<std::size_t>(some) * sizeof(float));
  }
}

}  // namespace
}  // namespace headwater::cpu
