// The kernels of votes by sketches against their definitions, for every table. Integers are exact, and so are they.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "core/numbers.hpp"
#include "cpu/dispatch.hpp"

namespace headwater::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SketchKernels : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    variant = &variants()[static_cast<std::size_t>(GetParam())];
    if (const std::string missing = variant->missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
  const Variant* variant = nullptr;
};

/// Rows of sketches: integers -127 .. 127, and what a vote makes of them.
struct Sketches {
  Sketches(std::int64_t n, std::int64_t integers_each, unsigned seed, float largest_factor)
      : width(integers_each),
        integers(static_cast<std::size_t>(n * width)),
        factor(static_cast<std::size_t>(n)),
        offset(factor.size()) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> integer(-127, 127);
    std::uniform_real_distribution<float> real(0, largest_factor);
    for (float& x : integers) x = static_cast<float>(integer(random));
    for (float& x : factor) x = real(random);
    for (float& x : offset) x = 8 * real(random) - 4;
  }
  std::int64_t width;
  std::vector<float> integers, factor, offset;
};

double product(const Sketches& a, std::int64_t i, const Sketches& b, std::int64_t j) {
  double sum = 0;
  for (std::int64_t x = 0; x < a.width; ++x) {
    sum += static_cast<double>(a.integers[static_cast<std::size_t>(i * a.width + x)]) *
           static_cast<double>(b.integers[static_cast<std::size_t>(j * b.width + x)]);
  }
  return sum;
}

/// The votes of whole tiles of keys.
std::vector<float> raised(const SketchTable& table, const Sketches& rows, const Sketches& keys,
                          const std::vector<float>& units) {
  const std::int64_t width = rows.width;
  const std::int64_t tile_bytes = table.tile_bytes(width);
  const std::int64_t tiles = std::ssize(units) / kKeyTile;
  std::vector<unsigned char> packed(static_cast<std::size_t>(tiles * tile_bytes), 77);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t at = tile * kKeyTile * width;
    table.pack(keys.integers.data() + at, kKeyTile, width, packed.data() + tile * tile_bytes);
  }
  const std::int64_t n = std::ssize(rows.factor);
  // What stands after the rows has no vote.
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(SketchedRows::readable_bytes(n, width)), 127);
  table.pack_rows(rows.integers.data(), std::ssize(rows.integers), bytes.data());
  std::vector<float> votes(units.size(), -kInf);
  table.raise_votes({n, width, bytes.data(), rows.factor.data(), rows.offset.data()}, packed.data(),
                    units.data(), tiles, votes.data());
  return votes;
}

TEST_P(SketchKernels, SKE_4_RowsOfEveryType) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  // Zeros, what has no sketch, and units at both ends of the floats. 3e-38 is too small for a finite 127 / a.
  const float special[] = {0.0f, kNan, kInf, -kInf, 3e-38f, 1e-41f, 3e38f, -0.0f};
  const std::int64_t n = 8 + std::ssize(special);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    struct Widths {
      std::int64_t columns, integers_each, apart;
    };
    // The last has columns on either side of the 64 vectors of 16 that are read whole.
    for (const auto& [columns, integers_each, apart] : {Widths{1, 32, 2},
                                                        {5, 32, 2},
                                                        {31, 32, 2},
                                                        {32, 32, 2},
                                                        {33, 64, 2},
                                                        {128, 128, 2},
                                                        {255, 256, 2},
                                                        {256, 256, 2},
                                                        {256, 256, 4}}) {
      const std::int64_t width = 300 * apart;
      SketchColumns taken{integers_each, columns, {}, width};
      for (std::int64_t x = 0; x < columns; ++x)
        taken.column[x] = static_cast<std::int32_t>(apart * x + x / 16);
      std::vector<float> values(static_cast<std::size_t>(n * width));
      for (float& x : values) x = normal(random);
      for (std::int64_t i = 0; i < std::ssize(special); ++i) {
        const bool alone = std::isfinite(special[i]);
        for (std::int64_t x = 0; x < columns; ++x) {
          float& at = values[static_cast<std::size_t>((8 + i) * width + taken.column[x])];
          if (alone || x == columns - 1) at = special[i] * (x % 3 == 1 ? -0.5f : 1.0f);
        }
      }
      std::vector<unsigned char> rows(values.size() * dtype_size(type) + 1);
      core::narrow(values.data(), std::ssize(values), type, rows.data() + 1);  // at an odd address
      core::widen(rows.data() + 1, type, std::ssize(values), values.data());
      std::vector<float> integers(static_cast<std::size_t>(n * integers_each), 99.0f);
      std::vector<float> units(static_cast<std::size_t>(n));
      variant->kernels->sketch_rows(rows.data() + 1, width * static_cast<std::int64_t>(dtype_size(type)), n,
                                    type, taken, integers.data(), units.data());
      for (std::int64_t r = 0; r < n; ++r) {
        SCOPED_TRACE(testing::Message()
                     << "type " << static_cast<int>(type) << " columns " << columns << " row " << r);
        float largest = 0;
        bool exists = true;
        const auto value = [&](std::int64_t x) {
          return values[static_cast<std::size_t>(r * width + taken.column[x])];
        };
        for (std::int64_t x = 0; x < columns; ++x) {
          exists &= std::isfinite(value(x));
          largest = std::max(largest, std::fabs(value(x)));
        }
        const float unit = units[static_cast<std::size_t>(r)];
        EXPECT_EQ(exists, !std::isnan(unit));
        if (exists) {
          EXPECT_EQ(unit, largest / 127.0f);
        }
        const float per_unit = 127.0f / largest;
        for (std::int64_t x = 0; x < integers_each; ++x) {
          const bool zero = x >= columns || !exists || std::isinf(per_unit);
          EXPECT_EQ(integers[static_cast<std::size_t>(r * integers_each + x)],
                    zero ? 0.0f : std::nearbyint(value(x) * per_unit))
              << x;
        }
      }
    }
  }
}

