#include "reference/numbers.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/reference/support.hpp"

/// Clauses: NUM-1, SCORE-4.
namespace headwater::reference {
namespace {

using test::kInf;
using test::kInfF;
using test::kNaN;

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Numbers, NUM_1_ValuesOfF16) {
  EXPECT_EQ(from_f16(0x0000), 0.0);
  EXPECT_TRUE(std::signbit(from_f16(0x8000)));
  EXPECT_EQ(from_f16(0x8000), 0.0);
  EXPECT_EQ(from_f16(0x0001), 0x1p-24);
  EXPECT_EQ(from_f16(0x03FF), 1023 * 0x1p-24);
  EXPECT_EQ(from_f16(0x0400), 0x1p-14);
  EXPECT_EQ(from_f16(0x3C00), 1.0);
  EXPECT_EQ(from_f16(0x3C01), 1.0 + 0x1p-10);
  EXPECT_EQ(from_f16(0xC500), -5.0);
  EXPECT_EQ(from_f16(0x7BFF), 65504.0);
  EXPECT_EQ(from_f16(0x7C00), kInf);
  EXPECT_EQ(from_f16(0xFC00), -kInf);
  EXPECT_TRUE(std::isnan(from_f16(0x7C01)));
  EXPECT_TRUE(std::isnan(from_f16(0x7E00)));
  EXPECT_TRUE(std::isnan(from_f16(0xFFFF)));
}

TEST(Numbers, NUM_1_ValuesOfBf16AreUpperHalvesOfFloats) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float expected = from_bits(bits << 16U);
    const double value = from_bf16(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, static_cast<double>(expected)) << bits;
      EXPECT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    }
  }
}

TEST(Numbers, SCORE_4_NearestEven) {
  EXPECT_EQ(bf16(0.0F), 0x0000);
  EXPECT_EQ(bf16(-0.0F), 0x8000);
  EXPECT_EQ(bf16(1.0F), 0x3F80);
  EXPECT_EQ(bf16(-2.0F), 0xC000);
  EXPECT_EQ(bf16(from_bits(0x3F807FFF)), 0x3F80);  // below half
  EXPECT_EQ(bf16(from_bits(0x3F808000)), 0x3F80);  // half, even stays
  EXPECT_EQ(bf16(from_bits(0x3F808001)), 0x3F81);  // above half
  EXPECT_EQ(bf16(from_bits(0x3F818000)), 0x3F82);  // half, odd goes up
  EXPECT_EQ(bf16(from_bits(0x3F817FFF)), 0x3F81);
  EXPECT_EQ(bf16(from_bits(0xBF818000)), 0xBF82);
  EXPECT_EQ(bf16(from_bits(0xBF808000)), 0xBF80);
  EXPECT_EQ(bf16(from_bits(0x3FFF8000)), 0x4000);  // carry into the exponent
  EXPECT_EQ(bf16(256.0F + 0.5F), 0x4380);
  EXPECT_EQ(bf16(256.0F + 1.0F), 0x4380);
  EXPECT_EQ(bf16(256.0F + 1.5F), 0x4381);
}

TEST(Numbers, SCORE_4_OverflowSubnormalsAndNan) {
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(bf16(-std::numeric_limits<float>::max()), 0xFF80);
  EXPECT_EQ(bf16(from_bits(0x7F7F7FFF)), 0x7F7F);
  EXPECT_EQ(bf16(from_bits(0x7F7F8000)), 0x7F80);
  EXPECT_EQ(bf16(kInfF), 0x7F80);
  EXPECT_EQ(bf16(-kInfF), 0xFF80);
  EXPECT_EQ(bf16(from_bits(0x00010000)), 0x0001);  // smallest BF16 subnormal
  EXPECT_EQ(bf16(from_bits(0x00008000)), 0x0000);
  EXPECT_EQ(bf16(from_bits(0x00008001)), 0x0001);
  EXPECT_EQ(bf16(from_bits(0x00018000)), 0x0002);
  EXPECT_EQ(bf16(from_bits(0x007FFFFF)), 0x0080);
  EXPECT_EQ(bf16(from_bits(0x80000001)), 0x8000);
  for (const std::uint32_t nan :
       {0x7FC00000U, 0x7F800001U, 0x7FFFFFFFU, 0xFFC00000U, 0xFF800001U, 0xFFFFFFFFU}) {
    EXPECT_EQ(bf16(from_bits(nan)), 0x7FC0) << std::hex << nan;
  }
}

