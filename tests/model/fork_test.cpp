// Conversations that go on in several: forks, and what truncate() leaves, for models with windows, sinks, latent rows and
// without, by each rule.

#include <gtest/gtest.h>

#include <tuple>

#include "headwater/error.hpp"
#include "runtime/generate/conversation.hpp"
#include "tests/model/made_model.hpp"
#include "tests/model/parts.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

constexpr std::int64_t kChunk = 32;

/// A transformer and the conversation over it.
struct Talk {
  Talk(const std::shared_ptr<const Model>& model, const TransformerOptions& options, std::int64_t tail)
      : transformer(model, options), conversation(transformer, tail) {}
  explicit Talk(Talk& from)
      : transformer(from.transformer, 0), conversation(transformer, from.conversation) {}
  [[nodiscard]] std::vector<float> said() const {
    return {conversation.logits().begin(), conversation.logits().end()};
  }
  Transformer transformer;
  Conversation conversation;
};

std::vector<std::int32_t> words(std::int64_t n, std::int32_t text) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(i * 37 + text * 11) % 290);
  return ids;
}

/// Turns of so many tokens; 0: one token is appended.
void take(Talk& talk, const std::vector<std::int64_t>& turns, std::int32_t text) {
  for (const std::int64_t n : turns) {
    if (n > 0) talk.conversation.feed(words(n, text));
    if (n == 0) talk.conversation.append(text);
  }
}

/// Architecture, rule, dense tail.
class Forks : public ::testing::TestWithParam<std::tuple<const char*, const char*, std::int64_t>> {
 protected:
  Forks()
      : made_([] {
          MadeSizes sizes;
          sizes.architecture = std::get<0>(GetParam());
          sizes.layers = 2;
          return sizes;
        }()) {}
  [[nodiscard]] bool is(const char* rule) const { return std::string(std::get<1>(GetParam())) == rule; }
  [[nodiscard]] Talk talk(std::int64_t checkpoints = 0) const {
    TransformerOptions chosen = options(400);
    Options& attention = chosen.attention;
    attention.batch = attention.chunk = kChunk;
    attention.local = attention.heavy = 8;
    attention.dense = is("dense");
    if (is("blocks")) attention.select = Select::blocks;
    if (is("sketches")) attention.select = Select::sketches;
    if (is("h2o")) attention.checkpoints = checkpoints;
    return {model_, chosen, std::get<2>(GetParam())};
  }

  MadeModel made_;
  std::shared_ptr<const Model> model_ = made_.load(Precision::f32);
};
INSTANTIATE_TEST_SUITE_P(, Forks,
                         ::testing::Combine(::testing::Values("qwen3", "gemma3", "gpt-oss", "deepseek2"),
                                            ::testing::Values("h2o", "blocks", "sketches", "dense"),
                                            ::testing::Values(0, 7)));

// In an empty one, inside a chunk, inside a turn, after a token, and a fork of a fork.
TEST_P(Forks, GoOnWithTheBitsOfAConversationThatWasFedAll) {
  for (const std::vector<std::int64_t>& before :
       {std::vector<std::int64_t>{}, {20}, {70}, {70, 0}, {3 * kChunk, 40}}) {
    Talk parent = talk();
    take(parent, before, 1);
    Talk fork(parent);
    Talk second(fork);
    EXPECT_EQ(fork.conversation.tokens(), parent.conversation.tokens());
    EXPECT_EQ(fork.conversation.steps(), parent.conversation.steps());
    EXPECT_EQ(fork.said(), parent.said());
    Talk* const all[] = {&fork, &parent, &second};
    for (std::int32_t text = 2; text < 5; ++text) take(*all[text - 2], {40 + text, 0, 90}, text);
    for (std::int32_t text = 2; text < 5; ++text) {
      const Talk& got = *all[text - 2];
      Talk wanted = talk();
      take(wanted, before, 1);
      take(wanted, {40 + text, 0, 90}, text);
      EXPECT_TRUE(got.said() == wanted.said()) << text;
      EXPECT_EQ(got.conversation.steps(), wanted.conversation.steps());
      EXPECT_EQ(got.conversation.pairs().computed, wanted.conversation.pairs().computed);
    }
  }
}

