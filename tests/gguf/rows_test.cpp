// Stored rows to numbers: golden values of an independent implementation, for every ISA that runs here.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <sstream>

#include "runtime/gguf/row_kernels.hpp"
#include "tests/gguf/builder.hpp"
#include "tests/gguf/element_sizes.hpp"
#include "tests/gguf/exact_products.hpp"
#include "tests/gguf/random_rows.hpp"

namespace headwater::runtime::testing {
namespace {

class Rows : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const RowKernelVariant& variant = row_kernel_variants()[static_cast<std::size_t>(GetParam())];
    if (!variant.missing().empty()) GTEST_SKIP() << variant.kernels->isa << ": " << variant.missing();
    kernels_ = variant.kernels;
  }
  const RowKernels* kernels_ = nullptr;
};

std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }

/// The definition: to nearest, ties to even.
std::uint16_t bf16_by_definition(float value) {
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits_of(value) >> 16) | 0x40);
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t down = bits >> 16;
  const std::uint32_t rest = bits & 0xFFFF;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (down & 1) != 0);
  return static_cast<std::uint16_t>(down + (up ? 1 : 0));
}

// Bit for bit: -0 too.
TEST_P(Rows, WidenToTheValuesOfTheGgufPackage) {
  const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
  for (const TensorTypeInfo& info : tensor_types()) {
    const Tensor& stored = file.tensor(info.name);
    ASSERT_EQ(stored.type, info.type);
    const std::vector<float> expected = floats_of(file.tensor(std::string(info.name) + ".values"));
    const std::int64_t n = stored.dims[0];
    for (std::int64_t r = 0; r < stored.rows(); ++r) {
      std::vector<float> values(static_cast<std::size_t>(n) + 1, 12345.0f);
      kernels_->widen[static_cast<int>(info.type)](stored.row(r), n, values.data());
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(bits_of(values[static_cast<std::size_t>(i)]),
                  bits_of(expected[static_cast<std::size_t>(r * n + i)]))
            << info.name << " row " << r << " element " << i;
      }
      EXPECT_EQ(values.back(), 12345.0f) << "written after the row";
    }
  }
}

TEST_P(Rows, RoundToBf16) {
  const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
  for (const TensorTypeInfo& info : tensor_types()) {
    const Tensor& stored = file.tensor(info.name);
    const std::vector<float> expected = floats_of(file.tensor(std::string(info.name) + ".values"));
    const std::int64_t n = stored.dims[0];
    std::vector<std::uint16_t> values(static_cast<std::size_t>(n) + 1, 0x1234);
    kernels_->widen_bf16[static_cast<int>(info.type)](stored.row(1), n, values.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      ASSERT_EQ(values[i], bf16_by_definition(expected[static_cast<std::size_t>(n) + i]))
          << info.name << " " << i;
    }
    EXPECT_EQ(values.back(), 0x1234);
  }
}

float half_by_definition(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

TEST_P(Rows, EveryHalf) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(halves.size());
  std::vector<std::uint16_t> rounded(halves.size());
  const auto* const row = reinterpret_cast<const std::byte*>(halves.data());
  kernels_->widen[static_cast<int>(TensorType::f16)](row, 65536, values.data());
  kernels_->widen_bf16[static_cast<int>(TensorType::f16)](row, 65536, rounded.data());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const float expected = half_by_definition(halves[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(values[i])) << i;
      ASSERT_GT(rounded[i] & 0x7FFF, 0x7F80) << i;
    } else {
      ASSERT_EQ(bits_of(values[i]), bits_of(expected)) << i;
      ASSERT_EQ(rounded[i], bf16_by_definition(expected)) << i;
    }
  }
}

