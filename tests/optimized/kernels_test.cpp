// Every kernel of every table against its one-line definition in double, at ragged sizes.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/numbers.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/kernels/portable/elementary.hpp"
#include "cpu/kernels/table.hpp"

namespace headwater::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kPoison = 12345.5f;

std::vector<float> normals(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double ulp_of(double x) { return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 23); }

TEST(Elementary, ExponentialWithinTwoUlp) {
  double worst = 0;
  for (float x = -87.3f; x <= 0.0f; x += 0.00037f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(portable::exp_nonpositive(x) - exact) / ulp_of(exact));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(portable::exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(portable::exp_nonpositive(-0.0f), 1.0f);
  EXPECT_EQ(portable::exp_nonpositive(-kInf), 0.0f);
  EXPECT_EQ(portable::exp_nonpositive(-200.0f), 0.0f);
  EXPECT_EQ(portable::exp_nonpositive(-87.34f), 0.0f);
  EXPECT_GT(portable::exp_nonpositive(-87.33f), 0.0f);
  EXPECT_TRUE(std::isnan(portable::exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Elementary, HyperbolicTangentWithinFourUlp) {
  double worst = 0;
  for (float x = 1e-6f; x < 12.0f; x *= 1.0003f) {
    const double exact = std::tanh(static_cast<double>(x));
    worst = std::max(worst, std::fabs(portable::tanh_any(x) - exact) / ulp_of(exact));
    EXPECT_EQ(portable::tanh_any(-x), -portable::tanh_any(x));
  }
  EXPECT_LT(worst, 4.0);
  EXPECT_EQ(portable::tanh_any(0.0f), 0.0f);
  EXPECT_EQ(portable::tanh_any(1e-30f), 1e-30f);
  EXPECT_EQ(portable::tanh_any(50.0f), 1.0f);
  EXPECT_EQ(portable::tanh_any(kInf), 1.0f);
  EXPECT_EQ(portable::tanh_any(-kInf), -1.0f);
  EXPECT_TRUE(std::isnan(portable::tanh_any(std::numeric_limits<float>::quiet_NaN())));
}

/// Variant, lanes, keys, row width.
class Kernels : public ::testing::TestWithParam<std::tuple<int, int, int, int>> {
 protected:
  void SetUp() override {
    if (!variant.missing().empty()) GTEST_SKIP() << variant.engine << ": " << variant.missing();
  }

  const Variant& variant = variants()[static_cast<std::size_t>(std::get<0>(GetParam()))];
  const KernelTable& kernels = *variant.kernels;
  const std::int64_t lanes = std::get<1>(GetParam());
  const std::int64_t n_keys = std::get<2>(GetParam());
  const std::int64_t d = std::get<3>(GetParam());
  std::vector<float> block = std::vector<float>(static_cast<std::size_t>(n_keys * kBlockRows), kPoison);

  float& at(std::int64_t key, std::int64_t lane) {
    return block[static_cast<std::size_t>(key * kBlockRows + lane)];
  }
};

TEST(Elementary, WeightsOfEveryTableWithinTwoUlp) {
  constexpr std::int64_t kKeys = 7400;
  for (const Variant& variant : variants()) {
    if (!variant.missing().empty()) continue;
    std::vector<float> weights(static_cast<std::size_t>(kKeys * kBlockRows),
                               0.0f);  // the first key: the maximum
    for (std::size_t i = kBlockRows; i < weights.size(); ++i) weights[i] = -3.7e-4f * static_cast<float>(i);
    const std::vector<float> logits = weights;
    SoftmaxState state;
    std::fill_n(state.max, kBlockRows, -kInf);
    std::fill_n(state.sum, kBlockRows, 0.0f);
    variant.kernels->softmax(kBlockRows, kKeys, weights.data(), state);
    double worst = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double exact = std::exp(static_cast<double>(logits[i]));
      if (exact > 0x1.01p-126) {
        worst = std::max(worst, std::fabs(static_cast<double>(weights[i]) - exact) / exact);
      } else if (exact < 0x1.fep-127) {
        EXPECT_EQ(weights[i], 0.0f) << variant.engine << " " << logits[i];
      }
    }
    EXPECT_LT(worst, 4 * 0x1p-24) << variant.engine;
    EXPECT_EQ(weights[0], 1.0f) << variant.engine;
  }
}

TEST(ColumnsOfRows, SEL_3_SEL_4_SumAndSpreadOfEveryTable) {
  constexpr std::int64_t kStride = 333;  // bytes: odd addresses
  const std::vector<float> values = normals(400, 17);
  for (const Variant& variant : variants()) {
    if (!variant.missing().empty()) continue;
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const auto element = static_cast<std::int64_t>(dtype_size(type));
      for (const std::int64_t d : {1, 15, 63, 64, 65, 80}) {
        for (const std::int64_t n_rows : {1, 2, 3, 8}) {
          std::vector<unsigned char> rows(static_cast<std::size_t>(kStride * n_rows + 1));
          for (std::int64_t r = 0; r < n_rows; ++r)
            core::narrow(values.data() + 9 * r, d, type, rows.data() + 1 + r * kStride);
          std::vector<float> sums(static_cast<std::size_t>(d) + 1, kPoison);
          variant.kernels->row_sum(rows.data() + 1, kStride, n_rows, type, d, 0.7f, sums.data());
          for (std::int64_t x = 0; x < d; ++x) {
            float sum = 0.0f;
            for (std::int64_t r = 0; r < n_rows; ++r) {
              float stored = 0.0f;
              core::widen(rows.data() + 1 + r * kStride + x * element, type, 1, &stored);
              sum += stored;
            }
            EXPECT_EQ(sums[static_cast<std::size_t>(x)], sum * 0.7f)
                << variant.engine << ", " << d << ", " << n_rows << ", " << x;
          }
          EXPECT_EQ(sums.back(), kPoison);

          std::vector<const void*> pointers;
          for (std::int64_t r = 0; r < n_rows; ++r) pointers.push_back(rows.data() + 1 + r * kStride);
          std::vector<float> mean(sums.size(), kPoison);
          std::vector<float> squares(sums.size(), kPoison);
          variant.kernels->spread(pointers.data(), n_rows, type, d, mean.data(), squares.data());
          for (std::int64_t x = 0; x < d; ++x) {
            const auto stored = [&](std::int64_t r) {
              float value = 0.0f;
              core::widen(rows.data() + 1 + r * kStride + x * element, type, 1, &value);
              return value;
            };
            float middle = 0.0f;
            float total = 0.0f;
            for (std::int64_t r = 0; r < n_rows; ++r) middle += stored(r);
            middle /= static_cast<float>(n_rows);
            for (std::int64_t r = 0; r < n_rows; ++r) total += (stored(r) - middle) * (stored(r) - middle);
            EXPECT_EQ(mean[static_cast<std::size_t>(x)], middle);
            EXPECT_EQ(squares[static_cast<std::size_t>(x)], total);
          }
          EXPECT_EQ(mean.back(), kPoison);
          EXPECT_EQ(squares.back(), kPoison);
        }
      }
    }
  }
}

/// Every sign, exponent and upper part of a fraction, with lower parts at and around the middle of both 16-bit types.
TEST(Rounding, NUM_1_RowsOfEveryTableAsCoreRoundsThem) {
  constexpr std::uint32_t kLower[] = {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x2FFF,
                                      0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper <= 0xFFFF; ++upper) {
    for (const std::uint32_t lower : kLower) values.push_back(std::bit_cast<float>(upper << 16 | lower));
  }
  const auto count = static_cast<std::int64_t>(values.size());
  ASSERT_NE((count - 5) % 8, 0);  // a tail in every table
  for (const Variant& variant : variants()) {
    if (!variant.missing().empty()) continue;
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<unsigned char> expected(values.size() * 4 + 2, 0xA5);
      auto narrowed = expected;
      core::narrow(values.data() + 5, count - 5, type, expected.data() + 1);
      variant.kernels->narrow(values.data() + 5, count - 5, type, narrowed.data() + 1);
      EXPECT_EQ(narrowed, expected) << variant.engine;
    }
  }
}