/// Every pair of neighbours of a 16-bit format, from zero to the last finite pattern: values keep their
/// pattern, points between them go to the nearer, midpoints to the even one.
void expect_rounds_to_nearest_even(std::uint16_t (*round)(double), double (*value)(std::uint16_t),
                                   std::uint16_t infinity, std::uint16_t nan) {
  for (std::uint16_t pattern = 0; pattern < infinity; ++pattern) {
    const auto negative = static_cast<std::uint16_t>(pattern | 0x8000);
    const auto above = static_cast<std::uint16_t>(pattern + 1);
    const double x = value(pattern);
    // Behind the last finite value stands the one that the next exponent would give.
    const double next =
        above == infinity ? x + (x - value(static_cast<std::uint16_t>(pattern - 1))) : value(above);
    const double midpoint = x + (next - x) / 2;
    ASSERT_EQ(round(x), pattern);
    ASSERT_EQ(round(-x), negative);
    ASSERT_EQ(round(midpoint), pattern % 2 == 0 ? pattern : above) << pattern;
    ASSERT_EQ(round(-midpoint), (pattern % 2 == 0 ? pattern : above) | 0x8000) << pattern;
    ASSERT_EQ(round(std::nextafter(midpoint, 0.0)), pattern) << pattern;
    ASSERT_EQ(round(std::nextafter(midpoint, kInf)), above) << pattern;
  }
  EXPECT_EQ(round(kInf), infinity);
  EXPECT_EQ(round(-kInf), infinity | 0x8000);
  EXPECT_EQ(round(std::numeric_limits<double>::max()), infinity);
  EXPECT_EQ(round(-1e300), infinity | 0x8000);
  EXPECT_EQ(round(std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_EQ(round(-std::numeric_limits<double>::denorm_min()), 0x8000);
  EXPECT_EQ(round(1e-300), 0);
  EXPECT_EQ(round(kNaN), nan);
  EXPECT_EQ(round(-kNaN), nan);
}

TEST(Numbers, NUM_1_DoublesRoundOnceToF16) {
  expect_rounds_to_nearest_even(round_to_f16, from_f16, 0x7C00, 0x7E00);
  EXPECT_EQ(round_to_f16(65519.99), 0x7BFF);
  EXPECT_EQ(round_to_f16(65520.0), 0x7C00);
  // By way of F32 this would be a tie, and go down.
  EXPECT_EQ(round_to_f16(1.0 + 0x1p-11 + 0x1p-40), 0x3C01);
}

TEST(Numbers, NUM_1_DoublesRoundOnceToBf16) {
  expect_rounds_to_nearest_even(round_to_bf16, from_bf16, 0x7F80, 0x7FC0);
  EXPECT_EQ(round_to_bf16(1.0 + 0x1p-8 + 0x1p-40), 0x3F81);
}

TEST(Numbers, SCORE_4_BothRoadsToBf16Agree) {
  // An odd step visits patterns of every exponent.
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFU; bits += 65537 / 7) {
    const float value = from_bits(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(bf16(value), round_to_bf16(value)) << std::hex << bits;
  }
}

TEST(Numbers, NUM_1_DoublesRoundOnceToF32) {
  EXPECT_EQ(round_to_f32(1.0 + 0x1p-24), 1.0F);
  EXPECT_EQ(round_to_f32(1.0 + 0x1p-24 + 0x1p-50), 1.0F + 0x1p-23F);
  EXPECT_EQ(round_to_f32(1.0 + 3 * 0x1p-24), 1.0F + 0x1p-22F);
  EXPECT_EQ(round_to_f32(0x1p-149), 0x1p-149F);
  EXPECT_EQ(round_to_f32(1e300), kInfF);
  const std::vector<double> values{0.1, -2.5, 1.0 + 0x1p-24};
  EXPECT_EQ(rounded_once(values), (std::vector<float>{0.1F, -2.5F, 1.0F}));
  EXPECT_TRUE(rounded_once({}).empty());
}

TEST(Numbers, MatrixIsRowMajor) {
  Matrix m(2, 3);
  EXPECT_EQ(m.rows, 2);
  EXPECT_EQ(m.columns, 3);
  EXPECT_EQ(m.values, std::vector<double>(6, 0.0));
  m.row(0)[2] = 7.0;
  m.row(1)[0] = 5.0;
  EXPECT_EQ(m.values, (std::vector<double>{0, 0, 7, 5, 0, 0}));
  const Matrix& constant = m;
  EXPECT_EQ(constant.row(1).size(), 3U);
  EXPECT_EQ(constant.row(1)[0], 5.0);
  EXPECT_EQ(constant.row(0)[2], 7.0);
}

/// Bytes that hold elements from a byte on that is not aligned to anything.
struct Unaligned {
  std::vector<unsigned char> bytes;
  DType type;

  Unaligned(DType element_type, std::size_t count)
      : bytes(1 + count * dtype_size(element_type), 0xA5), type(element_type) {}
  unsigned char* data() { return bytes.data() + 1; }
  void set(std::size_t index, std::uint32_t pattern) {
    std::memcpy(data() + index * dtype_size(type), &pattern, dtype_size(type));
  }
  std::uint32_t get(std::size_t index) {
    std::uint32_t pattern = 0;
    std::memcpy(&pattern, data() + index * dtype_size(type), dtype_size(type));
    return pattern;
  }
};

TEST(Numbers, NUM_1_RowsAreReadByStrideWithoutAlignment) {
  // Element e holds the value e, in each type.
  const std::uint32_t f16[] = {0x0000, 0x3C00, 0x4000, 0x4200, 0x4400,
                               0x4500, 0x4600, 0x4700, 0x4800, 0x4880};
  const std::uint32_t b16[] = {0x0000, 0x3F80, 0x4000, 0x4040, 0x4080,
                               0x40A0, 0x40C0, 0x40E0, 0x4100, 0x4110};
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(type));
    Unaligned memory(type, 10);
    for (std::size_t e = 0; e < 10; ++e) {
      const std::uint32_t f32 = std::bit_cast<std::uint32_t>(static_cast<float>(e));
      memory.set(e, type == DType::f32 ? f32 : type == DType::f16 ? f16[e] : b16[e]);
    }
    const Rows rows{memory.data(), type, 4, 1};
    std::vector<double> row(3);
    read_row(rows, 1, 2, row);
    EXPECT_EQ(row, (std::vector<double>{6, 7, 8}));
    read_row(rows, 0, 1, row);
    EXPECT_EQ(row, (std::vector<double>{1, 2, 3}));
    std::vector<float> floats(2);
    copy_row(rows, 1, 3, floats);
    EXPECT_EQ(floats, (std::vector<float>{7, 8}));
    copy_row(rows, 2, 0, floats);
    EXPECT_EQ(floats, (std::vector<float>{8, 9}));

    const Matrix some = read_rows(rows, 1, 3, 0, 2);
    EXPECT_EQ(some.rows, 2);
    EXPECT_EQ(some.columns, 2);
    EXPECT_EQ(some.values, (std::vector<double>{4, 5, 8, 9}));
    const std::vector<std::int32_t> positions{2, 0, 1, 0};
    const Matrix gathered = gather_rows(rows, positions, 1, 1);
    EXPECT_EQ(gathered.rows, 4);
    EXPECT_EQ(gathered.columns, 1);
    EXPECT_EQ(gathered.values, (std::vector<double>{9, 1, 5, 1}));
    EXPECT_EQ(gather_rows(rows, {}, 0, 3).rows, 0);
  }
}

