// Distributions of two models against each other, by the formulas, at the size of a model's vocabulary.

#include "runtime/generate/teacher_forcing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>

#include "headwater/error.hpp"
#include "tests/model/made_model.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

std::vector<double> log_probabilities(std::span<const float> logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> values;
  for (const float logit : logits) values.push_back(static_cast<double>(logit) - std::log(sum));
  return values;
}

double divergence_by_definition(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (std::size_t id = 0; id < p.size(); ++id) sum += std::exp(p[id]) * (p[id] - q[id]);
  return sum;
}

// The distributions differ in the ids from `first` on alone, where the likeliest ones are.
TEST(TeacherForcing, EveryIdOfALargeVocabularyCounts) {
  constexpr std::size_t kVocabulary = 151936;  // Qwen's
  constexpr double kRounding = 1e-9;           // more than n 2^-53
  for (const std::size_t first : {0U, 32768U, 65536U, 131072U, 151935U}) {
    SCOPED_TRACE(first);
    std::mt19937 random(6);
    std::vector<float> logits[2];
    for (std::size_t id = 0; id < kVocabulary; ++id) {
      const float likely = id >= first ? std::log(static_cast<float>(kVocabulary - first)) : 0.0F;
      logits[0].push_back(static_cast<float>(random() % 1000) * 1e-3F + 12.0F - likely);
      logits[1].push_back(logits[0][id] + (id >= first ? static_cast<float>(random() % 1000) * 1e-3F : 0.0F));
    }
    logits[0][(first + kVocabulary) / 2] = 20.0F;
    logits[1].back() = 21.0F;
    const Prediction p(logits[0]);
    const Prediction q(logits[1]);
    EXPECT_EQ(p.likeliest(), static_cast<std::ptrdiff_t>((first + kVocabulary) / 2));
    EXPECT_EQ(q.likeliest(), static_cast<std::ptrdiff_t>(kVocabulary - 1));
    const auto log_p = log_probabilities(logits[0]);
    const auto log_q = log_probabilities(logits[1]);
    for (const std::size_t id : {std::size_t{0}, std::size_t{65536}, std::size_t{131072}, kVocabulary - 1}) {
      EXPECT_NEAR(p.log_probability(id), log_p[id], kRounding);
      EXPECT_NEAR(q.log_probability(id), log_q[id], kRounding);
    }
    EXPECT_NEAR(divergence(p, q), divergence_by_definition(log_p, log_q), kRounding);
    EXPECT_NEAR(divergence(q, p), divergence_by_definition(log_q, log_p), kRounding);
    EXPECT_GT(divergence(p, q), 1e-3);
  }
}

// Query blocks are counted in every chunk anew, and its last one ends with it.
TEST(TeacherForcing, QueryBlocksOfChunksThatTheyDoNotDivide) {
  const MadeModel model({.vocabulary = 300});
  TransformerOptions chosen = options(400);
  chosen.attention.chunk = 100;
  chosen.attention.batch = 400;
  chosen.attention.local = 16;
  chosen.attention.heavy = 32;
  chosen.attention.select = Select::blocks;
  Transformer transformer(model.load(Precision::f32), chosen);
  transformer.run(Step::prefill(330), std::vector<std::int32_t>(330, 7));
  std::vector<std::int64_t> ends;
  for (std::int64_t position = 0; position < 330; ++position) {
    if (ends_query_block(transformer.session(), position)) ends.push_back(position);
  }
  EXPECT_EQ(ends, (std::vector<std::int64_t>{31, 63, 95, 99, 131, 163, 195, 199, 231, 263, 295, 299, 329}));
}