// Lengths around the width of vectors and the number of chains; rows at odd addresses; nothing read after the end
// (the sanitizer build checks the exact buffer).
TEST_P(Rows, EveryLengthAndAddress) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16}) {
    const auto size = static_cast<std::size_t>(tensor_type_info(type).block_bytes);
    for (std::int64_t n = 0; n <= 140; ++n) {
      const auto count = static_cast<std::size_t>(n);
      std::vector<std::byte> buffer(count * size + 1);
      std::vector<float> x(count);
      std::vector<float> expected(count);
      double sum = 0;
      double magnitude = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint16_t bits = static_cast<std::uint16_t>(random() & 0xBBFF);  // finite, of moderate size
        expected[i] = type == TensorType::f32 ? normal(random)
                      : type == TensorType::f16
                          ? half_by_definition(bits)
                          : __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
        const void* const source = type == TensorType::f32 ? static_cast<const void*>(&expected[i]) : &bits;
        std::memcpy(buffer.data() + 1 + i * size, source, size);
        x[i] = normal(random);
        sum += static_cast<double>(expected[i]) * static_cast<double>(x[i]);
        magnitude += std::abs(static_cast<double>(expected[i]) * static_cast<double>(x[i]));
      }
      std::vector<float> values(count);
      kernels_->widen[static_cast<int>(type)](buffer.data() + 1, n, values.data());
      EXPECT_EQ(values, expected) << n;
      const float dot = kernels_->dot[static_cast<int>(type)](buffer.data() + 1, n, x.data());
      EXPECT_NEAR(static_cast<double>(dot), sum, static_cast<double>(n + 2) * 0x1p-24 * magnitude) << n;
    }
  }
}

// The bound of the header, over numbers that the products really reach.
TEST_P(Rows, DotProductsAreThoseOfTheWidenedRow) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
  for (const TensorTypeInfo& info : tensor_types()) {
    const Tensor& stored = file.tensor(info.name);
    for (std::int64_t n = info.block_elements; n <= stored.dims[0]; n += info.block_elements) {
      std::vector<float> w(static_cast<std::size_t>(n));
      std::vector<float> x(w.size());
      kernels_->widen[static_cast<int>(info.type)](stored.row(2), n, w.data());
      double sum = 0;
      double magnitude = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        x[i] = normal(random);
        sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
        magnitude += std::abs(static_cast<double>(w[i]) * static_cast<double>(x[i]));
      }
      const float dot = kernels_->dot[static_cast<int>(info.type)](stored.row(2), n, x.data());
      ASSERT_NEAR(static_cast<double>(dot), sum, static_cast<double>(n + 2) * 0x1p-24 * magnitude)
          << info.name << n;
      EXPECT_EQ(bits_of(dot),
                bits_of(kernels_->dot[static_cast<int>(info.type)](stored.row(2), n, x.data())));
    }
  }
}

struct Fixed {
  std::vector<std::int16_t> codes;
  std::vector<float> scales, sums;

  Fixed(const RowKernels& kernels, const std::vector<float>& x)
      : codes(x.size()), scales(x.size() / kFixedRun), sums(scales.size()) {
    kernels.fix(x.data(), static_cast<std::int64_t>(x.size()), codes.data(), scales.data(), sums.data());
  }
  /// As the kernel for rows of a type reads it. The previous contents of the memory must not matter.
  [[nodiscard]] FixedRow row(const RowKernels& kernels, TensorType type) {
    const auto n = static_cast<std::int64_t>(codes.size());
    FixedRow row{codes.data(), scales.data(), sums.data(), nullptr};
    const auto arrange = kernels.arrange[static_cast<int>(type)];
    if (arrange == nullptr) return row;
    arranged.assign(arranged_row_bytes(n) + 1, std::byte{0x7F});
    arrange(row, n, arranged.data());
    EXPECT_EQ(arranged.back(), std::byte{0x7F}) << "written after the memory";
    row.arranged = arranged.data();
    return row;
  }
  std::vector<std::byte> arranged;
};

