// The transformer and the conversation over an engine and a session that are mocks: which steps they take and in
// which order, and what is left where one fails or is cancelled.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/generate/conversation.hpp"
#include "tests/mocks/mock_session.hpp"
#include "tests/mocks/protocol_session.hpp"

namespace headwater::mocks {
namespace {

using runtime::Conversation;
using runtime::LayerView;
using runtime::SlotToken;
using runtime::Transformer;
using runtime::TransformerOptions;
using ::testing::_;
using ::testing::AllOf;
using ::testing::Field;
using ::testing::InSequence;
using ::testing::Property;
using ::testing::Return;
using ::testing::ReturnRef;
using ::testing::StrictMock;
using ::testing::Throw;

std::shared_ptr<const runtime::Model> model() {
  static const auto model = runtime::Model::load(
      std::make_shared<const runtime::GgufFile>(runtime::GgufFile::open(FIXTURES "/qwen3-plain.gguf")), {});
  return model;
}

std::int64_t layers() { return model()->config().layers; }

/// Chunks of 32, batches of 64, on a mock for each slot.
class Runtime : public ::testing::Test {
 protected:
  explicit Runtime(int slots = 1) {
    EXPECT_CALL(list_, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine_));
    EXPECT_CALL(engine_, open(_, _))
        .Times(slots)
        .WillRepeatedly([this](const Shape& shape, const Options& options) {
          asked_shape_ = shape;
          asked_options_ = options;
          auto owned = std::make_unique<ProtocolSession>(shape, options);
          sessions_.push_back(owned.get());
          return owned;
        });
    TransformerOptions options;
    options.engine = "mine";
    options.attention.batch = 64;
    options.attention.chunk = 32;
    options.attention.local = 8;
    options.attention.heavy = 8;
    options.attention.checkpoints = 16;
    options.cache_type = DType::f16;
    options.capacity = 400;
    options.slots = slots;
    transformer_.emplace(model(), options);
    session_ = sessions_.front();
  }

  std::vector<float> logits_of_row(std::int64_t row) {
    std::vector<float> logits(static_cast<std::size_t>(model()->config().vocabulary));
    transformer_->logits(row, 1, logits);
    return logits;
  }

  StrictMock<EngineList> list_;
  StrictMock<MockEngine> engine_;
  std::vector<ProtocolSession*> sessions_;  // of the slots
  ProtocolSession* session_ = nullptr;      // of the first one
  Shape asked_shape_;
  Options asked_options_;
  std::optional<Transformer> transformer_;
};

// ---- transformer ---------------------------------------------------------------------------------------------------

TEST_F(Runtime, TheSessionIsOpenedForTheModelWithTheCallersOptions) {
  const runtime::ModelConfig& config = model()->config();
  EXPECT_EQ(asked_shape_.n_layer, config.layers);
  EXPECT_EQ(asked_shape_.n_head, config.heads);
  EXPECT_EQ(asked_shape_.n_head_kv, config.heads_kv);
  EXPECT_EQ(asked_shape_.d_head, config.d_head);
  EXPECT_EQ(asked_shape_.d_value, config.d_value);
  EXPECT_EQ(asked_shape_.capacity, 400);
  EXPECT_EQ(asked_shape_.kv_type, DType::f16);
  EXPECT_EQ(asked_options_.batch, 64);
  EXPECT_EQ(asked_options_.chunk, 32);
  EXPECT_EQ(asked_options_.local, 8);
  EXPECT_EQ(asked_options_.heavy, 8);
  EXPECT_EQ(asked_options_.checkpoints, 16);
  EXPECT_EQ(&transformer_->engine(), &engine_);
}

TEST(Opening, AnErrorOfTheEngineIsTheTransformers) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  EXPECT_CALL(list, engine(_)).WillOnce(ReturnRef(engine));
  EXPECT_CALL(engine, open(_, _)).WillOnce(Throw(Error(ErrorCode::out_of_memory, "no memory for keys")));
  TransformerOptions options;
  options.capacity = 400;
  expect_error([&] { Transformer(model(), options); }, ErrorCode::out_of_memory, "no memory for keys");
}

