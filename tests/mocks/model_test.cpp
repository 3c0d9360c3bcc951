// The transformer and the conversation over an engine and a session that are mocks: which steps they take and in
// which order, and what is left where one fails or is cancelled. The session keeps the engines' own protocol
// (StepMachine) and computes nothing: outputs are zeros.

#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headwater/error.hpp"
#include "optimized/core/config.hpp"
#include "optimized/core/step_machine.hpp"
#include "runtime/generate/conversation.hpp"
#include "tests/mocks/mock_session.hpp"

namespace headwater::mocks {
namespace {

using runtime::Conversation;
using runtime::LayerView;
using runtime::Transformer;
using runtime::TransformerOptions;
using ::testing::_;
using ::testing::InSequence;
using ::testing::Matcher;
using ::testing::Mock;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::ReturnRef;
using ::testing::StrictMock;

std::shared_ptr<const runtime::Model> model() {
  static const auto model = runtime::Model::load(
      std::make_shared<const runtime::GgufFile>(runtime::GgufFile::open(FIXTURES "/qwen3-plain.gguf")), {});
  return model;
}

std::int64_t layers() { return model()->config().layers; }

std::vector<std::int32_t> ids(std::int64_t n, std::int32_t first = 1) {
  std::vector<std::int32_t> result;
  for (std::int64_t i = 0; i < n; ++i) result.push_back(first + static_cast<std::int32_t>(i % 200));
  return result;
}

/// A session that refuses what an engine's would refuse.
class ProtocolSession : public NiceMock<MockSession> {
 public:
  ProtocolSession(const Shape& shape, const Options& asked)
      : shape_(shape), options_(core::resolve(shape, asked, 1)), machine_(shape_, options_) {
    ON_CALL(*this, begin(_)).WillByDefault([this](const Step& step) { machine_.begin(step); });
    ON_CALL(*this, attend).WillByDefault([this](std::int64_t layer, auto&&...) {
      machine_.enter_layer(layer);
    });
    ON_CALL(*this, end()).WillByDefault([this] { machine_.end(); });
    ON_CALL(*this, reset()).WillByDefault([this] { machine_.reset(); });
    ON_CALL(*this, state()).WillByDefault([this] { return machine_.state(); });
    ON_CALL(*this, failed()).WillByDefault([this] { return machine_.failed(); });
    ON_CALL(*this, tokens()).WillByDefault([this] { return machine_.tokens(); });
    ON_CALL(*this, plan()).WillByDefault([this] { return std::span<const Chunk>(machine_.plan()); });
    ON_CALL(*this, shape()).WillByDefault(ReturnRef(shape_));
    ON_CALL(*this, options()).WillByDefault(ReturnRef(options_));
  }

  void expect_step(const Matcher<const Step&>& step) {
    EXPECT_CALL(*this, begin(step));
    for (std::int64_t layer = 0; layer < layers(); ++layer) EXPECT_CALL(*this, attend(layer, _, _, _, _, _));
    EXPECT_CALL(*this, end());
  }
  /// A step whose attend() of `failing` cannot finish (STATE-5).
  void expect_step_that_fails(const Matcher<const Step&>& step, std::int64_t failing) {
    EXPECT_CALL(*this, begin(step));
    for (std::int64_t layer = 0; layer < failing; ++layer) EXPECT_CALL(*this, attend(layer, _, _, _, _, _));
    EXPECT_CALL(*this, attend(failing, _, _, _, _, _)).WillOnce([this](std::int64_t layer, auto&&...) {
      machine_.enter_layer(layer);
      machine_.fail();
      throw Error(ErrorCode::internal, "the device is gone");
    });
  }
  /// Checks the expectations so far; from now on any call is allowed.
  void verify() { Mock::VerifyAndClearExpectations(static_cast<MockSession*>(this)); }

 private:
  Shape shape_;
  EffectiveOptions options_;
  core::StepMachine machine_;
};

template <class Call>
void expect_error(const Call& call, ErrorCode code, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
  }
}

/// Chunks of 32, batches of 64, on a mock.
class Runtime : public ::testing::Test {
 protected:
  Runtime() {
    EXPECT_CALL(list_, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine_));
    EXPECT_CALL(engine_, open(_, _)).WillOnce([this](const Shape& shape, const Options& options) {
      asked_shape_ = shape;
      asked_options_ = options;
      auto owned = std::make_unique<ProtocolSession>(shape, options);
      session_ = owned.get();
      return owned;
    });
    TransformerOptions options;
    options.engine = "mine";
    options.attention.batch = 64;
    options.attention.chunk = 32;
    options.attention.local = 8;
    options.attention.heavy = 8;
    options.cache_type = DType::f16;
    options.capacity = 400;
    transformer_.emplace(model(), options);
  }

  std::vector<float> logits_of_row(std::int64_t row) {
    std::vector<float> logits(static_cast<std::size_t>(model()->config().vocabulary));
    transformer_->logits(row, 1, logits);
    return logits;
  }

  StrictMock<EngineList> list_;
  StrictMock<MockEngine> engine_;
  ProtocolSession* session_ = nullptr;
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
  EXPECT_EQ(&transformer_->engine(), &engine_);
}

TEST(Opening, AnErrorOfTheEngineIsTheTransformers) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  EXPECT_CALL(list, engine(_)).WillOnce(ReturnRef(engine));
  EXPECT_CALL(engine, open(_, _))
      .WillOnce(::testing::Throw(Error(ErrorCode::out_of_memory, "no memory for keys")));
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
  EXPECT_CALL(*session_, end()).WillOnce(::testing::Throw(Error(ErrorCode::internal, "late")));
  EXPECT_THROW(transformer_->run(Step::decode(), ids(1)), Error);
  EXPECT_THROW((void)logits_of_row(0), Error);
}

// A step that begin() refuses leaves the session as it was, and the last step's logits, too.
TEST_F(Runtime, AStepThatIsRefusedChangesNothing) {
  transformer_->run(Step::prefill(20), ids(20));
  const std::vector<float> before = logits_of_row(7);
  EXPECT_CALL(*session_, begin(_)).WillOnce(::testing::Throw(Error(ErrorCode::capacity_exceeded, "full")));
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

}  // namespace
}  // namespace headwater::mocks
