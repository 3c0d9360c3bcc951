// The kernels of decode steps against their one-line definitions in double, for every table and stored type.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "core/numbers.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/kernels/table.hpp"

namespace headwater::cpu {
namespace {

constexpr float kPoison = 12345.5f;
constexpr double kUnit = 0x1p-24;

std::vector<float> normals(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// Rows as they are stored, and the floats that they stand for.
struct Stored {
  std::vector<unsigned char> bytes;
  std::vector<float> values;

  Stored(std::int64_t count, DType type, unsigned seed)
      : bytes(static_cast<std::size_t>(count) * dtype_size(type)), values(normals(count, seed)) {
    core::narrow(values.data(), count, type, bytes.data());
    core::widen(bytes.data(), type, count, values.data());
  }
};

class RowKernels : public ::testing::TestWithParam<std::tuple<int, DType, int, int, int>> {
 protected:
  void SetUp() override {
    const Variant& variant = variants()[static_cast<std::size_t>(std::get<0>(GetParam()))];
    if (const std::string missing = variant.missing(); !missing.empty()) GTEST_SKIP() << missing;
    kernels = variant.kernels;
  }
  std::vector<float> arranged(const std::vector<float>& natural, std::int64_t width) const {
    std::vector<float> to(static_cast<std::size_t>(rows * width));
    for (std::int64_t row = 0; row < rows; ++row) {
      kernels->arrange_row(natural.data() + row * width, type, width, to.data() + row * width);
    }
    return to;
  }

  const KernelTable* kernels = nullptr;
  const DType type = std::get<1>(GetParam());
  const std::int64_t rows = std::get<2>(GetParam());
  const std::int64_t n_keys = std::get<3>(GetParam());
  const std::int64_t d = std::get<4>(GetParam());
  const std::int64_t stride = n_keys + 3;
};

TEST_P(RowKernels, LOGIT_1_Logits) {
  const auto q = normals(rows * d, 1);
  const Stored keys(n_keys * d, type, 2);
  std::vector<float> logits(static_cast<std::size_t>(rows * stride), kPoison);
  kernels->row_logits(arranged(q, d).data(), rows, d, keys.bytes.data(), type, n_keys, 0.25f, logits.data(),
                      stride);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t key = 0; key < stride; ++key) {
      const float got = logits[static_cast<std::size_t>(row * stride + key)];
      if (key >= n_keys) {
        EXPECT_EQ(got, kPoison);
        continue;
      }
      double exact = 0;
      double size = 0;
      for (std::int64_t e = 0; e < d; ++e) {
        const double product = static_cast<double>(q[static_cast<std::size_t>(row * d + e)]) *
                               static_cast<double>(keys.values[static_cast<std::size_t>(key * d + e)]);
        exact += product;
        size += std::fabs(product);
      }
      EXPECT_NEAR(got, 0.25 * exact, 0.25 * static_cast<double>(d + 1) * kUnit * size);
    }
  }
}

TEST_P(RowKernels, INTRA_1_Weights) {
  auto logits = normals(n_keys + 1, 3);
  logits.back() = kPoison;
  const auto before = logits;
  const float max = 5.0f;
  const float sum = kernels->row_weights(logits.data(), n_keys, max);
  double total = 0;
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const auto i = static_cast<std::size_t>(key);
    const double exact = std::exp(static_cast<double>(before[i]) - static_cast<double>(max));
    EXPECT_NEAR(logits[i], exact, 40 * kUnit * exact);
    total += static_cast<double>(logits[i]);
  }
  EXPECT_NEAR(sum, total, static_cast<double>(n_keys) * kUnit * total);
  EXPECT_EQ(logits.back(), kPoison);
}

TEST_P(RowKernels, INTRA_1_Values) {
  const std::int64_t dv = d;
  const auto weights = normals(rows * stride, 4);
  const Stored values(n_keys * dv, type, 5);
  auto out = normals(rows * dv + 1, 6);
  out.back() = kPoison;
  const auto before = out;
  auto sums = arranged(out, dv);
  sums.push_back(kPoison);
  kernels->row_values(weights.data(), stride, rows, values.bytes.data(), type, n_keys, dv, sums.data());
  EXPECT_EQ(sums.back(), kPoison);
  for (std::int64_t row = 0; row < rows; ++row) {
    kernels->restore_row(sums.data() + row * dv, type, dv, out.data() + row * dv);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < dv; ++c) {
      const auto i = static_cast<std::size_t>(row * dv + c);
      double exact = static_cast<double>(before[i]);
      double size = std::fabs(exact);
      for (std::int64_t key = 0; key < n_keys; ++key) {
        const double product = static_cast<double>(weights[static_cast<std::size_t>(row * stride + key)]) *
                               static_cast<double>(values.values[static_cast<std::size_t>(key * dv + c)]);
        exact += product;
        size += std::fabs(product);
      }
      EXPECT_NEAR(out[i], exact, static_cast<double>(n_keys + 2) * kUnit * size);
    }
  }
  EXPECT_EQ(out.back(), kPoison);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RowKernels,
                         ::testing::Combine(::testing::Range(0, static_cast<int>(variants().size())),
                                            ::testing::Values(DType::f32, DType::f16, DType::bf16),
                                            ::testing::Values(1, 2, 3, 7, 16),
                                            ::testing::Values(1, 5, 16, 17, 63, 130),
                                            ::testing::Values(1, 7, 16, 33, 64, 80, 128, 144)));

}  // namespace
}  // namespace headwater::cpu
