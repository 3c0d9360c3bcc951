// Turns: how a prompt is cut into steps, what is counted, and that memory is taken once.

#include "runtime/generate/conversation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "headwater/error.hpp"
#include "tests/model/made_model.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

TransformerOptions small(std::int64_t capacity) {
  TransformerOptions chosen = options(capacity);
  chosen.attention.batch = 64;
  chosen.attention.chunk = 32;
  chosen.attention.local = 8;
  chosen.attention.heavy = 8;
  return chosen;
}

TEST(Conversation, CutsATurnIntoBatchesAndATail) {
  Transformer transformer(bundled(Precision::f32), small(400));
  Conversation conversation(transformer, 10);
  conversation.feed(some_ids(150));
  EXPECT_EQ(conversation.steps(), "p64:140,p64,p12,d10");
  // Chunks of 32, 32, 32, 32, 12 with 0, 16, 16, 16, 16 remembered tokens; a tail of 10 after 140.
  const std::uint64_t chunks = 4 * (32 * 33 / 2) + 12 * 13 / 2 + 16 * (32 * 3 + 12);
  EXPECT_EQ(conversation.pairs().computed, chunks + 10 * 11 / 2 + 10 * 140);
  EXPECT_EQ(conversation.pairs().dense, 150 * 151 / 2);
  conversation.append(5);
  conversation.append(6);
  EXPECT_EQ(conversation.steps(), "p64:140,p64,p12,d10,d1,d1");
  EXPECT_EQ(conversation.tokens(), 152);
  // A short second turn is dense, a long one sparse (STATE-3); neither loses what was said.
  conversation.feed(some_ids(20));
  conversation.feed(some_ids(60));
  EXPECT_EQ(conversation.steps(), "p64:140,p64,p12,d10,d1,d1,p20,p50,d10");
  EXPECT_EQ(conversation.tokens(), 232);
  conversation.reset();
  EXPECT_EQ(conversation.steps(), "");
  EXPECT_EQ(conversation.pairs().computed, 0U);
  EXPECT_EQ(conversation.pairs().dense, 0U);
  EXPECT_EQ(conversation.tokens(), 0);
}

TEST(Conversation, StepsMayBeginWithAToken) {
  Transformer transformer(bundled(Precision::f32), small(50));
  Conversation conversation(transformer, 0);
  conversation.append(5);
  EXPECT_EQ(conversation.steps(), "d1");
  conversation.append(6);
  conversation.feed(some_ids(5));
  EXPECT_EQ(conversation.steps(), "d1,d1,p5");
}

TEST(Conversation, HundredsOfAnswersAreSteps) {
  constexpr int kAnswers = 300;
  Transformer transformer(bundled(Precision::f32), small(400));
  Conversation conversation(transformer, 0);
  conversation.feed(some_ids(5));
  std::string steps = "p5";
  for (int i = 0; i < kAnswers; ++i) {
    conversation.append(i);
    steps += ",d1";
  }
  EXPECT_EQ(conversation.steps(), steps);
  EXPECT_EQ(conversation.tokens(), 5 + kAnswers);
  conversation.feed(some_ids(7));
  EXPECT_EQ(conversation.steps(), steps + ",p7");
}

TEST(Conversation, HasNoTailWhereNothingIsSparse) {
  Transformer transformer(bundled(Precision::f32), small(200));
  Conversation conversation(transformer, 10);
  conversation.feed(some_ids(32));
  EXPECT_EQ(conversation.steps(), "p32");
  EXPECT_EQ(conversation.pairs().computed, conversation.pairs().dense);
  auto dense = small(200);
  dense.attention.dense = true;
  Transformer dense_transformer(bundled(Precision::f32), dense);
  Conversation plain(dense_transformer, 10);
  plain.feed(some_ids(100));
  EXPECT_EQ(plain.steps(), "p64:100,p36");
  EXPECT_EQ(plain.pairs().computed, plain.pairs().dense);
}

// The first token of a turn is always prefilled.
TEST(Conversation, ATailAsLongAsTheTurnOrLonger) {
  for (const std::int64_t tail : {39, 40, 1000}) {
    Transformer transformer(bundled(Precision::f32), small(200));
    Conversation conversation(transformer, tail);
    conversation.feed(some_ids(40));
    EXPECT_EQ(conversation.steps(), "p1,d39");
    EXPECT_EQ(conversation.pairs().computed, conversation.pairs().dense);
  }
}

