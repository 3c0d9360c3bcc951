#include "runtime/generate/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "headwater/error.hpp"

namespace headwater::runtime {
namespace {

const std::vector<float> kLogits = {0.0F, std::log(4.0F), std::log(2.0F), std::log(1.0F),
                                    std::log(1.0F)};  // 1 4 2 1 1

std::map<std::int32_t, int> counts(const SamplingOptions& options, int draws) {
  Sampler sampler(options, 5);
  std::map<std::int32_t, int> result;
  for (int i = 0; i < draws; ++i) ++result[sampler.draw(kLogits)];
  return result;
}

TEST(Sampler, IsGreedyAtTemperatureZero) {
  Sampler sampler({}, 5);
  EXPECT_EQ(sampler.draw(kLogits), 1);
  EXPECT_EQ(best_token(std::vector<float>{3, 7, 7, 1}), 1) << "the lowest id among equals";
}

// 9000 draws: a share p is off by more than 5 sqrt(p (1 - p) / n) once in two million seeds.
TEST(Sampler, DrawsByTheSoftmax) {
  constexpr int kDraws = 9000;
  const auto seen = counts({.temperature = 1.0, .seed = 5}, kDraws);
  const std::vector<double> shares = {1 / 9.0, 4 / 9.0, 2 / 9.0, 1 / 9.0, 1 / 9.0};
  for (std::int32_t id = 0; id < 5; ++id) {
    const double p = shares[static_cast<std::size_t>(id)];
    EXPECT_NEAR(seen.at(id) / static_cast<double>(kDraws), p, 5 * std::sqrt(p * (1 - p) / kDraws)) << id;
  }
}

TEST(Sampler, TemperatureSharpens) {
  constexpr int kDraws = 9000;
  const auto seen = counts({.temperature = 0.5, .seed = 6}, kDraws);  // squares: 1 16 4 1 1 of 23
  EXPECT_NEAR(seen.at(1) / static_cast<double>(kDraws), 16 / 23.0, 0.03);
}

TEST(Sampler, FiltersKeepTheBest) {
  EXPECT_EQ(counts({.temperature = 1.0, .top_k = 1, .seed = 1}, 100).size(), 1U);
  EXPECT_EQ(counts({.temperature = 1.0, .top_k = 2, .seed = 1}, 400).size(), 2U);
  EXPECT_EQ(counts({.temperature = 1.0, .top_p = 0.0, .seed = 1}, 100).size(), 1U) << "at least the best";
  EXPECT_EQ(counts({.temperature = 1.0, .top_p = 0.44, .seed = 1}, 400).size(), 1U);  // 4/9 reach it
  EXPECT_EQ(counts({.temperature = 1.0, .top_p = 0.5, .seed = 1}, 400).size(), 2U);
  EXPECT_EQ(counts({.temperature = 1.0, .min_p = 0.4, .seed = 1}, 400).size(), 2U);
  EXPECT_EQ(counts({.temperature = 1.0, .min_p = 1.0, .seed = 1}, 400).size(), 1U);
  // Four equal ones: two are exactly one half, and reach it.
  Sampler half({.temperature = 1.0, .top_p = 0.5, .seed = 1}, 4);
  std::set<std::int32_t> drawn;
  for (int i = 0; i < 400; ++i) drawn.insert(half.draw(std::vector<float>{3, 3, 3, 3}));
  EXPECT_EQ(drawn, (std::set<std::int32_t>{0, 1}));
  // Ties of rank three: the lowest id stays.
  const auto three = counts({.temperature = 1.0, .top_k = 3, .seed = 1}, 900);
  EXPECT_TRUE(three.contains(0));
  EXPECT_FALSE(three.contains(3));
}

TEST(Sampler, RepeatsItselfWithTheSameSeed) {
  Sampler a({.temperature = 1.0, .seed = 9}, 5);
  Sampler b({.temperature = 1.0, .seed = 9}, 5);
  Sampler c({.temperature = 1.0, .seed = 10}, 5);
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    const auto drawn = a.draw(kLogits);
    EXPECT_EQ(drawn, b.draw(kLogits));
    differ += drawn != c.draw(kLogits) ? 1 : 0;
  }
  EXPECT_GT(differ, 50);
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Sampler({.temperature = -1.0}, 5), Error);
  EXPECT_THROW(Sampler({.temperature = NAN}, 5), Error);
  EXPECT_THROW(Sampler({.top_k = -1}, 5), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5}, 5), Error);
  EXPECT_THROW(Sampler({.min_p = NAN}, 5), Error);
  Sampler sampler({.temperature = 1.0}, 2);
  EXPECT_THROW((void)sampler.draw(std::vector<float>{0.0F, NAN}), Error);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  EXPECT_THROW((void)sampler.draw(std::vector<float>{kNone, kNone}), Error);
  EXPECT_THROW((void)best_token(std::vector<float>{0.0F, NAN}), Error);
}

}  // namespace
}  // namespace headwater::runtime
