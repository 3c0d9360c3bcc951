#include "runtime/generate/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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

// 9000 draws: a share p is off by more than 5 sqrt(p (1 - p) / n) with a probability of one in two million.
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

TEST(Sampler, EveryBitOfASeedCounts) {
  std::set<std::vector<std::int32_t>> all;
  for (int bit = -1; bit < 64; ++bit) {
    Sampler sampler({.temperature = 1.0, .seed = bit < 0 ? 0 : std::uint64_t{1} << bit}, 5);
    std::vector<std::int32_t> drawn(64);
    for (std::int32_t& id : drawn) id = sampler.draw(kLogits);
    all.insert(drawn);
  }
  EXPECT_EQ(all.size(), 65U);
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// The definition: everything is sorted, and all sums go from the best one down.
class PlainSampler {
 public:
  explicit PlainSampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  /// (-logit, id): best first, the lowest id first among equals.
  static std::vector<std::pair<double, std::int32_t>> sorted(const std::vector<float>& logits) {
    std::vector<std::pair<double, std::int32_t>> ranks;
    for (const float logit : logits) ranks.emplace_back(-logit, static_cast<std::int32_t>(ranks.size()));
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  static std::vector<double> weights(const std::vector<std::pair<double, std::int32_t>>& ranks, double t) {
    std::vector<double> values;
    for (const auto& [falling, id] : ranks) values.push_back(std::exp((ranks[0].first - falling) / t));
    return values;
  }

  std::int32_t draw(const std::vector<float>& logits) {
    auto ranks = sorted(logits);
    if (options_.top_k > 0 && ranks.size() > static_cast<std::size_t>(options_.top_k)) {
      ranks.resize(static_cast<std::size_t>(options_.top_k));
    }
    const auto plain = weights(ranks, 1.0);
    double total = 0;
    for (const double weight : plain) total += weight;
    double reached = 0;
    std::size_t kept = 0;
    for (; kept < ranks.size(); reached += plain[kept++]) {
      if (kept > 0 && options_.top_p < 1 && reached >= options_.top_p * total) break;
      if (plain[kept] < options_.min_p) break;
    }
    ranks.resize(kept);
    const auto tempered = weights(ranks, options_.temperature);
    total = 0;
    for (const double weight : tempered) total += weight;
    double at = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
    std::size_t rank = 0;
    while (rank + 1 < kept && tempered[rank + 1] > 0 && (at -= tempered[rank]) >= 0) ++rank;
    return ranks[rank].second;
  }

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

void expect_same(const SamplingOptions& options, const std::vector<float>& logits, int draws) {
  Sampler sampler(options, static_cast<std::int64_t>(logits.size()));
  PlainSampler plain(options);
  for (int i = 0; i < draws; ++i) {
    ASSERT_EQ(sampler.draw(logits), plain.draw(logits))
        << logits.size() << " logits, temperature " << options.temperature << ", top_k " << options.top_k
        << ", top_p " << options.top_p << ", min_p " << options.min_p << ", draw " << i;
  }
}

/// Logits with ties, and where there is room with some that are never drawn.
std::vector<float> tied_logits(std::size_t n, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = spread * static_cast<float>(random() % 1000) / 1000.0F;
  for (std::size_t i = 5; i < n; i += 7) logits[i] = logits[i - 5];
  for (std::size_t i = 3; i < n; i += 11) logits[i] = kNever;
  return logits;
}

// High temperatures make every kept token as likely as another: then one too many or too few shifts most draws.
TEST(Sampler, DrawsWhatASortOfEverythingDraws) {
  constexpr std::size_t kLarge = 151936;  // Qwen's vocabulary
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{1000}, kLarge}) {
    const int draws = n == kLarge ? 2 : 40;
    const auto size = static_cast<std::int64_t>(n);
    for (const float spread : {0.0F, 2.0F, 20.0F}) {
      if (n == kLarge && spread == 0) continue;  // sorts take long enough
      const auto logits = tied_logits(n, spread, static_cast<unsigned>(n));
      const auto ranks = PlainSampler::sorted(logits);
      const auto weights = PlainSampler::weights(ranks, 1.0);
      expect_same({.temperature = 0.7, .seed = 1}, logits, draws);
      expect_same({.temperature = 1e3, .seed = 2}, logits, draws);
      for (const std::int64_t top_k : {std::int64_t{1}, size / 2, size - 1, size, size + 1}) {
        expect_same({.temperature = 1e3, .top_k = top_k, .seed = 3}, logits, draws);
      }
      expect_same({.temperature = 1.5, .top_k = 5, .top_p = 0.6, .min_p = 0.01, .seed = 4}, logits, draws);
      double total = 0;
      for (const double weight : weights) total += weight;
      for (const std::size_t rank : {n / 3, n - 1}) {
        if (weights[rank] == 0) continue;
        double share = 0;
        for (std::size_t i = 0; i <= rank; ++i) share += weights[i] / total;
        // At the limit itself the order of a sum's terms decides.
        constexpr double kNear = 1e-9;
        for (const double top_p : {std::max(0.0, share - kNear), std::min(1.0, share + kNear)}) {
          expect_same({.temperature = 1e3, .top_p = top_p, .seed = 5}, logits, draws);
        }
        const double next = std::min(1.0, std::nextafter(weights[rank], 2.0));
        for (const double min_p : {weights[rank], next}) {
          expect_same({.temperature = 1e3, .min_p = min_p, .seed = 6}, logits, draws);
          expect_same({.temperature = 1e3, .top_p = 0.9, .min_p = min_p, .seed = 7}, logits, draws);
        }
      }
    }
  }
}

// Ids on each side of what 15 and 16 bits hold.
TEST(Sampler, EveryIdOfALargeVocabularyCanBeDrawn) {
  constexpr std::int32_t kVocabulary = 151936;
  for (const std::int32_t id : {0, 32767, 32768, 40000, 65535, 65536, 70001, 131071, 131072, 151935}) {
    std::vector<float> logits(kVocabulary, -20.0F);
    logits[static_cast<std::size_t>(id)] = 20.0F;
    EXPECT_EQ(best_token(logits), id);
    for (const SamplingOptions& options :
         {SamplingOptions{}, SamplingOptions{.temperature = 1.0},
          SamplingOptions{.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05}}) {
      Sampler sampler(options, kVocabulary);
      EXPECT_EQ(sampler.draw(logits), id);
    }
  }
}

// A nucleus of so many tokens that each comes once in a hundred thousand draws: all of them in the order of their rank.
TEST(Sampler, ANucleusOfAHundredThousand) {
  std::mt19937 random(4);
  std::vector<float> logits(151936);
  for (float& logit : logits) logit = static_cast<float>(random() % 100000) * 1e-5F;
  for (const double top_p : {0.05, 0.4, 0.95}) {
    expect_same({.temperature = 1.0, .top_p = top_p, .seed = 8}, logits, 3);
  }
}

/// Tokens drawn one after the other, each accepted.
std::vector<std::int32_t> drawn(const SamplingOptions& options, std::vector<std::int32_t> prompt,
                                const std::vector<float>& logits, int tokens) {
  Sampler sampler(options, std::ssize(logits));
  sampler.read_prompt(prompt);
  std::vector<std::int32_t> ids;
  for (int i = 0; i < tokens; ++i) {
    ids.push_back(sampler.draw(logits));
    sampler.accept(ids.back());
  }
  return ids;
}

TEST(Sampler, BiasesAndPenaltiesChangeLogits) {
  using Ids = std::vector<std::int32_t>;
  const std::vector<float> logits = {4, 3, 2, -1, -1.5};
  EXPECT_EQ(drawn({.logit_bias = {{3, 5.5}}}, {}, logits, 2), (Ids{3, 3}));
  EXPECT_EQ(drawn({.logit_bias = {{0, -100}, {1, -100}}}, {}, logits, 1), (Ids{2}));
  // Once for being there: 4 - 1.5 = 2.5 < 3, 3 - 1.5 = 1.5 < 2.5.
  EXPECT_EQ(drawn({.presence_penalty = 1.5}, {0, 0}, logits, 4), (Ids{0, 1, 0, 0}));
  // For each time: 4, 3.2 | 3, 2.2 | 2.4 ...
  EXPECT_EQ(drawn({.frequency_penalty = 0.8}, {}, logits, 5), (Ids{0, 0, 1, 0, 1}));
  EXPECT_EQ(drawn({.frequency_penalty = -1.0}, {}, logits, 3), (Ids{0, 0, 0}));
  // The prompt counts, and whatever the sign a penalised logit falls: 4 / 2 < 3.
  EXPECT_EQ(drawn({.repeat_penalty = 2.0}, {0}, logits, 1), (Ids{1}));
  EXPECT_EQ(drawn({.repeat_penalty = 2.0}, {3}, {-9, -9, -9, -1, -1.5}, 1), (Ids{4}));
  EXPECT_EQ(drawn({.repeat_penalty = 0.5}, {1}, logits, 1), (Ids{1}));
  // The last two tokens, one of the answer among them.
  EXPECT_EQ(drawn({.repeat_penalty = 2.0, .repeat_last = 2}, {0, 4, 3}, logits, 3), (Ids{0, 1, 0}));
  EXPECT_EQ(drawn({.repeat_penalty = 2.0, .repeat_last = 3}, {0, 4, 3}, logits, 1), (Ids{1}));
  EXPECT_EQ(drawn({.repeat_penalty = 2.0, .repeat_last = 0}, {0}, logits, 2), (Ids{0, 0}));
  // Filters see what is left.
  EXPECT_EQ(drawn({.temperature = 1.0, .top_k = 1, .logit_bias = {{2, 9}}}, {}, logits, 1), (Ids{2}));
  EXPECT_THROW(Sampler({.logit_bias = {{5, 1.0}}}, 5), Error);
  EXPECT_THROW(Sampler({.logit_bias = {{-1, 1.0}}}, 5), Error);
  EXPECT_THROW(Sampler({.logit_bias = {{1, NAN}}}, 5), Error);
  EXPECT_THROW(Sampler({.repeat_penalty = 0.0}, 5), Error);
  EXPECT_THROW(Sampler({.repeat_last = -1}, 5), Error);
  EXPECT_THROW(Sampler({.presence_penalty = INFINITY}, 5), Error);
  EXPECT_THROW(Sampler({.frequency_penalty = NAN}, 5), Error);
}

// All together, over a long answer: the logits that are drawn from are written out here.
TEST(Sampler, DrawsFromLogitsThatWereChangedByHand) {
  const std::vector<float> logits = tied_logits(60, 6.0F, 3);
  std::vector<float> signs = logits;
  for (float& logit : signs) logit -= 3.0F;
  const std::vector<std::int32_t> prompt = {4, 9, 9, 16, 30, 4, 2};
  for (const std::int64_t repeat_last : {0, 1, 2, 6, 7, 8, 40, 1000}) {
    for (const double repeat : {1.0, 1.7, 0.6}) {
      const SamplingOptions options{.temperature = 1.0,
                                    .top_p = 0.9,
                                    .seed = 11,
                                    .logit_bias = {{1, 1.25}, {59, -2.0}, {1, 0.5}},
                                    .repeat_penalty = repeat,
                                    .repeat_last = repeat_last,
                                    .presence_penalty = 0.5,
                                    .frequency_penalty = -0.25};
      Sampler sampler(options, 60);
      sampler.read_prompt(prompt);
      PlainSampler plain(options);
      std::vector<std::int32_t> all = prompt;
      for (int i = 0; i < 50; ++i) {
        std::vector<float> changed = signs;
        changed[1] += 1.75F;
        changed[59] -= 2.0F;
        const auto answer = std::span(all).subspan(prompt.size());
        const auto last = std::span(all).last(std::min(all.size(), static_cast<std::size_t>(repeat_last)));
        for (std::int32_t id = 0; id < 60; ++id) {
          float& logit = changed[static_cast<std::size_t>(id)];
          const auto times = static_cast<float>(std::ranges::count(answer, id));
          if (times > 0) logit -= 0.5F - 0.25F * times;
          const bool repeats = std::ranges::find(last, id) != last.end();
          if (repeats)
            logit = logit > 0 ? logit / static_cast<float>(repeat) : logit * static_cast<float>(repeat);
        }
        all.push_back(plain.draw(changed));
        ASSERT_EQ(sampler.draw(signs), all.back()) << repeat_last << ' ' << repeat << ' ' << i;
        sampler.accept(all.back());
      }
    }
  }
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Sampler({.temperature = -1.0}, 5), Error);
  EXPECT_THROW(Sampler({.temperature = NAN}, 5), Error);
  EXPECT_THROW(Sampler({.top_k = -1}, 5), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5}, 5), Error);
  EXPECT_THROW(Sampler({.min_p = NAN}, 5), Error);
  Sampler sampler({.temperature = 1.0}, 2);
  EXPECT_THROW((void)sampler.draw(std::vector<float>{0.0F, NAN}), Error);
  EXPECT_THROW((void)sampler.draw(std::vector<float>{kNever, kNever}), Error);
  EXPECT_THROW((void)best_token(std::vector<float>{0.0F, NAN}), Error);
  EXPECT_THROW((void)best_token(std::vector<float>{kNever, kNever}), Error);
  EXPECT_THROW((void)best_token(std::vector<float>{}), Error);
  try {
    (void)Sampler({}, 2).draw(std::vector<float>{kNever, kNever});
    FAIL() << "temperature 0";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("f16 cache"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headwater::runtime
