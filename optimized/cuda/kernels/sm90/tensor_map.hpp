#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/sm90/tile_map.hpp"

namespace headwater::cuda::sm90 {

/// A tensor map as kernels take it in their parameters: what Device::encode made of a TileMap. On a GPU it is a CUtensorMap;
/// in the emulation it holds the TileMap itself.
struct alignas(128) TensorMap {
  unsigned char bytes[128];
};
static_assert(sizeof(TileMap) <= sizeof(TensorMap) && std::is_trivially_copyable_v<TileMap>);

/// The arguments of cuTensorMapEncodeTiled that a TileMap decides; the others are constants: 16-bit integers (a copy does
/// not look at its elements), no interleaving, 128-byte swizzle, zeros after the ends.
struct EncodeArguments {
  static constexpr int kRank = TileMap::kAxes;
  const void* address;
  std::uint64_t sizes[kRank];        ///< globalDim, elements
  std::uint64_t strides[kRank - 1];  ///< globalStrides, bytes, of the axes from the second on
  std::uint32_t box[kRank];          ///< boxDim, elements
  std::uint32_t steps[kRank];        ///< elementStrides: every element
};
[[nodiscard]] EncodeArguments encode_arguments(const TileMap& map);

/// Why cuTensorMapEncodeTiled would refuse the map (CUDA driver API: limits of its arguments), or nullptr.
[[nodiscard]] const char* refusal(const TileMap& map);

}  // namespace headwater::cuda::sm90
