#pragma once

#include "cuda/kernels/platform/platform.hpp"

/// Where the elements of an accumulator of mma.m16n8k16 stand (PTX ISA, "Matrix fragments for mma.m16n8k16"): element e
/// of n-tile t in a lane. The units of F32 arithmetic keep the same places, so that all that is not a product is shared.
namespace headwater::cuda {

inline constexpr int kFragmentRows = 16;    ///< rows of a warp
inline constexpr int kFragmentColumns = 8;  ///< columns of an n-tile

HEADWATER_CUDA_FUNCTION constexpr int fragment_row(int lane, int element) {
  return lane / 4 + 8 * (element / 2);
}
HEADWATER_CUDA_FUNCTION constexpr int fragment_column(int lane, int tile, int element) {
  return tile * kFragmentColumns + 2 * (lane % 4) + element % 2;
}

}  // namespace headwater::cuda