TEST_P(Kernels, NUM_1_WidenAtAnyAlignment) {
  const std::int64_t count = n_keys * d;
  const auto values = normals(static_cast<std::size_t>(count), 9);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * 4 + 1);
    core::narrow(values.data(), count, type, bytes.data() + 1);
    std::vector<float> expected(values.size() + 1, kPoison);
    auto wide = expected;
    core::widen(bytes.data() + 1, type, count, expected.data());
    kernels.widen(bytes.data() + 1, type, count, wide.data());
    EXPECT_EQ(wide, expected);

    std::vector<const void*> rows;  // from the last
    for (std::int64_t row = n_keys; row-- > 0;) {
      rows.push_back(bytes.data() + 1 + row * d * static_cast<std::int64_t>(dtype_size(type)));
    }
    wide.assign(wide.size(), kPoison);
    kernels.widen_rows(rows.data(), n_keys, type, d, wide.data());
    EXPECT_EQ(wide.back(), kPoison);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t of_last = (n_keys - 1 - i / d) * d + i % d;
      EXPECT_EQ(wide[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(of_last)]);
    }
  }
}

TEST_P(Kernels, FUSE_1_ScalesInPlaceAndApart) {
  const auto row = normals(static_cast<std::size_t>(d), 10);
  std::vector<float> apart(row.size() + 1, kPoison);
  kernels.scale(row.data(), 0.37f, d, apart.data());
  auto in_place = row;
  in_place.push_back(kPoison);
  kernels.scale(in_place.data(), 0.37f, d, in_place.data());
  EXPECT_EQ(in_place, apart);
  EXPECT_EQ(apart.back(), kPoison);
  for (std::size_t i = 0; i < row.size(); ++i) EXPECT_EQ(apart[i], row[i] * 0.37f);
}