// session.hpp: begin(), attend() once for each layer, end(). A layer reads what the one before it wrote: 0, 1, ...
TEST_F(Runtime, AStepAttendsEveryLayerInOrder) {
  const InSequence order;
  session_->expect_step(prefill(40));
  transformer_->run(Step::prefill(40), ids(40));
  session_->expect_step(decode(1));
  transformer_->run(Step::decode(), ids(1));
}

TEST_F(Runtime, TheSessionGetsTheRowsThatAnObserverIsShown) {
  std::vector<std::pair<std::int64_t, std::vector<Rows>>> shown;
  transformer_->set_observer([&](const LayerView& view) {
    if (view.stage == LayerView::Stage::attention) shown.push_back({view.layer, {view.q, view.k, view.v}});
  });
  EXPECT_CALL(*session_, attend)
      .Times(static_cast<int>(layers()))
      .WillRepeatedly([&](std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                          const MutableRows& out, const LseOutput& lse) {
        EXPECT_EQ(lse.data, nullptr) << "nobody asked for log-sum-exps";
        ASSERT_EQ(shown.size(), static_cast<std::size_t>(layer) + 1) << "shown before it is attended";
        EXPECT_EQ(shown.back().first, layer);
        const std::vector<Rows>& wanted = shown.back().second;
        std::size_t at = 0;
        for (const Rows& rows : {q, k, v}) {
          EXPECT_THAT(rows, is_view<Rows>(wanted[at].data, wanted[at].type, wanted[at].row_stride,
                                          wanted[at].head_stride));
          ++at;
        }
        // Queries, keys and values are three places, and the output is none of them.
        EXPECT_NE(q.data, k.data);
        EXPECT_NE(k.data, v.data);
        EXPECT_NE(out.data, nullptr);
        EXPECT_EQ(out.row_stride, model()->config().heads * model()->config().d_value);
      });
  EXPECT_CALL(*session_, end()).WillOnce(Return());
  transformer_->run(Step::prefill(5), ids(5));
}

// STATE-5: an attend() that cannot finish fails the step. No further layer is attended and the step is not ended: end() would be
// another error.
TEST_F(Runtime, ALayerThatFailsEndsTheStepUntilReset) {
  for (std::int64_t failing = 0; failing < layers(); ++failing) {
    SCOPED_TRACE(failing);
    {
      const InSequence order;
      session_->expect_step_that_fails(prefill(20), failing);
    }
    EXPECT_CALL(*session_, end()).Times(0);
    expect_error([&] { transformer_->run(Step::prefill(20), ids(20)); }, ErrorCode::internal,
                 "the device is gone");
    EXPECT_TRUE(transformer_->session().failed());
    session_->verify();

    EXPECT_CALL(*session_, begin(_));
    EXPECT_CALL(*session_, attend).Times(0);
    expect_error([&] { transformer_->run(Step::decode(), ids(1)); }, ErrorCode::wrong_state, "reset()");
    session_->verify();

    const InSequence order;
    EXPECT_CALL(*session_, reset());
    session_->expect_step(prefill(20));
    transformer_->reset();
    transformer_->run(Step::prefill(20), ids(20));
    session_->verify();
    transformer_->reset();
  }
}

