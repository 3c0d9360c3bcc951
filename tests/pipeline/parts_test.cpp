// A model in parts, which hand each other their calls inside one process: the bits of the whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/generate/conversation.hpp"
#include "runtime/generate/model_file.hpp"
#include "runtime/model/transformer.hpp"
#include "tests/model/parts.hpp"

namespace headwater::runtime {
namespace {

using runtime::testing::Parts;
using Ids = std::vector<std::int32_t>;
using Logits = std::vector<float>;

TransformerOptions small_options(Select select, bool dense_layers) {
  TransformerOptions options;
  options.attention.threads = 1;
  options.attention.chunk = 32;
  options.attention.batch = 80;  // no multiple of the chunk
  options.attention.local = 4;
  options.attention.heavy = 12;
  options.attention.select = select;
  options.attention.key_block = 4;
  options.attention.query_block = 8;
  options.attention.pool = 4;
  options.attention.dense_below = 60;  // the second turn below is sparse, without its tail it is dense
  if (dense_layers) options.attention.dense_layers = {2, 5};
  options.capacity = 300;
  options.slots = 3;
  return options;
}

/// The bundled model, whole, or cut before the layers in `cuts`.
Parts bundled_parts(const std::vector<std::int64_t>& cuts, Select select, Precision precision,
                    bool dense_layers = true, int slots = 3) {
  TransformerOptions options = small_options(select, dense_layers);
  options.slots = slots;
  return {cuts, options, [&](const ModelPart& part) {
            // A file for each: ModelFile::load() shares the weights of its first call.
            return ModelFile(MODELS "/headwater-tiny-f16.gguf").load({precision, 1, part});
          }};
}

/// Three conversations: prompts of other lengths, a second turn, tokens of one and of all together, and a reset.
std::vector<Logits> talk(Transformer& transformer) {
  std::vector<std::unique_ptr<Conversation>> talks;
  std::vector<Logits> seen;
  const auto look = [&](const Conversation& one) {
    seen.emplace_back(one.logits().begin(), one.logits().end());
  };
  for (int slot = 0; slot < 3; ++slot) {
    talks.push_back(std::make_unique<Conversation>(transformer, slot == 1 ? 0 : 33, slot));
    Ids ids(static_cast<std::size_t>(81 + 40 * slot));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((7919 * i + slot) % 1000);
    talks.back()->feed(ids);
    look(*talks.back());
  }
  talks[1]->append(17);
  look(*talks[1]);
  std::vector<Conversation*> all = {talks[2].get(), talks[0].get(), talks[1].get()};
  for (std::int32_t id = 3; id < 6; ++id) {
    Conversation::append(all, Ids{id, id + 1, id + 2});
    for (const Conversation* one : all) look(*one);
  }
  talks[0]->feed(Ids(70, 11));  // a second turn
  look(*talks[0]);
  talks[1]->reset();
  talks[1]->feed(Ids{1});
  look(*talks[1]);
  talks[1]->feed(Ids(90, 5));  // goes on with that turn, which is dense
  look(*talks[1]);
  return seen;
}

/// As many conversations as there can be, each with a prompt of its own; tokens of all and of some of them, in other orders.
std::vector<Logits> talk_in_all_slots(Transformer& transformer) {
  std::vector<std::unique_ptr<Conversation>> talks;
  std::vector<Logits> seen;
  for (int slot = 0; slot < kMostSlots; ++slot) {
    talks.push_back(std::make_unique<Conversation>(transformer, 5, slot));
    Ids ids(static_cast<std::size_t>(3 + 13 * slot));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>((31 * i + 257 * slot) % 1000);
    talks.back()->feed_ahead(ids);
  }
  for (const auto& one : talks) {
    Conversation* const self = one.get();
    Conversation::take_logits({&self, 1});
  }
  for (const std::size_t step : {5U, 3U, 7U}) {  // odd: every slot comes once
    for (const std::size_t count : {std::size_t{kMostSlots}, std::size_t{9}, std::size_t{1}}) {
      std::vector<Conversation*> some;
      Ids ids;
      for (std::size_t i = 0; i < count; ++i) {
        some.push_back(talks[i * step % kMostSlots].get());
        ids.push_back(static_cast<std::int32_t>(100 * step + i));
      }
      Conversation::append(some, ids);
    }
  }
  for (const auto& one : talks) seen.emplace_back(one->logits().begin(), one->logits().end());
  return seen;
}

/// A turn, one that an exception ends after some of its steps, and another one in its place.
std::vector<Logits> talk_after_an_interrupt(Transformer& transformer) {
  Conversation one(transformer, 0);
  std::vector<Logits> seen;
  one.feed(Ids(90, 7));
  one.append(3);
  Ids ids(130);
  std::iota(ids.begin(), ids.end(), 11);
  const auto stop = [](double share) {
    if (share > 0.8) throw std::runtime_error("interrupted");
  };
  EXPECT_THROW(one.feed(ids, stop), std::runtime_error);
  one.recover();
  EXPECT_EQ(one.tokens(), 91);
  one.feed(Ids(75, 20));
  seen.emplace_back(one.logits().begin(), one.logits().end());
  transformer.truncate(40);  // inside the first turn
  one.append(9);
  seen.emplace_back(one.logits().begin(), one.logits().end());
  return seen;
}

TEST(ModelParts, GiveTheBitsOfTheWhole) {
  for (const Precision precision : {Precision::f32, native_precision()}) {
    for (const Select select : {Select::h2o, Select::blocks}) {
      for (const bool dense_layers : {false, true}) {
        Parts whole = bundled_parts({}, select, precision, dense_layers);
        const std::vector<Logits> expected = talk(whole.front());
        for (const auto& cuts : std::vector<std::vector<std::int64_t>>{{4}, {1, 7}, {1, 2, 3, 4, 5, 6, 7}}) {
          Parts parts = bundled_parts(cuts, select, precision, dense_layers);
          const std::vector<Logits> found = talk(parts.front());
          ASSERT_EQ(found.size(), expected.size());
          // Not the values themselves: a failure would print them all.
          for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_TRUE(found[i] == expected[i]) << "logits " << i << ", " << cuts.size() << " cuts";
        }
      }
    }
  }
}

TEST(ModelParts, GiveTheBitsOfTheWholeInAllSlots) {
  for (const Precision precision : {Precision::f32, native_precision()}) {
    Parts whole = bundled_parts({}, Select::blocks, precision, true, kMostSlots);
    const std::vector<Logits> expected = talk_in_all_slots(whole.front());
    for (const auto& cuts : std::vector<std::vector<std::int64_t>>{{4}, {1, 7}}) {
      Parts parts = bundled_parts(cuts, Select::blocks, precision, true, kMostSlots);
      const std::vector<Logits> found = talk_in_all_slots(parts.front());
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i] == expected[i]) << "slot " << i;
    }
  }
}

