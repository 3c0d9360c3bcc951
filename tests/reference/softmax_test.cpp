#include "reference/softmax.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "reference/fusion.hpp"
#include "tests/reference/support.hpp"

/// Clauses: INTRA-1, INTER-3, LOGIT-4, FUSE-1, NUM-2.
namespace headwater::reference {
namespace {

using test::expect_near;
using test::kInf;
using test::kNaN;

const double kLn2 = 0.6931471805599453;
const double kLn3 = 1.0986122886681098;

/// Softmax over keys with these logits and value rows.
SoftmaxRow softmax(const std::vector<double>& logits, const std::vector<std::vector<double>>& values,
                   double sink = -kInf) {
  const std::vector<std::span<const double>> rows(values.begin(), values.end());
  return softmax_row(logits, rows, sink, 2);
}

void expect_row(const SoftmaxRow& row, double m, double l, const std::vector<double>& o) {
  EXPECT_EQ(row.m, m);
  EXPECT_NEAR(row.l, l, 1e-14);
  expect_near(row.o, o);
}

TEST(Softmax, INTRA_1_WeightsAreTheExponentials) {
  // Weights 1 : 3 : 2.
  const SoftmaxRow row = softmax({0, kLn3, kLn2}, {{6, 0}, {0, 6}, {12, -12}});
  expect_row(row, kLn3, 2.0, {(6 + 24) / 6.0, (18 - 24) / 6.0});
  EXPECT_NEAR(log_sum_exp(row), std::log(6.0), 1e-15);
  EXPECT_NEAR(weight(row, 0), 1 / 6.0, 1e-15);
  EXPECT_NEAR(weight(row, kLn3), 0.5, 1e-15);
  EXPECT_NEAR(weight(row, kLn2), 1 / 3.0, 1e-15);
}

TEST(Softmax, INTRA_1_OneKey) {
  const SoftmaxRow row = softmax({-7}, {{3, 4}});
  expect_row(row, -7, 1, {3, 4});
  EXPECT_EQ(log_sum_exp(row), -7.0);
}

TEST(Softmax, LOGIT_4_TheSinkIsOneColumnWithValueZero) {
  // Weights 1 : 2 and the sink's 3.
  const SoftmaxRow row = softmax({0, kLn2}, {{6, 0}, {0, 6}}, kLn3);
  expect_row(row, kLn3, 2.0, {1, 2});
  EXPECT_NEAR(log_sum_exp(row), std::log(6.0), 1e-15);
  EXPECT_NEAR(weight(row, kLn2), 1 / 3.0, 1e-15);
  // A sink below the maximum.
  expect_row(softmax({kLn3}, {{4, 8}}, 0), kLn3, 4 / 3.0, {3, 6});
  // A sink and no key.
  const SoftmaxRow alone = softmax({}, {}, 1.5);
  expect_row(alone, 1.5, 1, {0, 0});
  EXPECT_EQ(log_sum_exp(alone), 1.5);
}

TEST(Softmax, NUM_2_LargeLogits) {
  // Weights 1 and 1/e.
  const double e = 2.718281828459045;
  expect_row(softmax({10000, 9999}, {{4, 0}, {0, 4}}), 10000, 1 + 1 / e, {4 * e / (e + 1), 4 / (e + 1)});
  expect_row(softmax({-10000, 10000}, {{4, 0}, {0, 4}}), 10000, 1, {0, 4});
  expect_row(softmax({-10000, -10000}, {{4, 0}, {0, 4}}), -10000, 2, {2, 2});
}

TEST(Softmax, INTER_3_NoKeyIsTheNeutralElement) {
  expect_row(softmax({}, {}), -kInf, 0, {0, 0});
  expect_row(neutral_row(2), -kInf, 0, {0, 0});
  EXPECT_TRUE(neutral_row(0).o.empty());
  EXPECT_EQ(log_sum_exp(neutral_row(1)), -kInf);
  EXPECT_EQ(weight(neutral_row(1), 0), 0.0);
  // Every key at -inf: the same, and no NaN.
  const SoftmaxRow row = softmax({-kInf, -kInf}, {{1, 2}, {3, 4}});
  expect_row(row, -kInf, 0, {0, 0});
  EXPECT_EQ(weight(row, -kInf), 0.0);
}

TEST(Softmax, NUM_2_KeysAtMinusInfinityWeighNothing) {
  expect_row(softmax({-kInf, 1, -kInf}, {{1, 2}, {3, 4}, {5, 6}}), 1, 1, {3, 4});
  expect_row(softmax({-kInf}, {{1, 2}}, 2), 2, 1, {0, 0});
}

TEST(Softmax, NUM_2_ANanLogitMakesItsRowNan) {
  const std::vector<std::vector<double>> values{{1, 2}, {3, 4}, {5, 6}};
  for (const std::vector<double>& logits : {std::vector<double>{kNaN, 1, 2},
                                            {1, kNaN, 2},
                                            {1, 2, kNaN},
                                            {-kInf, -kInf, kNaN},
                                            {kNaN, -kInf, -kInf}}) {
    for (const double sink : {-kInf, 3.0}) {
      const SoftmaxRow row = softmax(logits, values, sink);
      EXPECT_TRUE(std::isnan(row.m));
      EXPECT_TRUE(std::isnan(row.l));
      EXPECT_TRUE(std::isnan(row.o[0]));
      EXPECT_TRUE(std::isnan(row.o[1]));
      EXPECT_TRUE(std::isnan(log_sum_exp(row)));
      EXPECT_TRUE(std::isnan(weight(row, 1.0)));
    }
  }
  const SoftmaxRow infinite = softmax({0, kInf}, {{1, 2}, {3, 4}});
  EXPECT_TRUE(std::isnan(infinite.o[0]));
}

TEST(Softmax, NUM_2_ANanValueReachesItsComponentOnly) {
  const SoftmaxRow row = softmax({0, 0}, {{kNaN, 2}, {3, 4}});
  EXPECT_TRUE(std::isnan(row.o[0]));
  EXPECT_EQ(row.o[1], 3.0);
}

TEST(Fusion, FUSE_1_IsOneSoftmaxOverTheUnion) {
  const SoftmaxRow a = softmax({0, kLn3}, {{6, 0}, {0, 6}});
  const SoftmaxRow b = softmax({kLn2}, {{12, -12}});
  const SoftmaxRow both = softmax({0, kLn3, kLn2}, {{6, 0}, {0, 6}, {12, -12}});
  for (const SoftmaxRow& fused : {fuse(a, b), fuse(b, a)}) {
    expect_row(fused, both.m, both.l, both.o);
    EXPECT_NEAR(log_sum_exp(fused), std::log(6.0), 1e-15);
  }
}

TEST(Fusion, FUSE_1_TheSinkCountsOnce) {
  const SoftmaxRow a = softmax({0}, {{6, 12}}, kLn3);
  const SoftmaxRow b = softmax({kLn2}, {{18, -6}});
  for (const SoftmaxRow& fused : {fuse(a, b), fuse(b, a)}) {
    expect_row(fused, kLn3, 2.0, {7, 0});
    EXPECT_NEAR(log_sum_exp(fused), std::log(6.0), 1e-15);
  }
}

TEST(Fusion, FUSE_1_NeutralElement) {
  const SoftmaxRow a = softmax({1, 1 + kLn3}, {{4, 8}, {8, 4}});
  expect_row(fuse(a, neutral_row(2)), a.m, a.l, a.o);
  expect_row(fuse(neutral_row(2), a), a.m, a.l, a.o);
  expect_row(fuse(neutral_row(2), neutral_row(2)), -kInf, 0, {0, 0});
}

TEST(Fusion, FUSE_1_FarApart) {
  const SoftmaxRow high = softmax({5000}, {{1, 2}});
  const SoftmaxRow low = softmax({-5000}, {{1e30, 1e30}});
  expect_row(fuse(high, low), 5000, 1, {1, 2});
  expect_row(fuse(low, high), 5000, 1, {1, 2});
}

TEST(Fusion, NUM_2_NanOnEitherSideShows) {
  const SoftmaxRow nan = softmax({kNaN}, {{1, 2}});
  const SoftmaxRow a = softmax({1}, {{1, 2}});
  for (const SoftmaxRow& fused :
       {fuse(nan, a), fuse(a, nan), fuse(nan, neutral_row(2)), fuse(neutral_row(2), nan)}) {
    EXPECT_TRUE(std::isnan(fused.o[0]));
    EXPECT_TRUE(std::isnan(fused.o[1]));
    EXPECT_TRUE(std::isnan(log_sum_exp(fused)));
  }
}

}  // namespace
}  // namespace headwater::reference
