#include "cuda/emulation/fragments.hpp"

#include <cstring>

#include "core/numbers.hpp"

namespace headwater::cuda::emulation {
namespace {

float widened(std::uint32_t pair, int half, HalfType type) {
  const auto bits = static_cast<std::uint16_t>(pair >> 16 * half);
  return type == HalfType::bf16 ? core::float_from_bf16(bits) : core::float_from_f16(bits);
}

template <HalfType type>
void gather(const MmaRegisters (&lanes)[kWarp], float (&a)[16][16], float (&b)[16][8]) {
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int half = 0; half < 2; ++half) {
        const Element at = fragment_a(lane, r, half);
        a[at.row][at.column] = widened(lanes[lane].a[r], half, type);
      }
    }
    for (int r = 0; r < 2; ++r) {
      for (int half = 0; half < 2; ++half) {
        const Element at = fragment_b(lane, r, half);
        b[at.row][at.column] = widened(lanes[lane].b[r], half, type);
      }
    }
  }
}

}  // namespace

void multiply_16x8x16(const MmaRegisters (&lanes)[kWarp], HalfType type) {
  float a[16][16];
  float b[16][8];
  if (type == HalfType::bf16) {
    gather<HalfType::bf16>(lanes, a, b);
  } else {
    gather<HalfType::f16>(lanes, a, b);
  }
  // A row of b or of the sums as one vector: g++ 12 vectorises loops over columns with more shuffles than products.
  using Columns [[gnu::vector_size(sizeof b[0])]] = float;
  Columns rows[16];
  static_assert(sizeof rows == sizeof b);
  std::memcpy(rows, b, sizeof b);
  Columns sums[16] = {};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) sums[row] += a[row][k] * rows[k];
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const Element at = fragment_c(lane, r);
      lanes[lane].c[r] += sums[at.row][at.column];
    }
  }
}

}  // namespace headwater::cuda::emulation
