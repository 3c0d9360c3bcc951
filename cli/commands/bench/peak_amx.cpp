#include <immintrin.h>

#include <cstring>

#include "cli/commands/bench/peak.hpp"

namespace headwater::bench {

namespace {

constexpr int kRows = 16;
constexpr int kRowBytes = 64;  // 32 BF16, or 16 F32

/// The operand of LDTILECFG (Intel SDM, volume 1, chapter 18).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

}  // namespace

// TDPBF16PS on four accumulators from two tiles of each operand, as a kernel of 32 x 32 logits would: 16 x 16 sums of
// 32 products, 16384 flops an instruction. Tiles are renamed, so that four chains are plenty.
double amx_bf16_flops(std::int64_t turns) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kRowBytes;
    config.rows[tile] = kRows;
  }
  alignas(64) std::uint16_t tiny[kRows * kRowBytes / 2];
  for (std::uint16_t& value : tiny) value = 0x2f80;  // 2^-32
  // The intrinsics of g++ 12 say of their operands' memory only a word, or nothing: without this it may never be written.
  asm volatile("" : : "r"(&config), "r"(tiny) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, tiny, kRowBytes);
  _tile_loadd(5, tiny, kRowBytes);
  _tile_loadd(6, tiny, kRowBytes);
  _tile_loadd(7, tiny, kRowBytes);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return static_cast<double>(turns) * 4.0 * 16384.0;
}

}  // namespace headwater::bench
