// Products in bytes against sums in double over the same rounded rows, for every type and every code; the rounding by itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/gguf/byte_product.hpp"
#include "runtime/gguf/kernels/table.hpp"
#include "runtime/gguf/row_groups.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "tests/gguf/byte_row.hpp"
#include "tests/gguf/element_sizes.hpp"
#include "tests/gguf/exact_products.hpp"
#include "tests/gguf/lines.hpp"
#include "tests/gguf/random_rows.hpp"

namespace headwater::runtime::testing {
namespace {

/// Kernels of one ISA, which may not run here, in bytes or in 16 bits.
struct Variant {
  const RowKernelVariant* rows = nullptr;
  bool words = false;
  [[nodiscard]] const ByteKernels& kernels() const {
    return words ? *rows->kernels->words : *rows->kernels->bytes;
  }
  [[nodiscard]] std::string name() const {
    std::string letters = words ? "Words" : "";
    for (const char* at = rows->kernels->isa; *at != 0; ++at) {
      if (std::isalnum(static_cast<unsigned char>(*at)) != 0) letters += *at;
    }
    return letters;
  }
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const RowKernelVariant& one : row_kernel_variants()) {
    if (one.kernels->bytes != nullptr) all.push_back({&one, false});
    if (one.kernels->words != nullptr) all.push_back({&one, true});
  }
  return all;
}

struct TypeOfVariant : Variant {
  TensorType type;
};

std::vector<TypeOfVariant> types_of_variants() {
  std::vector<TypeOfVariant> all;
  for (const Variant& one : variants()) {
    for (int type = 0; type < kTensorTypes; ++type) {
      if (one.kernels().unpack[type] != nullptr) all.push_back({one, static_cast<TensorType>(type)});
    }
  }
  return all;
}

template <class Parameter>
class WithKernels : public ::testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    const std::string missing = this->GetParam().rows->missing();
    if (!missing.empty()) GTEST_SKIP() << "no " << missing;
  }
  [[nodiscard]] const ByteKernels& kernels() const { return this->GetParam().kernels(); }
};

class ByteRounding : public WithKernels<Variant> {};

class Bytes : public WithKernels<TypeOfVariant> {
 protected:
  [[nodiscard]] static TensorType type() { return GetParam().type; }
};

/// Rows x in bytes, one after the other.
struct ByteRows {
  const ByteKernels* kernels;
  std::int64_t n;
  std::int64_t count;
  Lines memory;

  ByteRows(const ByteKernels& own, const std::vector<float>& x, std::int64_t elements)
      : kernels(&own),
        n(elements),
        count(static_cast<std::int64_t>(x.size()) / elements),
        memory(static_cast<std::size_t>(count) * byte_row_bytes(own, elements)) {
    for (std::int64_t i = 0; i < count; ++i) to_byte_row(own, x.data() + i * n, n, at(i));
    EXPECT_TRUE(memory.intact()) << "written after the rows";
  }
  [[nodiscard]] std::int64_t stride() const { return static_cast<std::int64_t>(byte_row_bytes(*kernels, n)); }
  [[nodiscard]] std::byte* at(std::int64_t row) { return memory.data() + row * stride(); }
  [[nodiscard]] float element(std::int64_t row, std::int64_t k) {
    return byte_row_element(*kernels, at(row), k);
  }
};

/// Groups of stored rows, unpacked one after the other.
struct UnpackedGroups {
  Lines memory;

  UnpackedGroups(const ByteKernels& kernels, const RandomRows& rows)
      : memory(static_cast<std::size_t>((rows.count + 15) / 16) *
               unpacked_group_bytes(kernels, rows.type, rows.n)) {
    Lines group(group_bytes(rows.type, rows.n));
    std::byte* to = memory.data();
    for (std::int64_t first = 0; first < rows.count; first += kRowsOfGroup) {
      const std::int64_t some = std::min(kRowsOfGroup, rows.count - first);
      const std::byte* from = rows.row(first);
      if (!kernels.unpacks_rows) {
        pack_group(rows.type, from, some, rows.n, group.data());
        from = group.data();
      }
      unpack_group(kernels, rows.type, from, some, rows.n, to);
      to += unpacked_group_bytes(kernels, rows.type, rows.n);
    }
    EXPECT_TRUE(memory.intact()) << "written after the groups";
  }
};