TEST_P(Kernels, LOGIT_1_DotProducts) {
  const auto q = normals(static_cast<std::size_t>(lanes * d), 1);
  const auto k = normals(static_cast<std::size_t>(n_keys * d), 2);
  std::vector<float> packed(static_cast<std::size_t>(kBlockRows * d) + 1, kPoison);
  kernels.pack_queries(q.data(), d, lanes, d, packed.data());
  EXPECT_EQ(packed.back(), kPoison);
  kernels.dot_products(packed.data(), lanes, d, k.data(), n_keys, 0.25f, block.data(), k.data());
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      double exact = 0;
      double size = 0;
      for (std::int64_t e = 0; e < d; ++e) {
        const double product = static_cast<double>(q[static_cast<std::size_t>(lane * d + e)]) *
                               static_cast<double>(k[static_cast<std::size_t>(key * d + e)]);
        exact += product;
        size += std::fabs(product);
      }
      EXPECT_NEAR(at(key, lane), 0.25 * exact, 0.25 * static_cast<double>(d + 1) * 0x1p-24 * size);
    }
  }
}

/// The bits of the same rows side by side.
TEST_P(Kernels, INTER_1_KeysAndValuesAnywhere) {
  const auto q = normals(static_cast<std::size_t>(lanes * d), 1);
  const auto k = normals(static_cast<std::size_t>(n_keys * d), 2);
  const std::int64_t dv = d + 3;
  const auto v = normals(static_cast<std::size_t>(n_keys * dv), 3);
  std::vector<const float*> keys;  // from the last
  std::vector<const float*> values;
  std::vector<float> keys_together;
  std::vector<float> values_together;
  for (std::int64_t key = n_keys; key-- > 0;) {
    keys.push_back(k.data() + key * d);
    values.push_back(v.data() + key * dv);
    keys_together.insert(keys_together.end(), keys.back(), keys.back() + d);
    values_together.insert(values_together.end(), values.back(), values.back() + dv);
  }
  std::vector<float> packed(static_cast<std::size_t>(kBlockRows * d), kPoison);
  kernels.pack_queries(q.data(), d, lanes, d, packed.data());
  std::vector<float> expected = block;
  kernels.dot_products(packed.data(), lanes, d, keys_together.data(), n_keys, 0.25f, expected.data(),
                       keys_together.data());
  kernels.dot_rows(packed.data(), lanes, d, keys.data(), n_keys, 0.25f, block.data(), values.data(), dv);
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      EXPECT_EQ(at(key, lane), expected[static_cast<std::size_t>(key * kBlockRows + lane)])
          << key << ' ' << lane;
    }
  }
  float rescale[kBlockRows];
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane)
    rescale[lane] = 0.5f + 0.01f * static_cast<float>(lane);
  for (const float* factors : {static_cast<const float*>(nullptr), static_cast<const float*>(rescale)}) {
    std::vector<float> together(static_cast<std::size_t>(lanes * dv) + 1, 0.75f);
    std::vector<float> apart = together;
    kernels.accumulate_values(expected.data(), lanes, n_keys, n_keys, values_together.data(), dv, factors,
                              together.data());
    kernels.accumulate_rows(expected.data(), lanes, n_keys, values.data(), dv, factors, apart.data());
    EXPECT_EQ(apart, together);
  }
}