// Cut between chunks: what was fed behind them never was.
TEST_P(Forks, WhatIsTruncatedHasTheBitsOfItsTokensAlone) {
  for (const std::int64_t n : {kChunk, 3 * kChunk}) {
    Talk cut = talk(100);
    take(cut, {n + 100, 0, 60}, 1);
    cut.conversation.truncate(n);
    EXPECT_EQ(cut.conversation.tokens(), n);
    EXPECT_TRUE(cut.conversation.logits().empty());
    EXPECT_EQ(cut.conversation.steps(), "");
    Talk wanted = talk(100);
    wanted.conversation.set_dense_tail(0);
    take(wanted, {n}, 1);
    for (Talk* const one : {&cut, &wanted}) {
      one->conversation.set_dense_tail(5);
      take(*one, {130, 0}, 2);
    }
    EXPECT_TRUE(cut.said() == wanted.said()) << n;
  }
}

// Everywhere, also inside a chunk: by itself or as a fork, which leaves its parent what it is.
TEST_P(Forks, CanBeTruncatedApart) {
  Talk parent = talk(100);
  take(parent, {100, 0, 0}, 1);
  const std::vector<float> said = parent.said();
  for (const std::int64_t n :
       {std::int64_t{0}, kChunk, kChunk + 1, std::int64_t{100}, std::int64_t{101}, std::int64_t{102}}) {
    const bool inside = is("h2o") && n == kChunk + 1;
    Talk fork(parent);
    Talk other = talk(100);
    take(other, {100, 0, 0}, 1);
    for (Talk* const one : {&fork, &other}) {
      if (inside) {
        EXPECT_THROW(one->conversation.truncate(n), Error);
        EXPECT_EQ(one->said(), said);
      } else {
        one->conversation.truncate(n);
        EXPECT_EQ(one->said(), n == 102 ? said : std::vector<float>());
      }
      take(*one, {50, 0}, 2);
    }
    EXPECT_TRUE(fork.said() == other.said()) << n;
    EXPECT_TRUE(parent.said() == said) << n;
  }
  EXPECT_THROW(parent.conversation.truncate(103), Error);
  EXPECT_THROW(parent.conversation.truncate(-1), Error);
  EXPECT_EQ(parent.said(), said);
}

// The question behind a beginning that is used again sees all of it, however short it is.
TEST_P(Forks, TheEndOfATurnThatWasCutIsDense) {
  Talk cut = talk(100);
  cut.conversation.set_dense_tail(10);
  take(cut, {200}, 1);
  const auto steps = [&](std::int64_t kept, std::int64_t n) {
    Talk fork(cut);
    fork.conversation.truncate(kept);
    take(fork, {n}, 2);
    return fork.conversation.steps();
  };
  EXPECT_EQ(steps(3 * kChunk, 25), is("dense") ? "p25" : "p15,d10");
  EXPECT_EQ(steps(3 * kChunk, 6), is("dense") ? "p6" : "d6");
  if (!is("h2o")) {
    EXPECT_EQ(steps(16, 6), "p6");  // as many as a memory set
    EXPECT_EQ(steps(17, 6), is("dense") ? "p6" : "d6");
  }
  EXPECT_TRUE(steps(200, 20).ends_with(is("dense") ? ",p8,p20" : ",d10,p20"));  // nothing was cut
}

// recover() of one that was just forked or truncated keeps its tokens, also where nothing has begun.
TEST_P(Forks, KeepWhatTheyBeganWith) {
  Talk parent = talk(100);
  take(parent, {70, 0}, 1);
  Talk fork(parent);
  fork.conversation.recover();
  EXPECT_EQ(fork.conversation.tokens(), 71);
  fork.conversation.truncate(70);
  fork.conversation.recover();
  EXPECT_EQ(fork.conversation.tokens(), 70);
}

// The other parts have sessions of their own.
TEST(ForksOfParts, AreRefused) {
  MadeSizes sizes;
  sizes.layers = 2;
  const MadeModel made(sizes);
  Parts parts({1}, options(50), [&](const ModelPart& part) { return made.load(Precision::f32, part); });
  try {
    const Transformer fork(parts.front(), 0);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a session of several parts cannot be forked; allowed: a model in one part");
  }
}

}  // namespace
}  // namespace headwater::runtime::testing
