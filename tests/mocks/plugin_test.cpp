// The kit's adapter over a plug-in whose functions are mocks: what it calls and in which order, what it makes of a status, and
// that a session is closed once. plugin.h is the contract.

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "conformance/case.hpp"
#include "conformance/plugin_engine.hpp"
#include "headwater/error.hpp"
#include "tests/mocks/mock_session.hpp"
#include "tests/mocks/mock_table.hpp"

namespace headwater::mocks {
namespace {

using conformance::Violation;
using ::testing::_;
using ::testing::AnyNumber;
using ::testing::DoAll;
using ::testing::InSequence;
using ::testing::IsNull;
using ::testing::NotNull;
using ::testing::Return;
using ::testing::SaveArg;
using ::testing::SetArgPointee;
using ::testing::StrictMock;

/// The loaded plug-in, its functions, and the engine that the kit makes of it.
class Plugin : public ::testing::Test {
 protected:
  Plugin() { load(MockTable::table()); }

  void load(const headwater_engine_table& wanted) {
    table_ = wanted;
    void* library = ::dlopen(MOCK_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    void* symbol = ::dlsym(library, "mock_plugin_use");
    ASSERT_NE(symbol, nullptr) << ::dlerror();
    reinterpret_cast<void (*)(const headwater_engine_table*)>(symbol)(&table_);
    engine_.reset();
    library_.emplace(MOCK_PLUGIN);
    engine_ = conformance::plugin_engine(*library_);
  }

  /// The calls that open() makes on a new session.
  void expect_questions_of_open() {
    EXPECT_CALL(calls_, session_options(session(), _, sizeof(headwater_effective_options)))
        .Times(AnyNumber())
        .WillRepeatedly(DoAll(SetArgPointee<1>(headwater_effective_options{}), Return(HEADWATER_OK)));
    EXPECT_CALL(calls_, plan_count(session(), _))
        .Times(AnyNumber())
        .WillRepeatedly(DoAll(SetArgPointee<1>(0), Return(HEADWATER_OK)));
    EXPECT_CALL(calls_, warning_count(session(), _))
        .Times(AnyNumber())
        .WillRepeatedly(DoAll(SetArgPointee<1>(0), Return(HEADWATER_OK)));
  }
  std::unique_ptr<Session> open() {
    EXPECT_CALL(calls_, open(_, _, _)).WillOnce(DoAll(SetArgPointee<2>(session()), Return(HEADWATER_OK)));
    expect_questions_of_open();
    return engine_->open(shape_, {});
  }

  /// Only its address is used.
  headwater_session* session() { return reinterpret_cast<headwater_session*>(&place_); }

  void attend(Session& session, std::int64_t layer = 0) {
    session.attend(layer, {rows_.data(), DType::f32, 1, 2}, {rows_.data() + 1, DType::f16, 3, 4},
                   {rows_.data() + 2, DType::bf16, 5, 6}, {rows_.data() + 3, DType::f32, 7, 8});
  }

  /// The Error of a call.
  template <class Call>
  static void expect_error(const Call& call, ErrorCode code, const std::string& text) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(error.what(), text);
    }
  }

