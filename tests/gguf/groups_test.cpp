// Rows side by side in groups of sixteen: the same numbers as row by row, for every type and every bit of a code.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/gguf/row_groups.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "tests/gguf/element_sizes.hpp"
#include "tests/gguf/exact_products.hpp"
#include "tests/gguf/lines.hpp"
#include "tests/gguf/random_rows.hpp"

namespace headwater::runtime::testing {
namespace {

constexpr TensorType kQuantised[] = {
    TensorType::q8_0, TensorType::q4_0, TensorType::q4_1,  TensorType::q5_0,   TensorType::q5_1,
    TensorType::q4_k, TensorType::q5_k, TensorType::q6_k,  TensorType::iq4_nl, TensorType::mxfp4,
    TensorType::q2_k, TensorType::q3_k, TensorType::iq4_xs};

struct Group {
  Lines memory;
  explicit Group(const RandomRows& rows) : memory(group_bytes(rows.type, rows.n)) {
    pack_group(rows.type, rows.bytes.data(), rows.count, rows.n, memory.data());
    EXPECT_TRUE(memory.intact()) << "written after the group";
  }
};

class Groups : public ::testing::TestWithParam<TensorType> {
 protected:
  void SetUp() override {
    if (row_kernels().groups == nullptr) GTEST_SKIP() << "no kernels for groups: " << row_kernels().isa;
  }
  [[nodiscard]] static std::vector<std::int64_t> lengths() {
    const std::int64_t unit = tensor_type_info(GetParam()).block_elements == 256 ? 256 : 64;
    // The last ones are inner widths of models: sixteen rows of them take more than 2^16 bytes.
    return {unit, 2 * unit, 3 * unit, 1024, 4864, 28672, 53248};
  }
};

TEST_P(Groups, TakeNoMoreThanTheRows) {
  for (const std::int64_t n : lengths()) {
    ASSERT_TRUE(packs_in_groups(GetParam(), n));
    const auto stored = static_cast<std::size_t>(kRowsOfGroup * row_bytes(GetParam(), n));
    EXPECT_GE(group_bytes(GetParam(), n), stored);
    // A scale of MXFP4 has two bytes there instead of one.
    const std::size_t wider = GetParam() == TensorType::mxfp4 ? stored / 17 : 0;
    EXPECT_LE(group_bytes(GetParam(), n), stored + wider + 32);
    EXPECT_EQ(group_bytes(GetParam(), n) % 64, 0U);
  }
  EXPECT_FALSE(packs_in_groups(GetParam(), 96));
  EXPECT_FALSE(packs_in_groups(TensorType::f16, 256));
}

// Bit for bit, -0 too; a group with fewer rows has zeros for the others.
TEST_P(Groups, WidenToTheValuesOfTheirRows) {
  constexpr std::int64_t kStride = 32;
  for (const std::int64_t n : lengths()) {
    for (const std::int64_t count : {16, 7}) {
      const RandomRows rows(GetParam(), n, count);
      Group group(rows);
      Lines wide(static_cast<std::size_t>(n * kStride) * 4);
      Lines narrow(static_cast<std::size_t>(n / 2 * kStride) * 4);
      auto* const wide_words = reinterpret_cast<std::uint32_t*>(wide.data());
      auto* const narrow_words = reinterpret_cast<std::uint32_t*>(narrow.data());
      widen_group(GetParam(), group.memory.data(), n, wide_words, kStride);
      widen_group_bf16(GetParam(), group.memory.data(), n, narrow_words, kStride);
      std::vector<float> values(static_cast<std::size_t>(n));
      std::vector<std::uint16_t> rounded(values.size());
      for (std::int64_t r = 0; r < kRowsOfGroup; ++r) {
        if (r < count) {
          dequantize_row(GetParam(), rows.row(r), n, values.data());
          dequantize_row_bf16(GetParam(), rows.row(r), n, rounded.data());
        }
        for (std::int64_t k = 0; k < n; ++k) {
          const auto i = static_cast<std::size_t>(k);
          const std::uint32_t word = wide_words[k * kStride + r];
          const auto half = static_cast<std::uint16_t>(narrow_words[k / 2 * kStride + r] >> 16 * (k % 2));
          if (r < count) {
            ASSERT_EQ(word, __builtin_bit_cast(std::uint32_t, values[i])) << "row " << r << ", element " << k;
            ASSERT_EQ(half, rounded[i]) << "row " << r << ", element " << k;
          } else {
            ASSERT_EQ(word & 0x7FFFFFFF, 0U);
            ASSERT_EQ(half & 0x7FFF, 0U);
          }
        }
      }
      EXPECT_EQ(wide_words[kRowsOfGroup], 0x5A5A5A5AU) << "written beside the group's columns";
      EXPECT_TRUE(wide.intact() && narrow.intact());
    }
  }
}

struct Activations {
  TensorType type;
  std::vector<float> values;
  std::vector<std::byte> fixed;
  Lines arranged;

