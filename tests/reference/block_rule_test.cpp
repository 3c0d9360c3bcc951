#include "reference/block_rule.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reference/config.hpp"
#include "reference/engine.hpp"
#include "reference/schedule.hpp"
#include "tests/reference/definition.hpp"
#include "tests/reference/support.hpp"

/// Rule `blocks`: the functions on small cases computed by hand, and laws of sessions. Whole sessions against the
/// definition are in pipeline_test.cpp.
/// Clauses: SEL-1, SEL-2, SEL-3, SEL-4, SEL-5, SEL-6, SEL-7, SEL-8, SEL-9, SEL-10, SEL-11, SEL-12, MEM-7,
/// PLAN-2, NUM-2, SCHED-2.
namespace headwater::reference {
namespace {

BlockSet choose_set(std::span<const PooledHead> heads, const Matrix& k, const EffectiveOptions& options) {
  const Summaries summaries = summarize(k, candidate_blocks(k.rows, options), options.key_block);
  return reference::choose_set(heads, k, summaries, options);
}

using test::column;
using test::expect_error;
using test::expect_near;
using test::kInf;
using test::kInfF;
using test::kNaN;
using test::kNaNF;
using test::matrix;
using Positions = std::vector<std::int32_t>;

/// Effective options of chunks of 64 tokens.
EffectiveOptions rule_options(std::int64_t local, std::int64_t heavy, std::int64_t key_block,
                              std::int64_t refine = 1) {
  EffectiveOptions options;
  options.chunk = 64;
  options.local = local;
  options.heavy = heavy;
  options.sparse = true;
  options.select = Select::blocks;
  options.key_block = key_block;
  options.query_block = 4;
  options.pool = 2;
  options.refine = refine;
  options.scale = 1.0;
  return options;
}

LogitRule rule_of(double scale, double softcap = 0.0, double slope = 0.0) {
  LogitRule rule;
  rule.scale = scale;
  rule.softcap = softcap;
  rule.slope = slope;
  return rule;
}

/// A head whose pools, and half pools, have these queries of width 1 and end at position 100.
PooledHead head_of(const std::vector<double>& queries, const LogitRule& rule = rule_of(1.0)) {
  PooledHead head{rule, {}, {}};
  for (const double query : queries) head.pools.push_back(Pool{{query}, 100});
  head.half_pools = head.pools;
  return head;
}

/// One pool of query 1.
std::vector<PooledHead> one_head(const LogitRule& rule = rule_of(1.0)) { return {head_of({1}, rule)}; }

/// first .. last - 1 of each range, one after another.
Positions numbers_of(std::initializer_list<std::pair<std::int64_t, std::int64_t>> ranges) {
  Positions numbers;
  for (const auto& [first, last] : ranges) {
    for (std::int64_t b = first; b < last; ++b) numbers.push_back(static_cast<std::int32_t>(b));
  }
  return numbers;
}

TEST(BlockRule, SEL_2_LocalBeginsAtABlock) {
  EXPECT_EQ(aligned_local_begin(64, 16, 8), 48);
  EXPECT_EQ(aligned_local_begin(32, 10, 8), 24);  // from 22 up
  EXPECT_EQ(aligned_local_begin(33, 10, 8), 24);
  EXPECT_EQ(aligned_local_begin(36, 10, 8), 32);
  EXPECT_EQ(aligned_local_begin(5, 9, 4), 0);  // L reaches before the first token
  EXPECT_EQ(aligned_local_begin(0, 9, 4), 0);
  // L < K: Local may be empty.
  EXPECT_EQ(aligned_local_begin(16, 3, 8), 16);
  EXPECT_EQ(aligned_local_begin(19, 3, 8), 16);
  EXPECT_EQ(aligned_local_begin(20, 3, 8), 20);  // the next multiple is 24
  // L = 0.
  EXPECT_EQ(aligned_local_begin(21, 0, 8), 21);
  EXPECT_EQ(aligned_local_begin(24, 0, 8), 24);
}

TEST(BlockRule, SEL_2_CandidatesAreWholeBlocksBeforeLocal) {
  EXPECT_EQ(candidate_blocks(64, rule_options(16, 8, 8)), 6);
  EXPECT_EQ(candidate_blocks(20, rule_options(3, 8, 8)), 2);  // 16 .. 19 are in no set
  EXPECT_EQ(candidate_blocks(21, rule_options(0, 8, 8)), 2);
  EXPECT_EQ(candidate_blocks(5, rule_options(9, 4, 4)), 0);
  EXPECT_EQ(candidate_blocks(0, rule_options(9, 4, 4)), 0);
  EXPECT_EQ(candidate_blocks(64, rule_options(16, 0, 8)), 0);  // H = 0
}

TEST(BlockRule, SEL_8_SizesAreThoseThatTheOptionsSay) {
  for (std::int64_t key_block = 1; key_block <= 6; ++key_block) {
    for (std::int64_t local = 0; local <= 9; ++local) {
      for (const std::int64_t kept : {0, 1, 3}) {
        for (const std::int64_t refine : {1, 2}) {
          const EffectiveOptions options = rule_options(local, kept * key_block, key_block, refine);
          for (std::int64_t begin = 0; begin <= 30; ++begin) {
            SCOPED_TRACE(testing::Message() << key_block << ", " << local << ", " << kept << ", " << begin);
            EXPECT_EQ(aligned_local_begin(begin, local, key_block), options.local_begin(begin));
            const std::vector<PooledHead> heads{head_of({0.5, -1.0})};
            test::Numbers numbers(static_cast<std::uint64_t>(begin));
            Matrix k(begin, 1);
            for (double& value : k.values) value = numbers.next();
            const BlockSet set = choose_set(heads, k, options);
            EXPECT_EQ(set.block_votes.size(), static_cast<std::size_t>(options.candidate_blocks(begin)));
            EXPECT_EQ(set.token_votes.size(), static_cast<std::size_t>(options.voted_tokens(begin)));
            EXPECT_EQ(set.positions.size(), static_cast<std::size_t>(options.memory_count(begin)));
            for (std::size_t e = 1; e < set.positions.size(); ++e) {
              EXPECT_LT(set.positions[e - 1], set.positions[e]);
            }
            if (!set.positions.empty()) {
              EXPECT_GE(set.positions.front(), 0);
              EXPECT_LT(set.positions.back(), begin);
            }
          }
        }
      }
    }
  }
}

TEST(BlockRule, SEL_3_MeansOfColumnsAndVariancesOfGroups) {
  const Matrix k = matrix({{1, -2}, {3, -2}, {5, -2}, {7, -2}, {0, 1}, {0, -1}, {0, 1}, {4, -1}, {99, 99}});
  const Summaries summaries = summarize(k, 2, 4);
  ASSERT_EQ(summaries.mean.rows, 2);
  expect_near(summaries.mean.row(0), {4, -2});
  expect_near(summaries.variance.row(0), {2.5});  // of the columns 5 and 0
  expect_near(summaries.mean.row(1), {1, 0});
  expect_near(summaries.variance.row(1), {2});
  // Ten columns: a group of eight and one of two.
  Matrix wide(2, 10);
  for (std::size_t x = 0; x < 10; ++x) wide.row(1)[x] = x == 7 ? 8 : (x == 8 ? 2 : (x == 9 ? 4 : 0));
  expect_near(summarize(wide, 1, 2).variance.row(0), {2, 2.5});
}

TEST(BlockRule, SEL_3_BlocksOfOneKeyAndNoBlocks) {
  const Summaries summaries = summarize(column({2, -3}), 2, 1);
  expect_near(summaries.mean.values, {2, -3});
  expect_near(summaries.variance.values, {0, 0});
  EXPECT_EQ(summarize(column({2, -3}), 0, 4).mean.rows, 0);
}

TEST(BlockRule, SEL_4_PoolsAreMeansAndTheLastIsShort) {
  const std::vector<Pool> three = pools(matrix({{1, 2}, {3, 6}, {-1, 0}, {1, 1}, {7, 9}}), 10, 2);
  ASSERT_EQ(three.size(), 3U);
  expect_near(three[0].query, {2, 4});
  expect_near(three[1].query, {0, 0.5});
  expect_near(three[2].query, {7, 9});
  EXPECT_EQ(three[0].last, 11);
  EXPECT_EQ(three[1].last, 13);
  EXPECT_EQ(three[2].last, 14);
  const std::vector<Pool> one = pools(column({1, 2, 6}), 0, 8);
  ASSERT_EQ(one.size(), 1U);
  expect_near(one[0].query, {3});
  EXPECT_EQ(one[0].last, 2);
  EXPECT_EQ(pools(column({1, 2, 6}), 0, 1).size(), 3U);
}

TEST(BlockRule, SEL_5_EstimateByHand) {
  const Pool pool{{2, -1}, 10};
  const std::vector<double> mean{1, 3};
  const std::vector<double> variance{3.6};
  // 0.5 (2 - 3) + 0.125 3.6 (4 + 1) = 1.75
  EXPECT_NEAR(estimate(rule_of(0.5), pool, mean, variance, 3), 1.75, 1e-15);
  // A negative scale turns the mean's part alone.
  EXPECT_NEAR(estimate(rule_of(-0.5), pool, mean, variance, 3), 2.75, 1e-15);
  // The cap takes the whole estimate, the slope 7 positions after it.
  EXPECT_NEAR(estimate(rule_of(0.5, 2.0), pool, mean, variance, 3), 2 * std::tanh(0.875), 1e-15);
  EXPECT_NEAR(estimate(rule_of(0.5, 0.0, 0.25), pool, mean, variance, 3), 0.0, 1e-15);
  EXPECT_NEAR(estimate(rule_of(0.5, 2.0, 0.25), pool, mean, variance, 3), 2 * std::tanh(0.875) - 1.75, 1e-15);
}

TEST(BlockRule, SEL_5_EqualKeysGiveTheirLogit) {
  const Summaries summaries = summarize(matrix({{1, 3}, {1, 3}, {1, 3}}), 1, 3);
  const LogitRule rule = rule_of(0.7, 2.5, 0.1);
  const Pool pool{{2, -1}, 9};
  EXPECT_NEAR(estimate(rule, pool, summaries.mean.row(0), summaries.variance.row(0), 2),
              logit(rule, pool.query, std::vector<double>{1, 3}, 9, 2), 1e-15);
}

TEST(BlockRule, SEL_5_LogarithmOfTheMeanWeightToSecondOrder) {
  // Two keys around 0.3: the third cumulant vanishes, the fourth is -2 x^4.
  for (const double x : {0.1, 0.05}) {
    const Summaries summaries = summarize(column({0.3 + x, 0.3 - x}), 1, 2);
    const double e =
        estimate(rule_of(1.0), Pool{{1.0}, 5}, summaries.mean.row(0), summaries.variance.row(0), 1);
    const double exact = std::log((std::exp(0.3 + x) + std::exp(0.3 - x)) / 2);
    EXPECT_NEAR(e - exact, x * x * x * x / 12, x * x * x * x / 100);
  }
}

TEST(BlockRule, SEL_5_NaNCountsAsMinusInfinity) {
  const Pool pool{{1.0}, 5};
  const auto one = [&](double mean, double variance, const LogitRule& rule = rule_of(1.0)) {
    return estimate(rule, pool, std::vector<double>{mean}, std::vector<double>{variance}, 1);
  };
  EXPECT_EQ(one(kNaN, 0.0), -kInf);
  EXPECT_EQ(one(0.0, kNaN), -kInf);
  EXPECT_EQ(one(-kInf, kInf), -kInf);
  EXPECT_EQ(one(kInf, 0.0), kInf);
  EXPECT_EQ(one(-kInf, 0.0), -kInf);
  EXPECT_EQ(one(kNaN, 0.0, rule_of(1.0, 3.0)), -kInf);  // after the cap
  EXPECT_EQ(one(-kInf, 0.0, rule_of(1.0, 3.0)), -3.0);
  EXPECT_EQ(estimate(rule_of(1.0), Pool{{kNaN}, 5}, std::vector<double>{1.0}, std::vector<double>{0.0}, 1),
            -kInf);
  EXPECT_EQ(estimate(rule_of(1.0), Pool{{0.0}, 5}, std::vector<double>{kInf}, std::vector<double>{0.0}, 1),
            -kInf);
}

TEST(BlockRule, SEL_6_LargestVoteOfPoolsAndHeads) {
  const Summaries keys = summarize(column({1, 2, 4}), 3, 1);
  // e = (1, 2, 4), so (-3, -2, 0).
  expect_near(block_votes(one_head(), keys, 1), {-3, -2, 0});
  // e = (-1, -2, -4), so (0, -1, -3).
  expect_near(block_votes(std::vector<PooledHead>{head_of({-1})}, keys, 1), {0, -1, -3});
  expect_near(block_votes(std::vector<PooledHead>{head_of({1, -1})}, keys, 1), {0, -1, 0});
  expect_near(block_votes(std::vector<PooledHead>{head_of({1}), head_of({-1})}, keys, 1), {0, -1, 0});
  // Each head by its own rule: e = (0.1, 0.2, 0.4).
  expect_near(block_votes(std::vector<PooledHead>{head_of({1}), head_of({1}, rule_of(0.1))}, keys, 1),
              {-0.3, -0.2, 0});
  // e = 1 - 100 a, 2 - 99 a, 4 - 98 a with a = -2: the last keys are 0, 1, 2.
  expect_near(block_votes(one_head(rule_of(1.0, 0.0, -2.0)), keys, 1), {0, -1, -1});
}

TEST(BlockRule, SEL_6_LastKeyOfABlockIsItsPosition) {
  // Equal blocks of two keys that end at 1, 3, 5: the slope alone tells them apart.
  const Summaries keys = summarize(column({1, 1, 1, 1, 1, 1}), 3, 2);
  expect_near(block_votes(one_head(rule_of(1.0, 0.0, 0.25)), keys, 2), {-1, -0.5, 0});
}

TEST(BlockRule, SEL_6_EqualValuesDifferByZero) {
  const std::vector<PooledHead> heads = one_head();
  // No variance of infinite keys is a number, so the summaries are written out.
  const auto of_means = [&](const std::vector<double>& means) {
    return block_votes(heads, Summaries{column(means), column(std::vector<double>(means.size(), 0.0))}, 1);
  };
  EXPECT_EQ(of_means({kInf, 1, kInf, kNaN}), (std::vector<double>{0, -kInf, 0, -kInf}));
  EXPECT_EQ(of_means({-kInf, kNaN}), (std::vector<double>{0, 0}));
  EXPECT_EQ(of_means({kNaN, 5, -kInf}), (std::vector<double>{-kInf, 0, -kInf}));
  EXPECT_EQ(of_means({3, 3}), (std::vector<double>{0, 0}));
}

TEST(BlockRule, SEL_6_OneCandidateAndNone) {
  EXPECT_EQ(block_votes(std::vector<PooledHead>{head_of({5, -7})}, summarize(column({2}), 1, 1), 1),
            std::vector<double>{0});
  EXPECT_TRUE(block_votes(std::vector<PooledHead>{head_of({5})}, summarize(column({2}), 0, 1), 1).empty());
}

TEST(BlockRule, SEL_6_VotesAreRoundedOnce) {
  const std::vector<PooledHead> heads = one_head();
  const BlockSet set = choose_set(heads, column({0.0, 1.0 / 3.0}), rule_options(0, 1, 1));
  EXPECT_EQ(set.block_votes, (std::vector<float>{static_cast<float>(-1.0 / 3.0), 0.0F}));
  // Equal as floats: the lower block is kept, although the higher one's estimate is larger.
  const BlockSet tie = choose_set(heads, column({1.0, 1.0 - 0x1p-50, 1.0 - 0x1p-52}), rule_options(0, 2, 1));
  EXPECT_LT(tie.block_votes[1], tie.block_votes[2]);
  const std::vector<PooledHead> both{head_of({1}), head_of({1e10})};
  const BlockSet far = choose_set(both, column({0, -1, -1 - 0x1p-40}), rule_options(0, 2, 1));
  EXPECT_EQ(far.block_votes[1], far.block_votes[2]);
  EXPECT_EQ(far.positions, (Positions{0, 1}));
}

TEST(BlockRule, SEL_6_BestBlocksInTheOrderOfMem3) {
  const std::vector<float> votes{-1, 0, -1, -0.0F, -2, -kInfF};
  EXPECT_EQ(tokens_of_best_blocks(votes, 1, 2), (Positions{2, 3}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 2, 2), (Positions{2, 3, 6, 7}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 3, 2), (Positions{0, 1, 2, 3, 6, 7}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 5, 1), (Positions{0, 1, 2, 3, 4}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 60, 1), (Positions{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(tokens_of_best_blocks(votes, 0, 3).empty());
  EXPECT_TRUE(tokens_of_best_blocks({}, 4, 3).empty());
}

TEST(BlockRule, MEM_7_PinnedBlocksAreTheFirst) {
  const std::vector<float> votes{-kInfF, -5, 0, -1};
  EXPECT_EQ(tokens_of_best_blocks(votes, 2, 2, 0), (Positions{4, 5, 6, 7}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 1, 2, 2), (Positions{0, 1}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 2, 2, 2), (Positions{0, 1, 4, 5}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 2, 2, 4), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 3, 2, 4), (Positions{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tokens_of_best_blocks(votes, 9, 2, 2), (Positions{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(tokens_of_best_blocks(std::vector<float>{-1}, 4, 3, 6), (Positions{0, 1, 2}));
  EXPECT_TRUE(tokens_of_best_blocks({}, 4, 3, 6).empty());
}

TEST(BlockRule, MEM_7_PinnedTokensAreTheFirst) {
  const Positions tokens{0, 1, 6, 7};
  const std::vector<float> votes{0, 0, 0.5F, 0.25F};
  EXPECT_EQ(best_tokens(tokens, votes, 2, 0), (Positions{6, 7}));
  EXPECT_EQ(best_tokens(tokens, votes, 2, 2), (Positions{0, 1}));
  EXPECT_EQ(best_tokens(tokens, votes, 3, 2), (Positions{0, 1, 6}));
  EXPECT_EQ(best_tokens(tokens, votes, 3, 1), (Positions{0, 6, 7}));
  EXPECT_EQ(best_tokens(tokens, votes, 4, 4), tokens);
}

TEST(BlockRule, SEL_7_WeightsOverTheKeptTokens) {
  const Matrix k = column({0, std::log(3.0)});
  const Positions tokens{4, 9};
  expect_near(token_votes(one_head(), tokens, k), {0.25, 0.75});
  expect_near(token_votes(std::vector<PooledHead>{head_of({-1})}, tokens, k), {0.75, 0.25});
  expect_near(token_votes(std::vector<PooledHead>{head_of({1, -1})}, tokens, k), {0.75, 0.75});
  expect_near(token_votes(std::vector<PooledHead>{head_of({1}), head_of({0})}, tokens, k), {0.5, 0.75});
}

TEST(BlockRule, SEL_7_LogitsHaveScaleCapAndSlopeAndNoSink) {
  const Matrix k = column({1, 2});
  const Positions tokens{4, 9};
  LogitRule rule = rule_of(0.5, 3.0, 0.125);
  rule.sink = 50.0;
  const double a = 3 * std::tanh(0.5 / 3) - 0.125 * 96;
  const double b = 3 * std::tanh(1.0 / 3) - 0.125 * 91;
  expect_near(token_votes(one_head(rule), tokens, k), {1 / (1 + std::exp(b - a)), 1 / (1 + std::exp(a - b))});
}

TEST(BlockRule, SEL_7_NaNWeightsCountZero) {
  const Positions tokens{0, 1};
  const auto votes = [&](const std::vector<double>& queries, const std::vector<double>& keys) {
    return token_votes(std::vector<PooledHead>{head_of(queries)}, tokens, column(keys));
  };
  EXPECT_EQ(votes({1}, {kNaN, 2}), (std::vector<double>{0, 0}));
  EXPECT_EQ(votes({1}, {kInf, 2}), (std::vector<double>{0, 0}));
  EXPECT_EQ(votes({1}, {-kInf, 2}), (std::vector<double>{0, 1}));
  EXPECT_EQ(votes({1}, {-kInf, -kInf}), (std::vector<double>{0, 0}));
  EXPECT_EQ(votes({kNaN, 0}, {1, 2}), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(votes({0, kNaN}, {1, 2}), (std::vector<double>{0.5, 0.5}));
}

TEST(BlockRule, SEL_7_BestTokensInTheOrderOfMem3) {
  const Positions tokens{2, 3, 8, 9};
  const std::vector<float> votes{0.25F, 0.5F, 0.5F, 0.25F};
  EXPECT_EQ(best_tokens(tokens, votes, 1), (Positions{3}));
  EXPECT_EQ(best_tokens(tokens, votes, 3), (Positions{2, 3, 8}));
  EXPECT_EQ(best_tokens(tokens, votes, 9), tokens);
}

TEST(BlockRule, SEL_8_LocalFollowsTheKeptTokens) {
  EXPECT_EQ(with_local(Positions{1, 4}, 6, 9), (Positions{1, 4, 6, 7, 8}));
  EXPECT_EQ(with_local(Positions{1, 4}, 9, 9), (Positions{1, 4}));
  EXPECT_EQ(with_local({}, 0, 2), (Positions{0, 1}));
}

/// Keys of blocks of 2 before position 11 with L = 4, K = 2, H = 2: Local is [8, 11), candidates 0 .. 3.
const std::vector<double> kKeys{5, -5, 1, 1, 3, 2, 0, 4, 9, 9, 9};

/// The set of one head and pool of query 1 among keys of width 1.
BlockSet set_of_keys(const std::vector<double>& keys, EffectiveOptions options, std::int64_t pinned = 0) {
  options.pinned = pinned;
  return choose_set(one_head(), column(keys), options);
}
/// The same where all are candidates (K = 1, L = 0).
BlockSet set_of_keys(const std::vector<double>& keys, std::int64_t heavy = 1, std::int64_t refine = 1,
                     std::int64_t pinned = 0) {
  return set_of_keys(keys, rule_options(0, heavy, 1, refine), pinned);
}

TEST(BlockRule, SEL_8_SetsOfOneStageByHand) {
  const EffectiveOptions options = rule_options(4, 2, 2);
  // Estimates of query 1: 0 + 25/2, 1, 2.5 + 1/8, 2 + 4/2.
  const BlockSet set = set_of_keys(kKeys, options);
  expect_near(std::vector<double>(set.block_votes.begin(), set.block_votes.end()), {0, -11.5, -9.875, -8.5});
  EXPECT_TRUE(set.token_votes.empty());
  EXPECT_EQ(set.positions, (Positions{0, 1, 8, 9, 10}));
}

TEST(BlockRule, SEL_8_SetsOfTwoStagesByHand) {
  // Blocks 0 and 3: tokens 0, 1, 6, 7 with logits 5, -5, 0, 4.
  const BlockSet set = set_of_keys(kKeys, rule_options(4, 2, 2, 2));
  const double l = std::exp(5.0) + std::exp(-5.0) + 1 + std::exp(4.0);
  ASSERT_EQ(set.token_votes.size(), 4U);
  EXPECT_FLOAT_EQ(set.token_votes[0], static_cast<float>(std::exp(5.0) / l));
  EXPECT_FLOAT_EQ(set.token_votes[1], static_cast<float>(std::exp(-5.0) / l));
  EXPECT_FLOAT_EQ(set.token_votes[2], static_cast<float>(1 / l));
  EXPECT_FLOAT_EQ(set.token_votes[3], static_cast<float>(std::exp(4.0) / l));
  EXPECT_EQ(set.positions, (Positions{0, 7, 8, 9, 10}));
}

TEST(BlockRule, MEM_7_PinnedInBothStagesByHand) {
  // Block 0 has the lowest keys. Estimates of query 1: -9, 1, 2.5 + 1/8, 2 + 4/2.
  std::vector<double> keys = kKeys;
  keys[0] = keys[1] = -9;
  const auto set_of = [&](std::int64_t heavy, std::int64_t refine, std::int64_t pinned) {
    return set_of_keys(keys, rule_options(4, heavy, 2, refine), pinned);
  };
  EXPECT_EQ(set_of(2, 1, 0).positions, (Positions{6, 7, 8, 9, 10}));
  EXPECT_EQ(set_of(2, 1, 2).positions, (Positions{0, 1, 8, 9, 10}));
  EXPECT_EQ(set_of(4, 1, 2).positions, (Positions{0, 1, 6, 7, 8, 9, 10}));
  EXPECT_EQ(set_of(4, 1, 4).positions, (Positions{0, 1, 2, 3, 8, 9, 10}));
  // R = 2: block 0 and 3 for H = 2, then both tokens of block 0.
  EXPECT_EQ(set_of(2, 2, 2).token_votes.size(), 4U);
  EXPECT_EQ(set_of(2, 2, 2).positions, (Positions{0, 1, 8, 9, 10}));
  // All four blocks for H = 4: logits -9 -9 1 1 3 2 0 4.
  EXPECT_EQ(set_of(4, 2, 0).positions, (Positions{2, 4, 5, 7, 8, 9, 10}));
  EXPECT_EQ(set_of(4, 2, 2).positions, (Positions{0, 1, 4, 7, 8, 9, 10}));
  EXPECT_EQ(set_of(4, 2, 4).positions, (Positions{0, 1, 2, 3, 8, 9, 10}));
  // The votes are what they are without pinned tokens.
  EXPECT_EQ(set_of(4, 1, 4).block_votes, set_of(4, 1, 0).block_votes);
  // No number is the vote of a block of NaN, or the weight of its tokens.
  keys[0] = kNaN;
  EXPECT_EQ(set_of(4, 1, 2).positions, (Positions{0, 1, 6, 7, 8, 9, 10}));
  EXPECT_EQ(set_of(4, 2, 2).positions, (Positions{0, 1, 2, 3, 8, 9, 10}));  // then all weights are 0
}

TEST(BlockRule, SEL_7_AllBlocksKeptNeedNoSecondStage) {
  // Four candidates, H = 8: all are kept, whatever R is.
  for (const std::int64_t refine : {1, 2, 16}) {
    const BlockSet set = set_of_keys(kKeys, rule_options(4, 8, 2, refine));
    EXPECT_EQ(set.block_votes.size(), 4U);
    EXPECT_TRUE(set.token_votes.empty());
    EXPECT_EQ(set.positions, (Positions{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  }
  // H = 6 and R = 2: all four are kept at first, six of their tokens in the end.
  const BlockSet set = set_of_keys(kKeys, rule_options(4, 6, 2, 2));
  EXPECT_EQ(set.token_votes.size(), 8U);
  EXPECT_EQ(set.positions, (Positions{0, 2, 3, 4, 5, 7, 8, 9, 10}));
}

TEST(BlockRule, SEL_2_TokensBetweenCandidatesAndAnEmptyLocal) {
  // L = 2 and K = 4 at 11: Local would begin at 12, so it is empty, and 8 .. 10 are in no whole block before it.
  // Estimates: 0.5 + 12.75 / 2 and 2.25 + 2.1875 / 2.
  const BlockSet set = set_of_keys(kKeys, rule_options(2, 4, 4));
  EXPECT_EQ(set.block_votes, (std::vector<float>{0.0F, -3.53125F}));
  EXPECT_EQ(set.positions, (Positions{0, 1, 2, 3}));
}

TEST(BlockRule, SEL_6_TiesGoToTheLowerBlockAndToken) {
  const std::vector<double> equal(11, 1.0);
  EXPECT_EQ(set_of_keys(equal, rule_options(4, 4, 2)).positions, (Positions{0, 1, 2, 3, 8, 9, 10}));
  EXPECT_EQ(set_of_keys(equal, rule_options(4, 2, 2, 2)).positions, (Positions{0, 1, 8, 9, 10}));
}

TEST(BlockRule, NUM_2_SetsStayValidWhateverTheKeysAre) {
  for (const double bad : {kNaN, kInf, -kInf}) {
    for (std::size_t at = 0; at < 8; ++at) {
      std::vector<double> keys = kKeys;
      keys[at] = bad;
      for (const std::int64_t refine : {1, 2}) {
        const BlockSet set = choose_set(std::vector<PooledHead>{head_of({1, -1}), head_of({0})}, column(keys),
                                        rule_options(4, 4, 2, refine));
        ASSERT_EQ(set.positions.size(), 7U);
        for (const float vote : set.block_votes) EXPECT_LE(vote, 0.0F);  // not NaN
        for (const float vote : set.token_votes) EXPECT_TRUE(vote >= 0.0F && vote <= 1.0F);
        // Its block is the last choice: the mean may be infinite, the variance is NaN.
        EXPECT_EQ(set.block_votes[at / 2], -kInfF);
      }
      const BlockSet blocks_alone = set_of_keys(keys, rule_options(4, 6, 2));
      EXPECT_EQ(std::count(blocks_alone.positions.begin(), blocks_alone.positions.end(),
                           static_cast<std::int32_t>(at)),
                0);
    }
  }
}

/// The candidates whose vote is not -infinity.
Positions searched_of(const BlockSet& set) {
  Positions searched;
  for (std::size_t b = 0; b < set.block_votes.size(); ++b) {
    if (set.block_votes[b] != -kInfF) searched.push_back(static_cast<std::int32_t>(b));
  }
  return searched;
}

/// Keys of width 1, `per_region` consecutive ones for each value.
std::vector<double> keys_by_region(const std::vector<double>& values, std::size_t per_region = 32) {
  std::vector<double> keys;
  for (const double value : values) keys.insert(keys.end(), per_region, value);
  return keys;
}

TEST(BlockRule, SEL_12_MeanAndVarianceOfRegionsByHand) {
  // Column 0: means 0 (16 times) and 4 in region 0, 0 .. 31 in region 1; column 1: equal means.
  Summaries blocks{Matrix(70, 2), Matrix(70, 1)};
  for (std::int64_t b = 0; b < 64; ++b) {
    blocks.mean.row(b)[0] = b < 32 ? static_cast<double>(b % 2 * 4) : static_cast<double>(b - 32);
    blocks.mean.row(b)[1] = -3;
    blocks.variance.row(b)[0] = b < 8 ? 1 : (b < 32 ? 0 : 2);
  }
  for (std::int64_t b = 64; b < 70; ++b) blocks.mean.row(b)[0] = 1e6;  // in no region
  const Summaries regions = summarize_regions(blocks);
  ASSERT_EQ(regions.mean.rows, 2);
  ASSERT_EQ(regions.variance.rows, 2);
  expect_near(regions.mean.row(0), {2, -3});
  expect_near(regions.variance.row(0), {0.25 + 2});  // within the blocks; of the columns 4 and 0
  expect_near(regions.mean.row(1), {15.5, -3});
  expect_near(regions.variance.row(1), {2 + (32 * 32 - 1) / 24.0}, 1e-13);
  EXPECT_EQ(summarize_regions(summarize(column({1, 2}), 2, 1)).mean.rows, 0);
}

TEST(BlockRule, SEL_12_RegionsHaveTheMomentsOfTheirKeys) {
  test::Numbers numbers(5);
  Matrix k(2 * 32 * 3, 2);
  for (double& value : k.values) value = numbers.next();
  const Summaries regions = summarize_regions(summarize(k, 64, 3));
  const Summaries of_keys = summarize(k, 2, 32 * 3);
  expect_near(regions.mean.values, of_keys.mean.values);
  expect_near(regions.variance.values, of_keys.variance.values);
}

TEST(BlockRule, SEL_12_VotesOnRegions) {
  const std::vector<PooledHead> heads = one_head();
  std::vector<double> means(65, 0.0);
  means[7] = 2;
  means[64] = 3;
  const auto votes = [&](std::int64_t blocks) {
    const std::vector<double> keys = keys_by_region(means);
    return region_votes(heads, summarize(column(keys), blocks, 1), 1);
  };
  EXPECT_TRUE(votes(2048).empty());
  ASSERT_EQ(votes(2049).size(), 64U);  // block 2048 is in no region
  EXPECT_EQ(votes(2049)[7], 0.0);
  EXPECT_EQ(votes(2049)[8], -2.0);
  ASSERT_EQ(votes(2079).size(), 64U);
  ASSERT_EQ(votes(2080).size(), 65U);
  EXPECT_EQ(votes(2080)[64], 0.0);
  EXPECT_EQ(votes(2080)[7], -1.0);
}

TEST(BlockRule, SEL_12_LastKeyOfARegionIsItsPosition) {
  // Equal regions of 64 keys: the slope alone tells them apart.
  const Summaries blocks{column(std::vector<double>(2049, 1.0)), column(std::vector<double>(2049, 0.0))};
  const std::vector<double> votes = region_votes(one_head(rule_of(1.0, 0.0, 0.25)), blocks, 2);
  ASSERT_EQ(votes.size(), 64U);
  for (std::size_t r = 0; r < 64; ++r) EXPECT_EQ(votes[r], -16.0 * static_cast<double>(63 - r));
  // With a cap between: what a region of large spread has is its estimate, capped, less the slope.
  Summaries spread = blocks;
  spread.variance.values[0] = 32 * 6;  // of region 0: 6, so e = 1 + 3
  const LogitRule rule = rule_of(1.0, 2.0, 0.0625);
  const std::vector<double> capped = region_votes(one_head(rule), spread, 2);
  EXPECT_NEAR(capped[0] - capped[1], 2 * std::tanh(2.0) - 2 * std::tanh(0.5) - 4, 1e-13);
}

TEST(BlockRule, SEL_12_EachSideOf2048Candidates) {
  // Later keys have larger logits: the regions searched are the last 16.
  const auto searched = [](std::int64_t candidates) {
    std::vector<double> keys;
    for (std::int64_t j = 0; j < candidates; ++j) keys.push_back(0.5 * static_cast<double>(j));
    const BlockSet set = set_of_keys(keys);
    EXPECT_EQ(set.block_votes.size(), static_cast<std::size_t>(candidates));
    EXPECT_EQ(set.positions, (Positions{static_cast<std::int32_t>(candidates - 1)}));
    for (const std::int32_t b : searched_of(set)) {
      EXPECT_EQ(set.block_votes[static_cast<std::size_t>(b)], -0.5F * static_cast<float>(candidates - 1 - b));
    }
    return searched_of(set);
  };
  EXPECT_EQ(searched(2047), numbers_of({{0, 2047}}));
  EXPECT_EQ(searched(2048), numbers_of({{0, 2048}}));
  EXPECT_EQ(searched(2049), numbers_of({{1536, 2049}}));
  EXPECT_EQ(searched(2079), numbers_of({{1536, 2079}}));
  EXPECT_EQ(searched(2080), numbers_of({{1568, 2080}}));  // 65 whole regions
  EXPECT_EQ(searched(2081), numbers_of({{1568, 2081}}));
}

TEST(BlockRule, SEL_12_ThresholdCountsCandidatesNotTokens) {
  // 2048 blocks of two keys and an empty Local; 4098 tokens hold one block more.
  const std::vector<PooledHead> heads = one_head();
  EXPECT_EQ(searched_of(choose_set(heads, Matrix(4097, 1), rule_options(0, 2, 2))).size(), 2048U);
  EXPECT_EQ(searched_of(choose_set(heads, Matrix(4098, 1), rule_options(0, 2, 2))).size(), 513U);
  EXPECT_EQ(searched_of(choose_set(heads, Matrix(2060, 1), rule_options(12, 1, 1))).size(), 2048U);
}

TEST(BlockRule, SEL_12_CandidatesInNoRegionAreSearched) {
  // The lowest keys of all are the last ones: they are estimated all the same.
  std::vector<double> keys = keys_by_region(std::vector<double>(64, 0.0));
  keys.insert(keys.end(), 20, -9.0);
  const BlockSet set = set_of_keys(keys);
  const Positions expected = numbers_of({{0, 512}, {2048, 2068}});
  EXPECT_EQ(searched_of(set), expected);
  EXPECT_EQ(set.block_votes.back(), -9.0F);
}

TEST(BlockRule, SEL_12_MaximaAreOverSearchedBlocks) {
  // The largest key of all is in the region of the smallest estimate.
  std::vector<double> keys = keys_by_region(std::vector<double>(64, 1.0));
  keys.push_back(0.5);
  for (std::size_t j = 320; j < 352; ++j) keys[j] = -8.0;
  keys[333] = 3.0;
  const BlockSet set = set_of_keys(keys, 2);
  EXPECT_EQ(set.block_votes[333], -kInfF);
  EXPECT_EQ(set.block_votes[0], 0.0F);
  EXPECT_EQ(set.block_votes[2048], -0.5F);
  EXPECT_EQ(set.positions, (Positions{0, 1}));
  // Among 2048 candidates it is found.
  keys.pop_back();
  EXPECT_EQ(set_of_keys(keys, 2).positions, (Positions{0, 333}));
}

TEST(BlockRule, SEL_12_SpreadOfMeansFindsARegion) {
  // All means are 0 but those of region 40, -1. There the means of blocks differ by 4: e = -1 + 16/2.
  std::vector<double> keys = keys_by_region(std::vector<double>(64, 0.0));
  keys.push_back(0.0);
  for (std::size_t j = 1280; j < 1312; ++j) keys[j] = j % 2 == 0 ? 3.0 : -5.0;
  const BlockSet set = set_of_keys(keys, 16);
  const Positions expected = numbers_of({{0, 15 * 32}, {1280, 1312}, {2048, 2049}});
  EXPECT_EQ(searched_of(set), expected);
  EXPECT_EQ(set.positions.front(), 1280);
  EXPECT_EQ(set.positions.back(), 1310);
}

TEST(BlockRule, SEL_12_TiesGoToTheLowerRegion) {
  EXPECT_EQ(searched_of(set_of_keys(std::vector<double>(2080, 1.0))), numbers_of({{0, 512}}));
  // 15 regions are better. Regions 40 and 50 have equal votes once these are rounded to F32.
  std::vector<double> values(65, -5.0);
  std::fill_n(values.begin() + 2, 15, 0.0);
  values[40] = -1.0 - 0x1p-40;
  values[50] = -1.0;
  const BlockSet set = set_of_keys(keys_by_region(values));
  const Positions expected = numbers_of({{64, 17 * 32}, {40 * 32, 41 * 32}});
  EXPECT_EQ(searched_of(set), expected);
}

TEST(BlockRule, SEL_12_RegionsSearchedGrowWithRAndH) {
  // Votes that grow with the number of the region: the last G of 100 are searched, and three blocks in no region.
  std::vector<float> votes;
  for (int r = 0; r < 100; ++r) votes.push_back(static_cast<float>(r - 99));
  const auto expect_searched = [&](std::int64_t regions, std::int64_t heavy, std::int64_t key_block,
                                   std::int64_t refine) {
    EXPECT_EQ(searched_blocks(votes, 3203, rule_options(0, heavy, key_block, refine)),
              numbers_of({{32 * (100 - regions), 3203}}))
        << heavy << ", " << key_block << ", " << refine;
  };
  expect_searched(16, 1, 1, 1);
  expect_searched(16, 128, 1, 1);
  expect_searched(17, 129, 1, 1);  // 129 / 8 rounded up
  expect_searched(17, 136, 1, 1);
  expect_searched(18, 137, 1, 1);
  expect_searched(16, 64, 1, 2);
  expect_searched(17, 65, 1, 2);
  expect_searched(25, 65, 1, 3);
  expect_searched(16, 384, 3, 1);
  expect_searched(17, 387, 3, 1);
  expect_searched(17, 195, 3, 2);
  expect_searched(99, 792, 1, 1);
  expect_searched(100, 793, 1, 1);
  expect_searched(100, 801, 1, 1);  // G = 101: as many regions as there are
  expect_searched(100, 4096, 1, 16);
}

TEST(BlockRule, SEL_12_SearchedBlocksWithoutVotes) {
  EXPECT_EQ(searched_blocks({}, 2048, rule_options(0, 1, 1)), numbers_of({{0, 2048}}));
  EXPECT_EQ(searched_blocks({}, 5, rule_options(0, 1, 1)), numbers_of({{0, 5}}));
  EXPECT_TRUE(searched_blocks({}, 0, rule_options(0, 1, 1)).empty());
}

TEST(BlockRule, SEL_12_FirstStageTakesSearchedBlocksAlone) {
  // H = 260 of 2049: 33 regions are searched, and far more blocks than are kept.
  std::vector<double> keys;
  for (int j = 0; j < 2049; ++j) keys.push_back(-static_cast<double>(j % 32) - (j < 1000 ? 100.0 : 0.0));
  const BlockSet set = set_of_keys(keys, 260);
  const Positions searched = searched_of(set);
  EXPECT_EQ(searched.size(), 33U * 32 + 1);
  EXPECT_EQ(set.positions.size(), 260U);
  for (const std::int32_t position : set.positions) EXPECT_GE(position, 1000);
  const BlockSet two = set_of_keys(keys, 260, 2);  // G = 65: all regions
  EXPECT_EQ(searched_of(two).size(), 2049U);
  EXPECT_EQ(two.token_votes.size(), 520U);
}

TEST(BlockRule, MEM_7_PinnedBlocksOfRegionsThatAreNotSearched) {
  // Keys grow with the region, so the last 16 of 65 are searched, and 2080.
  std::vector<double> values;
  for (int r = 0; r < 65; ++r) values.push_back(static_cast<double>(r));
  std::vector<double> keys = keys_by_region(values);
  keys.push_back(100.0);
  for (const std::int64_t pinned : {1, 2, 33, 40}) {
    SCOPED_TRACE(pinned);
    for (const std::int64_t refine : {1, 2}) {
      // Pinned tokens, the last region's first and the one in no region.
      const BlockSet set = set_of_keys(keys, pinned + 2, refine, pinned);
      EXPECT_EQ(set.positions, numbers_of({{0, pinned}, {64 * 32, 64 * 32 + 1}, {2080, 2081}}));
      EXPECT_EQ(set.block_votes[0], -kInfF);
      EXPECT_EQ(searched_of(set), searched_of(set_of_keys(keys, pinned + 2, refine, 0)));
    }
    EXPECT_EQ(set_of_keys(keys, pinned, 1, pinned).positions, numbers_of({{0, pinned}}));
    EXPECT_EQ(set_of_keys(keys, pinned, 3, pinned).positions, numbers_of({{0, pinned}}));
  }
}

TEST(BlockRule, SEL_12_NaNAndInfiniteKeys) {
  for (const double bad : {kNaN, kInf, -kInf}) {
    SCOPED_TRACE(bad);
    // The region of the largest keys has one that is bad: no number is its variance, and it is not searched.
    std::vector<double> values(65, 0.0);
    values[40] = 5.0;
    std::vector<double> keys = keys_by_region(values);
    keys.push_back(1.0);
    keys[1290] = bad;
    const BlockSet set = set_of_keys(keys, 2);
    const Positions expected = numbers_of({{0, 512}, {2080, 2081}});
    EXPECT_EQ(searched_of(set), expected);
    EXPECT_EQ(set.block_votes[1281], -kInfF);
    EXPECT_EQ(set.positions, (Positions{0, 2080}));
    // In no region: it alone has no vote.
    keys[1290] = 5.0;
    keys.back() = bad;
    const BlockSet alone = set_of_keys(keys, 2);
    EXPECT_EQ(alone.block_votes[2080], -kInfF);
    EXPECT_EQ(alone.positions, (Positions{1280, 1281}));
  }
  // No region and no block is a number: equal votes, 0 where searched.
  const BlockSet none = set_of_keys(std::vector<double>(2081, kNaN), 2);
  const Positions expected = numbers_of({{0, 512}, {2080, 2081}});
  EXPECT_EQ(searched_of(none), expected);
  EXPECT_EQ(none.block_votes[2080], 0.0F);
  EXPECT_EQ(none.positions, (Positions{0, 1}));
}

TEST(BlockRule, SEL_12_LargestVoteOfPoolsAndHeadsOnRegions) {
  // Keys grow with the region: query 1 wants the last regions, query -1 the first, each with votes 0, -1, ...
  std::vector<double> values;
  for (int r = 0; r < 65; ++r) values.push_back(static_cast<double>(r));
  const Positions expected = numbers_of({{0, 8 * 32}, {57 * 32, 65 * 32}});
  const Matrix k = column(keys_by_region(values));
  const EffectiveOptions options = rule_options(0, 1, 1);
  EXPECT_EQ(searched_of(choose_set(std::vector<PooledHead>{head_of({1, -1})}, k, options)), expected);
  EXPECT_EQ(searched_of(choose_set(std::vector<PooledHead>{head_of({1}), head_of({-1})}, k, options)),
            expected);
  EXPECT_EQ(searched_of(choose_set(std::vector<PooledHead>{head_of({1, 1})}, k, options)),
            numbers_of({{49 * 32, 65 * 32}}));
}

/// A query block of random rows and its set, by the reference and by the definition.
void expect_defined_set(std::int64_t candidates, const EffectiveOptions& options, double softcap,
                        double slope) {
  const std::int64_t begin = candidates * options.key_block + options.local;
  SCOPED_TRACE(testing::Message() << candidates << " of " << options.key_block << ", H " << options.heavy
                                  << ", R " << options.refine);
  test::Numbers numbers(static_cast<std::uint64_t>(candidates));
  test::Inputs in;
  in.n = begin + 3;
  in.n_head = 2;
  in.d_head = 2;
  in.q.resize(static_cast<std::size_t>(in.n * in.n_head * in.d_head));
  in.k.resize(static_cast<std::size_t>(in.n * in.d_head));
  for (double& value : in.q) value = numbers.next();
  for (double& value : in.k) value = 2 * numbers.next();
  test::Settings settings;
  settings.local = options.local;
  settings.heavy = options.heavy;
  settings.scale = options.scale;
  settings.softcap = softcap;
  settings.alibi = {static_cast<float>(slope), static_cast<float>(-slope)};
  settings.blocks = true;
  settings.key_block = options.key_block;
  settings.query_block = options.query_block;
  settings.pool = options.pool;
  settings.refine = options.refine;
  settings.pinned = options.pinned;
  const test::DefinedSet expected = define_set(in, settings, begin, begin, begin + 3, 0);

  Matrix k(begin, in.d_head);
  std::copy_n(in.k.begin(), k.values.size(), k.values.begin());
  std::vector<PooledHead> heads;
  for (std::size_t h = 0; h < 2; ++h) {
    Matrix q(3, in.d_head);
    for (std::size_t row = 0; row < 3; ++row) {
      const std::size_t from = ((static_cast<std::size_t>(begin) + row) * 2 + h) * 2;
      std::copy_n(in.q.begin() + static_cast<std::ptrdiff_t>(from), 2,
                  q.row(static_cast<std::int64_t>(row)).begin());
    }
    heads.push_back({rule_of(options.scale, softcap, h == 0 ? slope : -slope), pools(q, begin, options.pool),
                     pools(q, begin, (options.pool + 1) / 2)});
  }
  const BlockSet set = choose_set(heads, k, options);
  EXPECT_EQ(set.positions, expected.positions);
  ASSERT_EQ(set.block_votes.size(), expected.block_votes.size());
  for (std::size_t b = 0; b < set.block_votes.size(); ++b) {
    if (std::isinf(expected.block_votes[b])) {
      EXPECT_EQ(set.block_votes[b], expected.block_votes[b]) << b;
    } else {
      EXPECT_NEAR(set.block_votes[b], expected.block_votes[b],
                  0x1p-23 * std::fabs(expected.block_votes[b]) + 1e-13)
          << b;
    }
  }
  ASSERT_EQ(set.token_votes.size(), expected.token_votes.size());
  for (std::size_t r = 0; r < set.token_votes.size(); ++r) {
    EXPECT_NEAR(set.token_votes[r], expected.token_votes[r], 0x1p-23 * expected.token_votes[r]);
  }
}

TEST(BlockRule, SEL_12_SetsAreThoseOfTheDefinition) {
  for (const std::int64_t candidates : {2047, 2048, 2049, 2079, 2080, 2111}) {
    expect_defined_set(candidates, rule_options(3, 4, 1, 2), 0.0, 0.0);
  }
  expect_defined_set(2070, rule_options(0, 20, 1), 1.5, 0x1p-12);
  expect_defined_set(2200, rule_options(5, 140, 1, 2), 0.0, 0x1p-11);  // G = 35
  expect_defined_set(2090, rule_options(4, 4, 2, 2), 0.0, 0.0);
  expect_defined_set(2049, rule_options(6, 6, 3), 3.0, 0.0);
}

TEST(BlockRule, MEM_7_SetsAreThoseOfTheDefinition) {
  for (const std::int64_t candidates : {1, 5, 300, 2048, 2049, 2080}) {
    EffectiveOptions options = rule_options(3, 8, 2, 2);
    for (const std::int64_t pinned : {2, 6, 8}) {
      options.pinned = pinned;
      expect_defined_set(candidates, options, 0.0, 0.0);
    }
  }
  EffectiveOptions options = rule_options(5, 140, 1, 2);
  options.pinned = 70;  // more than two regions
  expect_defined_set(2200, options, 0.0, 0x1p-11);
}

}  // namespace
}  // namespace headwater::reference
