#pragma once

#include <cstdint>

#include "cuda/kernels/sm90/annotations.hpp"

namespace headwater::cuda::sm90 {

/// A line of a swizzled tile: what one row of a TMA box holds and what the swizzle permutes 16 bytes within.
inline constexpr std::uint32_t kLineBytes = 128;
/// 16-bit elements of a line.
inline constexpr int kLineElements = 64;
/// Eight lines repeat the pattern of the swizzle; a tile starts at a multiple of this.
inline constexpr std::uint32_t kSwizzleBytes = 8 * kLineBytes;

/// 128-byte swizzle: bits 4..6 of a shared-memory address are xored with bits 7..9 (PTX ISA, tensor swizzling modes). The
/// same map in the copy engine, in wgmma's descriptors and in a thread's own loads.
HEADWATER_CUDA_BOTH constexpr std::uint32_t swizzled(std::uint32_t address) {
  return address ^ ((address >> 3) & 0x70u);
}

/// A tile of `Rows` rows of `Columns` 16-bit elements in shared memory: one box of kLineElements columns after the other,
/// each row a line, swizzled.
template <int Rows, int Columns>
struct SharedTile {
  static_assert(Rows % 8 == 0 && Columns % kLineElements == 0);
  static constexpr int kRows = Rows;
  static constexpr int kBoxes = Columns / kLineElements;
  static constexpr std::uint32_t kBoxBytes = Rows * kLineBytes;
  static constexpr std::uint32_t kBytes = kBoxes * kBoxBytes;

  /// Byte of element (row, column) from the tile's start.
  static HEADWATER_CUDA_BOTH constexpr std::uint32_t offset(int row, int column) {
    const std::uint32_t box = static_cast<std::uint32_t>(column / kLineElements) * kBoxBytes;
    const std::uint32_t line = static_cast<std::uint32_t>(row) * kLineBytes;
    return box + swizzled(line + 2u * static_cast<std::uint32_t>(column % kLineElements));
  }

  alignas(1024) std::uint16_t elements[static_cast<unsigned>(Rows) * Columns];
};

}  // namespace headwater::cuda::sm90