  StrictMock<MockTable> calls_;
  headwater_engine_table table_{};
  std::optional<conformance::PluginLibrary> library_;
  std::unique_ptr<Engine> engine_;
  Shape shape_;
  int place_ = 0;
  std::array<float, 8> rows_{};
};

template <class View>
auto points_to(const void* data, std::int32_t type, std::int64_t row_stride, std::int64_t head_stride) {
  return ::testing::Pointee(::testing::AllOf(::testing::Field("data", &View::data, data),
                                             ::testing::Field("type", &View::type, type),
                                             ::testing::Field("row_stride", &View::row_stride, row_stride),
                                             ::testing::Field("head_stride", &View::head_stride, head_stride),
                                             ::testing::Field("reserved", &View::reserved, 0)));
}

TEST_F(Plugin, AStepIsOneCallEachAndTheSessionIsClosedLast) {
  auto opened = open();
  {
    const InSequence order;
    EXPECT_CALL(calls_, begin_prefill(session(), 7, 9)).WillOnce(Return(HEADWATER_OK));
    for (const std::int64_t layer : {1, 0}) {
      EXPECT_CALL(calls_,
                  attend(session(), layer, points_to<headwater_rows>(rows_.data(), HEADWATER_F32, 1, 2),
                         points_to<headwater_rows>(rows_.data() + 1, HEADWATER_F16, 3, 4),
                         points_to<headwater_rows>(rows_.data() + 2, HEADWATER_BF16, 5, 6),
                         points_to<headwater_mutable_rows>(rows_.data() + 3, HEADWATER_F32, 7, 8)))
          .WillOnce(Return(HEADWATER_OK));
    }
    EXPECT_CALL(calls_, end(session())).WillOnce(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, begin_decode(session(), 2)).WillOnce(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, reset(session())).WillOnce(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, close(session()));
  }
  opened->begin(Step::prefill(7, 9));
  attend(*opened, 1);
  attend(*opened, 0);
  opened->end();
  opened->begin(Step::decode(2));
  opened->reset();
  opened.reset();
}

TEST_F(Plugin, OpensWithWhatTheCallerAskedFor) {
  headwater_shape shape{};
  headwater_options options{};
  std::vector<float> sinks;
  EXPECT_CALL(calls_, open(NotNull(), NotNull(), NotNull()))
      .WillOnce(
          [&](const headwater_shape* wanted, const headwater_options* asked, headwater_session** handle) {
            shape = *wanted;
            options = *asked;
            sinks.assign(asked->sinks, asked->sinks + wanted->n_head);
            *handle = session();
            return HEADWATER_OK;
          });
  expect_questions_of_open();
  EXPECT_CALL(calls_, close(session()));
  Options asked;
  asked.batch = 11, asked.chunk = 12, asked.local = 13, asked.heavy = 14, asked.clamp = false;
  asked.softcap = 1.5, asked.sinks = {1, 2, 3, 4, 5, 6}, asked.threads = 15;
  asked.score_type = ScoreType::f32, asked.schedule = Schedule::chunk_major;
  (void)engine_->open({2, 6, 3, 40, 50, 700, DType::bf16}, asked);
  EXPECT_EQ(std::vector({shape.n_layer, shape.n_head, shape.n_head_kv, shape.d_head, shape.d_value,
                         shape.capacity, std::int64_t{shape.kv_type}}),
            (std::vector<std::int64_t>{2, 6, 3, 40, 50, 700, HEADWATER_BF16}));
  EXPECT_EQ(options.struct_size, sizeof options);
  EXPECT_EQ(std::vector({options.batch, options.chunk, options.local, options.heavy}),
            (std::vector<std::int64_t>{11, 12, 13, 14}));
  EXPECT_EQ(options.clamp, 0);
  EXPECT_EQ(options.dense, 0);
  EXPECT_TRUE(std::isnan(options.scale)) << "1 / sqrt(d) is the engine's to choose";
  EXPECT_EQ(options.softcap, 1.5);
  EXPECT_EQ(sinks, asked.sinks);
  EXPECT_EQ(options.alibi, nullptr);
  EXPECT_EQ(options.score_type, HEADWATER_SCORE_F32);
  EXPECT_EQ(options.schedule, HEADWATER_CHUNK_MAJOR);
  EXPECT_EQ(options.threads, 15);
}

// ---- what fails ----------------------------------------------------------------------------------------------------

// The text is valid until the thread's next call (plugin.h): it is read at once.
TEST_F(Plugin, AStatusIsTheErrorOfItsCodeWithTheTextAfterIt) {
  const auto opened = open();
  const InSequence order;
  for (int status = HEADWATER_INVALID_ARGUMENT; status <= HEADWATER_INTERNAL; ++status) {
    EXPECT_CALL(calls_, begin_decode(session(), 1)).WillOnce(Return(status));
    EXPECT_CALL(calls_, last_error()).WillOnce(Return("n is 1; allowed: 2"));
    expect_error([&] { opened->begin(Step::decode()); }, static_cast<ErrorCode>(status),
                 "n is 1; allowed: 2");
  }
  EXPECT_CALL(calls_, attend(session(), 0, _, _, _, _)).WillOnce(Return(HEADWATER_OUT_OF_MEMORY));
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("no memory"));
  expect_error([&] { attend(*opened); }, ErrorCode::out_of_memory, "no memory");
  EXPECT_CALL(calls_, end(session())).WillOnce(Return(HEADWATER_WRONG_STATE));
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("reset() first"));
  expect_error([&] { opened->end(); }, ErrorCode::wrong_state, "reset() first");
  EXPECT_CALL(calls_, close(session()));
}

TEST_F(Plugin, WhatDidNotOpenIsNotClosed) {
  EXPECT_CALL(calls_, open(_, _, _))
      .WillOnce(DoAll(SetArgPointee<2>(nullptr), Return(HEADWATER_OUT_OF_MEMORY)))
      .WillOnce(DoAll(SetArgPointee<2>(session()), Return(HEADWATER_OUT_OF_MEMORY)))
      .WillOnce(DoAll(SetArgPointee<2>(nullptr), Return(HEADWATER_OK)));
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("no memory for keys"));
  EXPECT_CALL(calls_, close(_)).Times(0);
  expect_error([&] { (void)engine_->open(shape_, {}); }, ErrorCode::out_of_memory, "no memory for keys");
  EXPECT_THROW((void)engine_->open(shape_, {}), Violation) << "a session after a failed open()";
  EXPECT_THROW((void)engine_->open(shape_, {}), Violation) << "open() that gave no session";
}

