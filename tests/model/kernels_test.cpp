// The loops of a forward pass against their formulas in double, and every table against the others: bit for bit.

#include "runtime/model/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace headwater::runtime {
namespace {

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> result = {&kKernelsBaseline};
  // What kernels() chose runs here, and so does all that it includes.
  if (&kernels() != &kKernelsBaseline) result.push_back(&kKernelsAvx2);
  if (&kernels() == &kKernelsAvx512) result.push_back(&kKernelsAvx512);
  return result;
}

std::vector<float> normal(std::size_t n, unsigned seed, float scale = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0.0F, scale);
  std::vector<float> x(n);
  for (float& value : x) value = distribution(random);
  return x;
}

TEST(Kernels, RmsNormIsItsFormula) {
  for (const std::size_t n : {1U, 31U, 32U, 64U, 333U, 1024U, 5120U, 16384U, 70000U}) {
    const auto x = normal(n, 1, 3.0F);
    const auto weight = normal(n, 2);
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
    const double root = std::sqrt(squares / static_cast<double>(n) + 1e-6);
    for (const Kernels* table : tables()) {
      std::vector<float> out(n);
      table->rms_norm(x.data(), weight.data(), static_cast<std::int64_t>(n), 1e-6F, out.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double wanted = static_cast<double>(x[i]) * static_cast<double>(weight[i]) / root;
        ASSERT_NEAR(out[i], wanted, std::fabs(wanted) * 0x1p-24 * (static_cast<double>(n) / 64 + 8))
            << table->isa << " " << i;
      }
    }
  }
}

TEST(Kernels, SwigluIsItsFormulaOverAllMagnitudes) {
  std::vector<float> gate;
  for (float x = -120.0F; x <= 120.0F; x += 0.0371F) gate.push_back(x);
  for (const float x : {0.0F, -0.0F, 1e-30F, -1e-30F, 3e38F, -3e38F}) gate.push_back(x);
  const std::vector<float> up(gate.size(), 1.0F);
  for (const Kernels* table : tables()) {
    std::vector<float> out(gate.size());
    table->swiglu(gate.data(), up.data(), static_cast<std::int64_t>(gate.size()), out.data());
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const auto x = static_cast<double>(gate[i]);
      const double wanted = x / (1 + std::exp(-x));
      // Below -87 the exponential is clamped: the result is of the size of 1e-36 there instead of vanishing.
      const double slack = x < -87 ? std::fabs(x) * 1.7e-38 : 0.0;
      ASSERT_NEAR(out[i], wanted,
                  std::fabs(wanted) * 0x1p-24 * (7 + 2 * std::min(std::fabs(x), 88.0)) + slack)
          << table->isa << " silu(" << gate[i] << ")";
    }
  }
}

TEST(Kernels, RotationsTurnTheirPairs) {
  constexpr std::size_t kPairs = 37;
  const auto x = normal(2 * kPairs, 3);
  const auto angles = normal(kPairs, 4, 2.0F);
  std::vector<float> cosine;
  std::vector<float> sine;
  for (const float angle : angles) cosine.push_back(std::cos(angle)), sine.push_back(std::sin(angle));
  for (const Kernels* table : tables()) {
    auto halves = x;
    auto adjacent = x;
    table->rotate_halves(halves.data(), cosine.data(), sine.data(), kPairs);
    table->rotate_adjacent(adjacent.data(), cosine.data(), sine.data(), kPairs);
    for (std::size_t i = 0; i < kPairs; ++i) {
      EXPECT_NEAR(halves[i], x[i] * cosine[i] - x[i + kPairs] * sine[i], 1e-6);
      EXPECT_NEAR(halves[i + kPairs], x[i] * sine[i] + x[i + kPairs] * cosine[i], 1e-6);
      EXPECT_NEAR(adjacent[2 * i], x[2 * i] * cosine[i] - x[2 * i + 1] * sine[i], 1e-6);
      EXPECT_NEAR(adjacent[2 * i + 1], x[2 * i] * sine[i] + x[2 * i + 1] * cosine[i], 1e-6);
    }
  }
}

TEST(Kernels, Bf16RoundsToNearestEven) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  // 1 + 2^-8 lies between two neighbours, 1 is the even one; 1 + 3 * 2^-8 goes up.
  const std::vector<float> x = {1.0F, 1.0F + 0x1p-8F, 1.0F + 3 * 0x1p-8F, -2.0F, infinity, -infinity,
                                nan,  3.4e38F};
  const std::vector<std::uint16_t> wanted = {0x3f80, 0x3f80, 0x3f82, 0xc000, 0x7f80, 0xff80, 0x7fc0, 0x7f80};
  for (const Kernels* table : tables()) {
    std::vector<std::uint16_t> out(x.size());
    table->to_bf16(x.data(), static_cast<std::int64_t>(x.size()), out.data());
    EXPECT_EQ(out, wanted) << table->isa;
  }
}

TEST(Kernels, AllFiniteSeesEveryPlace) {
  for (const Kernels* table : tables()) {
    for (const std::size_t n : {1U, 40U, 100U, 5000U}) {
      auto x = normal(n, 5);
      EXPECT_TRUE(table->all_finite(x.data(), static_cast<std::int64_t>(n)));
      for (std::size_t at = 0; at < n; ++at) {
        const float before = x[at];
        for (const float bad :
             {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
          x[at] = bad;
          EXPECT_FALSE(table->all_finite(x.data(), static_cast<std::int64_t>(n))) << table->isa << " " << at;
        }
        x[at] = before;
      }
    }
  }
}

TEST(Kernels, EveryTableGivesTheSameBits) {
  constexpr std::int64_t kN = 1000;
  const auto x = normal(kN, 6, 4.0F);
  const auto weight = normal(kN, 7);
  std::vector<float> norm(kN);
  std::vector<float> product(kN);
  std::vector<std::uint16_t> narrow(kN);
  kKernelsBaseline.rms_norm(x.data(), weight.data(), kN, 1e-6F, norm.data());
  kKernelsBaseline.swiglu(x.data(), weight.data(), kN, product.data());
  kKernelsBaseline.rms_norm_bf16(x.data(), weight.data(), kN, 1e-6F, narrow.data());
  for (const Kernels* table : tables()) {
    std::vector<float> out(kN);
    table->rms_norm(x.data(), weight.data(), kN, 1e-6F, out.data());
    EXPECT_EQ(out, norm) << table->isa;
    table->swiglu(x.data(), weight.data(), kN, out.data());
    EXPECT_EQ(out, product) << table->isa;
    std::vector<std::uint16_t> rounded(kN);
    table->rms_norm_bf16(x.data(), weight.data(), kN, 1e-6F, rounded.data());
    EXPECT_EQ(rounded, narrow) << table->isa;
    std::vector<std::uint16_t> again(kN);
    table->to_bf16(norm.data(), kN, again.data());
    EXPECT_EQ(again, narrow) << table->isa;
  }
}

}  // namespace
}  // namespace headwater::runtime
