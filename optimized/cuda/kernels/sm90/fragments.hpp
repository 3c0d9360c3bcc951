#pragma once

#include "cuda/kernels/sm90/annotations.hpp"

namespace headwater::cuda::sm90 {

inline constexpr int kWarpgroup = 128;                      ///< threads that issue a wgmma together
inline constexpr int kFragmentRows = 64;                    ///< rows of a wgmma
inline constexpr int kFragmentColumns = 128;                ///< columns of every wgmma here (m64n128k16)
inline constexpr int kAccumulators = kFragmentColumns / 2;  ///< registers of a thread for one of them

/// Which element of a 64-row operand or result a register of a thread holds.
struct FragmentPlace {
  int row;
  int column;
};

/// Result of m64nNk16, F32: register `i` of thread `t` of the warpgroup (PTX ISA, "Register Fragments for
/// wgmma.mma_async.m64nNk16"). A thread has two rows, 8 apart, and of each two neighbouring columns in every eight.
HEADWATER_CUDA_BOTH constexpr FragmentPlace accumulator_place(int t, int i) {
  const int lane = t % 32;
  return {16 * (t / 32) + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

/// A operand of m64k16 in registers: half `h` (0: low) of register `r` (0..3).
HEADWATER_CUDA_BOTH constexpr FragmentPlace operand_place(int t, int r, int h) {
  const int lane = t % 32;
  return {16 * (t / 32) + lane / 4 + 8 * (r % 2), 8 * (r / 2) + 2 * (lane % 4) + h};
}

/// The accumulator whose value, rounded, is half `h` of register `r` of the A operand that has the columns
/// [16 step, 16 step + 16) of the result as its k. So weights go from one product into the next without leaving
/// their thread.
HEADWATER_CUDA_BOTH constexpr int accumulator_of_operand(int step, int r, int h) {
  return 8 * step + 2 * r + h;
}

}  // namespace headwater::cuda::sm90