/// judge() of a step of so many tokens; returns how often the likeliest ids differ.
int expect_judgements(std::int64_t vocabulary, std::int64_t tokens) {
  const MadeModel model({.width = 16, .vocabulary = vocabulary});
  const auto loaded = model.load(Precision::f32);
  TransformerOptions chosen = options(tokens);
  chosen.attention.chunk = 64;
  chosen.attention.local = chosen.attention.heavy = 8;
  Transformer sparse(loaded, chosen);
  chosen.attention.dense = true;
  Transformer dense(loaded, chosen);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 7777 % vocabulary));
  Transformer* const both[] = {&dense, &sparse};
  std::vector<float> logits[2];
  for (std::size_t m = 0; m < 2; ++m) {
    both[m]->run(Step::prefill(tokens), ids);
    logits[m].resize(static_cast<std::size_t>(vocabulary * tokens));
    both[m]->logits(0, tokens, logits[m]);
  }
  std::vector<std::int32_t> next(ids.begin() + 1, ids.end());
  next.push_back(kNoToken);
  const auto judgements = judge(both, next);
  EXPECT_EQ(judgements.size(), next.size());
  const auto width = static_cast<std::size_t>(vocabulary);
  int differ = 0;
  for (std::size_t t = 0; t < next.size(); ++t) {
    SCOPED_TRACE(t);
    std::vector<double> logs[2];
    std::ptrdiff_t likeliest[2];
    for (std::size_t m = 0; m < 2; ++m) {
      logs[m] = log_probabilities(std::span(logits[m]).subspan(width * t, width));
      likeliest[m] = std::max_element(logs[m].begin(), logs[m].end()) - logs[m].begin();
      const double loss = judgements[t].losses[m];
      if (next[t] == kNoToken) {
        EXPECT_TRUE(std::isnan(loss));
      } else {
        EXPECT_NEAR(loss, -logs[m][static_cast<std::size_t>(next[t])], 1e-9);
      }
    }
    EXPECT_NEAR(judgements[t].divergence, divergence_by_definition(logs[0], logs[1]), 1e-9);
    EXPECT_EQ(judgements[t].rank1, likeliest[0] == likeliest[1] ? 1 : 0);
    differ += likeliest[0] == likeliest[1] ? 0 : 1;
  }
  return differ;
}

// More rows than logits of which are in memory at a time.
TEST(TeacherForcing, JudgesEveryRowOfALongStep) { EXPECT_GT(expect_judgements(300, 700), 10); }

TEST(TeacherForcing, JudgesIdsBeyond65536) { EXPECT_GT(expect_judgements(70000, 130), 0); }

/// What an observer of a window is told of one position.
struct Told {
  std::int64_t position = 0;
  Judgement judgement;
  bool ends_block = false;
};

constexpr std::int64_t kWindowChunk = 32, kWindowRows = 8;

TransformerOptions window_options(std::int64_t capacity, std::int64_t batch, bool dense) {
  TransformerOptions chosen = options(capacity);
  chosen.attention.batch = batch;
  chosen.attention.chunk = kWindowChunk;
  chosen.attention.local = 8;
  chosen.attention.heavy = 16;
  chosen.attention.select = Select::blocks;
  chosen.attention.query_block = kWindowRows;
  chosen.attention.dense_below =
      66;  // above some batches: the turn counts, which the first step of several says
  chosen.attention.dense = dense;
  return chosen;
}

