#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "reference/dense.hpp"
#include "reference/inter.hpp"
#include "reference/intra.hpp"
#include "tests/reference/support.hpp"

/// Clauses: MASK-1, INTRA-1, INTRA-2, INTER-1, INTER-2, INTER-3, DEC-1, LOGIT-3, LOGIT-4, NUM-2.
namespace headwater::reference {
namespace {

using test::column;
using test::expect_near;
using test::kInf;
using test::kNaN;
using test::matrix;

const double kLn2 = 0.6931471805599453;
const double kLn3 = 1.0986122886681098;
const double kLn4 = 2 * kLn2;

// With d = 1 and every query 1 a key IS its logit; three keys that weigh 1 : 2 : 4.
const std::vector<double> kKeys{0, kLn2, kLn4};
const std::vector<double> kOnes{1, 1, 1};

TEST(Intra, INTRA_1_RowsOfAChunk) {
  const PassResult pass =
      intra_pass(LogitRule{}, 10, column(kOnes), column(kKeys), matrix({{21, 0}, {0, 21}, {42, -21}}));
  ASSERT_EQ(pass.rows.size(), 3U);
  expect_near(pass.rows[0].o, {21, 0});
  expect_near(pass.rows[1].o, {7, 14});
  expect_near(pass.rows[2].o, {(21 + 4 * 42) / 7.0, (42 - 84) / 7.0});
  EXPECT_NEAR(log_sum_exp(pass.rows[0]), 0, 1e-15);
  EXPECT_NEAR(log_sum_exp(pass.rows[1]), std::log(3.0), 1e-15);
  EXPECT_NEAR(log_sum_exp(pass.rows[2]), std::log(7.0), 1e-15);
}

TEST(Intra, INTRA_2_ColumnSums) {
  const PassResult pass = intra_pass(LogitRule{}, 10, column(kOnes), column(kKeys), column(kOnes));
  expect_near(pass.column_sums, {1 + 1 / 3.0 + 1 / 7.0, 2 / 3.0 + 2 / 7.0, 4 / 7.0});
  EXPECT_NEAR(std::accumulate(pass.column_sums.begin(), pass.column_sums.end(), 0.0), 3.0, 1e-14);
}

TEST(Intra, INTRA_2_TheSinkTakesItsShare) {
  // A sink that weighs 1.
  LogitRule rule;
  rule.sink = 0;
  const PassResult pass = intra_pass(rule, 0, column(kOnes), column(kKeys), column({8, 8, 8}));
  expect_near(pass.column_sums, {1 / 2.0 + 1 / 4.0 + 1 / 8.0, 2 / 4.0 + 2 / 8.0, 4 / 8.0});
  expect_near(pass.rows[0].o, {4});
  expect_near(pass.rows[1].o, {6});
  expect_near(pass.rows[2].o, {7});
  EXPECT_NEAR(log_sum_exp(pass.rows[2]), std::log(8.0), 1e-15);
}

TEST(Intra, LOGIT_3_DistancesInsideAChunk) {
  // Equal keys, bias ln 2 per token: weights 1, 1/2, 1/4 going back.
  LogitRule rule;
  rule.slope = kLn2;
  const PassResult pass = intra_pass(rule, 1000, column(kOnes), column({5, 5, 5}), column({28, 14, 7}));
  expect_near(pass.rows[0].o, {28});
  expect_near(pass.rows[1].o, {(28 + 2 * 14) / 3.0}, 1e-12);
  expect_near(pass.rows[2].o, {(28 + 2 * 14 + 4 * 7) / 7.0}, 1e-12);
  expect_near(pass.column_sums, {1 + 1 / 3.0 + 1 / 7.0, 2 / 3.0 + 2 / 7.0, 4 / 7.0}, 1e-12);
}

TEST(Intra, MASK_1_EachQueryHasItsOwnRow) {
  const PassResult pass = intra_pass(LogitRule{}, 0, column({0, 1}), column({kLn3, kLn3}), column({1, 3}));
  expect_near(pass.rows[0].o, {1});
  expect_near(pass.rows[1].o, {2});
  EXPECT_NEAR(log_sum_exp(pass.rows[0]), 0, 1e-15);
  EXPECT_NEAR(log_sum_exp(pass.rows[1]), std::log(6.0), 1e-15);
}

TEST(Intra, NUM_2_MaskedKeysAreNeverTouched) {
  const PassResult pass = intra_pass(LogitRule{}, 0, column(kOnes), column({0, kNaN, 0}), column({1, 2, 3}));
  EXPECT_EQ(pass.rows[0].o[0], 1.0);
  EXPECT_TRUE(std::isnan(pass.rows[1].o[0]));
  EXPECT_TRUE(std::isnan(pass.rows[2].o[0]));
  const PassResult values =
      intra_pass(LogitRule{}, 0, column(kOnes), column({0, 0, 0}), column({1, 2, kInf}));
  EXPECT_EQ(values.rows[1].o[0], 1.5);
  EXPECT_EQ(values.rows[2].o[0], kInf);
  expect_near(values.column_sums, {1 + 1 / 2.0 + 1 / 3.0, 1 / 2.0 + 1 / 3.0, 1 / 3.0});
}

TEST(Intra, INTRA_2_RowsThatSeeNothingAddNothing) {
  const PassResult pass = intra_pass(LogitRule{}, 0, column({1, 1}), column({-kInf, 0}), column({5, 7}));
  expect_near(pass.rows[0].o, {0});
  expect_near(pass.rows[1].o, {7});
  expect_near(pass.column_sums, {0, 1});
}

TEST(Inter, INTER_1_EveryQuerySeesEveryEntry) {
  const std::vector<std::int32_t> memory{2, 5, 9};
  const PassResult pass = inter_pass(LogitRule{}, 10, column({1, 0}), memory, column(kKeys),
                                     matrix({{21, 0}, {0, 21}, {42, -21}}));
  ASSERT_EQ(pass.rows.size(), 2U);
  expect_near(pass.rows[0].o, {27, -6});
  expect_near(pass.rows[1].o, {21, 0});
  EXPECT_NEAR(log_sum_exp(pass.rows[0]), std::log(7.0), 1e-15);
  EXPECT_NEAR(log_sum_exp(pass.rows[1]), std::log(3.0), 1e-15);
  expect_near(pass.column_sums, {1 / 7.0 + 1 / 3.0, 2 / 7.0 + 1 / 3.0, 4 / 7.0 + 1 / 3.0});
}

TEST(Inter, INTER_2_NoSink) {
  LogitRule rule;
  rule.sink = 5;
  const std::vector<std::int32_t> memory{0, 1, 2};
  const PassResult pass = inter_pass(rule, 3, column({1, 1}), memory, column(kKeys), column({7, 7, 7}));
  expect_near(pass.rows[1].o, {7});
  EXPECT_NEAR(log_sum_exp(pass.rows[1]), std::log(7.0), 1e-15);
  expect_near(pass.column_sums, {2 / 7.0, 4 / 7.0, 8 / 7.0});
}

TEST(Inter, LOGIT_3_DistancesAreGlobal) {
  // Bias ln 2 per token, queries at 4 and 5, memory 1 and 3: weights 2^-3 : 2^-1, then 2^-4 : 2^-2.
  LogitRule rule;
  rule.slope = kLn2;
  const std::vector<std::int32_t> memory{1, 3};
  const PassResult pass = inter_pass(rule, 4, column({0, 0}), memory, column({0, 0}), column({5, 10}));
  expect_near(pass.rows[0].o, {9});
  expect_near(pass.rows[1].o, {9});
  EXPECT_NEAR(log_sum_exp(pass.rows[0]), std::log(5 / 8.0), 1e-15);
  EXPECT_NEAR(log_sum_exp(pass.rows[1]), std::log(5 / 16.0), 1e-15);
  expect_near(pass.column_sums, {2 / 5.0, 8 / 5.0});
}

TEST(Inter, INTER_3_EmptyMemoryIsNeutral) {
  const PassResult pass = inter_pass(LogitRule{}, 4, column({1, 1}), {}, Matrix(0, 1), Matrix(0, 2));
  ASSERT_EQ(pass.rows.size(), 2U);
  for (const SoftmaxRow& row : pass.rows) {
    EXPECT_EQ(row.m, -kInf);
    EXPECT_EQ(row.l, 0.0);
    EXPECT_EQ(row.o, (std::vector<double>{0, 0}));
  }
  EXPECT_TRUE(pass.column_sums.empty());
}

TEST(Dense, DEC_1_EverythingStoredAndItself) {
  // Two queries at positions 1 and 2, keys that weigh 1 : 2 : 4.
  const std::vector<SoftmaxRow> rows =
      dense_attention(LogitRule{}, 1, column({1, 1}), column(kKeys), matrix({{21, 0}, {0, 21}, {42, -21}}));
  ASSERT_EQ(rows.size(), 2U);
  expect_near(rows[0].o, {7, 14});
  expect_near(rows[1].o, {27, -6});
  EXPECT_NEAR(log_sum_exp(rows[0]), std::log(3.0), 1e-15);
  EXPECT_NEAR(log_sum_exp(rows[1]), std::log(7.0), 1e-15);
}

TEST(Dense, DEC_1_FromAnEmptySession) {
  const std::vector<SoftmaxRow> rows =
      dense_attention(LogitRule{}, 0, column({1, 1}), column({0, kLn2}), column({3, 6}));
  expect_near(rows[0].o, {3});
  expect_near(rows[1].o, {5});
}

TEST(Dense, LOGIT_4_TheSinkCountsOnce) {
  LogitRule rule;
  rule.sink = 0;
  const std::vector<SoftmaxRow> rows =
      dense_attention(rule, 2, column({1}), column(kKeys), column({8, 8, 8}));
  ASSERT_EQ(rows.size(), 1U);
  expect_near(rows[0].o, {7});
  EXPECT_NEAR(log_sum_exp(rows[0]), std::log(8.0), 1e-15);
}

TEST(Dense, LOGIT_3_Distances) {
  LogitRule rule;
  rule.slope = kLn2;
  const std::vector<SoftmaxRow> rows =
      dense_attention(rule, 2, column({0}), column({0, 0, 0}), column({28, 14, 7}));
  expect_near(rows[0].o, {12}, 1e-12);
}

TEST(Dense, NUM_2_LaterKeysAreNeverTouched) {
  const std::vector<SoftmaxRow> rows =
      dense_attention(LogitRule{}, 0, column({1, 1}), column({0, kNaN}), column({3, 6}));
  EXPECT_EQ(rows[0].o[0], 3.0);
  EXPECT_TRUE(std::isnan(rows[1].o[0]));
}

}  // namespace
}  // namespace headwater::reference