// Zero, subnormal, negative, largest, infinite and NaN scales and minima. Where the package has NaN, so have the widened row
// and every product with it; where a block holds anything that is not finite, no product is finite.
TEST_P(Rows, ExtremesAreThoseOfTheGgufPackage) {
  const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
  int not_finite = 0;
  for (const TensorTypeInfo& info : tensor_types()) {
    if (!is_quantised(info.type)) continue;
    const auto type = static_cast<int>(info.type);
    const Tensor& stored = file.tensor(fmt::format("{}.extremes", info.name));
    const Tensor& golden = file.tensor(fmt::format("{}.extremes.values", info.name));
    const std::vector<float> expected = floats_of(golden);
    const std::int64_t n = stored.dims[0];
    const auto count = static_cast<std::size_t>(n);
    const auto sampled = static_cast<std::size_t>(golden.dims[0]);
    const std::size_t step = sampled == count ? 1 : 17;  // of some types one value of each run of 16
    ASSERT_EQ((count + step - 1) / step, sampled);
    ASSERT_EQ(n, info.block_elements);
    ASSERT_EQ(stored.rows(), 16);
    for (std::int64_t r = 0; r < stored.rows(); ++r) {
      SCOPED_TRACE(fmt::format("{} row {}", info.name, r));
      std::vector<float> values(count);
      std::vector<std::uint16_t> rounded(count);
      kernels_->widen[type](stored.row(r), n, values.data());
      kernels_->widen_bf16[type](stored.row(r), n, rounded.data());
      const float* const wanted = expected.data() + r * golden.dims[0];
      bool finite = true;
      for (std::size_t i = 0; i < count; i += step) {
        const float one = wanted[i / step];
        finite = finite && std::isfinite(one);
        if (std::isnan(one)) {
          ASSERT_TRUE(std::isnan(values[i])) << i;
          ASSERT_GT(rounded[i] & 0x7FFF, 0x7F80) << i;
        } else {
          ASSERT_EQ(bits_of(values[i]), bits_of(one)) << i;
          ASSERT_EQ(rounded[i], bf16_by_definition(one)) << i;
        }
      }
      if (finite) continue;
      ++not_finite;
      const std::vector<float> ones(count, 1.0F);
      EXPECT_FALSE(std::isfinite(kernels_->dot[type](stored.row(r), n, ones.data())));
      Fixed fixed(*kernels_, ones);
      const FixedRow row = fixed.row(*kernels_, info.type);
      EXPECT_FALSE(std::isfinite(kernels_->dot_fixed[type](stored.row(r), n, row)));
    }
  }
  EXPECT_GE(not_finite, 8 * 3);
}

std::vector<float> uneven_row(std::int64_t n) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  // Runs of very different sizes, as activations have them.
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(normal(random), static_cast<int>(i / kFixedRun * 7 % 23) - 11);
  }
  return x;
}

float largest_of_run(const std::vector<float>& x, std::size_t i) {
  float most = 0;
  for (std::size_t j = i / kFixedRun * kFixedRun; j < (i / kFixedRun + 1) * kFixedRun; ++j)
    most = std::max(most, std::fabs(x[j]));
  return most;
}

TEST_P(Rows, FixedPointIsTheNearest) {
  std::vector<float> x = uneven_row(8 * kFixedRun);
  std::fill_n(x.begin() + kFixedRun, kFixedRun, 0.0f);          // nothing
  std::fill_n(x.begin() + 2 * kFixedRun, kFixedRun, 1e-38f);    // next to nothing
  std::fill_n(x.begin() + 3 * kFixedRun, kFixedRun, -3.0e36f);  // its sum is nearly infinite
  const Fixed fixed(*kernels_, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t run = i / kFixedRun;
    ASSERT_LE(std::abs(static_cast<int>(fixed.codes[i])), 32639);
    const double value = static_cast<double>(fixed.codes[i]) * static_cast<double>(fixed.scales[run]);
    ASSERT_NEAR(value, static_cast<double>(x[i]),
                static_cast<double>(largest_of_run(x, i)) * (0x1p-16 + 0x1p-22) + 0x1p-99)
        << i;
  }
  for (std::size_t run = 0; run < fixed.sums.size(); ++run) {
    double sum = 0;
    for (std::size_t i = 0; i < kFixedRun; ++i) sum += fixed.codes[run * kFixedRun + i];
    ASSERT_NEAR(static_cast<double>(fixed.sums[run]), sum * static_cast<double>(fixed.scales[run]),
                std::fabs(sum * static_cast<double>(fixed.scales[run])) * 0x1p-23);
  }
}