// transformer.hpp: logits() are those of the last step. One that did not finish has none: its residual stream stopped half-way.
TEST_F(Runtime, AStepThatDidNotFinishHasNoLogits) {
  transformer_->run(Step::prefill(20), ids(20));
  EXPECT_NO_THROW((void)logits_of_row(19));
  session_->expect_step_that_fails(decode(3), layers() - 1);
  EXPECT_THROW(transformer_->run(Step::decode(3), ids(3)), Error);
  expect_error([&] { (void)logits_of_row(0); }, ErrorCode::invalid_argument, "last step of 0");
  session_->verify();

  transformer_->reset();
  transformer_->run(Step::prefill(20), ids(20));
  EXPECT_CALL(*session_, end()).WillOnce(Throw(Error(ErrorCode::internal, "late")));
  EXPECT_THROW(transformer_->run(Step::decode(), ids(1)), Error);
  EXPECT_THROW((void)logits_of_row(0), Error);
}

// A step that begin() refuses leaves the session as it was, and the last step's logits, too.
TEST_F(Runtime, AStepThatIsRefusedChangesNothing) {
  transformer_->run(Step::prefill(20), ids(20));
  const std::vector<float> before = logits_of_row(7);
  EXPECT_CALL(*session_, begin(_)).WillOnce(Throw(Error(ErrorCode::capacity_exceeded, "full")));
  EXPECT_CALL(*session_, attend).Times(0);
  EXPECT_CALL(*session_, end()).Times(0);
  EXPECT_CALL(*session_, reset()).Times(0);
  expect_error([&] { transformer_->run(Step::prefill(30), ids(30, 5)); }, ErrorCode::capacity_exceeded,
               "full");
  EXPECT_EQ(logits_of_row(7), before);
}

TEST_F(Runtime, IdsAndSizesAreCheckedBeforeAStepBegins) {
  EXPECT_CALL(*session_, begin(_)).Times(0);
  const auto vocabulary = static_cast<std::int32_t>(model()->config().vocabulary);
  EXPECT_THROW(transformer_->run(Step::prefill(2), std::vector<std::int32_t>{1, vocabulary}), Error);
  EXPECT_THROW(transformer_->run(Step::prefill(2), std::vector<std::int32_t>{-1, 1}), Error);
  EXPECT_THROW(transformer_->run(Step::prefill(3), ids(2)), Error);
  EXPECT_THROW(transformer_->run(Step::prefill(65), ids(65)), Error);
}

// ---- several slots -------------------------------------------------------------------------------------------------

/// Three slots of 20 tokens each, whose sessions are named by their place in a step.
class Slots : public Runtime {
 protected:
  Slots() : Runtime(3) {
    for (const int slot : kSlots) transformer_->run(Step::prefill(20), ids(20), slot);
  }

  static constexpr std::array<int, 3> kSlots{2, 0, 1};
  ProtocolSession& at(std::size_t i) { return *sessions_[static_cast<std::size_t>(kSlots[i])]; }
  /// A step of the first `n` of kSlots.
  void decode(std::size_t n = 3) {
    std::vector<SlotToken> tokens;
    for (std::size_t i = 0; i < n; ++i) tokens.push_back({kSlots[i], static_cast<std::int32_t>(5 + i)});
    transformer_->decode(tokens);
  }
  auto is_call(std::size_t i, std::int64_t layer) {
    return AllOf(Field("session", &SequenceCall::session, &at(i)),
                 Field("layer", &SequenceCall::layer, layer));
  }
  void expect_begins(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) EXPECT_CALL(at(i), begin(mocks::decode()));
  }
  /// The checks of a layer, and its group, of whose calls `made` come.
  void expect_group(std::int64_t layer, std::size_t n, std::size_t made) {
    for (std::size_t i = 0; i < n; ++i) EXPECT_CALL(at(i), check_call(is_call(i, layer)));
    EXPECT_CALL(at(0), attend_group(Property("size", &std::span<const SequenceCall>::size, n)));
    for (std::size_t i = 0; i < made; ++i) EXPECT_CALL(at(i), attend(layer, _, _, _, _, _));
  }
  void expect_step(std::size_t n) {
    expect_begins(n);
    for (std::int64_t layer = 0; layer < layers(); ++layer) expect_group(layer, n, n);
    for (std::size_t i = 0; i < n; ++i) EXPECT_CALL(at(i), end());
  }
  void expect_no_end() {
    for (std::size_t i = 0; i < 3; ++i) EXPECT_CALL(at(i), end()).Times(0);
  }
  void verify() {
    for (ProtocolSession* const session : sessions_) session->verify();
  }
  /// What is left after an exception from inside: the slots are emptied and go on together.
  void expect_all_work_after_reset() {
    {
      const InSequence order;
      for (std::size_t i = 0; i < 3; ++i) EXPECT_CALL(at(i), reset());
      expect_step(3);
    }
    for (const int slot : kSlots) transformer_->reset(slot);
    decode();
    verify();
  }
};

