#pragma once

#include <cstdint>

#include "cuda/kernels/sm90/shared_tile.hpp"

namespace headwater::cuda::sm90 {

/// What one TMA tensor map says: a strided view of 16-bit elements with four axes, and the box that a copy brings into shared
/// memory. Axes: column of a row, token inside its chunk, chunk, head. A box that reaches over the end of an axis is
/// filled with zeros there; because tokens end at the chunk, no row of a later chunk, and nothing after the last row, is
/// ever read (NUM-2).
struct TileMap {
  static constexpr int kAxes = 4;
  const void* base = nullptr;
  std::int64_t sizes[kAxes] = {};        ///< elements, of each axis
  std::int64_t strides[kAxes - 1] = {};  ///< bytes from one token, chunk, head to the next
  int box[kAxes] = {};                   ///< elements, of each axis
};

/// What a box writes into shared memory: always all of it, zeros included. The transaction count of its barrier.
constexpr std::uint32_t box_bytes(const TileMap& map) {
  std::uint32_t elements = 1;
  for (const int extent : map.box) elements *= static_cast<std::uint32_t>(extent);
  return 2 * elements;
}

/// Where element (column, row) of a box of rows lands, from the box's start: line by line, swizzled.
constexpr std::uint32_t box_offset(int column, int row) {
  return swizzled(static_cast<std::uint32_t>(row) * kLineBytes + 2u * static_cast<std::uint32_t>(column));
}

/// Chunks of equal length in a strided array of rows: what the kernels read Q, K and V through. Strides in elements.
struct RowsOfChunks {
  const void* base;
  int columns;  ///< of a row; those of a box after them are zeros
  int tokens;   ///< of each chunk
  int chunks;
  int heads;
  std::int64_t token_stride;
  std::int64_t head_stride;
};

/// The map whose boxes are kLineElements columns of `rows` tokens.
constexpr TileMap tile_map(const RowsOfChunks& view, int rows) {
  TileMap map;
  map.base = view.base;
  const std::int64_t sizes[] = {view.columns, view.tokens, view.chunks, view.heads};
  const std::int64_t strides[] = {2 * view.token_stride, 2 * view.token_stride * view.tokens,
                                  2 * view.head_stride};
  const int box[] = {kLineElements, rows, 1, 1};
  for (int axis = 0; axis < TileMap::kAxes; ++axis) map.sizes[axis] = sizes[axis];
  for (int axis = 0; axis < TileMap::kAxes; ++axis) map.box[axis] = box[axis];
  for (int axis = 0; axis + 1 < TileMap::kAxes; ++axis) map.strides[axis] = strides[axis];
  return map;
}

}  // namespace headwater::cuda::sm90
