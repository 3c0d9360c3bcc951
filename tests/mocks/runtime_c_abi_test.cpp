// The C ABI of the runtime where engine and session are mocks: whom it asks to stop, and what it takes back where the
// session fails. runtime.h is the contract.

#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwater/error.hpp"
#include "headwater/runtime.h"
#include "tests/mocks/mock_session.hpp"
#include "tests/mocks/protocol_session.hpp"

namespace headwater::mocks {
namespace {

using ::testing::InSequence;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::ReturnRef;
using ::testing::SaveArg;
using ::testing::Throw;

constexpr std::int64_t kLayers = 2;  // of the model

/// A conversation over a session that is a mock.
class RuntimeCAbi : public ::testing::Test {
 protected:
  RuntimeCAbi() {
    ON_CALL(list_, engine(std::string_view("mine"))).WillByDefault(ReturnRef(engine_));
    EXPECT_CALL(engine_, open(_, _)).WillOnce([this](const Shape& shape, const Options& options) {
      EXPECT_EQ(shape.n_layer, kLayers);
      auto owned = std::make_unique<ProtocolSession>(shape, options);
      session_ = owned.get();
      return owned;
    });
    EXPECT_EQ(headwater_model_open(FIXTURES "/qwen3-plain.gguf", HEADWATER_PROJECTIONS_F32, &model_),
              HEADWATER_OK);
    headwater_conversation_options asked;
    EXPECT_EQ(headwater_conversation_options_init(&asked, sizeof asked), HEADWATER_OK);
    asked.engine = "mine", asked.capacity = 400, asked.dense_tail = 0;
    EXPECT_EQ(headwater_conversation_open(model_, &asked, &talk_), HEADWATER_OK)
        << headwater_runtime_last_error();
  }
  ~RuntimeCAbi() override {
    headwater_conversation_close(talk_);
    headwater_model_close(model_);
  }
  headwater_status feed(std::int64_t n) { return headwater_conversation_feed(talk_, ids(n).data(), n); }
  std::int64_t tokens() const {
    std::int64_t tokens = -1;
    EXPECT_EQ(headwater_conversation_tokens(talk_, &tokens), HEADWATER_OK);
    return tokens;
  }
  void expect_taken_back_to(std::int64_t tokens) {
    EXPECT_CALL(*session_, abort());
    EXPECT_CALL(*session_, truncate(tokens));
  }

