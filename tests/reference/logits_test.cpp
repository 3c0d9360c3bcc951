#include "reference/logits.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/mask.hpp"
#include "tests/reference/support.hpp"

/// Clauses: LOGIT-1, LOGIT-2, LOGIT-3, LOGIT-4, MASK-1.
namespace headwater::reference {
namespace {

using test::kInf;

const std::vector<double> kQuery{1, 2, -3};
const std::vector<double> kKey{4, -1, -2};  // product 4 - 2 + 6 = 8

TEST(Logits, LOGIT_1_ScaledProduct) {
  EXPECT_EQ(dot(kQuery, kKey), 8.0);
  EXPECT_EQ(dot(kQuery, kQuery), 14.0);
  EXPECT_EQ(dot({}, {}), 0.0);
  EXPECT_EQ(logit(LogitRule{}, kQuery, kKey, 9, 9), 8.0);
  EXPECT_EQ(logit(LogitRule{.scale = 0.25}, kQuery, kKey, 9, 2), 2.0);
  EXPECT_EQ(logit(LogitRule{.scale = -0.5}, kQuery, kKey, 9, 2), -4.0);
}

TEST(Logits, LOGIT_1_QueryHeadsShareKeyValueHeads) {
  const auto map = [](std::int64_t n_head, std::int64_t n_head_kv) {
    std::vector<std::int64_t> heads;
    for (std::int64_t h = 0; h < n_head; ++h) heads.push_back(key_value_head(h, n_head, n_head_kv));
    return heads;
  };
  using Heads = std::vector<std::int64_t>;
  EXPECT_EQ(map(4, 4), (Heads{0, 1, 2, 3}));
  EXPECT_EQ(map(4, 2), (Heads{0, 0, 1, 1}));
  EXPECT_EQ(map(6, 2), (Heads{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(map(6, 3), (Heads{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(map(3, 1), (Heads{0, 0, 0}));
}

TEST(Logits, LOGIT_2_SoftCapComesAfterTheScale) {
  // scale * product = 4; 2 tanh(4 / 2) = 2 * 0.9640275800758169
  EXPECT_NEAR(logit(LogitRule{.scale = 0.5, .softcap = 2.0}, kQuery, kKey, 0, 0), 1.9280551601516338, 1e-15);
  EXPECT_NEAR(logit(LogitRule{.scale = -0.5, .softcap = 2.0}, kQuery, kKey, 0, 0), -1.9280551601516338,
              1e-15);
  // A cap far above the logit changes little; one below binds even below 1.
  EXPECT_NEAR(logit(LogitRule{.scale = 0.5, .softcap = 1e6}, kQuery, kKey, 0, 0), 4.0, 1e-9);
  EXPECT_NEAR(logit(LogitRule{.scale = 0.5, .softcap = 0.5}, kQuery, kKey, 0, 0), 0.5, 1e-6);
}

TEST(Logits, LOGIT_3_BiasComesAfterTheCapAndGrowsWithTheDistance) {
  EXPECT_EQ(logit(LogitRule{.slope = 0.25}, kQuery, kKey, 10, 7), 8.0 - 0.75);
  EXPECT_EQ(logit(LogitRule{.slope = 0.25}, kQuery, kKey, 10, 10), 8.0);
  EXPECT_EQ(logit(LogitRule{.slope = -0.5}, kQuery, kKey, 10, 0), 13.0);
  EXPECT_NEAR(logit(LogitRule{.scale = 0.5, .softcap = 2.0, .slope = 1.0}, kQuery, kKey, 100, 90),
              1.9280551601516338 - 10.0, 1e-14);
}

TEST(Logits, LOGIT_4_RuleOfEachQueryHead) {
  EffectiveOptions effective;
  effective.scale = 0.125;
  effective.softcap = 50.0;
  Options options;
  const LogitRule plain = logit_rule(options, effective, 0, 1);
  EXPECT_EQ(plain.scale, 0.125);
  EXPECT_EQ(plain.softcap, 50.0);
  EXPECT_EQ(plain.slope, 0.0);
  EXPECT_EQ(plain.sink, -kInf);
  options.sinks = {0.5F, -1.5F};
  options.alibi = {0.25F, 2.0F};
  EXPECT_EQ(logit_rule(options, effective, 0, 0).sink, 0.5);
  EXPECT_EQ(logit_rule(options, effective, 0, 1).sink, -1.5);
  EXPECT_EQ(logit_rule(options, effective, 0, 0).slope, 0.25);
  EXPECT_EQ(logit_rule(options, effective, 0, 1).slope, 2.0);
  EXPECT_EQ(logit_rule(options, effective, 0, 1).scale, 0.125);
  options.sinks.clear();
  EXPECT_EQ(logit_rule(options, effective, 0, 1).sink, -kInf);
  EXPECT_EQ(logit_rule(options, effective, 0, 1).slope, 2.0);
}

TEST(Logits, LOGIT_4_RuleOfNothing) {
  const LogitRule rule;
  EXPECT_EQ(rule.scale, 1.0);
  EXPECT_EQ(rule.softcap, 0.0);
  EXPECT_EQ(rule.slope, 0.0);
  EXPECT_EQ(rule.sink, -kInf);
}

TEST(Mask, MASK_1_FromTheStartOfTheChunkToTheQuery) {
  EXPECT_FALSE(visible(4, 6, 3));
  EXPECT_TRUE(visible(4, 6, 4));
  EXPECT_TRUE(visible(4, 6, 5));
  EXPECT_TRUE(visible(4, 6, 6));
  EXPECT_FALSE(visible(4, 6, 7));
  EXPECT_TRUE(visible(4, 4, 4));
  EXPECT_FALSE(visible(4, 4, 5));
  EXPECT_TRUE(visible(0, 0, 0));
}

}  // namespace
}  // namespace headwater::reference
