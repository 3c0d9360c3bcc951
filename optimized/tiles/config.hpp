#pragma once

#include <cstdint>

namespace headwater {

/// Memory operand of LDTILECFG; eight tiles of 16 rows x 64 bytes unless changed.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

inline constexpr TileConfig kFullTiles;

}  // namespace headwater
