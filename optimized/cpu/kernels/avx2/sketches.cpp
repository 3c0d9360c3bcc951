// Votes by sketches in integers of 16 bits (AVX2, FMA). Kernels and their table only: all code here is built for such a
// processor. Products of bytes would have to be kept from saturating, at the price of what they save.

#include <immintrin.h>

#include "cpu/kernels/sketch_table.hpp"
#include "cpu/kernels/sketches.hpp"
#include "tiles/repeat.hpp"

namespace headwater::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kVectors = static_cast<int>(kKeyTile / kLanes);

std::int64_t tile_bytes(std::int64_t width) { return 2 * width * kKeyTile; }

/// To tile[width / 2][kKeyTile][2].
void pack(const float* integers, std::int64_t n, std::int64_t width, unsigned char* tile) {
  for (std::int64_t key = 0; key < n; ++key) {
    for (std::int64_t pair = 0; pair < width / 2; ++pair) {
      std::int16_t both[2];
      for (int i = 0; i < 2; ++i) both[i] = static_cast<std::int16_t>(integers[key * width + 2 * pair + i]);
      __builtin_memcpy(tile + (pair * kKeyTile + key) * 4, both, sizeof both);
    }
  }
}

/// Rows x a tile of keys: two products are added in each lane at a time.
template <int Rows>
void raise_of_rows(const SketchedRows& rows, std::int64_t row, const unsigned char* tile,
                   const __m256 (&unit)[kVectors], __m256 (&best)[kVectors]) {
  alignas(32) std::int16_t wide[Rows][kMostSketchColumns];
  repeat<Rows>([&](auto r) {
    const std::uint8_t* integers = rows.bytes + (row + r) * rows.width;
    for (std::int64_t x = 0; x < rows.width; x += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(integers + x));
      _mm256_store_si256(reinterpret_cast<__m256i*>(wide[r] + x), _mm256_cvtepi8_epi16(bytes));
    }
  });
  __m256i sums[Rows][kVectors];
  repeat<Rows>([&](auto r) { repeat<kVectors>([&](auto v) { sums[r][v] = _mm256_setzero_si256(); }); });
  for (std::int64_t pair = 0; pair < rows.width / 2; ++pair) {
    __m256i query[Rows];
    repeat<Rows>([&](auto r) {
      std::int32_t both = 0;
      __builtin_memcpy(&both, wide[r] + 2 * pair, sizeof both);
      query[r] = _mm256_set1_epi32(both);
    });
    repeat<kVectors>([&](auto v) {
      const __m256i keys =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + (pair * kKeyTile + v * kLanes) * 4));
      repeat<Rows>(
          [&](auto r) { sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(keys, query[r])); });
    });
  }
  repeat<Rows>([&](auto r) {
    const __m256 factor = _mm256_set1_ps(rows.factor[row + r]);
    const __m256 offset = _mm256_set1_ps(rows.offset[row + r]);
    repeat<kVectors>([&](auto v) {
      const __m256 vote =
          _mm256_fmsub_ps(_mm256_cvtepi32_ps(sums[r][v]), _mm256_mul_ps(factor, unit[v]), offset);
      best[v] = _mm256_max_ps(vote, best[v]);
    });
  });
}

void raise_votes(const SketchedRows& rows, const unsigned char* tiles, const float* units,
                 std::int64_t n_tiles, float* votes) {
  for (std::int64_t tile = 0; tile < n_tiles; ++tile) {
    __m256 unit[kVectors], best[kVectors];
    repeat<kVectors>([&](auto v) {
      unit[v] = _mm256_loadu_ps(units + tile * kKeyTile + v * kLanes);
      best[v] = _mm256_loadu_ps(votes + tile * kKeyTile + v * kLanes);
    });
    const unsigned char* keys = tiles + tile * tile_bytes(rows.width);
    std::int64_t row = 0;
    for (; row + 2 <= rows.n; row += 2) raise_of_rows<2>(rows, row, keys, unit, best);
    if (row < rows.n) raise_of_rows<1>(rows, row, keys, unit, best);
    repeat<kVectors>([&](auto v) { _mm256_storeu_ps(votes + tile * kKeyTile + v * kLanes, best[v]); });
  }
}

}  // namespace

constinit const SketchTable avx2_sketches = {
    .tile_bytes = tile_bytes, .pack_rows = pack_sketched_rows<0>, .pack = pack, .raise_votes = raise_votes};

}  // namespace headwater::cpu
