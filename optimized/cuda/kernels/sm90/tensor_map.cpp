#include "cuda/kernels/sm90/tensor_map.hpp"

namespace headwater::cuda::sm90 {

namespace {

constexpr std::int64_t kLargestSize = std::int64_t{1} << 32;
constexpr std::int64_t kLargestStride = std::int64_t{1} << 40;  // itself not allowed
constexpr int kLargestBox = 256;
constexpr int kAlignment = 16;  // bytes

}  // namespace

EncodeArguments encode_arguments(const TileMap& map) {
  EncodeArguments arguments{};
  arguments.address = map.base;
  for (int axis = 0; axis < TileMap::kAxes; ++axis) {
    arguments.sizes[axis] = static_cast<std::uint64_t>(map.sizes[axis]);
    arguments.box[axis] = static_cast<std::uint32_t>(map.box[axis]);
    arguments.steps[axis] = 1;
  }
  for (int axis = 0; axis + 1 < TileMap::kAxes; ++axis) {
    arguments.strides[axis] = static_cast<std::uint64_t>(map.strides[axis]);
  }
  return arguments;
}

const char* refusal(const TileMap& map) {
  if (map.base == nullptr || reinterpret_cast<std::uintptr_t>(map.base) % kAlignment != 0) {
    return "rows do not begin at a multiple of 16 bytes";
  }
  for (int axis = 0; axis < TileMap::kAxes; ++axis) {
    if (map.sizes[axis] < 1 || map.sizes[axis] > kLargestSize) return "an axis has not 1 .. 2^32 elements";
    if (map.box[axis] < 1 || map.box[axis] > kLargestBox) return "a box has not 1 .. 256 elements in an axis";
  }
  for (const std::int64_t stride : map.strides) {
    if (stride <= 0 || stride >= kLargestStride || stride % kAlignment != 0) {
      return "a stride is not a multiple of 16 bytes below 2^40";
    }
  }
  if (2 * map.box[0] != static_cast<int>(kLineBytes)) return "a box is not one line of 128 bytes wide";
  return nullptr;
}

}  // namespace headwater::cuda::sm90