TEST_P(Kernels, LOGIT_2_and_3_CapAndBias) {
  const auto values = normals(block.size(), 3);
  std::vector<std::int32_t> gathered;
  for (std::int64_t key = 0; key < n_keys; ++key) gathered.push_back(static_cast<std::int32_t>(3 * key));
  for (int kind = 0; kind < 8; ++kind) {
    LogitMap map;
    map.softcap = kind & 1 ? 0.8f : 0.0f;
    map.slope = kind & 2 ? 0.25f : 0.0f;
    BlockPositions positions{700, 13, kind & 4 ? gathered.data() : nullptr};
    std::fill(block.begin(), block.end(), kPoison);
    for (std::int64_t key = 0; key < n_keys; ++key) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        at(key, lane) = values[static_cast<std::size_t>(key * kBlockRows + lane)];
      }
    }
    kernels.cap_and_bias(map, positions, lanes, n_keys, block.data());
    for (std::int64_t key = 0; key < n_keys; ++key) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        double s = static_cast<double>(values[static_cast<std::size_t>(key * kBlockRows + lane)]);
        if (kind & 1) s = 0.8 * std::tanh(s / 0.8);
        const std::int64_t j = kind & 4 ? 3 * key : 13 + key;
        if (kind & 2) s -= 0.25 * static_cast<double>(700 + lane - j);
        EXPECT_NEAR(at(key, lane), s, 8 * 0x1p-24 * (1 + std::fabs(s))) << kind;
      }
    }
  }
}

TEST_P(Kernels, MASK_1_HidesExactlyTheFuture) {
  for (const std::int64_t first_row : {0, 1, 5, 40, 4000}) {
    std::fill(block.begin(), block.end(), 1.0f);
    kernels.mask_future({first_row, 3, nullptr}, lanes, n_keys, block.data());
    for (std::int64_t key = 0; key < n_keys; ++key) {
      for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
        const bool hidden = lane < lanes && 3 + key > first_row + lane;
        EXPECT_EQ(at(key, lane), hidden ? -kInf : 1.0f) << first_row << ' ' << key << ' ' << lane;
      }
    }
  }
}

TEST_P(Kernels, INTRA_1_SoftmaxInSegments) {
  const auto logits = normals(block.size() * 2, 4);
  SoftmaxState state;
  std::fill_n(state.max, kBlockRows, -kInf);
  std::fill_n(state.sum, kBlockRows, 0.0f);
  std::vector<double> max(static_cast<std::size_t>(lanes), -kInf);
  for (int segment = 0; segment < 2; ++segment) {
    const auto logit = [&](std::int64_t key, std::int64_t lane) {
      if (segment == 0 && lane == 3) return -kInf;  // nothing visible yet
      return 5 * logits[block.size() * static_cast<std::size_t>(segment) +
                        static_cast<std::size_t>(key * kBlockRows + lane)];
    };
    for (std::int64_t key = 0; key < n_keys; ++key) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) at(key, lane) = logit(key, lane);
    }
    const std::vector<double> before = max;
    kernels.softmax(lanes, n_keys, block.data(), state);
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      double& m = max[static_cast<std::size_t>(lane)];
      for (std::int64_t key = 0; key < n_keys; ++key) m = std::max(m, static_cast<double>(logit(key, lane)));
      EXPECT_EQ(static_cast<double>(state.max[lane]), m);
      const double old = before[static_cast<std::size_t>(lane)];
      const double rescale = std::isinf(old) ? 0.0 : std::exp(old - m);
      EXPECT_NEAR(state.rescale[lane], rescale, 4 * 0x1p-24 * (1 + 20 * rescale));
      double sum = 0;
      for (int s = 0; s <= segment; ++s) {
        for (std::int64_t key = 0; key < n_keys; ++key) {
          if (s == 0 && lane == 3) continue;
          const float x = 5 * logits[block.size() * static_cast<std::size_t>(s) +
                                     static_cast<std::size_t>(key * kBlockRows + lane)];
          sum += std::exp(static_cast<double>(x) - m);
        }
      }
      EXPECT_NEAR(state.sum[lane], std::isinf(m) ? 0.0 : sum, 1e-5 * (1 + sum));
      for (std::int64_t key = 0; key < n_keys; ++key) {
        const double weight = std::isinf(m) ? 0.0 : std::exp(static_cast<double>(logit(key, lane)) - m);
        EXPECT_NEAR(at(key, lane), weight, 40 * 0x1p-24 * weight + 1e-37);
      }
    }
  }
}

