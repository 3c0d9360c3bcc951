// The loops of a forward pass against their formulas in double, and every table against the others: bit for bit.

#include "runtime/model/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
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
        const double bound = std::fabs(wanted) * 0x1p-24 * (static_cast<double>(n) / 64 + 8);
        ASSERT_NEAR(out[i], wanted, bound) << table->isa << " " << i;
      }
      std::vector<float> sum = x;
      table->add_rms_norm(x.data(), weight.data(), static_cast<std::int64_t>(n), 1e-6F, sum.data());
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], x[i] + out[i]) << table->isa << " " << i;
    }
  }
}

// Rows far from zero, too: what is left without the mean is as exact as that.
TEST(Kernels, LayerNormIsItsFormula) {
  for (const std::size_t n : {1U, 31U, 32U, 64U, 333U, 1024U, 5120U, 16384U}) {
    for (const float middle : {0.0F, 100.0F}) {
      auto x = normal(n, 1, 3.0F);
      for (float& value : x) value += middle;
      const auto weight = normal(n, 2);
      double mean = 0;
      for (const float value : x) mean += static_cast<double>(value) / static_cast<double>(n);
      double squares = 0;
      for (const float value : x) squares += std::pow(static_cast<double>(value) - mean, 2);
      const double root = std::sqrt(squares / static_cast<double>(n) + 1e-6);
      for (const Kernels* table : tables()) {
        std::vector<float> out(n);
        table->layer_norm(x.data(), weight.data(), static_cast<std::int64_t>(n), 1e-6F, out.data());
        for (std::size_t i = 0; i < n; ++i) {
          const auto own = static_cast<double>(weight[i]);
          const double wanted = (static_cast<double>(x[i]) - mean) * own / root;
          const double terms = static_cast<double>(n) / 64 + 8;
          const double moved = std::fabs(own) * (std::fabs(static_cast<double>(middle)) + 3) / root;
          ASSERT_NEAR(out[i], wanted, (std::fabs(wanted) + moved) * 0x1p-24 * terms)
              << table->isa << " " << i;
        }
      }
    }
  }
}

TEST(Kernels, GatesAreTheirFormulasOverAllMagnitudes) {
  std::vector<float> gate;
  for (float x = -120.0F; x <= 120.0F; x += 0.0371F) gate.push_back(x);
  for (const float x : {0.0F, -0.0F, 1e-30F, -1e-30F, 3e38F, -3e38F}) gate.push_back(x);
  std::vector<float> x;  // with ups of one
  for (std::size_t first = 0; first < gate.size(); first += kGateRows) {
    const std::size_t count = std::min<std::size_t>(kGateRows, gate.size() - first);
    x.insert(x.end(), gate.begin() + static_cast<std::ptrdiff_t>(first),
             gate.begin() + static_cast<std::ptrdiff_t>(first + count));
    x.insert(x.end(), count, 1.0F);
  }
  for (const Kernels* table : tables()) {
    std::vector<float> out(gate.size());
    table->clamped_glu(x.data(), static_cast<std::int64_t>(gate.size()), out.data());
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double own = std::min(static_cast<double>(gate[i]), 7.0);
      const double wanted = own / (1 + std::exp(-1.702 * own)) * 2;  // ups of one, and one
      const double slack = 1.702 * own < -87 ? std::fabs(own) * 3.4e-38 : 0.0;
      ASSERT_NEAR(out[i], wanted,
                  std::fabs(wanted) * 0x1p-24 * (8 + 4 * std::min(std::fabs(own), 60.0)) + slack)
          << table->isa << " clamped(" << gate[i] << ")";
    }
    for (const float up : {-9.0F, -7.0F, -3.0F, 0.0F, 6.5F, 7.0F, 1e30F}) {
      const float pair[] = {2.0F, up};
      table->clamped_glu(pair, 1, out.data());
      const double wanted = 2 / (1 + std::exp(-3.404)) * (std::clamp(static_cast<double>(up), -7.0, 7.0) + 1);
      EXPECT_NEAR(out[0], wanted, std::fabs(wanted) * 0x1p-20) << table->isa << " " << up;
    }
    for (const bool gelu : {false, true}) {
      (gelu ? table->geglu : table->swiglu)(x.data(), static_cast<std::int64_t>(gate.size()), out.data());
      for (std::size_t i = 0; i < gate.size(); ++i) {
        const auto own = static_cast<double>(gate[i]);
        // By tanh itself: g / 2 (1 + tanh(y)) = g / (1 + e^-2y).
        const double y =
            gelu ? std::sqrt(2 / std::numbers::pi) * (own + 0.044715 * own * own * own) : own / 2;
        const double wanted = y < -20 ? own * std::exp(2 * y) : own / 2 * (1 + std::tanh(y));
        // Below -87 the exponential is clamped: the result is of the size of 1e-36 there instead of vanishing.
        const double slack = 2 * y < -87 ? std::fabs(own) * 1.7e-38 : 0.0;
        // tanh(y) near -1 leaves 2^-53 of 1.
        const double rounding = std::fabs(own) * 0x1p-52;
        const double argument = (gelu ? 7 : 2) * std::min(2 * std::fabs(y), 88.0);
        ASSERT_NEAR(out[i], wanted, std::fabs(wanted) * 0x1p-24 * (7 + argument) + slack + rounding)
            << table->isa << (gelu ? " gelu(" : " silu(") << gate[i] << ")";
      }
    }
  }
}

