#pragma once

#include <cstdint>

#include "cpu/kernels/table.hpp"

namespace headwater::cpu {

/// Rows of a query block whose sketches vote (SKE-6).
struct SketchedRows {
  std::int64_t n = 0;
  const std::int8_t* bytes = nullptr;   ///< [n][kSketchColumns], their integers
  const std::int32_t* shift = nullptr;  ///< -128 times the sum of a row's integers
  const float* factor = nullptr;        ///< scale times the row's unit
  const float* offset = nullptr;        ///< the row's own weight (SKE-5)
};

/// Kernels that multiply sketches in bytes.
struct ByteTable {
  /// The integers of n <= kKeyTile sketches to tile[kSketchColumns / 4][kKeyTile][4], each plus 128.
  void (*pack)(const float* integers, std::int64_t n, std::uint8_t* tile);

  /// SKE-6 without cap and slope: votes[key] = the largest of votes[key] and product * (factor * units[key]) - offset over
  /// all rows, for the keys of n_tiles tiles; a NaN is never larger.
  void (*raise_votes)(const SketchedRows& rows, const std::uint8_t* tiles, const float* units,
                      std::int64_t n_tiles, float* votes);
};

extern const ByteTable avx512vnni_kernels;

}  // namespace headwater::cpu