TEST_P(Kernels, INTRA_1_ValuesAndRescale) {
  const auto weights = normals(block.size(), 5);
  const std::int64_t dv = d;
  const auto v = normals(static_cast<std::size_t>(n_keys * dv), 6);
  auto out = normals(static_cast<std::size_t>(lanes * dv), 7);
  const auto before = out;
  out.push_back(kPoison);
  float rescale[kBlockRows];
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) rescale[lane] = 0.1f * static_cast<float>(lane + 1);
  kernels.accumulate_values(weights.data(), lanes, n_keys, n_keys, v.data(), dv, rescale, out.data());
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    for (std::int64_t c = 0; c < dv; ++c) {
      const auto i = static_cast<std::size_t>(lane * dv + c);
      double exact = static_cast<double>(before[i]) * static_cast<double>(rescale[lane]);
      double size = std::fabs(exact);
      for (std::int64_t key = 0; key < n_keys; ++key) {
        const double product =
            static_cast<double>(weights[static_cast<std::size_t>(key * kBlockRows + lane)]) *
            static_cast<double>(v[static_cast<std::size_t>(key * dv + c)]);
        exact += product;
        size += std::fabs(product);
      }
      EXPECT_NEAR(out[i], exact, static_cast<double>(n_keys + 3) * 0x1p-24 * size);
    }
  }
  EXPECT_EQ(out.back(), kPoison);
}

TEST_P(Kernels, INTRA_1_FirstValuesOverwriteTheOutput) {
  const auto weights = normals(block.size(), 5);
  const auto v = normals(static_cast<std::size_t>(n_keys * d), 6);
  const auto size = static_cast<std::size_t>(lanes * d);
  std::vector<float> nothing(size, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> zeros(size, 0.0f);
  float rescale[kBlockRows];
  std::fill_n(rescale, kBlockRows, 0.5f);
  kernels.accumulate_values(weights.data(), lanes, n_keys, n_keys, v.data(), d, nullptr, nothing.data());
  kernels.accumulate_values(weights.data(), lanes, n_keys, n_keys, v.data(), d, rescale, zeros.data());
  EXPECT_EQ(nothing, zeros);
}

TEST_P(Kernels, MASK_1_ValuesOfUnseenKeys) {
  const std::int64_t dv = d;
  const std::int64_t visible = n_keys / 2;
  auto weights = normals(block.size(), 5);
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
      if (key >= visible + lane) weights[static_cast<std::size_t>(key * kBlockRows + lane)] = 0;
    }
  }
  const auto v = normals(static_cast<std::size_t>(n_keys * dv), 6);
  float rescale[kBlockRows];
  std::fill_n(rescale, kBlockRows, 0.5f);
  auto told = normals(static_cast<std::size_t>(lanes * dv), 7);
  auto untold = told;
  kernels.accumulate_values(weights.data(), lanes, n_keys, visible, v.data(), dv, rescale, told.data());
  kernels.accumulate_values(weights.data(), lanes, n_keys, n_keys, v.data(), dv, rescale, untold.data());
  EXPECT_EQ(told, untold);
}

TEST_P(Kernels, INTRA_2_ColumnSums) {
  auto weights = normals(block.size(), 8);
  for (float& weight : weights) weight = std::fabs(weight);
  float factor[kBlockRows] = {};  // 0 in padding lanes
  for (std::int64_t lane = 0; lane < lanes; ++lane) factor[lane] = 1.0f + 0.01f * static_cast<float>(lane);
  std::vector<double> sums(static_cast<std::size_t>(n_keys) + 1, 2.0);
  kernels.column_sums(weights.data(), lanes, n_keys, factor, sums.data());
  for (std::int64_t key = 0; key < n_keys; ++key) {
    double exact = 2.0;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      exact += static_cast<double>(weights[static_cast<std::size_t>(key * kBlockRows + lane)]) *
               static_cast<double>(factor[lane]);
    }
    EXPECT_NEAR(sums[static_cast<std::size_t>(key)], exact, 10 * 0x1p-24 * exact);
  }
  EXPECT_EQ(sums.back(), 2.0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Kernels,
                         ::testing::Combine(::testing::Range(0, static_cast<int>(variants().size())),
                                            ::testing::Values(8, 16, 24, 32),
                                            ::testing::Values(1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 200),
                                            ::testing::Values(1, 3, 8, 15, 20, 64)));

}  // namespace
}  // namespace headwater::cpu