TEST(ModelParts, AreAllTruncated) {
  for (const bool dense_layers : {false, true}) {
    // Rule h2o cannot go back into a turn (STATE-10).
    Parts whole = bundled_parts({}, Select::blocks, Precision::f32, dense_layers);
    const std::vector<Logits> expected = talk_after_an_interrupt(whole.front());
    for (const auto& cuts : std::vector<std::vector<std::int64_t>>{{4}, {1, 7}}) {
      Parts parts = bundled_parts(cuts, Select::blocks, Precision::f32, dense_layers);
      EXPECT_TRUE(talk_after_an_interrupt(parts.front()) == expected) << cuts.size() << " cuts";
      for (const auto& part : parts.parts) EXPECT_EQ(part->session().tokens(), 41);
    }
  }
}

// A call that ends after the step that it made, or before, is undone: a token of one or of all slots, and a turn. What was
// counted before stays counted.
TEST(ModelParts, RecoverFromCallsThatDidNotGetThrough) {
  Parts whole = bundled_parts({}, Select::blocks, Precision::f32, false);
  Parts parts = bundled_parts({4}, Select::blocks, Precision::f32, false);
  for (const auto kind : {PartCall::Kind::run, PartCall::Kind::decode, PartCall::Kind::logits}) {
    for (const bool together : {false, true}) {
      SCOPED_TRACE(static_cast<int>(kind));
      std::vector<std::unique_ptr<Conversation>> talks;
      std::vector<Conversation*> some;
      for (const bool cut : {false, true}) {
        for (int slot = 0; slot < 2; ++slot) {
          talks.push_back(std::make_unique<Conversation>(cut ? parts.front() : whole.front(), 0, slot));
          talks.back()->reset();
          talks.back()->feed(Ids(90, 7 + slot));
          talks.back()->append(3);
          if (cut && (slot == 0 || together)) some.push_back(talks.back().get());
        }
      }
      const auto expect_equal = [&] {
        for (std::size_t slot = 0; slot < 2; ++slot) {
          const Conversation& wanted = *talks[slot];
          const Conversation& got = *talks[slot + 2];
          EXPECT_EQ(got.tokens(), wanted.tokens());
          EXPECT_EQ(got.pairs().computed, wanted.pairs().computed);
          EXPECT_EQ(got.pairs().dense, wanted.pairs().dense);
          EXPECT_EQ(got.steps().ends_with(",d1"), wanted.steps().ends_with(",d1"));
          EXPECT_TRUE(std::equal(got.logits().begin(), got.logits().end(), wanted.logits().begin()));
        }
      };
      const std::string steps = talks[2]->steps();
      parts.relays.front()->refused = kind;
      const Ids ids(some.size(), 9);
      if (kind == PartCall::Kind::run) {
        EXPECT_THROW(some.front()->feed(Ids(70, 5)), Error);
      } else {
        EXPECT_THROW(Conversation::append(some, ids), Error);
      }
      parts.relays.front()->refused.reset();
      for (Conversation* const one : some) {
        if (kind != PartCall::Kind::run || one == some.front()) one->recover();
      }
      EXPECT_EQ(talks[2]->steps(), steps);
      expect_equal();
      Conversation::append(some, ids);
      for (std::size_t slot = 0; slot < some.size(); ++slot) talks[slot]->append(9);
      talks[0]->feed(Ids(70, 5));
      talks[2]->feed(Ids(70, 5));
      expect_equal();
    }
  }
}