// A session that is there is closed once, whatever fails on the way to the caller.
TEST_F(Plugin, WhatOpenedIsClosedOnceWhereALaterQuestionFails) {
  const auto opens = [&] {
    EXPECT_CALL(calls_, open(_, _, _)).WillOnce(DoAll(SetArgPointee<2>(session()), Return(HEADWATER_OK)));
    EXPECT_CALL(calls_, close(session()));
  };
  const auto options = [&](headwater_status status, std::int32_t sparse) {
    headwater_effective_options said{};
    said.sparse = sparse;
    EXPECT_CALL(calls_, session_options(session(), _, _))
        .WillOnce(DoAll(SetArgPointee<1>(said), Return(status)));
  };
  const auto warnings = [&](headwater_status status, std::int64_t count) {
    EXPECT_CALL(calls_, warning_count(session(), _)).WillOnce(DoAll(SetArgPointee<1>(count), Return(status)));
  };
  opens(), options(HEADWATER_INTERNAL, 0);
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("no options"));
  expect_error([&] { (void)engine_->open(shape_, {}); }, ErrorCode::internal, "no options");

  ::testing::Mock::VerifyAndClearExpectations(&calls_);
  opens(), options(HEADWATER_OK, 2);  // neither 0 nor 1
  EXPECT_THROW((void)engine_->open(shape_, {}), Violation);

  ::testing::Mock::VerifyAndClearExpectations(&calls_);
  opens(), options(HEADWATER_OK, 1), warnings(HEADWATER_OK, -1);
  EXPECT_THROW((void)engine_->open(shape_, {}), Violation);

  ::testing::Mock::VerifyAndClearExpectations(&calls_);
  opens(), options(HEADWATER_OK, 1), warnings(HEADWATER_OK, 1);
  EXPECT_CALL(calls_, warning(session(), 0, _))
      .WillOnce(DoAll(SetArgPointee<2>(nullptr), Return(HEADWATER_OK)));
  EXPECT_THROW((void)engine_->open(shape_, {}), Violation);
}

TEST_F(Plugin, ASessionWithAFailedStepIsClosedAndNothingElse) {
  auto opened = open();
  const InSequence order;
  EXPECT_CALL(calls_, begin_decode(session(), 1)).WillOnce(Return(HEADWATER_OK));
  EXPECT_CALL(calls_, attend(session(), 0, _, _, _, _)).WillOnce(Return(HEADWATER_INTERNAL));
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("broken"));
  EXPECT_CALL(calls_, close(session()));
  opened->begin(Step::decode());
  EXPECT_THROW(attend(*opened), Error);
  opened.reset();
}

// Tables that end before session_failed do not say it: by STATE-5 it follows from the statuses of the steps'
// functions.
TEST_F(Plugin, AnOldTableHasFailedWhereAStatusOfAnOpenStepSaysSo) {
  headwater_engine_table old = MockTable::table();
  old.struct_size = offsetof(headwater_engine_table, session_failed);
  load(old);
  const auto opened = open();
  EXPECT_CALL(calls_, last_error()).WillRepeatedly(Return("a reason"));
  const auto begin_is = [&](headwater_status status) {
    EXPECT_CALL(calls_, begin_decode(session(), 1)).WillOnce(Return(status)).RetiresOnSaturation();
  };
  // Outside of a step nothing fails one.
  begin_is(HEADWATER_WRONG_STATE);
  EXPECT_THROW(opened->begin(Step::decode()), Error);
  EXPECT_FALSE(opened->failed());
  for (int status = HEADWATER_INVALID_ARGUMENT; status <= HEADWATER_INTERNAL; ++status) {
    begin_is(HEADWATER_OK);
    opened->begin(Step::decode());
    EXPECT_CALL(calls_, attend(session(), 0, _, _, _, _)).WillOnce(Return(status)).RetiresOnSaturation();
    EXPECT_THROW(attend(*opened), Error);
    const bool refused = status == HEADWATER_INVALID_ARGUMENT || status == HEADWATER_CAPACITY_EXCEEDED;
    EXPECT_EQ(opened->failed(), !refused) << status;
    EXPECT_CALL(calls_, reset(session())).WillOnce(Return(HEADWATER_OK)).RetiresOnSaturation();
    opened->reset();
    EXPECT_FALSE(opened->failed());
  }
  EXPECT_CALL(calls_, close(session()));
}