TEST_P(Rows, FixedPointHidesNoNaN) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(256, 1.0f);
    x[77] = bad;
    Fixed fixed(*kernels_, x);
    EXPECT_TRUE(std::isnan(fixed.scales[2]));
    const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
    for (const TensorTypeInfo& info : tensor_types()) {
      if (!is_quantised(info.type)) continue;
      const Tensor& stored = file.tensor(info.name);
      ASSERT_GE(stored.dims[0], 256);
      const FixedRow row = fixed.row(*kernels_, info.type);
      const float dot = kernels_->dot_fixed[static_cast<int>(info.type)](stored.row(2), 256, row);
      EXPECT_TRUE(std::isnan(dot)) << info.name;
    }
  }
}

// The bound of the header: x's own rounding, then one rounding for each product and sum of runs.
TEST_P(Rows, DotProductsInFixedPointAreThoseOfTheWidenedRow) {
  const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
  for (const TensorTypeInfo& info : tensor_types()) {
    if (!is_quantised(info.type)) continue;
    const Tensor& stored = file.tensor(info.name);
    for (std::int64_t r = 0; r < stored.rows(); ++r) {
      for (std::int64_t n = info.block_elements; n <= stored.dims[0]; n += info.block_elements) {
        const std::vector<float> x = uneven_row(n);
        std::vector<float> w(x.size());
        kernels_->widen[static_cast<int>(info.type)](stored.row(r), n, w.data());
        const std::vector<double> sizes = sizes_of(info.type, stored.row(r), n);
        const double runs = static_cast<double>(n) / 16;
        double sum = 0;
        double bound = 0;
        for (std::size_t i = 0; i < w.size(); ++i) {
          sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
          bound += sizes[i] * static_cast<double>(largest_of_run(x, i)) * (0x1p-16 + (runs + 8) * 0x1p-24);
        }
        Fixed fixed(*kernels_, x);
        const FixedRow row = fixed.row(*kernels_, info.type);
        const auto dot = kernels_->dot_fixed[static_cast<int>(info.type)];
        const float got = dot(stored.row(r), n, row);
        ASSERT_NEAR(static_cast<double>(got), sum, bound) << info.name << " row " << r << ", " << n;
        // A row need not stand on a boundary of any kind.
        std::vector<std::byte> moved(static_cast<std::size_t>(row_bytes(info.type, n)) + 1);
        std::memcpy(moved.data() + 1, stored.row(r), moved.size() - 1);
        EXPECT_EQ(bits_of(dot(moved.data() + 1, n, row)), bits_of(got));
      }
    }
  }
}

// Rows x beside each other, of which one holds NaN, have the bits that each has alone.
TEST_P(Rows, DotProductsOfFewRowsAreThoseOfEach) {
  const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
  int compared = 0;
  for (const TensorTypeInfo& info : tensor_types()) {
    const auto few = kernels_->dot_fixed_few[static_cast<int>(info.type)];
    if (few == nullptr) continue;
    const Tensor& stored = file.tensor(info.name);
    for (std::int64_t n = info.block_elements; n <= stored.dims[0]; n += info.block_elements) {
      std::vector<std::unique_ptr<Fixed>> kept;
      std::vector<FixedRow> rows;
      for (int i = 0; i < kFixedRowsAtOnce; ++i) {
        std::vector<float> x = uneven_row(n);
        std::rotate(x.begin(), x.begin() + 5 * i, x.end());
        if (i == 2 && n > 64) x[40] = NAN;
        kept.push_back(std::make_unique<Fixed>(*kernels_, x));
        rows.push_back(kept.back()->row(*kernels_, info.type));
      }
      for (std::int64_t r = 0; r < stored.rows(); ++r) {
        float dots[kFixedRowsAtOnce];
        few(stored.row(r), n, rows.data(), dots);
        for (std::size_t i = 0; i < rows.size(); ++i, ++compared) {
          const float alone = kernels_->dot_fixed[static_cast<int>(info.type)](stored.row(r), n, rows[i]);
          ASSERT_EQ(bits_of(dots[i]), bits_of(alone))
              << info.name << " row " << r << ", " << n << ", x " << i;
        }
      }
    }
  }
  const bool has_them =
      kernels_->isa == std::string_view("AVX2") || kernels_->isa == std::string_view("AVX-512");
  EXPECT_EQ(compared > 0, has_them);
}