/// Runs of very different sizes, some with an outlier, as activations have them.
std::vector<float> uneven(std::mt19937& random, std::int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(normal(random), static_cast<int>(i / kFixedRun * 7 % 23) - 11);
    if (i % (kFixedRun + 5) == 0) x[i] *= 200;
  }
  return x;
}

/// The bound of multiply_bytes().
void expect_products(const RandomRows& rows, ByteRows& x, const float* got, std::int64_t stride) {
  const double runs = static_cast<double>(rows.n) / 16;
  std::vector<float> w(static_cast<std::size_t>(rows.n));
  for (std::int64_t r = 0; r < rows.count; ++r) {
    dequantize_row(rows.type, rows.row(r), rows.n, w.data());
    const std::vector<double> sizes = sizes_of(rows.type, rows.row(r), rows.n);
    for (std::int64_t i = 0; i < x.count; ++i) {
      double sum = 0;
      double bound = 0;
      for (std::int64_t first = 0; first < rows.n; first += kFixedRun) {
        double most[2] = {};
        std::vector<double> values;
        for (std::int64_t k = first; k < first + kFixedRun; ++k) {
          const auto value = static_cast<double>(x.element(i, k));
          sum += static_cast<double>(w[static_cast<std::size_t>(k)]) * value;
          values.push_back(std::fabs(value));
          most[1] = std::max(most[1], std::min(most[0], values.back()));
          most[0] = std::max(most[0], values.back());
        }
        for (std::size_t k = 0; k < values.size(); ++k) {
          bound += sizes[static_cast<std::size_t>(first) + k] * std::max(values[k], most[1]) * (runs + 8) *
                   0x1p-24;
        }
      }
      ASSERT_NEAR(static_cast<double>(got[i * stride + r]), sum, bound)
          << "stored row " << r << ", row " << i << " of " << rows.n;
    }
  }
}

// Counts of rows on each side of a tile's six and of twice as many; groups alone, in pairs and with one left over, the last
// one not full; the widest rows of models. Nothing is written beside them.
TEST_P(Bytes, ProductsAreSumsOverTheRoundedRows) {
  constexpr float kUntouched = 12345.0F;
  const std::int64_t unit = tensor_type_info(type()).block_elements == 256 ? 256 : 64;
  struct Case {
    std::int64_t n, rows, stored;
  };
  std::mt19937 random(5);
  for (const auto& [n, count, stored] :
       {Case{unit, 1, 16}, Case{unit, 13, 87}, Case{3 * unit, 5, 32}, Case{3 * unit, 6, 33},
        Case{1536, 7, 48}, Case{4864, 12, 23}, Case{28672, 2, 16}, Case{53248, 1, 17}}) {
    SCOPED_TRACE(std::to_string(count) + " rows of " + std::to_string(n) + ", " + std::to_string(stored));
    const RandomRows rows(type(), n, stored);
    UnpackedGroups unpacked(kernels(), rows);
    ByteRows x(kernels(), uneven(random, n * count), n);
    const std::int64_t groups = (stored + 15) / 16;
    const std::int64_t stride = groups * kRowsOfGroup + 5;
    std::vector<float> got(static_cast<std::size_t>((count + 1) * stride), kUntouched);
    multiply_bytes(kernels(), type(), unpacked.memory.data(), groups, n, x.at(0), x.stride(), count,
                   got.data(), stride);
    expect_products(rows, x, got.data(), stride);
    for (std::int64_t i = 0; i <= count; ++i) {
      const auto row = got.begin() + i * stride;
      const auto end = i < count ? groups * kRowsOfGroup : 0;
      EXPECT_TRUE(std::all_of(row + end, row + stride, [](float value) { return value == kUntouched; }))
          << "beside row " << i;
    }
  }
}