// The order of the caller, from the first layer to the last; a slot that is not named is left alone.
TEST_F(Slots, AStepIsOneGroupForEachLayerInTheCallersOrder) {
  for (const std::size_t n : {3, 2}) {
    for (std::size_t i = n; i < 3; ++i) {
      EXPECT_CALL(at(i), begin(_)).Times(0);
      EXPECT_CALL(at(i), check_call(_)).Times(0);
      EXPECT_CALL(at(i), attend).Times(0);
      EXPECT_CALL(at(i), end()).Times(0);
    }
    {
      const InSequence order;
      expect_step(n);
    }
    decode(n);
    verify();
  }
}

// Row i of all that goes in and out is that of token i, and what a session wrote is what its slot goes on with.
TEST_F(Slots, EachSessionGetsItsRowAndWritesItsOwn) {
  const std::int64_t width = model()->config().heads * model()->config().d_value;
  bool together = true;
  std::vector<Rows> shown;
  transformer_->set_observer([&](const LayerView& view) {
    if (view.stage == LayerView::Stage::attention) shown = {view.q, view.k, view.v};
  });
  for (std::size_t i = 0; i < 3; ++i) {
    ON_CALL(at(i), end()).WillByDefault(Return());  // each step is taken back below
    ON_CALL(at(i), attend)
        .WillByDefault([i, width, &shown, &together](std::int64_t, const Rows& q, const Rows& k,
                                                     const Rows& v, const MutableRows& out,
                                                     const LseOutput& lse) {
          EXPECT_EQ(lse.data, nullptr);
          EXPECT_THAT(out, is_view<MutableRows>(out.data, DType::f32, width, model()->config().d_value));
          const std::size_t row = together ? i : 0;
          std::size_t which = 0;
          for (const Rows& rows : {q, k, v}) {
            const Rows& of_step = shown.at(which++);
            const void* const place =
                static_cast<const float*>(of_step.data) + static_cast<std::int64_t>(row) * of_step.row_stride;
            EXPECT_THAT(rows, is_view<Rows>(place, DType::f32, of_step.row_stride, of_step.head_stride));
          }
          std::fill_n(static_cast<float*>(out.data), width, static_cast<float>(i + 1));
        });
  }
  const std::size_t vocabulary = static_cast<std::size_t>(model()->config().vocabulary);
  std::vector<std::vector<float>> rows(3, std::vector<float>(vocabulary));
  float* const places[] = {rows[0].data(), rows[1].data(), rows[2].data()};
  transformer_->decode(std::array{SlotToken{2, 5}, SlotToken{0, 5}, SlotToken{1, 5}});
  transformer_->ask_logits(3);
  transformer_->take_logits(places);
  EXPECT_NE(rows[0], rows[1]);
  EXPECT_NE(rows[1], rows[2]);
  together = false;
  std::vector<float> alone(vocabulary);
  float* const place = alone.data();
  for (std::size_t i = 0; i < 3; ++i) {
    at(i).abort();
    transformer_->decode(std::array{SlotToken{kSlots[i], 5}});
    transformer_->ask_logits(1);
    transformer_->take_logits({&place, 1});
    EXPECT_EQ(alone, rows[i]) << i;
  }
}

