#pragma once

/// The kernels of sketch_table.hpp on any `Tiles` of unit.hpp which also has multiply_bytes<c, a, b>(), with the semantics of
/// TDPBSSD, and a Session of any TileConfig. Rows of queries are those of A, packed keys the fours of B, so that C is a
/// block of products, row by row. Sums are exact integers: votes have the bits of the AVX-512 VNNI kernels.

#include "cpu/kernels/avx512/vector.hpp"
#include "cpu/kernels/sketch_table.hpp"
#include "cpu/kernels/sketches.hpp"
#include "cpu/kernels/wide/kernels.hpp"
#include "headwater/testing/sabotage.hpp"
#include "tiles/config.hpp"

namespace headwater::cpu {
namespace {

template <class Tiles>
class TileSketches {
 public:
  static std::int64_t tile_bytes(std::int64_t width) { return steps(width) * step(width) * kKeyTile; }

  /// To tile[steps * step / 4][kKeyTile][4], zeros after the last integers.
  static void pack(const float* integers, std::int64_t n, std::int64_t width, unsigned char* tile) {
    for (std::int64_t key = 0; key < n; ++key) {
      for (std::int64_t x = 0; x < width; x += 16) {
        const __m128i bytes =
            _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(Avx512::load(integers + key * width + x)));
        std::uint32_t fours[4];
        __builtin_memcpy(fours, &bytes, sizeof bytes);
        for (int i = 0; i < 4; ++i) __builtin_memcpy(tile + (x / 4 + i) * kLine + key * 4, &fours[i], 4);
      }
    }
    const std::int64_t used = width * kKeyTile;
    __builtin_memset(tile + used, 0, static_cast<std::size_t>(tile_bytes(width) - used));
  }

  static void raise_votes(const SketchedRows& rows, const unsigned char* tiles, const float* units,
                          std::int64_t n_tiles, float* votes) {
    if (rows.n == 0) return;
    TileConfig config;
    for (const int tile : {2, 3}) config.row_bytes[tile] = static_cast<std::uint16_t>(step(rows.width));
    for (const int tile : {4, 5, 6, 7}) config.rows[tile] = static_cast<std::uint8_t>(step(rows.width) / 4);
    const typename Tiles::Session session(config);
    const std::int64_t n_steps = steps(rows.width);
    const auto all = n_steps == 1 ? raise_all<1> : n_steps == 2 ? raise_all<2> : raise_all<0>;
    all(rows, tiles, units, n_tiles, votes);
  }

 private:
  static constexpr std::int64_t kRows = 16;            // of a group, whose products are one tile high
  static constexpr std::int64_t kLine = kKeyTile * 4;  // bytes of a line of products or of packed fours
  static constexpr std::int64_t kHalfLine = kLine / 2;
  static constexpr int kVectors = static_cast<int>(kKeyTile / Avx512::kWidth);

  /// Integers that one multiply adds up. Wider sketches are padded to whole steps: a multiply takes the same time for any.
  static std::int64_t step(std::int64_t width) { return least(width, 64); }
  static std::int64_t steps(std::int64_t width) { return (width + step(width) - 1) / step(width); }

  /// The tiles of a key tile's steps stay where they are while all rows pass, if Steps, their number, is not 0.
  template <int Steps>
  static void load_keys(const unsigned char* keys) {
    if constexpr (Steps > 0) {
      Tiles::template load<4>(keys, kLine);
      Tiles::template load<5>(keys + kHalfLine, kLine);
    }
    if constexpr (Steps > 1) {
      Tiles::template load<6>(keys + kRows * kLine, kLine);
      Tiles::template load<7>(keys + kRows * kLine + kHalfLine, kLine);
    }
  }