TEST_P(Bytes, EachRowHasTheBitsThatItHasAlone) {
  constexpr std::int64_t kN = 512;
  constexpr std::int64_t kStored = 80;
  constexpr std::int64_t kMost = 19;
  std::mt19937 random(6);
  const RandomRows rows(type(), kN, kStored);
  UnpackedGroups unpacked(kernels(), rows);
  ByteRows x(kernels(), uneven(random, kN * kMost), kN);
  std::vector<float> alone(static_cast<std::size_t>(kMost * kStored));
  for (std::int64_t i = 0; i < kMost; ++i) {
    for (std::int64_t g = 0; g < kStored / 16; ++g) {
      multiply_bytes(
          kernels(), type(),
          unpacked.memory.data() + static_cast<std::size_t>(g) * unpacked_group_bytes(kernels(), type(), kN),
          1, kN, x.at(i), x.stride(), 1, alone.data() + i * kStored + 16 * g, kStored);
    }
  }
  for (std::int64_t count = 1; count <= kMost; ++count) {
    std::vector<float> got(alone.size());
    multiply_bytes(kernels(), type(), unpacked.memory.data(), kStored / 16, kN, x.at(0), x.stride(), count,
                   got.data(), kStored);
    const auto bytes = static_cast<std::size_t>(count * kStored) * sizeof(float);
    ASSERT_EQ(std::memcmp(got.data(), alone.data(), bytes), 0) << count << " rows";
  }
}

// To the last bit that of integers of 64 bits: what is left of x once its largest element has two bytes is exact.
TEST_P(Bytes, ProductsAreThoseOfIntegers) {
  std::mt19937 random(9);
  const std::int64_t unit = tensor_type_info(type()).block_elements == 256 ? 256 : 64;
  for (std::int64_t n = unit; n <= 5 * unit; n += unit) {
    const RandomRows rows = with_unit_scales(RandomRows(type(), n, 32));
    UnpackedGroups unpacked(kernels(), rows);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const auto products = exact_products(rows, r, random);
      ASSERT_FALSE(products.empty());
      for (const ExactProduct& one : products) {
        ByteRows x(kernels(), one.x, n);
        std::vector<float> rounded(one.x.size());
        for (std::int64_t k = 0; k < n; ++k) rounded[static_cast<std::size_t>(k)] = x.element(0, k);
        ASSERT_TRUE(rounded == one.x);
        float got[32];
        multiply_bytes(kernels(), type(), unpacked.memory.data(), 2, n, x.at(0), x.stride(), 1, got, 32);
        ASSERT_EQ(got[r], static_cast<float>(one.product)) << "row " << r << " of " << n;
      }
    }
  }
}

// All activations at an end of their range, all codes at an end of theirs: no sum of integers saturates or overflows.
TEST_P(Bytes, TheLargestProductsAreExact) {
  for (const float sign : {1.0F, -1.0F}) {
    for (const int bits : {0x00, 0xFF, 0x7F, 0x80}) {
      const RandomRows rows = rows_of_bits(type(), bits);
      UnpackedGroups unpacked(kernels(), rows);
      ByteRows x(kernels(), std::vector<float>(256, sign), 256);
      float got[kRowsOfGroup];
      multiply_bytes(kernels(), type(), unpacked.memory.data(), 1, 256, x.at(0), x.stride(), 1, got,
                     kRowsOfGroup);
      expect_products(rows, x, got, kRowsOfGroup);
    }
  }
}

// A row that holds NaN or infinity is NaN everywhere, and the rows beside it are not.
TEST_P(Bytes, HideNoNaN) {
  const RandomRows rows(type(), 256, 16);
  UnpackedGroups unpacked(kernels(), rows);
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    std::vector<float> values(3 * 256, 1.0F);
    values[256 + 77] = values[256 + 77 + 16] = bad;  // in both halves of a run
    ByteRows x(kernels(), values, 256);
    float got[3 * kRowsOfGroup];
    multiply_bytes(kernels(), type(), unpacked.memory.data(), 1, 256, x.at(0), x.stride(), 3, got,
                   kRowsOfGroup);
    for (int i = 0; i < 3 * kRowsOfGroup; ++i) {
      EXPECT_EQ(std::isnan(got[i]), i / kRowsOfGroup == 1) << "value " << i << " beside " << bad;
    }
  }
}