TEST(Numbers, NUM_1_RowsAreWrittenByStrideAndNothingBetweenThem) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(type));
    Unaligned memory(type, 9);
    Unaligned untouched(type, 9);
    const MutableRows rows{memory.data(), type, 4, 2};
    write_row(rows, 1, 1, std::vector<double>{1.0, -2.0});
    for (std::size_t e = 0; e < 9; ++e) {
      if (e == 6 || e == 7) continue;
      EXPECT_EQ(memory.get(e), untouched.get(e)) << e;
    }
    EXPECT_EQ(memory.get(6), type == DType::f32 ? 0x3F800000U : type == DType::f16 ? 0x3C00U : 0x3F80U);
    EXPECT_EQ(memory.get(7), type == DType::f32 ? 0xC0000000U : type == DType::f16 ? 0xC000U : 0xC000U);
    // Each format rounds where it must: 1 + 2^-24 + 2^-40 is above a tie of F32, 1 + 3 2^-11 a tie of F16.
    write_row(rows, 0, 0, std::vector<double>{1.0 + 0x1p-24 + 0x1p-40, 1.0 + 3 * 0x1p-11});
    EXPECT_EQ(memory.get(0), type == DType::f32 ? 0x3F800001U : type == DType::f16 ? 0x3C00U : 0x3F80U);
    EXPECT_EQ(memory.get(1), type == DType::f32 ? 0x3F803000U : type == DType::f16 ? 0x3C02U : 0x3F80U);
  }
}

}  // namespace
}  // namespace headwater::reference