TEST_F(Plugin, ANewTableIsAskedWhetherTheStepFailed) {
  const auto opened = open();
  EXPECT_CALL(calls_, session_failed(session(), _))
      .WillOnce(DoAll(SetArgPointee<1>(0), Return(HEADWATER_OK)))
      .WillOnce(DoAll(SetArgPointee<1>(1), Return(HEADWATER_OK)));
  EXPECT_CALL(calls_, close(session()));
  EXPECT_FALSE(opened->failed());
  EXPECT_TRUE(opened->failed());
}

// ---- observer ------------------------------------------------------------------------------------------------------

class PluginObserver : public Plugin {
 protected:
  PluginObserver() : opened_(open()) { EXPECT_CALL(calls_, close(session())); }

  void set(const Observer& observer) {
    EXPECT_CALL(calls_, set_observer(session(), NotNull(), NotNull()))
        .WillOnce(DoAll(SaveArg<1>(&function_), SaveArg<2>(&user_), Return(HEADWATER_OK)))
        .RetiresOnSaturation();
    opened_->set_observer(observer);
  }
  void begin() {
    EXPECT_CALL(calls_, begin_decode(session(), 1)).WillOnce(Return(HEADWATER_OK)).RetiresOnSaturation();
    opened_->begin(Step::decode());
  }
  /// attend() of a plug-in that shows `chunks` records, one after the other.
  void attend_showing(int chunks) {
    EXPECT_CALL(calls_, attend(session(), 0, _, _, _, _))
        .WillOnce([this, chunks] {
          headwater_chunk_record record{};
          record.struct_size = sizeof record;
          for (int i = 0; i < chunks; ++i) function_(user_, &record);
          return HEADWATER_OK;
        })
        .RetiresOnSaturation();
    attend(*opened_);
  }

  std::unique_ptr<Session> opened_;
  headwater_observer function_ = nullptr;
  void* user_ = nullptr;
};

// session.hpp: an exception from an observer fails the step, and only reset() is legal. C cannot be told, so the plug-in is not
// called either.
TEST_F(PluginObserver, WhatItThrowsFailsTheStepUntilReset) {
  struct Stop {};
  int calls = 0;
  set([&](const ChunkRecord&) {
    if (++calls == 1) throw Stop{};
  });
  begin();
  EXPECT_THROW(attend_showing(2), Stop);
  EXPECT_EQ(calls, 1) << "chunks after one that failed are not shown";
  EXPECT_CALL(calls_, session_failed(session(), _))
      .WillRepeatedly(DoAll(SetArgPointee<1>(0), Return(HEADWATER_OK)));
  EXPECT_TRUE(opened_->failed());
  EXPECT_THROW(opened_->begin(Step::decode()), Error);
  EXPECT_THROW(attend(*opened_), Error);
  EXPECT_THROW(opened_->end(), Error);

  EXPECT_CALL(calls_, reset(session())).WillOnce(Return(HEADWATER_INTERNAL)).WillOnce(Return(HEADWATER_OK));
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("not now"));
  EXPECT_THROW(opened_->reset(), Error);
  EXPECT_TRUE(opened_->failed()) << "a reset() that was refused";
  opened_->reset();
  EXPECT_FALSE(opened_->failed());
  begin();
  attend_showing(1);
  EXPECT_EQ(calls, 2) << "an observer survives reset()";
}

TEST_F(PluginObserver, AnEmptyOneIsTakenAway) {
  set([](const ChunkRecord&) {});
  EXPECT_CALL(calls_, set_observer(session(), IsNull(), IsNull())).WillOnce(Return(HEADWATER_OK));
  opened_->set_observer({});
}

// session.hpp: a call that throws leaves the session as it was.
TEST_F(PluginObserver, OneThatIsRefusedIsNotCalled) {
  int first = 0;
  int second = 0;
  set([&](const ChunkRecord&) { ++first; });
  EXPECT_CALL(calls_, set_observer(session(), NotNull(), NotNull())).WillOnce(Return(HEADWATER_INTERNAL));
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("not now"));
  EXPECT_THROW(opened_->set_observer([&](const ChunkRecord&) { ++second; }), Error);
  begin();
  attend_showing(1);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
}

// ---- loading -------------------------------------------------------------------------------------------------------

TEST_F(Plugin, MayNotHaveTheNameOfAnEngineOfTheLibrary) {
  EngineList list;
  ::testing::NiceMock<MockEngine> own;
  const std::array<const Engine*, 1> all{&own};
  EXPECT_CALL(list, engines()).WillRepeatedly(Return(std::span<const Engine* const>(all)));
  EXPECT_CALL(own, name()).WillRepeatedly(Return("mock"));
  EXPECT_THROW(conformance::PluginLibrary{MOCK_PLUGIN}, Error);
}

}  // namespace
}  // namespace headwater::mocks
