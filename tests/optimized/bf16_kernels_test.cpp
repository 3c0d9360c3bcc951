// Every kernel of every BF16 table against its one-line definition in double, at ragged sizes. Test builds hold the
// emulated tiles, too.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "cpu/arithmetic/bf16_block.hpp"
#include "cpu/dispatch.hpp"

namespace headwater::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kUnit = 0x1p-24;
constexpr double kExp = 0x1p-17;
constexpr double kBf16 = 0x1p-8;

std::vector<std::uint16_t> rows_of(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
  for (std::uint16_t& x : bits)
    x = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  return bits;
}

double value_of(std::uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

class Bf16Kernels : public ::testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  void SetUp() override {
    const Variant& variant = variants()[static_cast<std::size_t>(std::get<0>(GetParam()))];
    if (!variant.bf16) GTEST_SKIP() << variant.engine << " has no BF16 kernels";
    if (const std::string missing = variant.missing(); !missing.empty()) GTEST_SKIP() << missing;
    kernels = variant.bf16;
    d = padded(std::get<2>(GetParam()), kernels->d_multiple);
    dv = padded(std::get<2>(GetParam()), kernels->dv_multiple);
    queries = rows_of(kBlockRows * d, 1);
    packed.assign(queries.size(), 0x7FC0);
    kernels->pack_queries(queries.data(), 2 * d, kBlockRows, d, d, packed.data());
    keys = rows_of(key_tiles(n_keys) * kKeyTile * d, 2);  // readable up to a whole tile
  }

  [[nodiscard]] Bf16Segment segment() const {
    Bf16Segment result;
    result.queries = packed.data();
    result.keys = keys.data();
    result.key_stride = d;
    result.d = d;
    result.n_keys = n_keys;
    result.factor = 0.3f;
    result.positions = {n_keys - 5, 0, nullptr};  // the last keys lie after the first rows
    return result;
  }
  [[nodiscard]] bool sees(std::int64_t lane, std::int64_t key) const { return key <= n_keys - 5 + lane; }
  [[nodiscard]] double logit(std::int64_t lane, std::int64_t key) const {
    double sum = 0;
    for (std::int64_t e = 0; e < d; ++e) {
      sum += value_of(queries[static_cast<std::size_t>(lane * d + e)]) *
             value_of(keys[static_cast<std::size_t>(key * d + e)]);
    }
    return static_cast<double>(0.3f) * sum;
  }
  [[nodiscard]] double error_of_logit(std::int64_t lane, std::int64_t key) const {
    double size = 0;
    for (std::int64_t e = 0; e < d; ++e) {
      size += std::fabs(value_of(queries[static_cast<std::size_t>(lane * d + e)]) *
                        value_of(keys[static_cast<std::size_t>(key * d + e)]));
    }
    return static_cast<double>(d + 4) * kUnit * 0.3 * size;
  }
  static double weight(const std::vector<std::uint16_t>& weights, std::int64_t lane, std::int64_t key) {
    return value_of(weights[static_cast<std::size_t>((key / 2 * kBlockRows + lane) * 2 + key % 2)]);
  }

  const Bf16Table* kernels = nullptr;
  const std::int64_t n_keys = std::get<1>(GetParam());
  std::int64_t d = 0;
  std::int64_t dv = 0;
  std::vector<std::uint16_t> queries, packed, keys;
};

