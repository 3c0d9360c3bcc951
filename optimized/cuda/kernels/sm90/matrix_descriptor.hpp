#pragma once

#include <cstdint>

#include "cuda/kernels/sm90/shared_tile.hpp"

namespace headwater::cuda::sm90 {

/// The 64-bit shared-memory operand of wgmma (PTX ISA, "Matrix Descriptor Format"): start address, two byte offsets between
/// repetitions of the swizzle's pattern, each in units of 16 bytes, and the swizzle. Which offset runs along which axis
/// depends on which axis is contiguous:
///
/// | operand | contiguous | leading offset | stride offset |
/// | --- | --- | --- | --- |
/// | k-major, 128-byte swizzle | k | unused: 16 elements of k never leave a line | from 8 rows to the next 8 |
/// | transposed, 128-byte swizzle | rows (m or n) | from 64 rows to the next 64 | from 8 of k to the next 8 |
struct MatrixDescriptor {
  std::uint64_t bits;

  static constexpr std::uint64_t kSwizzle128 = 1ull << 62;

  static HEADWATER_CUDA_BOTH constexpr std::uint64_t field(std::uint32_t bytes) {
    return (bytes & 0x3FFFFu) >> 4;
  }

  /// `bytes` further on in shared memory.
  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr MatrixDescriptor advanced(std::uint32_t bytes) const {
    return {bits + (bytes >> 4)};
  }
};

/// Step of one wgmma along k (16 elements), for 16-bit elements.
inline constexpr int kStepK = 16;

/// Rows x k operand whose k is contiguous: Q and K of S = Q K^T. `address` is that of the tile plus a multiple of eight
/// lines; k step `step` counts in kStepK.
template <class Tile>
HEADWATER_CUDA_BOTH constexpr MatrixDescriptor k_major(std::uint32_t address, int step) {
  constexpr int kStepsOfBox = kLineElements / kStepK;
  const std::uint32_t box = static_cast<std::uint32_t>(step / kStepsOfBox) * Tile::kBoxBytes;
  const std::uint32_t within = static_cast<std::uint32_t>(step % kStepsOfBox) * (2u * kStepK);
  return {MatrixDescriptor::kSwizzle128 | MatrixDescriptor::field(address + box + within) |
          MatrixDescriptor::field(16) << 16 | MatrixDescriptor::field(kSwizzleBytes) << 32};
}

/// Columns x k operand whose columns are contiguous: V of O = P V, k its keys.
template <class Tile>
HEADWATER_CUDA_BOTH constexpr MatrixDescriptor column_major(std::uint32_t address, int step) {
  const std::uint32_t keys = static_cast<std::uint32_t>(step) * kStepK * kLineBytes;
  return {MatrixDescriptor::kSwizzle128 | MatrixDescriptor::field(address + keys) |
          MatrixDescriptor::field(Tile::kBoxBytes) << 16 | MatrixDescriptor::field(kSwizzleBytes) << 32};
}

}  // namespace headwater::cuda::sm90