/// A window in two steps of transformers of its own, however many a reader takes, against what that one told.
void expect_window(const std::shared_ptr<const Model>& model, std::span<const std::int32_t> ids,
                   std::int64_t decode, std::size_t models, const std::vector<Told>& told) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const auto width = static_cast<std::size_t>(model->config().vocabulary);
  ASSERT_EQ(told.size(), ids.size());
  std::vector<float> logits[2];
  for (std::size_t m = 0; m < models; ++m) {
    Transformer one(model, window_options(n, 4096, m == 0));
    logits[m].resize(ids.size() * width);
    one.run(Step::prefill(n - decode), ids.first(static_cast<std::size_t>(n - decode)));
    one.logits(0, n - decode, logits[m]);
    if (decode == 0) continue;
    one.run(Step::decode(decode), ids.last(static_cast<std::size_t>(decode)));
    one.logits(0, decode, std::span(logits[m]).subspan(static_cast<std::size_t>(n - decode) * width));
  }
  for (std::int64_t t = 0; t < n; ++t) {
    const Told& one = told[static_cast<std::size_t>(t)];
    ASSERT_EQ(one.position, t);
    const bool inside = t < n - decode;
    EXPECT_EQ(one.ends_block,
              inside && models > 1 && ((t % kWindowChunk + 1) % kWindowRows == 0 || t + 1 == n - decode))
        << t;
    std::vector<double> logs[2];
    for (std::size_t m = 0; m < models; ++m) {
      logs[m] = log_probabilities(std::span(logits[m]).subspan(static_cast<std::size_t>(t) * width, width));
      const double loss = one.judgement.losses[m];
      if (t + 1 == n) {
        EXPECT_TRUE(std::isnan(loss));
      } else {
        // One row's logits are sums in another order.
        EXPECT_NEAR(loss, -logs[m][static_cast<std::size_t>(ids[static_cast<std::size_t>(t + 1)])], 1e-4)
            << t;
      }
    }
    EXPECT_TRUE(models > 1 || std::isnan(one.judgement.losses[1]));
    if (models > 1) {
      EXPECT_NEAR(one.judgement.divergence, divergence_by_definition(logs[0], logs[1]), 1e-4) << t;
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// Windows one after the other through the same transformers, of other lengths and batches: each is what it is alone, in as
// many steps as its batch makes of it. Answers of a far judge come when all was asked, to the observer of their window.
TEST(TeacherForcing, EachWindowIsAsIfItWereAlone) {
  constexpr std::int64_t kMost = 300;
  const MadeModel made({.vocabulary = 300});
  const auto model = made.load(Precision::f32);
  std::vector<std::vector<std::int32_t>> windows;
  for (const std::size_t n : {2U, 31U, 130U, 64U, 300U, 129U}) {
    windows.emplace_back();
    for (std::size_t i = 0; i < n; ++i) {
      windows.back().push_back(static_cast<std::int32_t>((i * i * 31 + windows.size() * 77) % 300));
    }
  }
  struct Case {
    std::size_t models;
    std::int64_t batch, other_batch, decode;
    bool far;
  };
  for (const auto& [models, batch, other_batch, decode, far] : {Case{1, 64, 64, 0, false},
                                                                {2, 64, 4096, 1, false},
                                                                {2, 4096, 96, 30, false},
                                                                {2, 64, 32, 100, true},
                                                                {1, 4096, 4096, 1, true}}) {
    SCOPED_TRACE(decode);
    Transformer dense(model, window_options(kMost, batch, true));
    Transformer sparse(model, window_options(kMost, other_batch, false));
    std::vector<Transformer*> both = {&dense};
    if (models > 1) both.push_back(&sparse);
    std::deque<std::vector<Judgement>> answers;
    FarJudge judge_far;
    if (far) {
      judge_far.ask = [&](std::span<Transformer* const> asked, std::span<const std::int32_t> next) {
        answers.push_back(judge(asked, next));
      };
      judge_far.answer = [&] {
        auto answer = std::move(answers.front());
        answers.pop_front();
        return answer;
      };
    }
    WindowReader reader(both, decode, judge_far);
    std::vector<std::vector<Told>> told(windows.size());
    for (std::size_t w = 0; w < windows.size(); ++w) {
      if (static_cast<std::int64_t>(windows[w].size()) <= decode) continue;
      std::int64_t read = 0;
      reader.read(
          windows[w],
          [&, w](std::int64_t position, const Judgement& judgement, bool ends_block) {
            told[w].push_back({position, judgement, ends_block});
          },
          [&](std::int64_t tokens) { read += tokens; });
      EXPECT_EQ(read, static_cast<std::int64_t>(models * windows[w].size()));
      EXPECT_EQ(told[w].empty(), far);
      EXPECT_EQ(both.back()->session().tokens(), static_cast<std::int64_t>(windows[w].size()));
    }
    reader.finish();
    reader.finish();  // all was heard
    EXPECT_TRUE(answers.empty());
    for (std::size_t w = 0; w < windows.size(); ++w) {
      if (static_cast<std::int64_t>(windows[w].size()) <= decode) continue;
      SCOPED_TRACE(windows[w].size());
      expect_window(model, windows[w], decode, models, told[w]);
    }
    if (!far) continue;
    reader.read(windows[2], [](std::int64_t, const Judgement&, bool) {});
    answers.front().pop_back();
    EXPECT_THROW(reader.finish(), Error) << "one answer too few";
  }
}

}  // namespace
}  // namespace headwater::runtime::testing