TEST_P(Bf16Kernels, INTRA_1_WeightsAndSums) {
  std::vector<std::uint16_t> weights(static_cast<std::size_t>(key_tiles(n_keys) * kTileWeights), 0x7FC0);
  Bf16Softmax softmax{};
  std::fill_n(softmax.offset, kBlockRows, -kInf);
  kernels->softmax_weights(segment(), softmax, weights.data());
  EXPECT_TRUE(softmax.anchored);
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    double sum = 0;
    double rounded = 0;
    double allowed = 0;
    for (std::int64_t key = 0; key < key_tiles(n_keys) * kKeyTile; ++key) {
      const double got = weight(weights, lane, key);
      rounded += got;
      if (key >= n_keys || !sees(lane, key)) {
        EXPECT_EQ(got, 0.0) << lane << ' ' << key;
        continue;
      }
      const double exact = std::exp2(logit(lane, key) - static_cast<double>(softmax.offset[lane]));
      const double error = exact * (kExp + error_of_logit(lane, key));
      EXPECT_NEAR(got, exact, error + kBf16 * exact) << lane << ' ' << key;
      sum += exact;
      allowed += error + exact * static_cast<double>(n_keys) * kUnit;
    }
    EXPECT_NEAR(softmax.sum[lane], sum, allowed) << lane;
    EXPECT_NEAR(softmax.rounded[lane], rounded, static_cast<double>(n_keys) * kUnit * rounded) << lane;
  }
}

/// The bits of the same rows side by side.
TEST_P(Bf16Kernels, INTER_1_KeysAnywhere) {
  if (!kernels->keys_in_place) GTEST_SKIP() << kernels->isa << " reads keys side by side";
  std::vector<const std::uint16_t*> rows;  // from the last
  std::vector<std::uint16_t> together;
  for (std::int64_t key = n_keys; key-- > 0;) {
    rows.push_back(keys.data() + key * d);
    together.insert(together.end(), rows.back(), rows.back() + d);
  }
  const auto weights_of = [&](const Bf16Segment& segment, Bf16Softmax& softmax) {
    std::vector<std::uint16_t> weights(static_cast<std::size_t>(key_tiles(n_keys) * kTileWeights), 0x7FC0);
    std::fill_n(softmax.offset, kBlockRows, -kInf);
    kernels->softmax_weights(segment, softmax, weights.data());
    return weights;
  };
  Bf16Segment apart = segment();
  apart.keys = nullptr;
  apart.rows = rows.data();
  Bf16Segment side_by_side = segment();
  side_by_side.keys = together.data();
  Bf16Softmax first{};
  Bf16Softmax second{};
  EXPECT_EQ(weights_of(apart, first), weights_of(side_by_side, second));
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) EXPECT_EQ(first.sum[lane], second.sum[lane]);
}

TEST_P(Bf16Kernels, INTRA_1_HighestLogits) {
  float highest[kBlockRows];
  std::fill_n(highest, kBlockRows, -kInf);
  highest[3] = 1000.0f;  // raised, never lowered
  kernels->raise_to_highest(segment(), highest);
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    double exact = lane == 3 ? 1000.0 : -std::numeric_limits<double>::infinity();
    double error = 0;
    for (std::int64_t key = 0; key < n_keys; ++key) {
      if (!sees(lane, key)) continue;
      exact = std::max(exact, logit(lane, key));
      error = std::max(error, error_of_logit(lane, key));
    }
    if (std::isinf(exact)) {
      EXPECT_EQ(highest[lane], -kInf);
    } else {
      EXPECT_NEAR(highest[lane], exact, error) << lane;
    }
  }
}

/// Runs of any length that lie apart, their rows further apart than they are long.
TEST_P(Bf16Kernels, SEL_5_ProductsOfRuns) {
  const std::int64_t stride = d + 32;
  const auto rows = rows_of((n_keys + 5 * kKeyTile) * stride, 6);
  const std::int64_t lengths[] = {1, n_keys / 3, 2, n_keys - n_keys / 3 - 3};
  for (const std::int64_t lanes : {kBlockRows, kBlockRows / 2 - 1}) {
    std::vector<RowRun> runs;
    std::vector<std::int64_t> places;
    std::int64_t from = n_keys;  // the first run lies after the others
    for (const std::int64_t n : lengths) {
      runs.push_back({rows.data() + from * stride, n});
      for (std::int64_t i = 0; i < n; ++i) places.push_back(from + i);
      from = from == n_keys ? 0 : from + n;
    }
    std::vector<float> products(static_cast<std::size_t>((n_keys + kKeyTile) * kBlockRows));
    kernels->products(packed.data(), lanes, runs.data(), std::ssize(runs), d, stride, products.data());
    ASSERT_EQ(std::ssize(places), n_keys);
    for (std::int64_t key = 0; key < n_keys; ++key) {
      const std::uint16_t* row = rows.data() + places[static_cast<std::size_t>(key)] * stride;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        double exact = 0;
        double size = 0;
        for (std::int64_t e = 0; e < d; ++e) {
          const double product = value_of(queries[static_cast<std::size_t>(lane * d + e)]) * value_of(row[e]);
          exact += product;
          size += std::fabs(product);
        }
        EXPECT_NEAR(products[static_cast<std::size_t>(key * kBlockRows + lane)], exact,
                    static_cast<double>(d + 2) * kUnit * size)
            << key << ' ' << lane;
      }
    }
  }
}

