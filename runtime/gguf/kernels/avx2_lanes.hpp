#pragma once

/// What products of many rows share in AVX2 (avx2_bytes.cpp, avx2_words.cpp): tiles of six rows and sixteen stored ones, whose
/// sums of a run are twelve of the sixteen registers. Included by kernels alone.

#include <immintrin.h>

#include <cstddef>

#include "optimized/tiles/repeat.hpp"
#include "runtime/gguf/kernels/groups.hpp"

namespace headwater::runtime {
namespace {

inline constexpr int kTileRows = 6;
inline constexpr int kHalves = 2;  // registers of eight stored rows

inline __m256i load(const std::byte* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256i four_bytes_each(const std::byte* p) {
  int bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return _mm256_set1_epi32(bytes);
}
inline __m256 float_each(const std::byte* p) { return _mm256_castsi256_ps(four_bytes_each(p)); }
inline __m256 eight_floats(const std::byte* p) { return _mm256_load_ps(reinterpret_cast<const float*>(p)); }

/// Has the compiler make these sums before the next rows'. It would load the activations of all rows first, and have no
/// registers left for sums.
inline void keep_in_registers(__m256i& first, __m256i& second) {
  asm volatile("" : "+x"(first), "+x"(second));
}

/// Adds integer sums of a part (a stretch of elements that share a scale), scaled, to the eight sums at `to`. At `scales`: those
/// of the stored rows; a line after them, where the type has them, their minima, which are multiplied with `total`.
template <class Block>
inline void add_scaled(__m256i products, const std::byte* scales, __m256i total, __m256 scale, float* to) {
  __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(products), eight_floats(scales));
  if constexpr (Block::kMinima) {
    scaled = _mm256_fnmadd_ps(eight_floats(scales + kLine), _mm256_cvtepi32_ps(total), scaled);
  }
  _mm256_store_ps(to, _mm256_fmadd_ps(scaled, scale, _mm256_load_ps(to)));
}

/// ByteKernels::unpack of rows as a file has them, to parts `Own`: put(codes of a row, its place in the part's first line) writes
/// its codes. In place of rows that are not there the last one stands again.
template <class Block, class Own, class Put>
inline void unpack_rows(const std::byte* rows, std::int64_t count, std::int64_t n, std::byte* out,
                        const Put& put) {
  const std::int64_t stride = n / Block::kElements * Block::kBytes;
  for (int row = 0; row < kGroupRows; ++row) {
    const std::byte* block = rows + (row < count ? row : count - 1) * stride;
    std::byte* to = out + 4 * row;
    for (std::int64_t at = 0; at < n; at += Block::kElements, block += Block::kBytes) {
      alignas(32) std::int8_t room[Block::kElements];
      float scales[16];
      float minima[16];
      const std::int8_t* const codes = Block::unpack(block, room, scales, minima);
      for (int part = 0; part < Block::kElements / Own::kElements; ++part, to += Own::kBytes) {
        put(codes + part * Own::kElements, to);
        __builtin_memcpy(to + Own::kScales, scales + part, sizeof(float));
        if constexpr (Block::kMinima)
          __builtin_memcpy(to + Own::kScales + kLine, minima + part, sizeof(float));
      }
    }
  }
}

inline void store_tile(const float (&sums)[kTileRows][kHalves][8], float* const (&out)[kTileRows]) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int half = 0; half < kHalves; ++half)
      _mm256_storeu_ps(out[r] + 8 * half, _mm256_load_ps(sums[r][half]));
  }
}

/// ByteKernels::multiply by Tile::multiply(unpacked group, n, rows x, places of their results); `Bytes`: of an unpacked group.
template <class Tile, std::int64_t (*Bytes)(std::int64_t)>
void multiply_in_tiles(const std::byte* unpacked, std::int64_t groups, std::int64_t n, const std::byte* x,
                       std::int64_t x_stride, std::int64_t rows, float* out, std::int64_t stride) {
  for (std::int64_t g = 0; g < groups; ++g, unpacked += Bytes(n)) {
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      const std::byte* from[kTileRows];
      float* to[kTileRows];
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        // Where fewer are left the last one is multiplied again, to the same place.
        const std::int64_t own = row + r < rows ? row + r : rows - 1;
        from[r] = x + own * x_stride;
        to[r] = out + own * stride + kGroupRows * g;
      }
      Tile::multiply(unpacked, n, from, to);
    }
  }
}

}  // namespace
}  // namespace headwater::runtime
