#include "reference/rows_8bit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/reference/support.hpp"

/// Clause: STATE-13. Scales and integers are worked out by hand; what sessions do with them is the kit's (kv_bits.*).
namespace headwater::reference {
namespace {

/// A group as it is stored.
struct Packed {
  int scale = 0;
  std::vector<int> integers;
};

Packed packed(std::vector<double> elements) {
  elements.resize(kGroupElements, 0.0);
  std::array<std::byte, kGroupBytes> group{};
  pack_group(elements, group);
  Packed said{std::to_integer<int>(group[0]) + 256 * std::to_integer<int>(group[1]), {}};
  for (std::size_t i = 2; i < group.size(); ++i)
    said.integers.push_back(std::to_integer<std::int8_t>(group[i]));
  return said;
}

std::vector<double> restored(int scale, const std::vector<int>& integers) {
  std::array<std::byte, kGroupBytes> group{};
  group[0] = static_cast<std::byte>(scale & 0xFF);
  group[1] = static_cast<std::byte>(scale >> 8);
  for (std::size_t i = 0; i < integers.size(); ++i) {
    group[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(integers[i]));
  }
  std::vector<double> row(kGroupElements);
  restore_group(group, row);
  row.resize(integers.size());
  return row;
}

void expect_packed(const std::vector<double>& elements, int scale, std::vector<int> integers) {
  integers.resize(kGroupElements, 0);
  const Packed got = packed(elements);
  EXPECT_EQ(got.scale, scale);
  EXPECT_EQ(got.integers, integers);
}

TEST(Rows8Bit, STATE_13_Zeros) {
  expect_packed({}, 0, {});
  expect_packed({-0.0, 0.0}, 0, {});
}

TEST(Rows8Bit, STATE_13_NearestIntegersTiesToEven) {
  // The scale is 1.
  expect_packed({127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 125.5}, 0x3C00,
                {127, -127, 0, 2, 2, 0, -2, -2, 126, 126});
  expect_packed({127, 0.49999997, 0.50000006, -1.4999999, -1.5000001}, 0x3C00, {127, 0, 1, -1, -2});
  // 1/4: exact halves of it.
  expect_packed({-31.75, 0.125, 0.375, 0.625}, 0x3400, {-127, 0, 2, 2});
}

TEST(Rows8Bit, STATE_13_IntegersAreOfTheScaleBeforeItIsRounded) {
  // 128 / 127 = 1.00787..., as F16 1 + 8/1024 = 1.0078125.
  expect_packed({128, 64, 1, -0.5}, 0x3C08, {127, 64, 1, 0});
  // 100 / 127 = 1612.6 / 2048, as F16 1613 / 2048; 50 is 63.5 steps, and 63 of the scale.
  expect_packed({100, 50, -100}, 0x3A4D, {127, 64, -127});
}

TEST(Rows8Bit, STATE_13_ScalesBelowF16) {
  const double least = 0x1p-24;  // of F16
  // Half of it is a tie and goes to 0, and what is above it to the least number.
  expect_packed({127 * least / 2, 127 * least / 4}, 0, {});
  expect_packed({127 * least * 0.75, -127 * least * 0.375}, 1, {127, -64});
  expect_packed({127 * least, least}, 1, {127, 1});
  expect_packed({std::numeric_limits<float>::denorm_min()}, 0, {});
  // A subnormal scale, 3 * 2^-24.
  expect_packed({-127 * 3 * least, 3 * least, 4.5 * least}, 3, {-127, 1, 2});
}

TEST(Rows8Bit, STATE_13_ScalesBeyondF16) {
  expect_packed({127.0 * 65504, -65504}, 0x7BFF, {127, -1});
  // 65520 is the first number that F16 rounds to infinity.
  const auto border = static_cast<float>(127.0 * 65520);
  expect_packed({std::nextafter(border, 0.0F)}, 0x7BFF, {127});
  expect_packed({border, 1}, 0x7E00, {});
  expect_packed({std::numeric_limits<float>::max()}, 0x7E00, {});
}

TEST(Rows8Bit, STATE_13_WhatIsNotFinite) {
  for (const double bad : {test::kNaN, test::kInf, -test::kInf}) {
    expect_packed({bad}, 0x7E00, {});
    expect_packed({1, 2, 3, bad}, 0x7E00, {});
    expect_packed({bad, 1e-30}, 0x7E00, {});
  }
}

TEST(Rows8Bit, STATE_13_AnyBytesAreRestored) {
  EXPECT_EQ(restored(0x3C00, {127, -128, 0, 1}), (std::vector<double>{127, -128, 0, 1}));
  EXPECT_EQ(restored(0xBC00, {127, -128, 1}), (std::vector<double>{-127, 128, -1}));
  EXPECT_EQ(restored(0x0001, {3}), std::vector<double>{3 * 0x1p-24});
  EXPECT_EQ(restored(0x7BFF, {127}), std::vector<double>{127.0 * 65504});
  const std::vector<double> infinite = restored(0x7C00, {1, -2, 0});
  EXPECT_EQ(infinite[0], test::kInf);
  EXPECT_EQ(infinite[1], -test::kInf);
  EXPECT_TRUE(std::isnan(infinite[2]));
  for (const double x : restored(0x7E00, {0, 1, -1})) EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace headwater::reference
