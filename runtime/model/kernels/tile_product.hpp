#pragma once

/// The kernels of tile_kernels.hpp for any `Tiles` with the semantics of AMX-BF16 (amx/unit.hpp). Included by files that
/// hold nothing but kernels.
///
/// Two by two tiles are multiplied by four loads and four products. The rows of a part of the depth stay in the first-level
/// cache while the columns of a strip pass through from the second; the strip's sums are stored and loaded again between parts.

#include "runtime/model/kernels/tile_kernels.hpp"

namespace headwater::runtime {
namespace {

/// Elements of a part of the depth: 32 rows of them take three quarters of a first-level cache of 48 KiB.
inline constexpr std::int64_t kMostPart = 576;
inline constexpr std::int64_t kTile = kTileRows * kTileDepth;  // elements
inline constexpr std::int64_t kPairColumns = 2 * kTileRows;    // of the result, made at once

/// The columns of two packed tiles over `steps` tiles of the rows' depth. `fresh`: out holds nothing yet.
template <class Tiles, int RowTilesOf>
inline void multiply_pair(const RowTiles* rows, const std::uint16_t* packed, std::int64_t columns_apart,
                          std::int64_t steps, const std::uint16_t*& next, bool fresh, float* out) {
  // Two columns' share of the next rows: two lines of either tile in a step, when a panel has sixteen tiles of columns.
  constexpr std::int64_t kRow = kStripColumns * sizeof(float);
  constexpr std::int64_t kPackedRow = kTileDepth * sizeof(std::uint16_t);
  constexpr std::int64_t kCacheLine = 32;  // elements
  float* const right = out + kTileRows;
  float* const below = out + kTileRows * kStripColumns;
  float* const last = below + kTileRows;
  if (fresh) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if constexpr (RowTilesOf == 2) {
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    }
  } else {
    Tiles::template load<0>(out, kRow);
    Tiles::template load<1>(right, kRow);
    if constexpr (RowTilesOf == 2) {
      Tiles::template load<2>(below, kRow);
      Tiles::template load<3>(last, kRow);
    }
  }
  const std::uint16_t* upper = rows[0].first;
  const std::uint16_t* lower = RowTilesOf == 2 ? rows[1].first : nullptr;
  const std::int64_t upper_stride = rows[0].stride * 2;
  const std::int64_t lower_stride = RowTilesOf == 2 ? rows[1].stride * 2 : 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    __builtin_prefetch(next, 0, 2);
    __builtin_prefetch(next + kCacheLine, 0, 2);
    __builtin_prefetch(next + columns_apart, 0, 2);
    __builtin_prefetch(next + columns_apart + kCacheLine, 0, 2);
    next += 2 * kCacheLine;
    Tiles::template load<4>(upper, upper_stride);
    Tiles::template stream<6>(packed, kPackedRow);
    Tiles::template multiply<0, 4, 6>();
    if constexpr (RowTilesOf == 2) {
      Tiles::template load<5>(lower, lower_stride);
      Tiles::template multiply<2, 5, 6>();
    }
    Tiles::template stream<7>(packed + columns_apart, kPackedRow);
    Tiles::template multiply<1, 4, 7>();
    if constexpr (RowTilesOf == 2) {
      Tiles::template multiply<3, 5, 7>();
      lower += rows[1].apart;
    }
    upper += rows[0].apart;
    packed += kTile;
  }
  Tiles::template store<0>(out, kRow);
  Tiles::template store<1>(right, kRow);
  if constexpr (RowTilesOf == 2) {
    Tiles::template store<2>(below, kRow);
    Tiles::template store<3>(last, kRow);
  }
}

template <class Tiles, int RowTilesOf>
inline void multiply_rows(const TileStrip& strip, float* out) {
  const typename Tiles::Session session;
  const std::int64_t before = strip.begin / kTileDepth;
  const std::int64_t all = strip.end / kTileDepth - before;
  const std::int64_t parts = (all * kTileDepth + kMostPart - 1) / kMostPart;
  const std::int64_t columns_apart = strip.depth * kTileRows;
  const std::uint16_t* next = strip.next + before * kTile;
  for (std::int64_t first = 0; first < strip.columns; first += kStripColumns) {
    const std::int64_t end = first + kStripColumns < strip.columns ? first + kStripColumns : strip.columns;
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t step = before + part * all / parts;
      const std::int64_t steps = before + (part + 1) * all / parts - step;
      RowTiles rows[RowTilesOf];
      for (int i = 0; i < RowTilesOf; ++i) {
        rows[i] = strip.rows[i];
        rows[i].first += step * rows[i].apart;
      }
      for (std::int64_t column = first; column < end; column += kPairColumns) {
        multiply_pair<Tiles, RowTilesOf>(rows,
                                         strip.packed + column / kTileRows * columns_apart + step * kTile,
                                         columns_apart, steps, next, step == 0, out + column - first);
      }
    }
    out += kStripRows * kStripColumns;
  }
}

template <class Tiles>
void multiply_strip(const TileStrip& strip, float* out) {
  if (strip.row_tiles == 2) {
    multiply_rows<Tiles, 2>(strip, out);
  } else {
    multiply_rows<Tiles, 1>(strip, out);
  }
}

inline void arrange_rows(std::uint16_t* rows, std::int64_t depth, std::uint16_t* scratch) {
  for (std::int64_t e = 0; e < depth; e += kTileDepth) {
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      __builtin_memcpy(scratch + e * kTileRows + r * kTileDepth, rows + r * depth + e,
                       kTileDepth * sizeof(std::uint16_t));
    }
  }
  __builtin_memcpy(rows, scratch, static_cast<std::size_t>(kTileRows * depth) * sizeof(std::uint16_t));
}

template <class Tiles>
constexpr TileKernels tile_kernels() {
  return {.arrange = arrange_rows, .multiply = multiply_strip<Tiles>};
}

}  // namespace
}  // namespace headwater::runtime
