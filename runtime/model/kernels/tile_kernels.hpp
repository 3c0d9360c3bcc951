#pragma once

#include <cstdint>

namespace headwater::runtime {

/// Rows and columns of the result that tile kernels make at once.
inline constexpr std::int64_t kStripRows = 32;
inline constexpr std::int64_t kStripColumns = 128;
/// Rows of a tile, columns of a packed one, and elements of a row in it.
inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth = 32;

/// Sixteen rows of BF16 as tiles: row r of tile i begins at first + i * apart + r * stride, in elements.
struct RowTiles {
  const std::uint16_t* first = nullptr;
  std::int64_t stride = 0;
  std::int64_t apart = 0;
};

/// The products of one or two RowTiles with a packed panel, over elements [begin, end) of the depth.
struct TileStrip {
  const RowTiles* rows = nullptr;
  int row_tiles = 0;       ///< 1 or 2
  std::int64_t depth = 0;  ///< like begin and end a multiple of kTileDepth
  std::int64_t begin = 0;  ///< above 0: added to the sums of the elements before
  std::int64_t end = 0;
  const std::uint16_t* packed = nullptr;  ///< [column / 16][depth / 2][16][2]
  std::int64_t columns = 0;               ///< a multiple of 32
  const std::uint16_t* next =
      nullptr;  ///< two tiles of rows, arranged, to prefetch into the second-level cache
};

/// Products of BF16 by AMX. Contracts: panel_product.hpp.
struct TileKernels {
  /// Sixteen rows side by side to tiles of kTileDepth elements one after the other, in place; `scratch`: as many elements.
  void (*arrange)(std::uint16_t* rows, std::int64_t depth, std::uint16_t* scratch);
  /// out[column / kStripColumns][row][column % kStripColumns], rows 16 * row_tiles of kStripRows.
  void (*multiply)(const TileStrip& strip, float* out);
};

extern const TileKernels amx_tile_kernels;

}  // namespace headwater::runtime