TEST_P(Bf16Kernels, INTER_1_KeysSideBySide) {
  const std::int64_t width = std::get<2>(GetParam());
  const auto stored = rows_of(n_keys * width + 1, 7);
  std::vector<const void*> rows;  // from the last, at addresses that no vector has
  for (std::int64_t key = n_keys; key-- > 0;) {
    rows.push_back(reinterpret_cast<const unsigned char*>(stored.data() + key * width) + 1);
  }
  std::vector<std::uint16_t> copied(static_cast<std::size_t>(n_keys * d) + 1, 0x7FC0);
  kernels->copy_keys(rows.data(), n_keys, width, d, copied.data());
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (std::int64_t e = 0; e < d; ++e) {
      std::uint16_t bits = 0;
      if (e < width) {
        std::memcpy(&bits, static_cast<const unsigned char*>(rows[static_cast<std::size_t>(key)]) + 2 * e, 2);
      }
      EXPECT_EQ(copied[static_cast<std::size_t>(key * d + e)], bits) << key << ' ' << e;
    }
  }
  EXPECT_EQ(copied.back(), 0x7FC0);
}

TEST_P(Bf16Kernels, INTRA_1_ValuesAndRows) {
  const std::int64_t tiles = key_tiles(n_keys);
  const std::int64_t width = std::get<2>(GetParam());
  const auto values = rows_of(n_keys * width, 3);
  const auto weights = rows_of(tiles * kTileWeights, 4);
  std::vector<std::uint16_t> packed_values(static_cast<std::size_t>(tiles * kKeyTile * dv), 0x7FC0);
  pack_values(
      *kernels, n_keys, width, [&](std::int64_t i) { return values.data() + i * width; },
      packed_values.data());
  std::vector<float> fresh(static_cast<std::size_t>(dv * kBlockRows), kInf);  // not read
  kernels->accumulate(weights.data(), tiles, packed_values.data(), dv, true, fresh.data());
  std::vector<float> zeros(fresh.size(), 0.0f);
  kernels->accumulate(weights.data(), tiles, packed_values.data(), dv, false, zeros.data());
  EXPECT_EQ(fresh, zeros);
  std::vector<float> out(fresh.size(), 0.5f);
  kernels->accumulate(weights.data(), tiles, packed_values.data(), dv, false, out.data());
  float factor[kBlockRows];
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) factor[lane] = 1.0f + static_cast<float>(lane);
  const std::int64_t n_rows = kBlockRows - 3;
  std::vector<float> rows(static_cast<std::size_t>(kBlockRows * width), -7.0f);
  EXPECT_EQ(kernels->unpack_rows(out.data(), n_rows, width, factor, rows.data()), 0u);
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    for (std::int64_t c = 0; c < width; ++c) {
      const float got = rows[static_cast<std::size_t>(lane * width + c)];
      if (lane >= n_rows) {
        EXPECT_EQ(got, -7.0f);
        continue;
      }
      double exact = 0.5;
      double size = 0.5;
      for (std::int64_t key = 0; key < n_keys; ++key) {
        const double product =
            weight(weights, lane, key) * value_of(values[static_cast<std::size_t>(key * width + c)]);
        exact += product;
        size += std::fabs(product);
      }
      const double scale = static_cast<double>(factor[lane]);
      EXPECT_NEAR(got, scale * exact, scale * size * static_cast<double>(n_keys + 3) * kUnit)
          << lane << ' ' << c;
    }
  }
}