TEST(Conversation, ATurnThatDoesNotFitChangesNothing) {
  Transformer transformer(bundled(Precision::f32), small(50));
  Conversation conversation(transformer, 0);
  conversation.feed(some_ids(20));
  EXPECT_THROW(conversation.feed(some_ids(31)), Error);
  EXPECT_THROW(conversation.feed({}), Error);
  EXPECT_EQ(conversation.tokens(), 20);
  conversation.feed(some_ids(30));
  EXPECT_THROW(conversation.append(1), Error);
}

TEST(Conversation, ProgressRisesToOneAndMayStopTheWork) {
  Transformer transformer(bundled(Precision::f32), small(200));
  Conversation conversation(transformer, 10);
  double last = 0;
  conversation.feed(some_ids(100), [&](double share) {
    EXPECT_GT(share, last);
    last = share;
  });
  EXPECT_DOUBLE_EQ(last, 1.0);
  conversation.reset();
  struct Stop {};
  EXPECT_THROW(conversation.feed(some_ids(100), [](double) { throw Stop{}; }), Stop);
  conversation.reset();
  EXPECT_NO_THROW(conversation.feed(some_ids(100)));
}

// Ids that come in parts, with no decode step between them, are one turn, of any length (STATE-1).
TEST(Conversation, ATurnGoesOnOverManyBatches) {
  Transformer transformer(bundled(Precision::f32), small(400));
  Conversation conversation(transformer, 0);
  const auto ids = some_ids(352);
  conversation.feed(ids);
  const std::vector<float> whole(conversation.logits().begin(), conversation.logits().end());
  conversation.reset();
  conversation.feed(std::span(ids).first(32));
  conversation.feed(std::span(ids).subspan(32));
  EXPECT_EQ(conversation.steps(), "p32,p64,p64,p64,p64,p64");
  EXPECT_THAT(conversation.logits(), ::testing::ElementsAreArray(whole));
}

// What a turn that stopped half-way left is taken back where the session can be truncated, else all of it.
TEST(Conversation, RecoversFromATurnThatStopped) {
  for (const Select select : {Select::blocks, Select::sketches, Select::h2o}) {
    TransformerOptions chosen = small(400);
    chosen.attention.select = select;
    Transformer transformer(bundled(Precision::f32), chosen);
    Conversation conversation(transformer, 10);
    struct Stop {};
    const auto stops_after = [](double most) {
      return [most](double share) {
        if (share > most) throw Stop{};
      };
    };
    conversation.feed(some_ids(100));
    conversation.append(7);
    const std::vector<float> before(conversation.logits().begin(), conversation.logits().end());
    const std::uint64_t pairs = conversation.pairs().computed;
    const std::string steps = conversation.steps();
    // Inside the first step, which abort() drops with either rule.
    EXPECT_THROW(conversation.feed(some_ids(200), stops_after(0)), Stop);
    conversation.recover();
    EXPECT_EQ(conversation.tokens(), 101);
    EXPECT_EQ(conversation.steps(), steps);
    // After two steps, whose chunks are settled with rule h2o.
    EXPECT_THROW(conversation.feed(some_ids(200), stops_after(0.7)), Stop);
    conversation.recover();
    if (select == Select::h2o) {
      EXPECT_EQ(conversation.tokens(), 0);
      EXPECT_EQ(conversation.pairs().computed, 0U);
      EXPECT_EQ(conversation.steps(), "");
      EXPECT_TRUE(conversation.logits().empty());
      continue;
    }
    EXPECT_EQ(conversation.tokens(), 101);
    EXPECT_EQ(conversation.pairs().computed, pairs);
    EXPECT_EQ(conversation.steps(), steps);
    EXPECT_THAT(conversation.logits(), ::testing::ElementsAreArray(before));
    conversation.feed(some_ids(200));
    const std::vector<float> after(conversation.logits().begin(), conversation.logits().end());
    conversation.reset();
    conversation.feed(some_ids(100));
    conversation.append(7);
    conversation.feed(some_ids(200));
    EXPECT_THAT(conversation.logits(), ::testing::ElementsAreArray(after));
  }
}