TEST(Kernels, AddScaledIsItsFormula) {
  for (const std::size_t n : {1U, 15U, 16U, 17U, 128U, 1030U}) {
    const auto x = normal(n, 1);
    const auto bias = normal(n, 2);
    const auto before = normal(n, 3);
    for (const Kernels* table : tables()) {
      for (const bool biased : {false, true}) {
        std::vector<float> sum = before;
        table->add_scaled(x.data(), biased ? bias.data() : nullptr, static_cast<std::int64_t>(n), 0.3F,
                          sum.data());
        for (std::size_t i = 0; i < n; ++i) {
          const float own = biased ? x[i] + bias[i] : x[i];
          ASSERT_EQ(sum[i], before[i] + 0.3F * own) << table->isa << " " << i;
        }
      }
    }
  }
}

// Rows on each side of what registers hold, up to the widest heads; what is not rotated stays as it is.
TEST(Kernels, RotationsTurnTheirPairs) {
  for (const std::size_t pairs : {1U, 7U, 8U, 16U, 32U, 37U, 64U, 128U, 500U, 32768U}) {
    const auto x = normal(2 * pairs + 3, 3);
    const auto angles = normal(pairs, 4, 2.0F);
    std::vector<float> cosine;
    std::vector<float> sine;
    for (const float angle : angles) cosine.push_back(std::cos(angle)), sine.push_back(std::sin(angle));
    for (const Kernels* table : tables()) {
      auto halves = x;
      auto adjacent = x;
      const auto n = static_cast<std::int64_t>(pairs);
      table->rotate_halves(halves.data(), cosine.data(), sine.data(), n);
      table->rotate_adjacent(adjacent.data(), cosine.data(), sine.data(), n);
      const auto expect_turned = [&](std::size_t i, const std::vector<float>& got, std::size_t a,
                                     std::size_t b) {
        const double c = cosine[i];
        const double s = sine[i];
        // Two products and a sum.
        const double bound =
            0x1p-22 * (std::fabs(static_cast<double>(x[a])) + std::fabs(static_cast<double>(x[b])));
        ASSERT_NEAR(got[a], x[a] * c - x[b] * s, bound) << table->isa << ", pair " << i << " of " << pairs;
        ASSERT_NEAR(got[b], x[a] * s + x[b] * c, bound) << table->isa << ", pair " << i << " of " << pairs;
      };
      for (std::size_t i = 0; i < pairs; ++i) {
        expect_turned(i, halves, i, i + pairs);
        expect_turned(i, adjacent, 2 * i, 2 * i + 1);
      }
      for (const auto* const all : {&halves, &adjacent}) {
        EXPECT_TRUE(std::equal(x.end() - 3, x.end(), all->end() - 3)) << pairs;
      }
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

// Some tokens, so that a state that is decayed too late, or read before it is corrected, shows.
TEST(Kernels, DeltaRuleIsItsDefinition) {
  for (const std::int64_t d : {16, 48, 64, 128, 192, 1024}) {
    const std::int64_t columns = d % kWideDeltaColumns == 0 ? kWideDeltaColumns : kDeltaColumns;
    const auto size = static_cast<std::size_t>(d);
    for (const Kernels* table : tables()) {
      std::vector<float> state(static_cast<std::size_t>(d * columns));
      std::vector<float> baseline(state.size());
      std::vector<double> wanted(state.size());
      for (unsigned token = 0; token < 4; ++token) {
        const auto key = normal(size, 10 + token, 1 / std::sqrt(static_cast<float>(d)));
        const auto query = normal(size, 20 + token);
        auto value = normal(static_cast<std::size_t>(columns), 30 + token);
        auto other = value;
        const float decay = 0.6F + 0.1F * static_cast<float>(token);
        const float beta = 0.7F;
        for (std::int64_t j = 0; j < columns; ++j) {
          double known = 0;
          double read = 0;
          const auto at = [&](std::size_t i) -> double& {
            return wanted[i * static_cast<std::size_t>(columns) + static_cast<std::size_t>(j)];
          };
          for (std::size_t i = 0; i < size; ++i) known += double{key[i]} * (at(i) *= double{decay});
          const double correction = double{beta} * (double{value[static_cast<std::size_t>(j)]} - known);
          for (std::size_t i = 0; i < size; ++i)
            read += double{query[i]} * (at(i) += double{key[i]} * correction);
          other[static_cast<std::size_t>(j)] = static_cast<float>(read);
        }
        auto same = value;
        table->delta_step(state.data(), d, columns, {key.data(), query.data(), value.data(), decay, beta});
        kKernelsBaseline.delta_step(baseline.data(), d, columns,
                                    {key.data(), query.data(), same.data(), decay, beta});
        EXPECT_TRUE(value == same && state == baseline) << table->isa << " " << d;
        for (std::size_t j = 0; j < value.size(); ++j)
          ASSERT_NEAR(value[j], other[j], 1e-6 * static_cast<double>(d)) << d << " " << token;
      }
    }
  }
}

TEST(Kernels, GatesAndConvolutionAreTheirDefinitions) {
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  for (const std::int64_t n : {1, 31, 256, 257, 8192}) {
    const auto size = static_cast<std::size_t>(n);
    const auto gate = normal(size, 40, 4.0F);
    const auto x = normal(size, 41);
    for (const Kernels* table : tables()) {
      auto by_sigmoid = x;
      auto by_silu = x;
      table->sigmoid_gate(gate.data(), n, by_sigmoid.data());
      table->silu_gate(gate.data(), n, by_silu.data());
      for (std::size_t i = 0; i < size; ++i) {
        const double g = gate[i];
        ASSERT_NEAR(by_sigmoid[i], x[i] / (1 + std::exp(-g)), 1e-6 * (1 + std::fabs(x[i])));
        ASSERT_NEAR(by_silu[i], x[i] * silu(g), 3e-6 * (1 + std::fabs(g * x[i])));
      }
      for (const std::int64_t taps : {2, 4, 16}) {
        const auto weights = normal(size * static_cast<std::size_t>(taps), 42);
        const auto rows = normal(size * static_cast<std::size_t>(taps), 43);
        std::vector<const float*> at;
        for (std::int64_t t = 0; t < taps; ++t) at.push_back(rows.data() + t * n);
        std::vector<float> out(size);
        std::vector<float> same(size);
        table->convolve_silu(at.data(), weights.data(), taps, n, out.data());
        kKernelsBaseline.convolve_silu(at.data(), weights.data(), taps, n, same.data());
        EXPECT_TRUE(out == same) << table->isa;
        for (std::size_t i = 0; i < size; ++i) {
          double sum = 0;
          for (std::size_t t = 0; t < at.size(); ++t) sum += double{weights[t * size + i]} * double{at[t][i]};
          ASSERT_NEAR(out[i], silu(sum), 1e-5);
        }
      }
    }
  }
}

TEST(Kernels, EveryTableGivesTheSameBits) {
  for (const std::size_t size : {1U, 33U, 1000U, 12288U, 70001U}) {
    SCOPED_TRACE(size);
    const auto n = static_cast<std::int64_t>(size);
    const auto x = normal(size, 6, 4.0F);
    const auto weight = normal(size, 7);
    std::vector<float> norm(size);
    std::vector<float> product(size);
    std::vector<std::uint16_t> narrow(size);
    kKernelsBaseline.rms_norm(x.data(), weight.data(), n, 1e-6F, norm.data());
    kKernelsBaseline.swiglu(x.data(), n / 2, product.data());
    std::vector<float> other_product(size);
    std::vector<float> clamped_product(size);
    kKernelsBaseline.geglu(x.data(), n / 2, other_product.data());
    kKernelsBaseline.clamped_glu(x.data(), n / 2, clamped_product.data());
    kKernelsBaseline.rms_norm_bf16(x.data(), weight.data(), n, 1e-6F, narrow.data());
    for (const Kernels* table : tables()) {
      std::vector<float> out(size);
      table->rms_norm(x.data(), weight.data(), n, 1e-6F, out.data());
      EXPECT_TRUE(out == norm) << table->isa;
      std::fill(out.begin(), out.end(), 0.0F);
      table->swiglu(x.data(), n / 2, out.data());
      EXPECT_TRUE(out == product) << table->isa;
      std::vector<std::uint16_t> rounded(size);
      std::vector<std::uint16_t> rounded_product(size);
      table->to_bf16(product.data(), n, rounded_product.data());
      table->swiglu_bf16(x.data(), n / 2, rounded.data());
      EXPECT_TRUE(rounded == rounded_product) << table->isa;
      std::fill(out.begin(), out.end(), 0.0F);
      table->geglu(x.data(), n / 2, out.data());
      EXPECT_TRUE(out == other_product) << table->isa;
      table->to_bf16(other_product.data(), n, rounded_product.data());
      table->geglu_bf16(x.data(), n / 2, rounded.data());
      EXPECT_TRUE(rounded == rounded_product) << table->isa;
      std::fill(out.begin(), out.end(), 0.0F);
      table->clamped_glu(x.data(), n / 2, out.data());
      EXPECT_TRUE(out == clamped_product) << table->isa;
      table->to_bf16(clamped_product.data(), n, rounded_product.data());
      table->clamped_glu_bf16(x.data(), n / 2, rounded.data());
      EXPECT_TRUE(rounded == rounded_product) << table->isa;
      table->rms_norm_bf16(x.data(), weight.data(), n, 1e-6F, rounded.data());
      EXPECT_TRUE(rounded == narrow) << table->isa;
      std::vector<std::uint16_t> again(size);
      table->to_bf16(norm.data(), n, again.data());
      EXPECT_TRUE(again == narrow) << table->isa;
      out = x;
      table->rms_norm(out.data(), weight.data(), n, 1e-6F, out.data());  // in place
      EXPECT_TRUE(out == norm) << table->isa;
    }
  }
}

}  // namespace
}  // namespace headwater::runtime
