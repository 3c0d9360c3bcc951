#include "headwater/rope.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/numbers.hpp"
#include "headwater/error.hpp"

namespace headwater {
namespace {

std::vector<float> normals(std::size_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Rope, ROPE_1_InverseFrequencies) {
  const auto f = rope_inverse_frequencies(8, 10000.0);
  ASSERT_EQ(f.size(), 4u);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[1], 0.1);
  EXPECT_DOUBLE_EQ(f[2], 0.01);
  EXPECT_NEAR(f[3], 0.001, 1e-18);
  EXPECT_EQ(rope_inverse_frequencies(2, 5.0).size(), 1u);
}

TEST(Rope, ROPE_1_and_3_BothLayoutsTurnPairsByTheGlobalPosition) {
  constexpr std::int64_t n = 3, heads = 2, width = 10, rotated = 6;
  const std::int64_t first = (1 << 20) - 5;  // a float product of position and frequency would be off by far
  const auto f = rope_inverse_frequencies(rotated, 10000.0);
  for (const RopeLayout layout : {RopeLayout::adjacent_pairs, RopeLayout::split_halves}) {
    const auto before = normals(n * heads * width);
    auto rows = before;
    rotate(MutableRows::token_major(rows.data(), DType::f32, heads, width), n, heads, width, first, f, 1.5,
           layout);
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto row = static_cast<std::size_t>((t * heads + h) * width);
        for (std::size_t i = 0; i < f.size(); ++i) {
          const std::size_t a = row + (layout == RopeLayout::adjacent_pairs ? 2 * i : i);
          const std::size_t b = layout == RopeLayout::adjacent_pairs ? a + 1 : a + f.size();
          const double angle = static_cast<double>(first + t) * f[i];
          const double x = before[a];
          const double y = before[b];
          EXPECT_EQ(rows[a], static_cast<float>(x * (1.5 * std::cos(angle)) - y * (1.5 * std::sin(angle))));
          EXPECT_EQ(rows[b], static_cast<float>(x * (1.5 * std::sin(angle)) + y * (1.5 * std::cos(angle))));
        }
        for (std::size_t i = rotated; i < width; ++i) EXPECT_EQ(rows[row + i], before[row + i]);
      }
    }
  }
}

TEST(Rope, ROPE_2_NormAndRelativePosition) {
  constexpr std::int64_t d = 64;
  const auto f = rope_inverse_frequencies(d, 100000.0);
  const auto q = normals(d);
  auto k = normals(2 * d);
  k.erase(k.begin(), k.begin() + d);
  const auto dot_at = [&](std::int64_t p, std::int64_t p2, RopeLayout layout) {
    auto a = q;
    auto b = k;
    rotate(MutableRows::token_major(a.data(), DType::f32, 1, d), 1, 1, d, p, f, 1.0, layout);
    rotate(MutableRows::token_major(b.data(), DType::f32, 1, d), 1, 1, d, p2, f, 1.0, layout);
    double dot = 0;
    double norm = 0;
    double norm_before = 0;
    for (std::size_t i = 0; i < d; ++i) {
      dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
      norm += static_cast<double>(a[i]) * static_cast<double>(a[i]);
      norm_before += static_cast<double>(q[i]) * static_cast<double>(q[i]);
    }
    EXPECT_NEAR(norm, norm_before, 1e-5);
    return dot;
  };
  for (const RopeLayout layout : {RopeLayout::adjacent_pairs, RopeLayout::split_halves}) {
    EXPECT_NEAR(dot_at(1030, 1000, layout), dot_at(30, 0, layout), 1e-5);
    EXPECT_NEAR(dot_at(500000, 499000, layout), dot_at(1000, 0, layout), 1e-5);
    EXPECT_GT(std::fabs(dot_at(30, 0, layout) - dot_at(29, 0, layout)), 1e-3);
  }
}