// A row as long as those of models, of golden blocks over and over.
TEST_P(Rows, AsLongAsThoseOfModels) {
  const GgufFile file = GgufFile::open(FIXTURES "/types.gguf");
  for (const TensorTypeInfo& info : tensor_types()) {
    const Tensor& stored = file.tensor(info.name);
    const std::vector<float> values = floats_of(file.tensor(std::string(info.name) + ".values"));
    const auto period = static_cast<std::size_t>(stored.dims[0]);
    const auto stored_bytes = static_cast<std::size_t>(row_bytes(info.type, stored.dims[0]));
    for (const std::int64_t n : {4864, 14336, 28672, 53248}) {
      SCOPED_TRACE(std::string(info.name) + " " + std::to_string(n));
      std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(info.type, n)));
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = stored.row(2)[i % stored_bytes];
      const auto count = static_cast<std::size_t>(n);
      std::vector<float> w(count + 1, 12345.0f);
      std::vector<std::uint16_t> narrow(count + 1, 0x1234);
      kernels_->widen[static_cast<int>(info.type)](row.data(), n, w.data());
      kernels_->widen_bf16[static_cast<int>(info.type)](row.data(), n, narrow.data());
      // No term takes off another one, so that a missing part is more than roundings are.
      std::vector<float> x = uneven_row(n);
      for (std::size_t i = 0; i < count; ++i) x[i] = std::copysign(x[i], values[2 * period + i % period]);
      const std::vector<double> sizes =
          is_quantised(info.type) ? sizes_of(info.type, row.data(), n) : std::vector<double>(count);
      double sum = 0;
      double magnitude = 0;
      double fixed_bound = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const float wanted = values[2 * period + i % period];
        ASSERT_EQ(bits_of(w[i]), bits_of(wanted)) << i;
        ASSERT_EQ(narrow[i], bf16_by_definition(wanted)) << i;
        sum += static_cast<double>(wanted) * static_cast<double>(x[i]);
        magnitude += std::abs(static_cast<double>(wanted) * static_cast<double>(x[i]));
        fixed_bound += sizes[i] * static_cast<double>(largest_of_run(x, i)) *
                       (0x1p-16 + (static_cast<double>(n) / 16 + 8) * 0x1p-24);
      }
      EXPECT_EQ(w.back(), 12345.0f);
      EXPECT_EQ(narrow.back(), 0x1234);
      const float dot = kernels_->dot[static_cast<int>(info.type)](row.data(), n, x.data());
      EXPECT_NEAR(static_cast<double>(dot), sum, static_cast<double>(n + 2) * 0x1p-24 * magnitude);
      if (!is_quantised(info.type)) continue;
      Fixed fixed(*kernels_, x);
      const FixedRow arranged = fixed.row(*kernels_, info.type);
      const float got = kernels_->dot_fixed[static_cast<int>(info.type)](row.data(), n, arranged);
      EXPECT_NEAR(static_cast<double>(got), sum, fixed_bound);
    }
  }
}

// To the last bit that of integers of 64 bits, for every remainder of blocks and each of several rows x.
TEST_P(Rows, ProductsInFixedPointAreThoseOfIntegers) {
  std::mt19937 random(8);
  for (const TensorTypeInfo& info : tensor_types()) {
    if (!is_quantised(info.type)) continue;
    const auto type = static_cast<int>(info.type);
    for (std::int64_t blocks = 1; blocks <= 9; ++blocks) {
      const std::int64_t n = blocks * info.block_elements;
      const RandomRows rows = with_unit_scales(RandomRows(info.type, n, 6));
      for (std::int64_t r = 0; r < rows.count; ++r) {
        const auto products = exact_products(rows, r, random);
        ASSERT_FALSE(products.empty()) << info.name;
        for (const ExactProduct& one : products) {
          Fixed fixed(*kernels_, one.x);
          const FixedRow x = fixed.row(*kernels_, info.type);
          ASSERT_EQ(kernels_->dot_fixed[type](rows.row(r), n, x), static_cast<float>(one.product))
              << info.name << ", row " << r << " of " << n;
          if (kernels_->dot_fixed_few[type] == nullptr) continue;
          const std::vector<FixedRow> same(kFixedRowsAtOnce, {x.codes, x.scales, x.sums, nullptr});
          float few[kFixedRowsAtOnce];
          kernels_->dot_fixed_few[type](rows.row(r), n, same.data(), few);
          for (const float got : few) ASSERT_EQ(got, static_cast<float>(one.product)) << info.name;
        }
      }
    }
  }
}