  Activations(TensorType t, std::vector<float> x)
      : type(t),
        values(std::move(x)),
        fixed(fixed_row_bytes(static_cast<std::int64_t>(values.size())) + 64),
        arranged(arranged_for_groups_bytes(static_cast<std::int64_t>(values.size()))) {
    const auto n = static_cast<std::int64_t>(values.size());
    const auto address = reinterpret_cast<std::uintptr_t>(fixed.data());
    std::byte* const memory = fixed.data() + (64 - address % 64) % 64;
    arrange_for_groups(type, fix_row(values.data(), n, memory), n, arranged.data());
    EXPECT_TRUE(arranged.intact()) << "written after the memory";
  }
  /// With the sixteen rows of a group.
  void multiply(Group& group, float* out) {
    const std::byte* const x = arranged.data();
    dot_group(type, group.memory.data(), static_cast<std::int64_t>(values.size()), {&x, 1}, out,
              kRowsOfGroup);
  }
};

/// Runs of very different sizes, as activations have them.
std::vector<float> uneven_row(std::mt19937& random, std::int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(normal(random), static_cast<int>(i / kFixedRun * 7 % 23) - 11);
  }
  return x;
}

float largest_of_run(const std::vector<float>& x, std::size_t i) {
  const auto run = x.begin() + static_cast<std::ptrdiff_t>(i / kFixedRun * kFixedRun);
  float most = 0;
  std::for_each(run, run + kFixedRun, [&](float value) { most = std::max(most, std::fabs(value)); });
  return most;
}

/// The bound of dot_rows_fixed().
void expect_dot_products(const RandomRows& rows, const Activations& x, const float* got) {
  const double runs = static_cast<double>(rows.n) / 16;
  std::vector<float> w(x.values.size());
  for (std::int64_t r = 0; r < rows.count; ++r) {
    dequantize_row(rows.type, rows.row(r), rows.n, w.data());
    const std::vector<double> sizes = sizes_of(rows.type, rows.row(r), rows.n);
    double sum = 0;
    double bound = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      sum += static_cast<double>(w[i]) * static_cast<double>(x.values[i]);
      bound += sizes[i] * static_cast<double>(largest_of_run(x.values, i)) * (0x1p-16 + (runs + 8) * 0x1p-24);
    }
    ASSERT_NEAR(static_cast<double>(got[r]), sum, bound) << "row " << r << " of " << rows.n;
  }
}

TEST_P(Groups, DotProductsAreThoseOfTheirRows) {
  std::mt19937 random(6);
  for (const std::int64_t n : lengths()) {
    for (const std::int64_t count : {16, 7}) {
      const RandomRows rows(GetParam(), n, count);
      Group group(rows);
      Activations activations(GetParam(), uneven_row(random, n));
      float got[kRowsOfGroup + 1];
      got[kRowsOfGroup] = 12345.0F;
      activations.multiply(group, got);
      expect_dot_products(rows, activations, got);
      EXPECT_EQ(got[kRowsOfGroup], 12345.0F);
    }
  }
}

// To the last bit that of integers of 64 bits, in every place of a group.
TEST_P(Groups, DotProductsAreThoseOfIntegers) {
  std::mt19937 random(9);
  const std::int64_t unit = tensor_type_info(GetParam()).block_elements == 256 ? 256 : 64;
  for (std::int64_t n = unit; n <= 5 * unit; n += unit) {
    const RandomRows rows = with_unit_scales(RandomRows(GetParam(), n, kRowsOfGroup));
    Group group(rows);
    for (std::int64_t r = 0; r < kRowsOfGroup; ++r) {
      const auto products = exact_products(rows, r, random);
      ASSERT_FALSE(products.empty());
      for (const ExactProduct& one : products) {
        float got[kRowsOfGroup];
        Activations(GetParam(), one.x).multiply(group, got);
        ASSERT_EQ(got[r], static_cast<float>(one.product)) << "row " << r << " of " << n;
      }
    }
  }
}

