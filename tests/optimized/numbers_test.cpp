#include "core/numbers.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/kv_store.hpp"

namespace headwater::core {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

/// Nearest value of a 16-bit format by search among its neighbours: ties to the even bit pattern.
template <float (*Widen)(std::uint16_t)>
std::uint16_t nearest(float x, std::uint16_t guess) {
  std::uint16_t best = guess;
  double best_error = std::fabs(static_cast<double>(Widen(guess)) - x);
  for (int step = -1; step <= 1; step += 2) {
    const auto other = static_cast<std::uint16_t>(guess + step);
    const double value = Widen(other);
    if (std::isnan(value) || std::isinf(value)) continue;
    const double error = std::fabs(value - x);
    if (error < best_error || (error == best_error && other % 2 == 0)) {
      best = other;
      best_error = error;
    }
  }
  return best;
}

TEST(Numbers, SCORE_4_Bf16KnownValues) {
  EXPECT_EQ(bf16_from_float(1.0f), 0x3F80);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // tie, even below
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3F818000u)), 0x3F82);  // tie, even above
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3F808001u)), 0x3F81);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3F807FFFu)), 0x3F80);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::max()), 0xFF80);
  EXPECT_EQ(bf16_from_float(kInf), 0x7F80);
  EXPECT_EQ(bf16_from_float(kNan), 0x7FC0);
  EXPECT_EQ(bf16_from_float(-kNan), 0x7FC0);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x7F800001u)), 0x7FC0);  // signalling, low payload
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x00010000u)), 0x0001);  // subnormal kept
  EXPECT_EQ(bf16_from_float(-0.0f), 0x8000);
}

TEST(Numbers, F16EveryPatternWidensByItsDefinition) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int fraction = static_cast<int>(bits & 1023);
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const float value = float_from_f16(static_cast<std::uint16_t>(bits));
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else if (exponent == 31) {
      EXPECT_EQ(value, sign < 0 ? -kInf : kInf) << bits;
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(static_cast<double>(value), sign * expected) << bits;
      EXPECT_EQ(std::signbit(value), sign < 0) << bits;
    }
  }
}

TEST(Numbers, F16RoundTripAndNearestEven) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float_from_f16(half);
    if (std::isnan(value)) {
      EXPECT_EQ(f16_from_float(value), 0x7E00);
      continue;
    }
    EXPECT_EQ(f16_from_float(value), half);
    if ((bits & 0x7FFF) >= 0x7BFF) continue;
    // The midpoint to the next pattern and its float neighbours on both sides.
    const float next = float_from_f16(static_cast<std::uint16_t>(bits + 1));
    const float middle = static_cast<float>((static_cast<double>(value) + next) / 2);
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(f16_from_float(middle), even) << bits;
    EXPECT_EQ(f16_from_float(std::nextafter(middle, value)), half) << bits;
    EXPECT_EQ(f16_from_float(std::nextafter(middle, next)), bits + 1) << bits;
  }
  EXPECT_EQ(f16_from_float(65504.0f), 0x7BFF);
  EXPECT_EQ(f16_from_float(65519.996f), 0x7BFF);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7C00);
  EXPECT_EQ(f16_from_float(-65520.0f), 0xFC00);
  EXPECT_EQ(f16_from_float(kInf), 0x7C00);
  EXPECT_EQ(f16_from_float(1e-10f), 0x0000);
  EXPECT_EQ(f16_from_float(-1e-10f), 0x8000);
}

TEST(Numbers, RandomFloatsRoundToTheNearest) {
  std::mt19937 random(11);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(x) || std::fabs(x) > 3.3e38f) continue;
    const std::uint16_t bf16 = bf16_from_float(x);
    EXPECT_EQ(bf16, nearest<float_from_bf16>(x, bf16));
    if (std::fabs(x) > 65504.0f) continue;
    const std::uint16_t f16 = f16_from_float(x);
    EXPECT_EQ(f16, nearest<float_from_f16>(x, f16));
  }
}

TEST(Numbers, RowsConvertAtAnyAlignmentAndOnce) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  for (const DType from : types) {
    for (const DType to : types) {
      for (const std::int64_t count : {1, 7, 255, 256, 257, 600}) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(random);
        std::vector<unsigned char> source(static_cast<std::size_t>(count) * 4 + 1, 0xAB);
        std::vector<unsigned char> target(static_cast<std::size_t>(count) * 4 + 3, 0xCD);
        narrow(values.data(), count, from, source.data() + 1);
        std::vector<float> stored(values.size());
        widen(source.data() + 1, from, count, stored.data());
        convert_row(source.data() + 1, from, count, target.data() + 1, to);
        std::vector<float> result(values.size());
        widen(target.data() + 1, to, count, result.data());
        for (std::size_t i = 0; i < values.size(); ++i) {
          float expected = stored[i];
          if (to == DType::bf16) expected = float_from_bf16(bf16_from_float(expected));
          if (to == DType::f16) expected = float_from_f16(f16_from_float(expected));
          EXPECT_EQ(result[i], expected);
        }
        EXPECT_EQ(target[0], 0xCD);
        EXPECT_EQ(target[1 + static_cast<std::size_t>(count) * dtype_size(to)], 0xCD);
      }
    }
  }
}

}  // namespace
}  // namespace headwater::core
