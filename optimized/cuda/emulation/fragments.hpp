#pragma once

#include <cstdint>

#include "cuda/kernels/platform/platform.hpp"

/// Where the elements of a matrix are in a warp's registers: PTX ISA, "Matrix Fragments for mma.m16n8k16 with
/// floating point type" and "ldmatrix".
namespace headwater::cuda::emulation {

struct Element {
  int row;
  int column;
};

/// A, 16 x 16: half `half` (0: lower) of register `r` (0 .. 3) of `lane`.
constexpr Element fragment_a(int lane, int r, int half) {
  return {lane / 4 + r % 2 * 8, lane % 4 * 2 + half + r / 2 * 8};
}

/// B, 16 x 8: half `half` of register `r` (0 .. 1).
constexpr Element fragment_b(int lane, int r, int half) { return {lane % 4 * 2 + half + r * 8, lane / 4}; }

/// C, 16 x 8: register `r` (0 .. 3), one F32 each.
constexpr Element fragment_c(int lane, int r) { return {lane / 4 + r / 2 * 8, lane % 4 * 2 + r % 2}; }

/// ldmatrix: half `half` of the register that `lane` gets of an 8 x 8 matrix; with .trans its row and column change
/// places.
constexpr Element fragment_8x8(int lane, int half) { return {lane / 4, lane % 4 * 2 + half}; }

/// One lane's registers.
struct MmaRegisters {
  float* c;
  const std::uint32_t* a;
  const std::uint32_t* b;
};

enum class HalfType { bf16, f16 };

/// c += a b over the fragments of all 32 lanes; products exact, sums in F32 by ascending k, c last.
void multiply_16x8x16(const MmaRegisters (&lanes)[kWarp], HalfType type);

}  // namespace headwater::cuda::emulation