/// What an element of a run may be off by: half a scale, and the rounding of the scale itself.
double slack_of(const ByteKernels& kernels, const std::vector<float>& run, float value) {
  std::vector<float> sizes;
  for (const float x : run) sizes.push_back(std::fabs(x));
  std::sort(sizes.rbegin(), sizes.rend());
  const double by_largest = static_cast<double>(sizes[0]) / 32639;
  const double by_next = static_cast<double>(sizes[1]) / 127;
  const double scale = kernels.code_bytes == 2 ? by_largest : std::max(by_next, by_largest);
  return 0.5 * scale * (1 + 0x1p-10) + std::fabs(static_cast<double>(value)) * 0x1p-21;
}

// To half a scale, which the second largest of a run decides, or the largest where it is hundreds of times as large; the
// same from BF16.
TEST_P(ByteRounding, IsToHalfAScale) {
  std::mt19937 random(7);
  for (const float outlier : {1.0F, -1.0F, 30.0F, -300.0F, 3e4F, -1e9F}) {
    for (const std::int64_t n : {64, 576, 28672}) {
      SCOPED_TRACE(std::to_string(outlier) + " in rows of " + std::to_string(n));
      auto x = uneven(random, n);
      for (std::int64_t first = 0; first < n; first += kFixedRun) {  // at every place in turn
        x[static_cast<std::size_t>(first + first / kFixedRun * 7 % kFixedRun)] *= outlier;
      }
      std::vector<std::uint16_t> narrow;
      for (float& value : x) {
        const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value) >> 16;
        narrow.push_back(static_cast<std::uint16_t>(bits));
        value = __builtin_bit_cast(float, bits << 16);
      }
      ByteRows rows(kernels(), x, n);
      for (std::int64_t k = 0; k < n; ++k) {
        const auto run = x.begin() + k / kFixedRun * kFixedRun;
        const float value = x[static_cast<std::size_t>(k)];
        ASSERT_NEAR(rows.element(0, k), value, slack_of(kernels(), {run, run + kFixedRun}, value)) << k;
      }
      if (kernels().round_bf16 == nullptr) continue;
      Lines from_bf16(byte_row_bytes(kernels(), n));
      to_byte_row(kernels(), narrow.data(), n, from_bf16.data());
      EXPECT_EQ(std::memcmp(from_bf16.data(), rows.at(0), byte_row_bytes(kernels(), n)), 0)
          << "BF16 is rounded as F32";
      auto* const same_place = reinterpret_cast<std::byte*>(narrow.data());
      to_byte_row(kernels(), narrow.data(), n, same_place);
      EXPECT_EQ(std::memcmp(same_place, rows.at(0), byte_row_bytes(kernels(), n)), 0) << "where the row was";
    }
  }
}

// Zeros, the smallest numbers and what lies about the least scale; numbers near the largest.
TEST_P(ByteRounding, OfTheEndsOfTheRange) {
  for (const float size : {0.0F, 0x1p-149F, 0x1p-126F, 0x1p-101F, 0x1p-99F, 0x1p100F, 3e38F}) {
    std::vector<float> x(64, size);
    x[5] = -size;
    ByteRows rows(kernels(), x, 64);
    const float wanted = size > 0x1p-100F ? size : 0.0F;
    EXPECT_NEAR(rows.element(0, 5), -wanted, wanted * 0x1p-22F) << size;
    EXPECT_NEAR(rows.element(0, 63), wanted, wanted * 0x1p-22F) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, ByteRounding, ::testing::ValuesIn(variants()),
                         [](const auto& one) { return one.param.name(); });
INSTANTIATE_TEST_SUITE_P(Types, Bytes, ::testing::ValuesIn(types_of_variants()), [](const auto& one) {
  return one.param.name() + "_" + std::string(tensor_type_info(one.param.type).name);
});

}  // namespace
}  // namespace headwater::runtime::testing