TEST(ModelParts, StreamByChunksWhereTheBitsAllowIt) {
  Parts sparse = bundled_parts({4}, Select::h2o, Precision::f32, false);
  Parts whole = bundled_parts({}, Select::h2o, Precision::f32, false);
  Parts dense_layers = bundled_parts({4}, Select::h2o, Precision::f32, true);
  // Chunks of 32 in batches of 80.
  EXPECT_EQ(sparse.front().prefill_step(0, 200, true), 32);
  EXPECT_EQ(sparse.front().prefill_step(64, 200, true), 16);
  EXPECT_EQ(sparse.front().prefill_step(80, 200, true), 32);
  EXPECT_EQ(sparse.front().prefill_step(192, 200, true), 8);
  EXPECT_EQ(sparse.front().prefill_step(0, 200, false), 80);
  EXPECT_EQ(sparse.front().prefill_step(0, 59, true), 59);
  EXPECT_EQ(sparse.front().prefill_step(0, 60, true), 32);
  EXPECT_EQ(dense_layers.front().prefill_step(0, 200, true), 80);
  EXPECT_EQ(whole.front().prefill_step(0, 200, true), 80);
}

TEST(ModelParts, HoldTheirShareAlone) {
  const ModelFile file(MODELS "/headwater-tiny-f16.gguf");
  const std::uint64_t whole = Model::packed_bytes(file.file(), Precision::f32);
  std::uint64_t sum = 0;
  for (std::int64_t layer = 0; layer < 8; ++layer) {
    const ModelPart part{layer, layer == 7 ? ModelPart::kAll : layer + 1};
    sum += Model::packed_bytes(file.file(), Precision::f32, part);
    EXPECT_LT(Model::file_bytes(file.file(), part), file.file().file_bytes());
  }
  EXPECT_EQ(sum, whole);
  Parts parts = bundled_parts({3}, Select::h2o, Precision::f32);
  EXPECT_EQ(parts.models[0]->layers().size(), 3U);
  EXPECT_EQ(parts.models[1]->layers().size(), 5U);
  EXPECT_EQ(parts.parts[0]->session().shape().n_layer, 3);
  EXPECT_EQ(parts.parts[1]->session().options().dense_layers, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(parts.front().options().dense_layers, (std::vector<std::int64_t>{2, 5}));
}

TEST(ModelParts, RefuseCallsThatDoNotFit) {
  Parts parts = bundled_parts({4}, Select::h2o, Precision::f32);
  Transformer& last = *parts.parts[1];
  const auto width = static_cast<std::size_t>(parts.models[0]->config().width);
  const auto refused = [&](const PartCall& call, std::size_t floats) {
    EXPECT_THROW(last.repeat(call, Logits(floats)), Error);
    EXPECT_EQ(last.session().tokens(), 0);
  };
  PartCall call;
  call.kind = PartCall::Kind::run;
  call.step = Step::prefill(2);
  refused(call, 0);
  refused(call, width);
  refused(call, 2 * width + 1);
  refused(call, 3 * width);
  call.step = Step::prefill(81);  // a batch has 80
  refused(call, 81 * width);
  call.step = Step::prefill(2);
  for (const std::int32_t slot : {-1, 3}) {
    call.slot = slot;
    refused(call, 2 * width);
  }
  call = {};
  call.kind = PartCall::Kind::decode;
  call.tokens = 1;
  refused(call, 2 * width);
  for (const std::int32_t slot : {-1, 3}) {
    call.slots[0] = slot;
    refused(call, width);
  }
  call.tokens = 4;
  refused(call, 4 * width);
  call = {};
  call.kind = PartCall::Kind::logits;
  call.count = 1;
  refused(call, 0);  // before a step
  call.kind = static_cast<PartCall::Kind>(99);
  refused(call, 0);
  // The first part repeats nothing.
  EXPECT_THROW(parts.front().repeat({}, {}), Error);
}

}  // namespace
}  // namespace headwater::runtime