// A row beyond 2^16 elements is its pieces one after the other, of which no two are alike; its product with a row that is
// zero in all places but one is the element there.
TEST_P(Rows, EveryPlaceOfALongRow) {
  for (const TensorTypeInfo& info : tensor_types()) {
    SCOPED_TRACE(info.name);
    const auto type = static_cast<int>(info.type);
    const std::int64_t n = info.block_elements == 1 ? 140001 : 140032;
    const RandomRows rows(info.type, n, 1);
    const auto count = static_cast<std::size_t>(n);
    std::vector<float> w(count);
    std::vector<std::uint16_t> narrow(count);
    kernels_->widen[type](rows.row(0), n, w.data());
    kernels_->widen_bf16[type](rows.row(0), n, narrow.data());
    const std::int64_t step = info.block_elements == 1 ? 1000 : info.block_elements;
    std::vector<float> piece(static_cast<std::size_t>(step));
    for (std::int64_t at = 0; at < n; at += step) {
      const std::int64_t some = std::min(step, n - at);
      kernels_->widen[type](rows.row(0) + row_bytes(info.type, at), some, piece.data());
      ASSERT_EQ(std::memcmp(piece.data(), w.data() + at, static_cast<std::size_t>(some) * sizeof(float)), 0)
          << at;
    }
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(narrow[i], bf16_by_definition(w[i])) << i;
    const std::vector<double> sizes =
        is_quantised(info.type) ? sizes_of(info.type, rows.row(0), n) : std::vector<double>();
    std::vector<float> x(count, 0.0F);
    for (const std::size_t i :
         {std::size_t{0}, std::size_t{255}, std::size_t{256}, std::size_t{32767}, std::size_t{32768},
          std::size_t{65535}, std::size_t{65536}, std::size_t{131071}, std::size_t{131072}, count - 1}) {
      x[i] = 1.0F;
      // Q4_K and Q5_K round between the parts of an element, whose difference it is.
      const double rounding = sizes.empty() ? 0.0 : sizes[i] * 0x1p-23;
      EXPECT_NEAR(static_cast<double>(kernels_->dot[type](rows.row(0), n, x.data())),
                  static_cast<double>(w[i]), rounding)
          << i;
      if (is_quantised(info.type)) {
        Fixed fixed(*kernels_, x);
        const float got = kernels_->dot_fixed[type](rows.row(0), n, fixed.row(*kernels_, info.type));
        EXPECT_NEAR(static_cast<double>(got), static_cast<double>(w[i]), sizes[i] * (0x1p-16 + 24 * 0x1p-24))
            << i;
      }
      x[i] = 0.0F;
    }
  }
}

std::string short_name(const ::testing::TestParamInfo<int>& param) {
  static constexpr std::array<const char*, 4> names = {"portable", "avx2", "avx512", "avx512vnni"};
  return names[param.index];
}
INSTANTIATE_TEST_SUITE_P(EveryIsa, Rows, ::testing::Range(0, 4), short_name);

// Each variant runs exactly where /proc/cpuinfo has all of its flags.
TEST(RowKernels, RunWhereTheProcessorHasTheirInstructions) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  ASSERT_FALSE(flags.empty());
  const std::vector<std::vector<std::string>> needed = {{},
                                                        {"avx2", "fma", "f16c"},
                                                        {"avx512f", "avx512bw"},
                                                        {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}};
  const auto variants = row_kernel_variants();
  ASSERT_EQ(variants.size(), needed.size());
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const bool has = std::all_of(needed[i].begin(), needed[i].end(),
                                 [&](const std::string& flag) { return flags.contains(flag); });
    EXPECT_EQ(variants[i].missing().empty(), has) << variants[i].kernels->isa << variants[i].missing();
  }
}