TEST(Conversation, AStepThatThrowsLeavesNoObserver) {
  Transformer transformer(bundled(Precision::f32), small(200));
  Conversation conversation(transformer, 10);
  struct Stop {};
  int calls = 0;
  const Conversation::Progress stop = [&](double) {
    ++calls;
    throw Stop{};
  };
  EXPECT_THROW(conversation.feed(some_ids(100), stop), Stop);
  EXPECT_EQ(calls, 1);
  conversation.reset();
  EXPECT_NO_THROW(transformer.run(Step::prefill(60), some_ids(60)));
  EXPECT_NO_THROW(conversation.append(5));
  EXPECT_EQ(calls, 1) << "progress of a turn that ended was called";
  EXPECT_EQ(conversation.tokens(), 61);
}

// The last tokens of a prompt see every token when they are a dense tail: then a sparse run is nearer to a dense one.
TEST(Conversation, TheTailBringsSparseNearerToDense) {
  const auto ids = some_ids(512);
  const auto logits_of = [&](bool dense, std::int64_t tail) {
    auto chosen = small(512);
    chosen.attention.dense = dense;
    Transformer transformer(bundled(Precision::f32), chosen);
    Conversation conversation(transformer, tail);
    conversation.feed(ids);
    return std::vector<float>(conversation.logits().begin(), conversation.logits().end());
  };
  const auto dense = logits_of(true, 0);
  const auto distance = [&](const std::vector<float>& other) {
    double sum = 0;
    for (std::size_t i = 0; i < dense.size(); ++i) sum += std::abs(dense[i] - other[i]);
    return sum;
  };
  const double plain = distance(logits_of(false, 0));
  const double tail = distance(logits_of(false, 64));
  EXPECT_GT(plain, 0.0) << "nothing was sparse";
  EXPECT_LT(tail, plain);
}

/// Conversations of other lengths in as many slots as there can be, decoded in one step, are those of transformers of their own.
void expect_slots_as_alone(const std::shared_ptr<const Model>& model, DType cache) {
  TransformerOptions chosen = small(1400);
  chosen.cache_type = cache;
  chosen.slots = kMostSlots;
  Transformer together(model, chosen);
  chosen.slots = 1;
  Transformer alone(model, chosen);
  std::vector<std::unique_ptr<Conversation>> talks;
  std::vector<Conversation*> all;
  std::vector<std::vector<std::int32_t>> prompts;
  for (int slot = 0; slot < kMostSlots; ++slot) {
    const std::int64_t tokens = slot == 3 ? 1300 : 1 + 7 * slot;
    prompts.push_back(some_ids(tokens + slot));
    prompts.back().erase(prompts.back().begin(), prompts.back().begin() + slot);
    talks.push_back(std::make_unique<Conversation>(together, 8, slot));
    talks.back()->feed_ahead(prompts.back());
    all.push_back(talks.back().get());
  }
  for (Conversation* const talk : all) Conversation::take_logits({&talk, 1});
  // All of them, then some in another order, then one by itself.
  const std::vector<std::int32_t> ids = some_ids(kMostSlots);
  Conversation::append(all, ids);
  const std::vector<Conversation*> some{all[9], all[3], all[0]};
  const std::vector<Conversation*> others{all[15], all[5]};
  Conversation::append_ahead(some, std::span(ids).first(3));
  Conversation::append_ahead(others, std::span(ids).last(2));
  Conversation::take_logits(some);
  Conversation::take_logits(others);
  talks[3]->append(77);
  for (int slot = 0; slot < kMostSlots; ++slot) {
    Conversation one(alone, 8);
    one.reset();
    one.feed(prompts[static_cast<std::size_t>(slot)]);
    one.append(ids[static_cast<std::size_t>(slot)]);
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (some[i] == all[static_cast<std::size_t>(slot)]) one.append(ids[i]);
    }
    if (slot == 15) one.append(ids[kMostSlots - 2]);
    if (slot == 5) one.append(ids[kMostSlots - 1]);
    if (slot == 3) one.append(77);
    const Conversation& talk = *talks[static_cast<std::size_t>(slot)];
    EXPECT_EQ(talk.steps(), one.steps());
    EXPECT_EQ(talk.pairs().computed, one.pairs().computed);
    const std::vector<float> got(talk.logits().begin(), talk.logits().end());
    const std::vector<float> wanted(one.logits().begin(), one.logits().end());
    EXPECT_EQ(got, wanted) << "slot " << slot;
  }
}

