#include "reference/rope.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "reference/logits.hpp"
#include "tests/reference/support.hpp"

/// Clauses: ROPE-1, ROPE-2, ROPE-3, ROPE-4.
namespace headwater::reference {
namespace {

using test::expect_error;
using test::expect_near;
using test::kInf;
using test::kNaN;

constexpr double kQuarterTurn = std::numbers::pi / 2;

TEST(Rope, ROPE_1_Frequencies) {
  expect_near(inverse_frequencies(2, 10000.0), {1.0});
  expect_near(inverse_frequencies(4, 10000.0), {1.0, 0.01}, 1e-17);
  expect_near(inverse_frequencies(8, 16.0), {1.0, 0.5, 0.25, 0.125});
  expect_near(inverse_frequencies(4, 0.25), {1.0, 2.0});
  const std::vector<double> many = inverse_frequencies(65536, 2.0);
  ASSERT_EQ(many.size(), 32768U);
  EXPECT_NEAR(many[16384], 1 / std::sqrt(2.0), 1e-15);
}

TEST(Rope, ROPE_1_ErrorsOfTheFrequencies) {
  for (const std::int64_t r : {-2, 0, 1, 3, 65537, 65538}) {
    expect_error(ErrorCode::invalid_argument, {"r = " + std::to_string(r), "even", "65536"},
                 [&] { static_cast<void>(inverse_frequencies(r, 10000.0)); });
  }
  for (const double theta : {0.0, -1.0, kInf, kNaN}) {
    expect_error(ErrorCode::invalid_argument, {"theta = ", "above 0"},
                 [&] { static_cast<void>(inverse_frequencies(2, theta)); });
  }
}

std::vector<double> rotated(std::vector<double> row, std::int64_t position,
                            const std::vector<double>& frequencies, RopeLayout layout,
                            double magnitude = 1.0) {
  rotate_row(row, position, frequencies, magnitude, layout);
  return row;
}

TEST(Rope, ROPE_1_BothLayoutsAndElementsNotRotated) {
  // Pair 0 makes a quarter turn per position, (x, y) -> (-y, x); pair 1 a half turn, (x, y) -> (-x, -y).
  const std::vector<double> frequencies{kQuarterTurn, 2 * kQuarterTurn};
  expect_near(rotated({1, 2, 3, 4, 9}, 1, frequencies, RopeLayout::adjacent_pairs), {-2, 1, -3, -4, 9});
  expect_near(rotated({1, 2, 3, 4, 9}, 1, frequencies, RopeLayout::split_halves), {-3, -2, 1, -4, 9});
  expect_near(rotated({1, 2, 3, 4, 9}, 0, frequencies, RopeLayout::split_halves), {1, 2, 3, 4, 9}, 0.0);
  expect_near(rotated({1, 2, 3, 4, 9}, 3, frequencies, RopeLayout::adjacent_pairs), {2, -1, -3, -4, 9});
  expect_near(rotated({1, 2, 3, 4, 9}, 1, frequencies, RopeLayout::adjacent_pairs, 0.5),
              {-1, 0.5, -1.5, -2, 9});
  expect_near(rotated({5, 6}, 1, {}, RopeLayout::split_halves), {5, 6}, 0.0);
}

TEST(Rope, ROPE_1_AnAngleThatIsNoQuarterTurn) {
  // cos 0.6 and sin 0.6 from a table.
  const double c = 0.8253356149096783;
  const double s = 0.5646424733950354;
  expect_near(rotated({3, 5}, 2, {0.3}, RopeLayout::adjacent_pairs), {3 * c - 5 * s, 3 * s + 5 * c});
}

TEST(Rope, ROPE_2_NormsStayAndProductsDependOnTheDistance) {
  test::Numbers numbers(1);
  const std::vector<double> frequencies = inverse_frequencies(8, 10000.0);
  for (const RopeLayout layout : {RopeLayout::adjacent_pairs, RopeLayout::split_halves}) {
    std::vector<double> q(10);
    std::vector<double> k(10);
    for (double& value : q) value = numbers.next();
    for (double& value : k) value = numbers.next();
    const std::vector<double> turned = rotated(q, 777, frequencies, layout);
    for (std::size_t i = 0; i < 4; ++i) {
      const bool adjacent = layout == RopeLayout::adjacent_pairs;
      const std::size_t x = adjacent ? 2 * i : i;
      const std::size_t y = adjacent ? 2 * i + 1 : i + 4;
      EXPECT_NEAR(std::hypot(turned[x], turned[y]), std::hypot(q[x], q[y]), 1e-14);
    }
    const double near = dot(rotated(q, 12, frequencies, layout), rotated(k, 5, frequencies, layout));
    const double far = dot(rotated(q, 100012, frequencies, layout), rotated(k, 100005, frequencies, layout));
    const double other = dot(rotated(q, 13, frequencies, layout), rotated(k, 5, frequencies, layout));
    EXPECT_NEAR(near, far, 1e-9);
    EXPECT_GT(std::fabs(near - other), 1e-3);
  }
}

TEST(Rope, ROPE_3_AnglesAreGoodAtFarPositions) {
  const std::vector<double> frequencies = inverse_frequencies(6, 500000.0);
  const std::int64_t position = (1 << 20) - 1;
  const std::vector<double> row =
      rotated({1, 1, 1, 0, 0, 0}, position, frequencies, RopeLayout::split_halves);
  for (std::size_t i = 0; i < 3; ++i) {
    const long double angle =
        static_cast<long double>(position) * std::pow(500000.0L, -2.0L * static_cast<long double>(i) / 6.0L);
    EXPECT_NEAR(row[i], static_cast<double>(std::cos(angle)), 1e-9);
    EXPECT_NEAR(row[i + 3], static_cast<double>(std::sin(angle)), 1e-9);
  }
}

TEST(Rope, ROPE_1_RowsStandAtGlobalPositions) {
  // [3 tokens][2 heads][4 wide], 2 elements rotated by a quarter turn per position from 5 on.
  std::vector<float> x(24);
  for (std::size_t e = 0; e < x.size(); ++e) x[e] = static_cast<float>(e + 1);
  const std::vector<float> before = x;
  rotate_rows(MutableRows::token_major(x.data(), DType::f32, 2, 4), 3, 2, 4, 5,
              std::vector<double>{kQuarterTurn}, 2.0, RopeLayout::adjacent_pairs);
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t h = 0; h < 2; ++h) {
      const std::size_t e = t * 8 + h * 4;
      const float a = before[e];
      const float b = before[e + 1];
      // Positions 5, 6, 7: one, two, three quarter turns.
      const float expected_a = t == 0 ? -b : t == 1 ? -a : b;
      const float expected_b = t == 0 ? a : t == 1 ? -b : -a;
      EXPECT_FLOAT_EQ(x[e], 2 * expected_a);
      EXPECT_FLOAT_EQ(x[e + 1], 2 * expected_b);
      EXPECT_EQ(x[e + 2], before[e + 2]);
      EXPECT_EQ(x[e + 3], before[e + 3]);
    }
  }
}