// SEQ-1, STATE-5: a refused call comes before any of its layer; one that cannot finish is the last one. No step is
// ended.
TEST_F(Slots, ASlotThatFailsInALayerEndsTheStepOfAll) {
  for (const bool refused : {true, false}) {
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      for (std::size_t failing = 0; failing < 3; ++failing) {
        SCOPED_TRACE(fmt::format("refused {}, layer {}, place {}", refused, layer, failing));
        expect_no_end();
        {
          const InSequence order;
          expect_begins(3);
          for (std::int64_t before = 0; before < layer; ++before) expect_group(before, 3, 3);
          if (refused) {
            for (std::size_t i = 0; i < failing; ++i) EXPECT_CALL(at(i), check_call(is_call(i, layer)));
            EXPECT_CALL(at(failing), check_call(is_call(failing, layer)))
                .WillOnce(Throw(Error(ErrorCode::invalid_argument, "no rows of this device")));
          } else {
            expect_group(layer, 3, failing);
            EXPECT_CALL(at(failing), attend(layer, _, _, _, _, _)).WillOnce(at(failing).cannot_finish());
          }
        }
        expect_error(
            [&] { decode(); }, refused ? ErrorCode::invalid_argument : ErrorCode::internal,
            refused ? fmt::format("calls[{}]: no rows of this device", failing) : "the device is gone");
        for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(at(i).failed(), !refused && i == failing);
        expect_error([&] { (void)logits_of_row(0); }, ErrorCode::invalid_argument, "last step of 0");
        verify();
        expect_all_work_after_reset();
      }
    }
  }
}

// What is refused changes nothing: the slots before it, which had begun, are as they were.
TEST_F(Slots, AStepThatASessionRefusesIsOpenInNone) {
  for (const bool offers_abort : {true, false}) {
    for (std::size_t failing = 0; failing < 3; ++failing) {
      SCOPED_TRACE(fmt::format("abort {}, place {}", offers_abort, failing));
      transformer_->run(Step::decode(2), ids(2));
      const std::vector<float> logits = logits_of_row(1);
      expect_no_end();
      EXPECT_CALL(at(0), attend_group(_)).Times(0);
      {
        const InSequence order;
        expect_begins(failing);
        EXPECT_CALL(at(failing), begin(_)).WillOnce(Throw(Error(ErrorCode::out_of_memory, "no page")));
      }
      for (std::size_t i = 0; i < 3; ++i) {
        auto& abort = EXPECT_CALL(at(i), abort()).Times(i < failing ? 1 : 0);
        if (i < failing && !offers_abort) abort.WillOnce(Throw(Error(ErrorCode::unsupported, "not offered")));
      }
      expect_error([&] { decode(); }, ErrorCode::out_of_memory, "no page");
      verify();
      EXPECT_EQ(logits_of_row(1), logits);
      if (!offers_abort) {
        expect_all_work_after_reset();
        continue;
      }
      const std::int64_t before = at(2).tokens();
      {
        const InSequence order;
        expect_step(3);
      }
      decode();
      EXPECT_EQ(at(2).tokens(), before + 1);
      verify();
    }
  }
}

// An observer that throws between two layers: no further layer comes. A slot outside the step needs no reset.
TEST_F(Slots, ACancelledStepIsEndedInNoSlot) {
  struct Cancelled {};
  for (std::int64_t last = 0; last < layers(); ++last) {
    SCOPED_TRACE(last);
    transformer_->set_observer([&](const LayerView& view) {
      if (view.stage == LayerView::Stage::output && view.layer == last) throw Cancelled{};
    });
    expect_no_end();
    {
      const InSequence order;
      expect_begins(2);
      for (std::int64_t layer = 0; layer <= last; ++layer) expect_group(layer, 2, 2);
    }
    EXPECT_THROW(decode(2), Cancelled);
    verify();
    transformer_->set_observer({});
    {
      const InSequence order;
      at(2).expect_step(mocks::decode());
    }
    transformer_->decode(std::array{SlotToken{kSlots[2], 5}});
    verify();
    expect_all_work_after_reset();
  }
}

