#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cuda/kernels/sm90/tensor_map.hpp"

/// What cuTensorMapEncodeTiled is handed, and what it would refuse (CUDA driver API, "Tensor Map Object Management").
namespace headwater::cuda::sm90 {
namespace {

const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

/// Queries [token][head][128] of four chunks of 1024 tokens, 32 heads.
TileMap queries() { return tile_map({at(1 << 20), 128, 1024, 4, 32, 32 * 128, 128}, 64); }

TEST(Sm90Encode, ArgumentsAreThoseOfTheView) {
  const EncodeArguments a = encode_arguments(queries());
  EXPECT_EQ(a.address, at(1 << 20));
  const std::uint64_t sizes[] = {128, 1024, 4, 32};
  const std::uint64_t strides[] = {32 * 128 * 2, std::uint64_t{1024} * 32 * 128 * 2, 128 * 2};
  const std::uint32_t box[] = {64, 64, 1, 1};
  for (int axis = 0; axis < 4; ++axis) {
    EXPECT_EQ(a.sizes[axis], sizes[axis]);
    EXPECT_EQ(a.box[axis], box[axis]);
    EXPECT_EQ(a.steps[axis], 1u);
  }
  for (int axis = 0; axis < 3; ++axis) EXPECT_EQ(a.strides[axis], strides[axis]) << axis;
}

TEST(Sm90Encode, ArgumentsOfStoredRowsThatAreWiderThanTheirColumns) {
  // Values of 20 columns, padded to 24, of a session of capacity 5000: the chunk of 300 tokens that begins at position 700.
  const EncodeArguments a =
      encode_arguments(tile_map({at((1 << 20) + 700 * 48), 20, 300, 1, 2, 24, std::int64_t{5000} * 24}, 128));
  EXPECT_EQ(a.sizes[0], 20u);
  EXPECT_EQ(a.strides[0], 48u);
  EXPECT_EQ(a.strides[1], 300u * 48);
  EXPECT_EQ(a.strides[2], 5000u * 48);
  EXPECT_EQ(a.box[1], 128u);
}

TEST(Sm90Encode, WhatTheDriverRefusesIsRefusedWithItsReason) {
  EXPECT_EQ(refusal(queries()), nullptr);
  const auto expect = [](const char* part, auto change) {
    TileMap map = queries();
    change(map);
    const char* reason = refusal(map);
    ASSERT_NE(reason, nullptr) << part;
    EXPECT_NE(std::string(reason).find(part), std::string::npos) << reason;
  };
  constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;
  constexpr std::int64_t kTwo40 = std::int64_t{1} << 40;
  expect("multiple of 16 bytes", [](TileMap& map) { map.base = at((1 << 20) + 8); });
  expect("multiple of 16 bytes", [](TileMap& map) { map.base = nullptr; });
  expect("1 .. 256", [](TileMap& map) { map.box[1] = 257; });
  expect("1 .. 256", [](TileMap& map) { map.box[3] = 0; });
  expect("128 bytes wide", [](TileMap& map) { map.box[0] = 32; });
  expect("1 .. 2^32", [](TileMap& map) { map.sizes[3] = 0; });
  expect("1 .. 2^32", [](TileMap& map) { map.sizes[1] = kTwo32 + 1; });
  expect("16 bytes below 2^40", [](TileMap& map) { map.strides[0] = 264; });
  expect("16 bytes below 2^40", [](TileMap& map) { map.strides[2] = kTwo40; });
  expect("16 bytes below 2^40", [](TileMap& map) { map.strides[1] = 0; });
  expect("16 bytes below 2^40", [](TileMap& map) { map.strides[1] = -256; });
  // The limits themselves.
  TileMap map = queries();
  map.sizes[1] = kTwo32;
  map.strides[1] = kTwo40 - 16;
  map.box[1] = 256;
  EXPECT_EQ(refusal(map), nullptr);
}

}  // namespace
}  // namespace headwater::cuda::sm90