  NiceMock<EngineList> list_;
  NiceMock<MockEngine> engine_;
  ProtocolSession* session_ = nullptr;
  headwater_model* model_ = nullptr;
  headwater_conversation* talk_ = nullptr;
};

/// Counts the questions, and answers the one with number `stops_at`.
struct Asked {
  int questions = 0;
  int stops_at = 0;
  std::int32_t answer = 1;
  static std::int32_t ask(void* user) {
    auto* const self = static_cast<Asked*>(user);
    return ++self->questions == self->stops_at ? self->answer : 0;
  }
};

// An engine with interrupts gets the caller's, which NULL takes away; another one's session is never called.
TEST_F(RuntimeCAbi, TheSessionIsToldWhomToAskIfTheEngineHasInterrupts) {
  Asked asked{0, 2, std::numeric_limits<std::int32_t>::min()};
  EXPECT_CALL(*session_, set_interrupt(_)).Times(0);
  EXPECT_EQ(headwater_conversation_set_interrupt(talk_, Asked::ask, &asked), HEADWATER_OK);
  session_->verify();
  Claims claims;
  claims.interrupt = true;
  ON_CALL(engine_, claims()).WillByDefault(Return(claims));
  Interrupt set;
  Interrupt unset = [] { return true; };
  {
    const InSequence order;
    EXPECT_CALL(*session_, set_interrupt(_)).WillOnce(SaveArg<0>(&set));
    EXPECT_CALL(*session_, set_interrupt(_)).WillOnce(SaveArg<0>(&unset));
    EXPECT_CALL(*session_, set_interrupt(_)).WillOnce(Throw(Error(ErrorCode::wrong_state, "in a call")));
  }
  ASSERT_EQ(headwater_conversation_set_interrupt(talk_, Asked::ask, &asked), HEADWATER_OK);
  ASSERT_TRUE(set);
  EXPECT_FALSE(set());
  EXPECT_TRUE(set());
  EXPECT_EQ(headwater_conversation_set_interrupt(talk_, nullptr, &asked), HEADWATER_OK);
  EXPECT_FALSE(unset) << "an interrupt was left";
  EXPECT_EQ(headwater_conversation_set_interrupt(talk_, Asked::ask, &asked), HEADWATER_WRONG_STATE);
  EXPECT_STREQ(headwater_runtime_last_error(), "in a call");
}

// Between the layers the runtime asks by itself.
TEST_F(RuntimeCAbi, AnInterruptIsAskedAfterEachLayerAndTakesTheTurnBack) {
  ASSERT_EQ(feed(20), HEADWATER_OK);
  Asked asked{0, 2};
  ASSERT_EQ(headwater_conversation_set_interrupt(talk_, Asked::ask, &asked), HEADWATER_OK);
  {
    const InSequence order;
    EXPECT_CALL(*session_, begin(prefill(10)));
    EXPECT_CALL(*session_, attend(0, _, _, _, _, _));
    EXPECT_CALL(*session_, attend(1, _, _, _, _, _));
    expect_taken_back_to(20);
  }
  EXPECT_EQ(feed(10), HEADWATER_INTERRUPTED);
  EXPECT_STREQ(headwater_runtime_last_error(), "the interrupt asked to stop");
  session_->verify();
  EXPECT_EQ(asked.questions, 2);
  EXPECT_EQ(tokens(), 20);
  asked = {};
  EXPECT_EQ(feed(10), HEADWATER_OK);
  EXPECT_EQ(asked.questions, kLayers);
  EXPECT_EQ(tokens(), 30);
}

// Whatever the session throws is a status. A step that it refused has not begun; all else is taken back, and the next
// call works.
TEST_F(RuntimeCAbi, WhatTheSessionThrowsIsTakenBackUnlessItWasRefused) {
  const struct {
    bool refused;
    std::function<void()> fail;
    headwater_status status;
    const char* text;
  } cases[] = {
      {true, [] { throw Error(ErrorCode::invalid_argument, "n is 3"); }, HEADWATER_INVALID_ARGUMENT,
       "n is 3"},
      {true, [] { throw Error(ErrorCode::capacity_exceeded, "full"); }, HEADWATER_CAPACITY_EXCEEDED, "full"},
      {false, [] { throw Error(ErrorCode::interrupted, "asked"); }, HEADWATER_INTERRUPTED, "asked"},
      {false, [] { throw Error(ErrorCode::out_of_memory, "no page"); }, HEADWATER_OUT_OF_MEMORY, "no page"},
      {false, [] { throw Error(ErrorCode::internal, "gone"); }, HEADWATER_INTERNAL, "gone"},
      {false, [] { throw std::bad_alloc(); }, HEADWATER_OUT_OF_MEMORY, "out of memory"},
      {false, [] { throw std::runtime_error("a vector of none"); }, HEADWATER_INTERNAL, "a vector of none"},
      {false, [] { throw 7; }, HEADWATER_INTERNAL, "an exception of unknown type (from the observer?)"}};
  ASSERT_EQ(feed(20), HEADWATER_OK);
  for (const auto& one : cases) {
    for (const bool appends : {false, true}) {
      SCOPED_TRACE(std::string(one.text) + (appends ? ", append" : ", feed"));
      const std::int64_t before = tokens();
      EXPECT_CALL(*session_, reset()).Times(0);
      {
        const InSequence order;
        if (one.refused) {
          EXPECT_CALL(*session_, begin(_)).WillOnce([&](auto&&...) { one.fail(); });
          EXPECT_CALL(*session_, abort()).Times(0);
          EXPECT_CALL(*session_, truncate(_)).Times(0);
        } else {
          EXPECT_CALL(*session_, begin(_));
          EXPECT_CALL(*session_, attend(0, _, _, _, _, _));
          EXPECT_CALL(*session_, attend(1, _, _, _, _, _)).WillOnce([&](auto&&...) { one.fail(); });
          EXPECT_CALL(*session_, end()).Times(0);
          expect_taken_back_to(before);
        }
      }
      EXPECT_EQ(appends ? headwater_conversation_append(talk_, 3) : feed(5), one.status);
      EXPECT_STREQ(headwater_runtime_last_error(), one.text);
      session_->verify();
      EXPECT_EQ(tokens(), before);
      EXPECT_EQ(headwater_conversation_append(talk_, 3), HEADWATER_OK) << headwater_runtime_last_error();
      EXPECT_EQ(tokens(), before + 1);
    }
  }
}

// A fork that the session refuses, or that finds no memory, is none, and nobody notices.
TEST_F(RuntimeCAbi, AForkThatFailsIsNone) {
  ASSERT_EQ(feed(20), HEADWATER_OK);
  const struct {
    std::function<std::unique_ptr<Session>()> fork;
    headwater_status status;
    const char* text;
  } cases[] = {{[]() -> std::unique_ptr<Session> { throw Error(ErrorCode::unsupported, "fork() by mine"); },
                HEADWATER_UNSUPPORTED, "fork() by mine"},
               {[]() -> std::unique_ptr<Session> { throw Error(ErrorCode::out_of_memory, "no page"); },
                HEADWATER_OUT_OF_MEMORY, "no page"},
               {[]() -> std::unique_ptr<Session> { throw std::bad_alloc(); }, HEADWATER_OUT_OF_MEMORY,
                "out of memory"}};
  for (const auto& one : cases) {
    EXPECT_CALL(*session_, fork()).WillOnce(one.fork);
    headwater_conversation* fork = talk_;
    EXPECT_EQ(headwater_conversation_fork(talk_, &fork), one.status);
    EXPECT_STREQ(headwater_runtime_last_error(), one.text);
    EXPECT_EQ(fork, nullptr);
    session_->verify();
    EXPECT_EQ(tokens(), 20);
    EXPECT_EQ(headwater_conversation_append(talk_, 3), HEADWATER_OK) << headwater_runtime_last_error();
    EXPECT_CALL(*session_, truncate(20));
    EXPECT_EQ(headwater_conversation_truncate(talk_, 20), HEADWATER_OK);
    session_->verify();
  }
}

// The fork runs over the session that it was given, which asks nobody to stop, and leaves the other one's alone.
TEST_F(RuntimeCAbi, AForkHasASessionOfItsOwn) {
  Asked asked{0, 1};
  Claims claims;
  claims.interrupt = true;
  ON_CALL(engine_, claims()).WillByDefault(Return(claims));
  EXPECT_CALL(*session_, set_interrupt(_));
  ASSERT_EQ(headwater_conversation_set_interrupt(talk_, Asked::ask, &asked), HEADWATER_OK);
  auto owned = std::make_unique<ProtocolSession>(session_->shape(), Options{});
  ProtocolSession* const own = owned.get();
  bool destroyed = false;
  own->on_destruction = [&] { destroyed = true; };
  EXPECT_CALL(*session_, fork()).WillOnce([&] { return std::move(owned); });
  EXPECT_CALL(*own, set_interrupt(_)).Times(0);
  headwater_conversation* fork = nullptr;
  ASSERT_EQ(headwater_conversation_fork(talk_, &fork), HEADWATER_OK);
  EXPECT_CALL(*session_, begin(_)).Times(0);
  own->expect_step(prefill(5));
  EXPECT_EQ(headwater_conversation_feed(fork, ids(5).data(), 5), HEADWATER_OK);
  EXPECT_EQ(asked.questions, 0);
  EXPECT_EQ(tokens(), 0);
  own->verify();
  headwater_conversation_close(fork);
  EXPECT_TRUE(destroyed);
}

// What the session does not give up is kept with its logits.
TEST_F(RuntimeCAbi, ATruncationThatFailsChangesNothing) {
  ASSERT_EQ(feed(20), HEADWATER_OK);
  const float* logits = nullptr;
  std::int64_t count = 0;
  EXPECT_CALL(*session_, truncate(5)).WillOnce(Throw(Error(ErrorCode::invalid_argument, "n is 5")));
  EXPECT_EQ(headwater_conversation_truncate(talk_, 5), HEADWATER_INVALID_ARGUMENT);
  EXPECT_STREQ(headwater_runtime_last_error(), "n is 5");
  EXPECT_EQ(tokens(), 20);
  EXPECT_EQ(headwater_conversation_logits(talk_, &logits, &count), HEADWATER_OK);
}

}  // namespace
}  // namespace headwater::mocks
