// How large a bound is, counted by hand for inputs whose logits are all alike: if bounds grew, the kit would pass
// everything. The terms are those of the table in docs/verification.md.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "conformance/eigen_oracle.hpp"

namespace headwater::conformance {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kExp = 4.0;
constexpr double kRescales = 5.0 * 2.0;  // one record among equal logits, and the first
constexpr double kTiny = 0x1p-125;

// The worst case, or lambda = 8 of Higham and Mary.
double sum_of(double n) { return std::min(n, 8.0 * std::sqrt(n)); }

// One query after `keys` keys of which the first `memory` are its set; every logit is `q` d, every value is 1.
HeadChunk alike(std::int64_t keys, std::int64_t memory, std::int64_t d, double q) {
  HeadChunk chunk;
  chunk.queries = {keys - 1};
  chunk.memory = memory;
  for (std::int64_t j = 0; j < keys; ++j) chunk.positions.push_back(j);
  chunk.q = Eigen::MatrixXd::Constant(1, d, q);
  chunk.keys = Eigen::MatrixXd::Ones(keys, d);
  chunk.values = Eigen::MatrixXd::Ones(keys, 1);
  return chunk;
}

// Relative error of a row sum over n keys, and of an output of one softmax over them, in u.
double row_sum(double logit, double n) { return logit + sum_of(n) + kExp + kRescales; }
double output(double logit, double n) {
  return logit + kExp + 1.0 + sum_of(n) + kRescales + row_sum(logit, n) + 2.0;
}

void expect_near(double got, double wanted) { EXPECT_NEAR(got, wanted, 1e-6 * wanted); }

TEST(Bound, OfOneSoftmaxIsWhatItsStepsAddUpTo) {
  for (const std::int64_t n : {1, 16, 64, 65, 4096, 20000}) {
    for (const std::int64_t d : {1, 64}) {
      for (const double q :
           {0.0, 0.25, 59.0, 61.0, 2000.0}) {  // with 61 and 64 columns errors are above 2^-5
        const double logit = static_cast<double>(d + 4) * q * static_cast<double>(d);  // (d + 4) sum |q||k|
        const auto keys = static_cast<double>(n);
        const HeadTruth truth = eigen_oracle(alike(n, 0, d, q), Arithmetic{});
        expect_near(truth.out_bound(0, 0), std::expm1(kU * output(logit, keys)) + keys * kTiny);
        const double m = q * static_cast<double>(d);
        const double lse = m + std::log(keys);
        expect_near(truth.lse_bound[0],
                    std::expm1(kU * (logit + sum_of(keys) + 1.0 + 2.0 * kExp + 2.0 * kRescales)) +
                        kU * std::fabs(lse) + 2.0 * kU * (m + std::log(keys) + lse + 1.0));
        const double column = logit + kExp + kRescales + row_sum(logit, keys) + 2.0;
        expect_near(truth.intra_bound[0],
                    std::expm1(kU * column) / keys + kTiny + kU * (1.0 + 1.0) / keys + 0x1p-150);
      }
    }
  }
}

TEST(Bound, OfFusedPassesCountsTheRowSumOfThePartTwiceMore) {
  for (const std::int64_t memory : {1, 500, 999}) {
    const HeadTruth truth = eigen_oracle(alike(1000, memory, 1, 0.0), Arithmetic{});
    const auto part = [&](double n) {
      return n / 1000.0 * std::expm1(kU * (output(0.0, 1000.0) + 2.0 * (row_sum(0.0, n) + 2.0 + 1.0)));
    };
    const auto set = static_cast<double>(memory);
    expect_near(truth.out_bound(0, 0), part(set) + part(1000.0 - set) + 1000.0 * kTiny);
    expect_near(truth.inter_bound[0], std::expm1(kU * (kExp + kRescales + row_sum(0.0, set) + 2.0)) / set +
                                          kTiny + kU * (1.0 + 1.0) / set + 0x1p-150);
  }
}

// The oracle takes weights of a part from those of all keys, unless the largest of these is so far above that they vanish.
TEST(Bound, APartFarBelowTheOtherHasItsOwnColumnSums) {
  for (const double above : {0.0, 63.0, 65.0, 800.0}) {
    HeadChunk chunk = alike(3, 2, 1, above);
    chunk.keys.topRows(2).setZero();
    const HeadTruth truth = eigen_oracle(chunk, Arithmetic{});
    expect_near(truth.inter[0], 0.5);
    expect_near(truth.inter[1], 0.5);
    expect_near(truth.intra[0], 1.0);
  }
}

TEST(Bound, OfRoundedWeightsAddsWhatTheClaimGrantsAndNothingElse) {
  const HeadChunk chunk = alike(4096, 0, 1, 0.0);
  Arithmetic rounded;
  rounded.exp = 0x1p-17;
  rounded.weight = rounded.column_weight = 0x1p-8;
  const HeadTruth truth = eigen_oracle(chunk, rounded);
  const double without_exp = kU * (output(0.0, 4096.0) - 2.0 * kExp);
  expect_near(truth.out_bound(0, 0), std::expm1(without_exp + 2.0 * 0x1p-17 + 2.0 * 0x1p-8) + 4096.0 * kTiny);
}

}  // namespace
}  // namespace headwater::conformance
