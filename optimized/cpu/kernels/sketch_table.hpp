#pragma once

#include <cstdint>

#include "cpu/kernels/table.hpp"

namespace headwater::cpu {

/// Rows of a query block whose sketches vote (SKE-6).
struct SketchedRows {
  /// Bytes of n rows and of what kernels that take rows in tiles read after them.
  static constexpr std::int64_t readable_bytes(std::int64_t n, std::int64_t width) {
    return (n + 16) * width;
  }

  std::int64_t n = 0;
  std::int64_t width = 0;  ///< integers of a sketch
  /// [n][width] integers from SketchTable::pack_rows(), readable_bytes().
  const std::uint8_t* bytes = nullptr;
  const float* factor = nullptr;  ///< scale times the row's unit
  const float* offset = nullptr;  ///< the row's own weight (SKE-5)
};

/// Kernels that multiply sketches in integers.
struct SketchTable {
  std::int64_t (*tile_bytes)(std::int64_t width);  ///< of kKeyTile packed sketches

  /// n integers of rows as raise_votes() reads them.
  void (*pack_rows)(const float* integers, std::int64_t n, std::uint8_t* bytes);

  /// The integers of n <= kKeyTile sketches as raise_votes() reads them, into a tile.
  void (*pack)(const float* integers, std::int64_t n, std::int64_t width, unsigned char* tile);

  /// SKE-6 without cap and slope: votes[key] = the largest of votes[key] and product * (factor * units[key]) - offset over
  /// all rows, for the keys of n_tiles tiles; a NaN is never larger.
  void (*raise_votes)(const SketchedRows& rows, const unsigned char* tiles, const float* units,
                      std::int64_t n_tiles, float* votes);
};

extern const SketchTable avx2_sketches;
extern const SketchTable avx512vnni_sketches;
extern const SketchTable amx_sketches;
#ifdef HEADWATER_TESTING
extern const SketchTable amx_emulated_sketches;
#endif

}  // namespace headwater::cpu