// On both sides of every multiple of the rows that a kernel takes at once, up to four of them. Nothing is written beside
// the sixteen columns or after the last row.
TEST_P(Groups, EachOfSeveralRowsHasTheBitsThatItHasAlone) {
  constexpr std::size_t kMost = 17;
  constexpr std::size_t kStride = 40;
  constexpr float kUntouched = 12345.0F;
  std::mt19937 random(7);
  for (const std::int64_t n : lengths()) {
    const RandomRows rows(GetParam(), n, 16);
    Group group(rows);
    std::vector<Activations> activations;
    std::vector<const std::byte*> x;
    std::vector<std::array<float, kRowsOfGroup>> alone(kMost);
    activations.reserve(kMost);
    for (std::size_t i = 0; i < kMost; ++i) {
      activations.emplace_back(GetParam(), uneven_row(random, n));
      x.push_back(activations.back().arranged.data());
      activations.back().multiply(group, alone[i].data());
    }
    for (std::size_t count = 1; count <= kMost; ++count) {
      std::vector<float> got((kMost + 1) * kStride, kUntouched);
      dot_group(GetParam(), group.memory.data(), n, std::span(x).first(count), got.data(), kStride);
      for (std::size_t i = 0; i <= kMost; ++i) {
        const float* const from = got.data() + i * kStride;
        const bool written = i < count;
        if (written) {
          ASSERT_EQ(std::memcmp(from, alone[i].data(), sizeof alone[i]), 0)
              << "row " << i << " of " << count << " rows of " << n;
        }
        const std::size_t end = written ? kRowsOfGroup : 0;
        ASSERT_TRUE(std::all_of(from + end, from + kStride, [](float value) { return value == kUntouched; }))
            << "beside row " << i << " of " << count << " rows of " << n;
      }
    }
  }
}

// The largest products: all activations at an end of their range, of either sign, so that no sum of integers overflows.
TEST_P(Groups, SumsOfTheLargestProductsAreExact) {
  for (const float sign : {1.0F, -1.0F}) {
    for (const int bits : {0x00, 0xFF, 0x7F, 0x80}) {
      const RandomRows rows = rows_of_bits(GetParam(), bits);
      Group group(rows);
      Activations x(GetParam(), std::vector<float>(256, sign));
      float got[kRowsOfGroup];
      x.multiply(group, got);
      expect_dot_products(rows, x, got);
    }
  }
}

TEST_P(Groups, HideNoNaN) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const RandomRows rows(GetParam(), 256, 16);
    Group group(rows);
    std::vector<float> x(256, 1.0F);
    x[77] = bad;
    Activations activations(GetParam(), x);
    float got[kRowsOfGroup];
    activations.multiply(group, got);
    for (const float value : got) EXPECT_TRUE(std::isnan(value));
  }
}

/// What needs no kernels for groups.
class QuantisedRows : public ::testing::TestWithParam<TensorType> {};

TEST_P(QuantisedRows, AreFiniteWhereTheirScalesAre) {
  constexpr std::int64_t kRow = 16384;
  RandomRows rows(GetParam(), kRow, 1);
  EXPECT_TRUE(quantised_row_is_finite(GetParam(), rows.row(0), kRow));
  const auto block = static_cast<std::size_t>(tensor_type_info(GetParam()).block_bytes);
  std::vector<float> values(kRow);
  for (std::size_t at = 0; at < rows.bytes.size(); at += block) {
    if (at / block > 1 && at / block % 32 != 0 && at + block != rows.bytes.size()) continue;
    for (const std::size_t half : halves_of(GetParam())) {
      for (const unsigned bad : {0x7C00U, 0xFC00U, 0x7E00U, 0x7BFFU}) {
        std::uint16_t before;
        std::memcpy(&before, rows.bytes.data() + at + half, sizeof before);
        put_half(rows.bytes.data() + at + half, static_cast<std::uint16_t>(bad));
        dequantize_row(GetParam(), rows.row(0), kRow, values.data());
        const bool finite =
            std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
        EXPECT_EQ(quantised_row_is_finite(GetParam(), rows.row(0), kRow), finite) << at << ", " << bad;
        put_half(rows.bytes.data() + at + half, before);
      }
    }
  }
}

TEST(QuantisedRowsOfMxfp4, AreFiniteUpToTheLargestExponent) {
  RandomRows rows(TensorType::mxfp4, 4096, 1);
  for (const unsigned exponent : {0U, 1U, 2U, 252U, 253U, 254U, 255U}) {
    for (const std::size_t at : {std::size_t{0}, rows.bytes.size() - 17}) {
      const std::byte before = std::exchange(rows.bytes[at], static_cast<std::byte>(exponent));
      EXPECT_EQ(quantised_row_is_finite(TensorType::mxfp4, rows.row(0), 4096), exponent < 253) << exponent;
      rows.bytes[at] = before;
    }
  }
}

const auto name_of = [](const auto& one) { return std::string(tensor_type_info(one.param).name); };
INSTANTIATE_TEST_SUITE_P(Types, Groups, ::testing::ValuesIn(kQuantised), name_of);
INSTANTIATE_TEST_SUITE_P(Types, QuantisedRows, ::testing::ValuesIn(kQuantised), name_of);

}  // namespace
}  // namespace headwater::runtime::testing