// On both sides of every multiple of the rows that a kernel takes at once; nothing is written beside or after them.
TEST(RowKernels, EachOfSeveralRowsHasTheBitsThatItHasAlone) {
  constexpr std::int64_t kCount = 3;
  constexpr std::int64_t kStride = 5;
  constexpr std::int64_t kMost = 13;
  constexpr float kUntouched = 12345.0F;
  for (const TensorTypeInfo& info : tensor_types()) {
    if (!is_quantised(info.type)) continue;
    for (const std::int64_t n : {256, 4352}) {
      const RandomRows rows(info.type, n, kCount);
      const std::size_t fixed = fixed_row_bytes(n);
      const std::size_t bytes = fixed + arranged_row_bytes(n);
      std::vector<std::byte> memory(static_cast<std::size_t>(kMost) * bytes + 64);
      void* at = memory.data();
      std::size_t space = memory.size();
      auto* const aligned = static_cast<std::byte*>(std::align(64, memory.size() - 64, at, space));
      std::vector<FixedRow> x;
      std::vector<float> alone(static_cast<std::size_t>(kMost * kCount));
      for (std::int64_t i = 0; i < kMost; ++i) {
        std::vector<float> values = uneven_row(n);
        for (float& value : values) value *= static_cast<float>(i + 1);
        std::byte* const own = aligned + static_cast<std::size_t>(i) * bytes;
        x.push_back(arrange_row(info.type, fix_row(values.data(), n, own), n, own + fixed));
        dot_rows_fixed(info.type, rows.row(0), kCount, n, std::span(x).last(1), alone.data() + i * kCount, 1);
      }
      for (std::int64_t count = 1; count <= kMost; ++count) {
        std::vector<float> got(static_cast<std::size_t>((kMost + 1) * kStride), kUntouched);
        dot_rows_fixed(info.type, rows.row(0), kCount, n, std::span(x).first(static_cast<std::size_t>(count)),
                       got.data(), kStride);
        for (std::int64_t i = 0; i < std::ssize(got); ++i) {
          const std::int64_t row = i / kStride;
          const bool written = row < count && i % kStride < kCount;
          const float wanted =
              written ? alone[static_cast<std::size_t>(row * kCount + i % kStride)] : kUntouched;
          ASSERT_EQ(bits_of(got[static_cast<std::size_t>(i)]), bits_of(wanted))
              << info.name << ", row " << row << " of " << count << " rows of " << n;
        }
      }
    }
  }
}

TEST(RowKernels, TheFastestIsChosen) {
  const auto variants = row_kernel_variants();
  ASSERT_EQ(variants.size(), 4U);
  EXPECT_TRUE(variants[0].missing().empty());
  const RowKernels* best = nullptr;
  for (const RowKernelVariant& variant : variants) {
    if (variant.missing().empty()) best = variant.kernels;
    std::printf("%s: %s\n", variant.kernels->isa,
                variant.missing().empty() ? "runs" : variant.missing().c_str());
  }
  EXPECT_EQ(&row_kernels(), best);
  const float row[] = {1.5f, 2.0f};
  float out[2] = {};
  dequantize_row(TensorType::f32, reinterpret_cast<const std::byte*>(row), 2, out);
  EXPECT_EQ(out[1], 2.0f);
  const float more[] = {1.5f, 2.0f, -1.0f, 0.5f};
  float dots[2] = {};
  dot_rows(TensorType::f32, reinterpret_cast<const std::byte*>(more), 2, 2, out, dots);
  EXPECT_EQ(dots[0], 6.25f);
  EXPECT_EQ(dots[1], -0.5f);
  std::uint16_t narrow[2] = {};
  dequantize_row_bf16(TensorType::f32, reinterpret_cast<const std::byte*>(row), 2, narrow);
  EXPECT_EQ(narrow[1], 0x4000);
}

}  // namespace
}  // namespace headwater::runtime::testing