TEST(Rope, ROPE_4_EachTypeIsRoundedOnceAndOtherBitsStay) {
  for (const DType type : {DType::f16, DType::bf16}) {
    const std::uint16_t one = type == DType::f16 ? 0x3C00 : 0x3F80;
    std::vector<std::uint16_t> row{one, 0, 0xFE37, 0x7C01};  // a NaN with a payload, and a signalling one
    rotate_rows(MutableRows::token_major(row.data(), type, 1, 4), 1, 1, 4, 1, std::vector<double>{0.6}, 1.0,
                RopeLayout::split_halves);
    EXPECT_EQ(row[0],
              type == DType::f16 ? round_to_f16(0.8253356149096783) : round_to_bf16(0.8253356149096783));
    EXPECT_EQ(row[1],
              type == DType::f16 ? round_to_f16(0.5646424733950354) : round_to_bf16(0.5646424733950354));
    EXPECT_EQ(row[2], 0xFE37);
    EXPECT_EQ(row[3], 0x7C01);
  }
}

TEST(Rope, ROPE_4_Errors) {
  std::vector<float> x(4, 1.0F);
  const MutableRows rows = MutableRows::token_major(x.data(), DType::f32, 1, 4);
  const std::vector<double> f{1.0, 0.5};
  const auto call = [&](const MutableRows& r, std::int64_t n, std::int64_t heads, std::int64_t width,
                        std::int64_t first, std::vector<double> frequencies, double magnitude,
                        RopeLayout layout = RopeLayout::adjacent_pairs) {
    return [=] { rotate_rows(r, n, heads, width, first, frequencies, magnitude, layout); };
  };
  const ErrorCode code = ErrorCode::invalid_argument;
  expect_error(code, {"data = null"}, call(MutableRows{nullptr, DType::f32, 4, 4}, 1, 1, 4, 0, f, 1.0));
  expect_error(code, {"n = -1"}, call(rows, -1, 1, 4, 0, f, 1.0));
  expect_error(code, {"heads = 0"}, call(rows, 1, 0, 4, 0, f, 1.0));
  expect_error(code, {"data = null"}, call(MutableRows{}, 0, 1, 4, 0, f, 1.0));
  expect_error(code, {"width = -1", "at least 0"}, call(rows, 1, 1, -1, 0, {}, 1.0));
  const std::int64_t far = std::numeric_limits<std::int64_t>::max() / 4 / 3;  // a stride for one row only
  expect_error(code, {"row_stride"}, call(MutableRows{x.data(), DType::f32, far, 4}, 2, 1, 4, 0, f, 1.0));
  expect_error(code, {"head_stride"}, call(MutableRows{x.data(), DType::f32, 4, far}, 1, 2, 4, 0, f, 1.0));
  expect_error(code, {"first_position = -1"}, call(rows, 1, 1, 4, -1, f, 1.0));
  const std::int64_t positions = std::int64_t{1} << 31;
  expect_error(code, {"first_position = 2147483648"}, call(rows, 0, 1, 4, positions, f, 1.0));
  expect_error(code, {"n = 3", "at most 2"}, call(rows, 3, 1, 4, positions - 2, f, 1.0));
  expect_error(code, {"= 4", "width = 3"}, call(rows, 1, 1, 3, 0, f, 1.0));
  expect_error(code, {"inverse_frequencies[1]"}, call(rows, 1, 1, 4, 0, {1.0, kNaN}, 1.0));
  expect_error(code, {"inverse_frequencies[0]"}, call(rows, 1, 1, 4, 0, {-kInf, 1.0}, 1.0));
  expect_error(code, {"magnitude"}, call(rows, 1, 1, 4, 0, f, kInf));
  expect_error(code, {"layout = 2"}, call(rows, 1, 1, 4, 0, f, 1.0, static_cast<RopeLayout>(2)));
  expect_error(code, {"type = 3"},
               call(MutableRows{x.data(), static_cast<DType>(3), 4, 4}, 1, 1, 4, 0, f, 1.0));
  EXPECT_EQ(x, std::vector<float>(4, 1.0F));  // nothing was written

  EXPECT_NO_THROW(call(rows, 0, 1, 4, positions - 1, f, 1.0)());
  EXPECT_EQ(x, std::vector<float>(4, 1.0F));
  EXPECT_NO_THROW(call(rows, 1, 1, 4, positions - 1, f, 1.0)());
  EXPECT_NE(x, std::vector<float>(4, 1.0F));
  EXPECT_NO_THROW(call(rows, 1, 1, 0, 0, {}, 1.0)());
}

}  // namespace
}  // namespace headwater::reference