// Only the slot's session is called. Where it refuses, the last step has its logits still; afterwards it has none.
TEST_F(Slots, TruncateAndResetAreTheSlotsOwn) {
  const Error refusal(ErrorCode::invalid_argument, "truncate to 7; allowed: 20");
  for (const bool truncates : {true, false}) {
    SCOPED_TRACE(truncates);
    transformer_->run(Step::decode(2), ids(2), kSlots[0]);
    const std::vector<float> logits = logits_of_row(1);
    for (const std::size_t other : {0, 1}) {
      EXPECT_CALL(at(other), truncate(_)).Times(0);
      EXPECT_CALL(at(other), reset()).Times(0);
    }
    if (truncates) {
      EXPECT_CALL(at(2), reset()).Times(0);
      EXPECT_CALL(at(2), truncate(7)).WillOnce(Throw(refusal)).WillOnce(Return());
    } else {
      EXPECT_CALL(at(2), truncate(_)).Times(0);
      EXPECT_CALL(at(2), reset()).WillOnce(Throw(refusal)).WillOnce(Return());
    }
    const auto call = [&] {
      truncates ? transformer_->truncate(7, kSlots[2]) : transformer_->reset(kSlots[2]);
    };
    expect_error(call, ErrorCode::invalid_argument, "allowed: 20");
    EXPECT_EQ(logits_of_row(1), logits);
    call();
    expect_error([&] { (void)logits_of_row(1); }, ErrorCode::invalid_argument, "last step of 0");
    verify();
  }
}

// ---- conversation --------------------------------------------------------------------------------------------------

// A document goes in by prefill calls of a batch, the first of which says how long the turn is (STATE-3); the
// question after it, however long, by decode steps (DEC-1); a generated token by one more.
TEST_F(Runtime, ADocumentIsSparseAndTheQuestionAfterItDense) {
  Conversation conversation(*transformer_, 70);
  const InSequence order;
  session_->expect_step(prefill(64, 80));
  session_->expect_step(prefill(16));
  session_->expect_step(decode(64));
  session_->expect_step(decode(6));
  conversation.feed(ids(150));
  session_->expect_step(decode(1));
  conversation.append(3);
  // Where an answer is cut off between two tokens, nothing is open: the next turn follows.
  session_->expect_step(prefill(20));
  conversation.feed(ids(20));
  EXPECT_EQ(conversation.steps(), "p64:80,p16,d64,d6,d1,p20");
  EXPECT_EQ(conversation.tokens(), 171);
}

TEST_F(Runtime, ATurnThatDoesNotFitDoesNotReachTheSession) {
  Conversation conversation(*transformer_, 0);
  conversation.feed(ids(390));
  EXPECT_CALL(*session_, begin(_)).Times(0);
  EXPECT_CALL(*session_, reset()).Times(0);
  expect_error([&] { conversation.feed(ids(11)); }, ErrorCode::capacity_exceeded, "11 tokens after 390");
  EXPECT_EQ(conversation.tokens(), 390);
}