TEST_P(SketchKernels, SKE_6_VotesOfProductsInFloats) {
  const std::int64_t n = 37;
  const Sketches rows(n, 32, 1, 1.0f);
  std::vector<float> block(static_cast<std::size_t>(n * kBlockRows));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& x : block) x = normal(random);
  float unit[kBlockRows];
  for (float& x : unit) x = std::fabs(normal(random));
  unit[5] = kNan;
  float votes[kBlockRows];
  std::fill_n(votes, kBlockRows, -kInf);
  votes[7] = 100;  // none is larger
  std::vector<float> scaled = block;
  variant->kernels->scale_lanes(scaled.data(), n, rows.factor.data(), unit);
  std::vector<float> of_scaled(votes, votes + kBlockRows);
  variant->kernels->raise_lane_votes(scaled.data(), n, nullptr, nullptr, rows.offset.data(),
                                     of_scaled.data());
  variant->kernels->raise_lane_votes(block.data(), n, rows.factor.data(), unit, rows.offset.data(), votes);
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    double best = lane == 7 ? 100 : -std::numeric_limits<double>::infinity();
    for (std::int64_t r = 0; r < n && lane != 5; ++r) {
      const auto at = static_cast<std::size_t>(r * kBlockRows + lane);
      const double logit = static_cast<double>(block[at]) *
                           static_cast<double>(rows.factor[static_cast<std::size_t>(r)]) *
                           static_cast<double>(unit[lane]);
      EXPECT_NEAR(scaled[at], logit, 1e-5);
      best = std::max(best, logit - static_cast<double>(rows.offset[static_cast<std::size_t>(r)]));
    }
    if (lane == 5) {
      EXPECT_EQ(votes[lane], -kInf);
      EXPECT_EQ(of_scaled[5], -kInf);
    } else {
      EXPECT_NEAR(votes[lane], best, 1e-5) << lane;
      EXPECT_NEAR(of_scaled[static_cast<std::size_t>(lane)], best, 1e-5) << lane;
    }
  }
}

TEST_P(SketchKernels, SKE_6_VotesOfProductsInIntegers) {
  const SketchTable* table = variant->sketches();
  if (!table) GTEST_SKIP() << variant->engine << " multiplies sketches in floats";
  for (const std::int64_t n : {0, 1, 3, 4, 5, 11, 15, 16, 17, 33, 96}) {
    for (const auto& [tiles, width] : {std::pair<std::int64_t, std::int64_t>{1, 32},
                                       {2, 32},
                                       {3, 32},
                                       {3, 64},
                                       {2, 96},
                                       {2, 128},
                                       {1, 160},
                                       {2, 192},
                                       {1, 224},
                                       {3, 256}}) {
      const Sketches rows(n, width, 1, 1e-4f);
      const Sketches keys(tiles * kKeyTile, width, 2, 1.0f);
      std::vector<float> units = keys.factor;
      units[3] = kNan;
      const std::vector<float> votes = raised(*table, rows, keys, units);
      for (std::int64_t j = 0; j < tiles * kKeyTile; ++j) {
        double best = -std::numeric_limits<double>::infinity();
        for (std::int64_t i = 0; i < n && j != 3; ++i) {
          best = std::max(best, product(rows, i, keys, j) *
                                        static_cast<double>(rows.factor[static_cast<std::size_t>(i)]) *
                                        static_cast<double>(units[static_cast<std::size_t>(j)]) -
                                    static_cast<double>(rows.offset[static_cast<std::size_t>(i)]));
        }
        if (best < 0 && std::isinf(best)) {
          EXPECT_EQ(votes[static_cast<std::size_t>(j)], -kInf) << j;
        } else {
          EXPECT_NEAR(votes[static_cast<std::size_t>(j)], best, 1e-5 * static_cast<double>(width / 32))
              << n << " rows, key " << j;
        }
      }
    }
  }
}

/// Sums of integers are exact, and the floats come in the same order.
TEST_P(SketchKernels, SKE_6_TablesOf512BitsHaveTheSameBits) {
  const SketchTable* table = variant->sketches();
  const Variant& avx512 = *std::find_if(variants().begin(), variants().end(), [](const Variant& some) {
    return std::string_view(some.engine) == "cpu-avx512";
  });
  if (variant->kernels != avx512.kernels) GTEST_SKIP() << variant->engine << " has no vectors of 512 bits";
  if (!table || !avx512.sketches()) GTEST_SKIP() << "the processor lacks AVX-512 VNNI";
  if (table == avx512.sketches()) GTEST_SKIP() << variant->engine << " votes by AVX-512 VNNI";
  for (const std::int64_t width : {32, 64, 96, 128, 160, 256}) {
    for (const std::int64_t n : {1, 16, 17, 47, 96}) {
      const Sketches rows(n, width, 3, 1e-4f);
      const Sketches keys(130 * kKeyTile, width, 4, 1.0f);
      std::vector<float> units = keys.factor;
      units[40] = kNan;
      const std::vector<float> own = raised(*table, rows, keys, units);
      EXPECT_EQ(std::memcmp(own.data(), raised(*avx512.sketches(), rows, keys, units).data(),
                            own.size() * sizeof(float)),
                0)
          << width << " integers, " << n << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, SketchKernels, ::testing::Range(0, static_cast<int>(variants().size())));

}  // namespace
}  // namespace headwater::cpu