  /// Rows after the last come from what stands after it, which is readable (SketchedRows::bytes).
  template <int Steps>
  static void multiply_group(const std::uint8_t* queries, std::int64_t width, const unsigned char* keys,
                             std::int32_t* products) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if constexpr (Steps > 0) {
      Tiles::template load<2>(queries, width);
      Tiles::template multiply_bytes<0, 2, 4>();
      Tiles::template multiply_bytes<1, 2, 5>();
      if constexpr (Steps > 1) {
        Tiles::template load<3>(queries + 64, width);
        Tiles::template multiply_bytes<0, 3, 6>();
        Tiles::template multiply_bytes<1, 3, 7>();
      }
    } else {
      for (std::int64_t x = 0; x < width; x += 64) {
        Tiles::template load<2>(queries + x, width);
        Tiles::template load<4>(keys + x * kKeyTile, kLine);
        Tiles::template multiply_bytes<0, 2, 4>();
        Tiles::template load<5>(keys + x * kKeyTile + kHalfLine, kLine);
        Tiles::template multiply_bytes<1, 2, 5>();
      }
    }
    Tiles::template store<0>(products, kLine);
    Tiles::template store<1>(products + kKeyTile / 2, kLine);
  }

  /// The next group of rows is multiplied before the votes of this one are computed: the two units overlap.
  template <int Steps>
  static void raise_all(const SketchedRows& rows, const unsigned char* tiles, const float* units,
                        std::int64_t n_tiles, float* votes) {
    alignas(64) std::int32_t products[2][kRows * kKeyTile];
    const std::int64_t width = rows.width;
    const std::int64_t apart = tile_bytes(width);
    std::int64_t n = rows.n;
    if (n > kRows && HEADWATER_SABOTAGE("cpu.amx.sketches_in_whole_tiles")) n -= n % kRows;
    const std::int64_t ahead = HEADWATER_SABOTAGE("cpu.amx.products_of_the_next_rows") ? 1 : 0;
    const std::int64_t groups = (n + kRows - 1) / kRows;
    for (std::int64_t tile = 0; tile < n_tiles;
         ++tile, tiles += apart, units += kKeyTile, votes += kKeyTile) {
      load_keys<Steps>(tiles);
      __m512 best[kVectors];
      __m512 unit[kVectors];
      repeat<kVectors>([&](auto v) {
        best[v] = Avx512::load(votes + v * Avx512::kWidth);
        unit[v] = Avx512::load(units + v * Avx512::kWidth);
      });
      multiply_group<Steps>(rows.bytes, width, tiles, products[0]);
      for (std::int64_t group = 0; group < groups; ++group) {
        if (group + 1 < groups) {
          multiply_group<Steps>(rows.bytes + (group + 1) * kRows * width, width, tiles,
                                products[(group + 1) & 1]);
        }
        const std::int32_t* line = products[(group + ahead) & 1];
        const std::int64_t end = least((group + 1) * kRows, n);
        for (std::int64_t row = group * kRows; row < end; ++row, line += kKeyTile) {
          const __m512 factor = Avx512::set(rows.factor[row]);
          const __m512 offset = Avx512::set(rows.offset[row]);
          repeat<kVectors>([&](auto v) {
            const __m512 product = _mm512_cvtepi32_ps(_mm512_load_si512(line + v * Avx512::kWidth));
            const __m512 vote = _mm512_fmsub_ps(product, Avx512::mul(factor, unit[v]), offset);
            best[v] = Avx512::max(vote, best[v]);
          });
        }
      }
      repeat<kVectors>([&](auto v) { Avx512::store(votes + v * Avx512::kWidth, best[v]); });
    }
  }
};

/// The table of a unit.
template <class Tiles>
constexpr SketchTable tile_sketches() {
  using Kernels = TileSketches<Tiles>;
  return {.tile_bytes = Kernels::tile_bytes,
          .pack_rows = pack_sketched_rows<0>,
          .pack = Kernels::pack,
          .raise_votes = Kernels::raise_votes};
}

}  // namespace
}  // namespace headwater::cpu