// conversation.hpp: an exception from `progress` ends the turn, and only reset() is legal then.
TEST_F(Runtime, ACancelledTurnIsNotEndedAndResetBeginsAnew) {
  struct Cancelled {};
  Conversation conversation(*transformer_, 10);
  int shown = 0;
  {
    const InSequence order;
    session_->expect_step(prefill(64, 140));
    EXPECT_CALL(*session_, begin(prefill(64)));
    EXPECT_CALL(*session_, attend(0, _, _, _, _, _));
  }
  // After the first layer of the second call.
  EXPECT_THROW(conversation.feed(ids(150),
                                 [&](double) {
                                   if (++shown > layers()) throw Cancelled{};
                                 }),
               Cancelled);
  const int cancelled_at = shown;
  session_->verify();

  EXPECT_CALL(*session_, begin(_));
  EXPECT_CALL(*session_, attend).Times(0);
  expect_error([&] { conversation.append(3); }, ErrorCode::wrong_state, "begin() while a step is open");
  session_->verify();

  {
    const InSequence order;
    EXPECT_CALL(*session_, reset());
    session_->expect_step(prefill(30));
  }
  conversation.reset();
  EXPECT_TRUE(conversation.logits().empty()) << "of the turn before";
  conversation.feed(ids(30));
  EXPECT_EQ(conversation.steps(), "p30");
  EXPECT_EQ(conversation.tokens(), 30);
  EXPECT_EQ(shown, cancelled_at) << "the cancelled turn's observer was left";
}

TEST_F(Runtime, AFailedTurnLeavesNoObserverOfItsOwn) {
  Conversation conversation(*transformer_, 0);
  int progress = 0;
  int watched = 0;
  conversation.set_layer_observer([&](const LayerView&) { ++watched; });
  {
    const InSequence order;
    session_->expect_step_that_fails(prefill(20), 1);
  }
  EXPECT_THROW(conversation.feed(ids(20), [&](double) { ++progress; }), Error);
  session_->verify();
  EXPECT_EQ(progress, 1) << "of the layer that was done";
  const int before = watched;
  EXPECT_GT(before, 0);
  conversation.reset();
  transformer_->run(Step::prefill(20), ids(20));
  EXPECT_EQ(watched, before) << "what feed() observes belongs to feed()";
  EXPECT_EQ(progress, 1);
  transformer_->reset();
  conversation.feed(ids(20));
  EXPECT_GT(watched, before) << "set_layer_observer() is for every turn that follows";
  EXPECT_EQ(progress, 1);
}

TEST_F(Runtime, ATokenThatFailsIsNotCounted) {
  Conversation conversation(*transformer_, 0);
  conversation.feed(ids(20));
  conversation.append(3);
  const std::vector<float> logits(conversation.logits().begin(), conversation.logits().end());
  const std::uint64_t pairs = conversation.pairs().computed;
  {
    const InSequence order;
    session_->expect_step_that_fails(decode(1), 1);
  }
  expect_error([&] { conversation.append(4); }, ErrorCode::internal, "the device is gone");
  session_->verify();
  EXPECT_EQ(conversation.steps(), "p20,d1");
  EXPECT_EQ(conversation.tokens(), 21);
  EXPECT_EQ(conversation.pairs().computed, pairs);
  EXPECT_EQ(std::vector<float>(conversation.logits().begin(), conversation.logits().end()), logits);

  EXPECT_CALL(*session_, attend).Times(0);
  expect_error([&] { conversation.append(4); }, ErrorCode::wrong_state, "reset()");
  expect_error([&] { conversation.feed(ids(5)); }, ErrorCode::wrong_state, "reset()");
  session_->verify();
  conversation.reset();
  conversation.feed(ids(5));
  EXPECT_EQ(conversation.steps(), "p5");
  EXPECT_EQ(conversation.pairs().computed, 15u);
}

