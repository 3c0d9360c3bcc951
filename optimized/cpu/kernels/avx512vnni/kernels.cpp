// Votes by sketches in bytes (AVX-512 F, DQ, BW, VL, VNNI). Kernels and their table only: all code here is built for such a
// processor.

#include "cpu/kernels/wide/kernels.hpp"
#include "cpu/kernels/avx512/vector.hpp"
#include "cpu/kernels/avx512vnni/table.hpp"

namespace headwater::cpu {
namespace {

inline constexpr int kHalves = static_cast<int>(kKeyTile / Avx512::kWidth);  // vectors of a tile

void pack(const float* integers, std::int64_t n, std::uint8_t* tile) {
  const __m512i bias = _mm512_set1_epi32(128);
  for (std::int64_t key = 0; key < n; ++key) {
    std::uint32_t fours[kSketchColumns / 4];
    for (std::int64_t x = 0; x < kSketchColumns; x += 16) {
      const __m512i row = _mm512_cvtps_epi32(Avx512::load(integers + key * kSketchColumns + x));
      const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(row, bias));
      __builtin_memcpy(fours + x / 4, &bytes, sizeof bytes);
    }
    for (std::int64_t i = 0; i < kSketchColumns / 4; ++i) {
      __builtin_memcpy(tile + (i * kKeyTile + key) * 4, &fours[i], 4);
    }
  }
}

/// Rows x Tiles of keys: four products are added in each lane at a time, a key's bytes unsigned and a row's signed.
template <int Rows, int Tiles>
void raise_tile_votes(const SketchedRows& rows, const std::uint8_t* tiles, const float* units, float* votes) {
  constexpr int kVectors = Tiles * kHalves;
  constexpr std::int64_t kTileBytes = kSketchColumns * kKeyTile;
  __m512 best[kVectors];
  repeat<kVectors>([&](auto v) { best[v] = Avx512::load(votes + v * Avx512::kWidth); });
  std::int64_t row = 0;
  const auto step = [&](auto n) {
    __m512i sums[n][kVectors];
    repeat<n>([&](auto r) {
      repeat<kVectors>([&](auto v) { sums[r][v] = _mm512_set1_epi32(rows.shift[row + r]); });
    });
    for (std::int64_t x = 0; x < kSketchColumns; x += 4) {
      __m512i keys[kVectors];
      repeat<kVectors>([&](auto v) {
        keys[v] = _mm512_loadu_si512(tiles + v / kHalves * kTileBytes + x * kKeyTile + v % kHalves * 64);
      });
      repeat<n>([&](auto r) {
        std::int32_t four = 0;
        __builtin_memcpy(&four, rows.bytes + (row + r) * kSketchColumns + x, sizeof four);
        const __m512i query = _mm512_set1_epi32(four);
        repeat<kVectors>([&](auto v) { sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], keys[v], query); });
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

void raise_votes(const SketchedRows& rows, const std::uint8_t* tiles, const float* units,
                 std::int64_t n_tiles, float* votes) {
  const auto run = [&](auto n, std::int64_t tile) {
    raise_tile_votes<4, n>(rows, tiles + tile * kSketchColumns * kKeyTile, units + tile * kKeyTile,
                           votes + tile * kKeyTile);
  };
  std::int64_t tile = 0;
  for (; tile + 2 <= n_tiles; tile += 2) run(Place<2>{}, tile);
  if (tile < n_tiles) run(Place<1>{}, tile);
}

}  // namespace

constinit const ByteTable avx512vnni_kernels = {.pack = pack, .raise_votes = raise_votes};

}  // namespace headwater::cpu