TEST_P(Bf16Kernels, NUM_2_LanesWithoutAFiniteOutput) {
  const std::int64_t width = std::get<2>(GetParam());
  std::vector<float> out(static_cast<std::size_t>(width * kBlockRows), 3e38f);
  std::vector<float> rows(out.size());
  float factor[kBlockRows] = {};
  const auto not_finite = [&](std::int64_t n_rows) {
    return kernels->unpack_rows(out.data(), n_rows, width, factor, rows.data());
  };
  EXPECT_EQ(not_finite(kBlockRows), 0u);
  const auto spoil = [&](std::int64_t column, std::int64_t lane, float value) {
    out[static_cast<std::size_t>(column * kBlockRows + lane)] = value;
  };
  spoil(width - 1, 0, kInf);
  spoil(0, 15, -kInf);
  spoil(width / 2, 16, std::numeric_limits<float>::quiet_NaN());
  spoil(width / 3, 31, kInf);
  EXPECT_EQ(not_finite(kBlockRows), 1u | 1u << 15 | 1u << 16 | 1u << 31);
  EXPECT_EQ(not_finite(17), 1u | 1u << 15 | 1u << 16);
  EXPECT_EQ(not_finite(15), 1u);
}

TEST_P(Bf16Kernels, INTRA_2_ColumnSums) {
  auto weights = rows_of(key_tiles(n_keys) * kTileWeights, 5);
  for (std::uint16_t& bits : weights) bits = static_cast<std::uint16_t>(bits & 0x7FFF);
  float factor[kBlockRows];
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane)
    factor[lane] = lane < 30 ? 1.0f + static_cast<float>(lane) : 0;
  std::vector<double> sums(static_cast<std::size_t>(n_keys) + 1, 2.0);
  kernels->column_sums(weights.data(), n_keys, factor, sums.data());
  for (std::int64_t key = 0; key < n_keys; ++key) {
    double exact = 2.0;
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
      exact += weight(weights, lane, key) * static_cast<double>(factor[lane]);
    }
    EXPECT_NEAR(sums[static_cast<std::size_t>(key)], exact, 10 * kUnit * exact);
  }
  EXPECT_EQ(sums.back(), 2.0);
}

TEST_P(Bf16Kernels, LOGIT_1_LogitsOfRows) {
  if (kernels->row_logits == nullptr) GTEST_SKIP() << kernels->isa << " decodes by the float kernels";
  constexpr std::int64_t kRows = 7;  // tiles of four, two and one
  const std::int64_t width = std::get<2>(GetParam());
  const auto q = rows_of(kRows * width, 5);
  const auto rows = rows_of(n_keys * width, 6);
  const std::int64_t stride = n_keys + 3;
  std::vector<float> logits(static_cast<std::size_t>(kRows * stride), -kInf);
  kernels->row_logits(q.data(), kRows, width, rows.data(), n_keys, 0.25f, logits.data(), stride);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t key = 0; key < stride; ++key) {
      const float got = logits[static_cast<std::size_t>(row * stride + key)];
      if (key >= n_keys) {
        EXPECT_EQ(got, -kInf);
        continue;
      }
      double exact = 0;
      double size = 0;
      for (std::int64_t e = 0; e < width; ++e) {
        const double product = value_of(q[static_cast<std::size_t>(row * width + e)]) *
                               value_of(rows[static_cast<std::size_t>(key * width + e)]);
        exact += product;
        size += std::fabs(product);
      }
      EXPECT_NEAR(got, 0.25 * exact, 0.25 * static_cast<double>(width + 2) * kUnit * size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Bf16Kernels,
                         ::testing::Combine(::testing::Range(0, static_cast<int>(variants().size())),
                                            ::testing::Values(6, 31, 32, 33, 44, 64, 100),
                                            ::testing::Values(1, 7, 16, 20, 32, 64, 80, 128, 129, 192)));

}  // namespace
}  // namespace headwater::cpu