// conversation.hpp: recover() takes back what a call began, by abort() of an open step and truncate(); where the
// session cannot be truncated to that, the conversation is empty.
TEST_F(Runtime, WhatACallBeganIsTakenBackOrTheConversationIsEmpty) {
  enum class Left { open_step, refused_step, nothing };
  for (const Left left : {Left::open_step, Left::refused_step, Left::nothing}) {
    SCOPED_TRACE(static_cast<int>(left));
    transformer_->reset();
    Conversation conversation(*transformer_, 0);
    conversation.feed(ids(20));
    const std::vector<float> logits(conversation.logits().begin(), conversation.logits().end());
    const std::uint64_t pairs = conversation.pairs().computed;
    {
      const InSequence order;
      session_->expect_step(prefill(64));
      if (left == Left::refused_step) {
        EXPECT_CALL(*session_, begin(prefill(36)))
            .WillOnce(Throw(Error(ErrorCode::interrupted, "the device is gone")));
      } else {
        EXPECT_CALL(*session_, begin(prefill(36)));
        EXPECT_CALL(*session_, attend(0, _, _, _, _, _))
            .WillOnce(session_->cannot_finish(ErrorCode::interrupted));
      }
      EXPECT_CALL(*session_, abort());
      auto& truncate = EXPECT_CALL(*session_, truncate(20));
      if (left == Left::nothing) {
        truncate.WillOnce(Throw(Error(ErrorCode::unsupported, "not offered")));
        EXPECT_CALL(*session_, reset());
      }
    }
    expect_error([&] { conversation.feed(ids(100)); }, ErrorCode::interrupted, "the device is gone");
    conversation.recover();
    session_->verify();
    if (left == Left::nothing) {
      EXPECT_EQ(conversation.tokens(), 0);
      EXPECT_EQ(conversation.steps(), "");
      EXPECT_EQ(conversation.pairs().computed, 0u);
      EXPECT_TRUE(conversation.logits().empty());
      conversation.append(3);
      EXPECT_EQ(conversation.steps(), "d1");
      conversation.reset();
      conversation.feed(ids(20));
    }
    EXPECT_EQ(conversation.tokens(), 20);
    EXPECT_EQ(conversation.pairs().computed, pairs);
    EXPECT_EQ(std::vector<float>(conversation.logits().begin(), conversation.logits().end()), logits);
    conversation.append(3);
    EXPECT_EQ(conversation.steps(), "p20,d1");
  }
}

// The same after a token of each of several: one that failed, one whose end() did, one that was done.
TEST_F(Slots, TokensOfSeveralAreTakenBack) {
  for (const bool at_the_end : {true, false}) {
    SCOPED_TRACE(at_the_end);
    for (const int slot : kSlots) transformer_->reset(slot);
    std::vector<Conversation> talks;
    std::vector<Conversation*> all;
    talks.reserve(3);
    for (const int slot : kSlots) all.push_back(&talks.emplace_back(*transformer_, 0, slot));
    for (Conversation* const talk : all) talk->feed(ids(20));
    const std::vector<float> logits(talks[1].logits().begin(), talks[1].logits().end());
    {
      const InSequence order;
      expect_begins(3);
      if (at_the_end) {
        for (std::int64_t layer = 0; layer < layers(); ++layer) expect_group(layer, 3, 3);
        EXPECT_CALL(at(0), end());
        EXPECT_CALL(at(1), end()).WillOnce(Throw(Error(ErrorCode::internal, "the device is gone")));
      } else {
        expect_group(0, 3, 1);
        EXPECT_CALL(at(1), attend(0, _, _, _, _, _)).WillOnce(at(1).cannot_finish());
      }
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_CALL(at(i), abort());
        EXPECT_CALL(at(i), truncate(20));
      }
    }
    expect_error([&] { Conversation::append(all, ids(3)); }, ErrorCode::internal, "the device is gone");
    EXPECT_EQ(talks[0].tokens(), at_the_end ? 21 : 20);
    for (Conversation* const talk : all) talk->recover();
    verify();
    for (const Conversation& talk : talks) {
      EXPECT_EQ(talk.tokens(), 20);
      EXPECT_EQ(talk.steps(), "p20");
    }
    EXPECT_EQ(std::vector<float>(talks[1].logits().begin(), talks[1].logits().end()), logits);
    Conversation::append(all, ids(3));
    for (const Conversation& talk : talks) EXPECT_EQ(talk.steps(), "p20,d1");
  }
}

}  // namespace
}  // namespace headwater::mocks
