// Votes by sketches in bytes (AVX-512 F, DQ, BW, VL, VNNI). Kernels and their table only: all code here is built for such a
// processor.

#include "cpu/kernels/sketches.hpp"
#include "cpu/kernels/avx512/vector.hpp"
#include "cpu/kernels/sketch_table.hpp"
#include "cpu/kernels/wide/kernels.hpp"

namespace headwater::cpu {
namespace {

constexpr int kHalves = static_cast<int>(kKeyTile / Avx512::kWidth);  // vectors of a tile
constexpr int kRowBias = 128;

/// Bytes of a tile: products, and a number for each key.
std::int64_t tile_bytes(std::int64_t width) { return (width + 4) * kKeyTile; }

/// To tile[width / 4][kKeyTile][4] and, for each key, -kRowBias times the sum of its integers.
void pack(const float* integers, std::int64_t n, std::int64_t width, unsigned char* tile) {
  for (std::int64_t key = 0; key < n; ++key) {
    std::uint32_t fours[kMostSketchColumns / 4];
    __m512i sum = _mm512_setzero_si512();
    for (std::int64_t x = 0; x < width; x += 16) {
      const __m512i row = _mm512_cvtps_epi32(Avx512::load(integers + key * width + x));
      sum = _mm512_sub_epi32(sum, row);
      const __m128i bytes = _mm512_cvtepi32_epi8(row);
      __builtin_memcpy(fours + x / 4, &bytes, sizeof bytes);
    }
    for (std::int64_t i = 0; i < width / 4; ++i) {
      __builtin_memcpy(tile + (i * kKeyTile + key) * 4, &fours[i], 4);
    }
    const std::int32_t shift = kRowBias * _mm512_reduce_add_epi32(sum);
    __builtin_memcpy(tile + width * kKeyTile + key * 4, &shift, sizeof shift);
  }
}

/// Rows x Tiles of keys: four products are added in each lane at a time, a row's bytes unsigned and a key's signed.
template <int Rows, int Tiles>
void raise_tile_votes(const SketchedRows& rows, const unsigned char* tiles, const float* units,
                      float* votes) {
  constexpr int kVectors = Tiles * kHalves;
  const std::int64_t width = rows.width;
  const std::int64_t apart = tile_bytes(width);
  __m512 best[kVectors];
  repeat<kVectors>([&](auto v) { best[v] = Avx512::load(votes + v * Avx512::kWidth); });
  std::int64_t row = 0;
  const auto step = [&](auto n) {
    __m512i sums[n][kVectors];
    repeat<kVectors>([&](auto v) {
      const __m512i shift =
          _mm512_loadu_si512(tiles + v / kHalves * apart + width * kKeyTile + v % kHalves * 64);
      repeat<n>([&](auto r) { sums[r][v] = shift; });
    });
    const std::uint8_t* const queries = rows.bytes + row * width;
    for (std::int64_t lot = 0; lot < width; lot += kSketchLot) {
      repeat<kSketchLot / 4>([&](auto four) {
        const std::int64_t x = lot + 4 * four;
        __m512i keys[kVectors];
        repeat<kVectors>([&](auto v) {
          keys[v] = _mm512_loadu_si512(tiles + v / kHalves * apart + x * kKeyTile + v % kHalves * 64);
        });
        repeat<n>([&](auto r) {
          std::int32_t bytes = 0;
          __builtin_memcpy(&bytes, queries + r * width + x, sizeof bytes);
          const __m512i query = _mm512_set1_epi32(bytes);
          repeat<kVectors>([&](auto v) { sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], query, keys[v]); });
        });
      });
    }
    repeat<n>([&](auto r) {
      const __m512 factor = Avx512::set(rows.factor[row + r]);
      const __m512 offset = Avx512::set(rows.offset[row + r]);
      repeat<kVectors>([&](auto v) {
        const __m512 unit = Avx512::mul(factor, Avx512::load(units + v * Avx512::kWidth));
        best[v] = Avx512::max(_mm512_fmsub_ps(_mm512_cvtepi32_ps(sums[r][v]), unit, offset), best[v]);
      });
    });
    row += n;
  };
  while (row + Rows <= rows.n) step(Place<Rows>{});
  while (row < rows.n) step(Place<1>{});
  repeat<kVectors>([&](auto v) { Avx512::store(votes + v * Avx512::kWidth, best[v]); });
}

void raise_votes(const SketchedRows& rows, const unsigned char* tiles, const float* units,
                 std::int64_t n_tiles, float* votes) {
  const auto run = [&](auto n, std::int64_t tile) {
    raise_tile_votes<4, n>(rows, tiles + tile * tile_bytes(rows.width), units + tile * kKeyTile,
                           votes + tile * kKeyTile);
  };
  std::int64_t tile = 0;
  for (; tile + 2 <= n_tiles; tile += 2) run(Place<2>{}, tile);
  if (tile < n_tiles) run(Place<1>{}, tile);
}

}  // namespace

constinit const SketchTable avx512vnni_sketches = {.tile_bytes = tile_bytes,
                                                   .pack_rows = pack_sketched_rows<kRowBias>,
                                                   .pack = pack,
                                                   .raise_votes = raise_votes};

}  // namespace headwater::cpu