TEST(Rope, SixteenBitRowsAreRoundedOnce) {
  // The rotated value lies just beside a 16-bit tie, closer than float can tell: rounding to float first would
  // fall on the tie and then go to even.
  for (const DType type : {DType::bf16, DType::f16}) {
    const auto narrow_one = [&](float x) {
      std::uint16_t bits = 0;
      core::narrow(&x, 1, type, &bits);
      return bits;
    };
    const float step = type == DType::bf16 ? 0x1p-7f : 0x1p-10f;  // spacing at 1
    for (const double side : {-1.0, 1.0}) {
      const double f = 1.0;
      // magnitude * x with x = 1 and angle 0: the product is exactly `target`.
      const double target = 1.0 + static_cast<double>(step) * 1.5 + side * 0x1p-40;
      std::uint16_t row[2] = {narrow_one(1.0f), narrow_one(0.0f)};
      rotate(MutableRows::token_major(row, type, 1, 2), 1, 1, 2, 0, {&f, 1}, target,
             RopeLayout::adjacent_pairs);
      EXPECT_EQ(row[0], narrow_one(1.0f + step * (side < 0 ? 1.0f : 2.0f)));
      EXPECT_EQ(row[1], 0);
    }
  }
}

TEST(Rope, BadArgumentsAreNamed) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  float row[4] = {1, 2, 3, 4};
  const double f[] = {1.0, 0.5, 0.25};
  const double bad[] = {1.0, std::numeric_limits<double>::quiet_NaN()};
  const MutableRows rows = MutableRows::token_major(row, DType::f32, 1, 4);
  const auto turn = [&](const MutableRows& r, std::int64_t n, std::int64_t heads, std::int64_t width,
                        std::int64_t first, std::span<const double> freqs, double magnitude, int layout) {
    return message(
        [&] { rotate(r, n, heads, width, first, freqs, magnitude, static_cast<RopeLayout>(layout)); });
  };
  const std::span<const double> two(f, 2);
  EXPECT_NE(turn({}, 1, 1, 4, 0, two, 1, 0).find("rows.data"), std::string::npos);
  EXPECT_NE(turn({row, static_cast<DType>(7), 4, 4}, 1, 1, 4, 0, two, 1, 0).find("rows.type"),
            std::string::npos);
  EXPECT_NE(turn(rows, -1, 1, 4, 0, two, 1, 0).find("n is -1"), std::string::npos);
  EXPECT_NE(turn(rows, 1, 0, 4, 0, two, 1, 0).find("heads is 0"), std::string::npos);
  EXPECT_NE(turn(rows, 1, 1, 0, 0, two, 1, 0).find("width is 0"), std::string::npos);
  EXPECT_NE(turn(rows, 1, 1, 4, -1, two, 1, 0).find("first_position is -1"), std::string::npos);
  EXPECT_NE(turn(rows, 1, 1, 4, 2147483648, two, 1, 0).find("first_position"), std::string::npos);
  EXPECT_EQ(turn(rows, 1, 1, 4, 2147483647, two, 1, 0), "");
  EXPECT_NE(turn(rows, 1, 1, 4, 0, std::span<const double>(f, 3), 1, 0).find("inverse_frequencies"),
            std::string::npos);
  EXPECT_NE(turn(rows, 1, 1, 4, 0, bad, 1, 0).find("inverse_frequencies[1]"), std::string::npos);
  const double first_bad[2] = {std::numeric_limits<double>::infinity(), 1.0};
  EXPECT_NE(turn(rows, 1, 1, 4, 0, first_bad, 1, 0).find("inverse_frequencies[0]"), std::string::npos);
  EXPECT_NE(turn(rows, 1, 1, 4, 0, two, std::numeric_limits<double>::infinity(), 0).find("magnitude"),
            std::string::npos);
  EXPECT_NE(turn(rows, 1, 1, 4, 0, two, 1, 2).find("layout is 2"), std::string::npos);
  EXPECT_NE(message([] { (void)rope_inverse_frequencies(3, 10.0); }).find("r is 3"), std::string::npos);
  EXPECT_NE(message([] { (void)rope_inverse_frequencies(0, 10.0); }).find("r is 0"), std::string::npos);
  EXPECT_NE(message([] { (void)rope_inverse_frequencies(65538, 10.0); }).find("r is 65538"),
            std::string::npos);
  EXPECT_NE(message([] { (void)rope_inverse_frequencies(4, 0.0); }).find("theta"), std::string::npos);
  EXPECT_NE(message([] {
              (void)rope_inverse_frequencies(4, std::numeric_limits<double>::infinity());
            }).find("theta"),
            std::string::npos);
}

}  // namespace
}  // namespace headwater