/// In every precision, with keys and values in F32 and in BF16.
template <typename Load>
void expect_slots_as_alone(const Load& load) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    if (precision == Precision::bf16 && native_precision() != precision) continue;
    SCOPED_TRACE(precision_name(precision));
    for (const DType cache : {DType::f32, DType::bf16}) expect_slots_as_alone(load(precision), cache);
  }
}

TEST(Slots, DecodedTogetherHaveTheBitsOfEachAlone) {
  expect_slots_as_alone([](Precision precision) { return bundled(precision); });
}

TEST(Slots, OfModelsWithBiasesAndValuesOfOtherWidths) {
  const MadeModel longer({.layers = 2,
                          .width = 64,
                          .heads = 4,
                          .heads_kv = 2,
                          .d_head = 32,
                          .feed_forward = 200,
                          .vocabulary = 4096,
                          .d_value = 48});
  const MadeModel shorter({.architecture = "llama",
                           .width = 64,
                           .heads = 6,
                           .heads_kv = 2,
                           .d_head = 48,
                           .vocabulary = 4096,
                           .d_value = 16});
  for (const MadeModel* const model : {&longer, &shorter}) {
    SCOPED_TRACE(model->sizes().architecture);
    expect_slots_as_alone([&](Precision precision) { return model->load(precision); });
  }
}

TEST(Slots, AStepThatOneSlotRefusesIsOpenInNone) {
  TransformerOptions chosen = small(50);
  chosen.slots = 2;
  Transformer transformer(bundled(Precision::f32), chosen);
  Conversation first(transformer, 0, 0);
  first.feed(some_ids(20));
  transformer.session(1).begin(Step::decode());
  EXPECT_THROW(transformer.decode(std::array{SlotToken{0, 1}, SlotToken{1, 1}}), Error);
  EXPECT_NO_THROW(first.append(1));
  EXPECT_EQ(first.tokens(), 21);
}

TEST(Slots, WhatIsNotAllowedChangesNothing) {
  TransformerOptions chosen = small(50);
  for (const int slots : {0, -1, kMostSlots + 1}) {
    chosen.slots = slots;
    EXPECT_THROW(Transformer(bundled(Precision::f32), chosen), Error);
  }
  chosen.slots = 3;
  Transformer transformer(bundled(Precision::f32), chosen);
  Conversation first(transformer, 0, 0);
  Conversation full(transformer, 0, 2);
  first.feed(some_ids(20));
  full.feed(some_ids(50));
  const auto refused = [&](std::vector<SlotToken> tokens, const char* what) {
    try {
      transformer.decode(tokens);
      ADD_FAILURE() << "accepted: " << what;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(what));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("allowed: "));
    }
  };
  refused({}, "no token");
  refused({{3, 1}}, "slot is 3");
  refused({{0, 1}, {-1, 1}}, "slot is -1");
  refused({{0, 1}, {1, 1}, {0, 2}}, "slot is 0");
  refused({{0, 1}, {1, -1}}, "token id is -1");
  refused({{0, 1}, {2, 1}}, "slot 2 has 50 tokens");
  std::vector<Conversation*> twice{&first, &first};
  const std::vector<std::int32_t> ids{1, 2};
  EXPECT_THROW(Conversation::append(twice, ids), Error);
  EXPECT_THROW(Conversation::append(twice, std::span(ids).first(1)), Error);
  Transformer other(bundled(Precision::f32), small(50));
  Conversation stranger(other, 0);
  std::vector<Conversation*> strangers{&first, &stranger};
  EXPECT_THROW(Conversation::append(strangers, ids), Error);
  EXPECT_EQ(first.tokens(), 20);
  std::vector<float> row(first.logits().size());
  float* const rows[] = {row.data(), row.data()};
  EXPECT_THROW(transformer.take_logits(std::span(rows).first(1)), Error) << "nothing was asked for";
  EXPECT_NO_THROW(first.append(1));
  for (const std::int64_t count : {-1, 0, 2}) EXPECT_THROW(transformer.ask_logits(count), Error) << count;
  transformer.ask_logits(1);
  EXPECT_THROW(transformer.take_logits(rows), Error) << "one token was asked for";
  transformer.take_logits(std::span(rows).first(1));
  EXPECT_THAT(row, ::testing::ElementsAreArray(first.logits()));
}

}  // namespace
}  // namespace headwater::runtime::testing
