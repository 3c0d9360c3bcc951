// The kit's adapter over a plug-in whose functions are mocks: what it calls and in which order, what it makes of a status, and
// that a session is closed once. plugin.h is the contract.

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "conformance/case.hpp"
#include "conformance/plugin_engine.hpp"
#include "conformance/session_files.hpp"
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

  void attend(Session& session, std::int64_t layer = 0, const LseOutput& lse = {}) {
    session.attend(layer, {rows_.data(), DType::f32, 1, 2}, {rows_.data() + 1, DType::f16, 3, 4},
                   {rows_.data() + 2, DType::bf16, 5, 6}, {rows_.data() + 3, DType::f32, 7, 8}, lse);
  }

  /// What plan_count() and plan_chunk() say from now on.
  void plan_is(const std::vector<Chunk>& plan) {
    EXPECT_CALL(calls_, plan_count(session(), _))
        .WillRepeatedly(
            DoAll(SetArgPointee<1>(static_cast<std::int64_t>(plan.size())), Return(HEADWATER_OK)));
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const headwater_chunk chunk{plan[i].begin, plan[i].end, static_cast<std::int32_t>(plan[i].mode), 0};
      EXPECT_CALL(calls_, plan_chunk(session(), static_cast<std::int64_t>(i), _))
          .WillRepeatedly(DoAll(SetArgPointee<2>(chunk), Return(HEADWATER_OK)));
    }
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

auto is_lse(const float* data, std::int64_t row_stride, std::int64_t head_stride) {
  using Output = headwater_lse_output;
  return ::testing::Pointee(
      ::testing::AllOf(::testing::Field("data", &Output::data, data),
                       ::testing::Field("row_stride", &Output::row_stride, row_stride),
                       ::testing::Field("head_stride", &Output::head_stride, head_stride)));
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
    EXPECT_CALL(calls_, attend_lse(session(), 1, points_to<headwater_rows>(rows_.data(), HEADWATER_F32, 1, 2),
                                   points_to<headwater_rows>(rows_.data() + 1, HEADWATER_F16, 3, 4),
                                   points_to<headwater_rows>(rows_.data() + 2, HEADWATER_BF16, 5, 6),
                                   points_to<headwater_mutable_rows>(rows_.data() + 3, HEADWATER_F32, 7, 8),
                                   is_lse(rows_.data() + 4, 9, 10)))
        .WillOnce(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, abort(session())).WillOnce(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, truncate(session(), 5)).WillOnce(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, reset(session())).WillOnce(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, close(session()));
  }
  opened->begin(Step::prefill(7, 9));
  attend(*opened, 1);
  attend(*opened, 0);
  opened->end();
  opened->begin(Step::decode(2));
  attend(*opened, 1, {rows_.data() + 4, 9, 10});
  opened->abort();
  opened->truncate(5);
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
  const ParallelFor in_turn = [](void*, std::int64_t n, void (*body)(void*, std::int64_t), void* argument) {
    for (std::int64_t i = 0; i < n; ++i) body(argument, i);
  };
  asked.checkpoints = 16, asked.parallel_for = in_turn, asked.parallel_context = &shape;
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
  EXPECT_EQ(options.checkpoints, 16);
  EXPECT_EQ(options.parallel_for, in_turn);
  EXPECT_EQ(options.parallel_context, &shape);
}

TEST_F(Plugin, SaysItsCheckpoints) {
  headwater_effective_options said{};
  said.checkpoints = 17;
  EXPECT_CALL(calls_, open(_, _, _)).WillOnce(DoAll(SetArgPointee<2>(session()), Return(HEADWATER_OK)));
  expect_questions_of_open();
  EXPECT_CALL(calls_, session_options(session(), _, _))
      .WillOnce(DoAll(SetArgPointee<1>(said), Return(HEADWATER_OK)));
  EXPECT_CALL(calls_, close(session()));
  EXPECT_EQ(engine_->open(shape_, {})->options().checkpoints, 17);
}

// ---- what fails ----------------------------------------------------------------------------------------------------

// The text is valid until the thread's next call (plugin.h): it is read at once.
TEST_F(Plugin, AStatusIsTheErrorOfItsCodeWithTheTextAfterIt) {
  const auto opened = open();
  const InSequence order;
  for (int status = HEADWATER_INVALID_ARGUMENT; status <= HEADWATER_UNSUPPORTED; ++status) {
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
  old.claims = 0;
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
  for (int status = HEADWATER_INVALID_ARGUMENT; status <= HEADWATER_UNSUPPORTED; ++status) {
    begin_is(HEADWATER_OK);
    opened->begin(Step::decode());
    EXPECT_CALL(calls_, attend(session(), 0, _, _, _, _)).WillOnce(Return(status)).RetiresOnSaturation();
    EXPECT_THROW(attend(*opened), Error);
    const bool refused = status == HEADWATER_INVALID_ARGUMENT || status == HEADWATER_CAPACITY_EXCEEDED ||
                         status == HEADWATER_UNSUPPORTED;
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

// ---- what is claimed ------------------------------------------------------------------------------------------------

// A function without its claim is never called: the mock would fail the test.
TEST_F(Plugin, WhatIsNotClaimedIsRefusedWithoutACall) {
  headwater_engine_table silent = MockTable::table();
  silent.claims = 0;
  load(silent);
  const auto opened = open();
  EXPECT_CALL(calls_, close(session()));
  const std::string allowed = " is not offered by this engine; allowed: an engine that claims it";
  expect_error([&] { opened->abort(); }, ErrorCode::unsupported, "abort()" + allowed);
  expect_error([&] { opened->truncate(0); }, ErrorCode::unsupported, "truncate()" + allowed);
  expect_error([&] { opened->set_interrupt([] { return false; }); }, ErrorCode::unsupported,
               "set_interrupt()" + allowed);
  expect_error(
      [&] {
        attend(*opened, 0, {rows_.data() + 4, 9, 10});
      },
      ErrorCode::unsupported, "lse of attend()" + allowed);
  Options options;
  options.checkpoints = 3;
  expect_error([&] { (void)engine_->open(shape_, options); }, ErrorCode::unsupported,
               "checkpoints is 3; allowed: 0: the plug-in does not claim truncate");
  options = {};
  options.layers.resize(2);
  expect_error([&] { (void)engine_->open(shape_, options); }, ErrorCode::unsupported,
               "layers has 2 entries; allowed: none: the plug-in does not claim layers");
  options = {};
  options.kv_owner = KvOwner::caller;
  expect_error([&] { (void)engine_->open(shape_, options); }, ErrorCode::unsupported,
               "kv_owner is 1 (caller); allowed: 0 (session): the plug-in does not claim stored_rows");
  expect_error([&] { (void)opened->fork(); }, ErrorCode::unsupported, "fork()" + allowed);
  expect_error([&] { opened->attend_stored(0, {}, {}, {}); }, ErrorCode::unsupported,
               "attend_stored()" + allowed);
  expect_error([&] { conformance::save_session(*engine_, *opened, "file", ""); }, ErrorCode::unsupported,
               "save()" + allowed);
  expect_error([&] { (void)conformance::load_session(*engine_, shape_, {}, "file", ""); },
               ErrorCode::unsupported, "load()" + allowed);
  EXPECT_CALL(calls_, begin_decode(session(), 1)).WillOnce(Return(HEADWATER_OK));
  opened->begin(Step::decode());
  const Rows rows{rows_.data(), DType::f32, 1, 2};
  expect_error([&] { opened->attend(0, {}, rows, rows, {}); }, ErrorCode::unsupported,
               "attend() without queries" + allowed);
}

// A fork is a session of its own, which is closed by itself; its handle is not believed either.
TEST_F(Plugin, AForkIsASessionOfItsOwn) {
  int place = 0;
  auto* const handle = reinterpret_cast<headwater_session*>(&place);
  shape_.capacity = 4;
  auto opened = open();
  plan_is({{0, 4, ChunkMode::sparse}});
  EXPECT_CALL(calls_, begin_prefill(session(), 4, 0)).WillOnce(Return(HEADWATER_OK));
  opened->begin(Step::prefill(4));
  EXPECT_CALL(calls_, session_options(handle, _, _))
      .WillOnce(DoAll(SetArgPointee<1>(headwater_effective_options{}), Return(HEADWATER_OK)));
  EXPECT_CALL(calls_, warning_count(handle, _)).WillOnce(DoAll(SetArgPointee<1>(0), Return(HEADWATER_OK)));
  EXPECT_CALL(calls_, fork(session(), _)).WillOnce(DoAll(SetArgPointee<1>(handle), Return(HEADWATER_OK)));
  auto forked = opened->fork();
  EXPECT_EQ(forked->chunks().size(), 1U);
  EXPECT_CALL(calls_, fork(session(), _))
      .WillOnce(DoAll(SetArgPointee<1>(handle), Return(HEADWATER_OUT_OF_MEMORY)))
      .WillOnce(DoAll(SetArgPointee<1>(nullptr), Return(HEADWATER_OK)))
      .WillOnce(DoAll(SetArgPointee<1>(nullptr), Return(HEADWATER_WRONG_STATE)));
  EXPECT_THROW((void)opened->fork(), Violation) << "a session after a failed fork()";
  EXPECT_THROW((void)opened->fork(), Violation) << "fork() that gave no session";
  EXPECT_CALL(calls_, last_error()).WillOnce(Return("a step is open"));
  expect_error([&] { (void)opened->fork(); }, ErrorCode::wrong_state, "a step is open");
  const InSequence order;
  EXPECT_CALL(calls_, close(session()));
  EXPECT_CALL(calls_, reset(handle)).WillOnce(Return(HEADWATER_OK));
  EXPECT_CALL(calls_, close(handle));
  opened.reset();
  forked->reset();
  forked.reset();
}

// LAYER-1: entries lie layer_size bytes apart, more than this header's; what is not said is NaN or NULL, no sinks are -inf.
TEST_F(Plugin, OpensWithOptionsOfLayers) {
  std::vector<headwater_layer_options> said;
  std::vector<std::vector<float>> sinks;
  EXPECT_CALL(calls_, open(_, _, _))
      .WillOnce(
          [&](const headwater_shape* shape, const headwater_options* asked, headwater_session** handle) {
            EXPECT_GT(asked->layer_size, sizeof(headwater_layer_options));
            EXPECT_EQ(asked->kv_owner, HEADWATER_KV_OF_CALLER);
            EXPECT_EQ(asked->page, 512);
            for (std::int64_t l = 0; l < asked->layer_count; ++l) {
              const auto* at = reinterpret_cast<const unsigned char*>(asked->layers) +
                               static_cast<std::size_t>(l) * asked->layer_size;
              headwater_layer_options entry;
              std::memcpy(&entry, at, sizeof entry);
              said.push_back(entry);
              sinks.emplace_back();
              if (entry.sinks != nullptr) sinks.back().assign(entry.sinks, entry.sinks + shape->n_head);
            }
            *handle = session();
            return HEADWATER_OK;
          });
  expect_questions_of_open();
  EXPECT_CALL(calls_, close(session()));
  Options asked;
  asked.kv_owner = KvOwner::caller, asked.page = 512;
  asked.layers = {{.window = 5, .sinks = std::vector<float>{}},
                  {.scale = 0.25, .softcap = 7.0},
                  {.sinks = std::vector<float>{1, 2}}};
  const Shape shape{.n_layer = 3, .n_head = 2, .n_head_kv = 1, .d_head = 4, .d_value = 4, .capacity = 8};
  EXPECT_EQ(engine_->open(shape, asked)->options().window(0), 5);
  ASSERT_EQ(said.size(), 3U);
  EXPECT_EQ(said[0].window, 5);
  EXPECT_TRUE(std::isnan(said[0].scale) && std::isnan(said[0].softcap));
  EXPECT_EQ(said[1].scale, 0.25);
  EXPECT_EQ(said[1].softcap, 7.0);
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(sinks, (std::vector<std::vector<float>>{{none, none}, {}, {1, 2}}));
  asked.layers[1].sinks = std::vector<float>(3);
  expect_error([&] { (void)engine_->open(shape, asked); }, ErrorCode::invalid_argument,
               "layers[1].sinks has 3 entries; allowed: 0 or n_head = 2");
  asked.layers[1] = {.softcap = std::nan("")};
  expect_error([&] { (void)engine_->open(shape, asked); }, ErrorCode::invalid_argument,
               "layers[1].softcap is nan; allowed: a finite number");
}

TEST_F(Plugin, RowsOfTheCallerAreHandedOver) {
  const auto opened = open();
  const std::array<std::int32_t, 2> pages{4, 1};
  const StoredRows rows{rows_.data(), rows_.data() + 1, 6, 7, 8, 9, 10, pages.data(), 2, 3, 5, 11, 12};
  EXPECT_CALL(calls_, attend_stored(session(), 2, _, _, _, NotNull()))
      .WillOnce([&](headwater_session*, std::int64_t, const headwater_rows* q,
                    const headwater_stored_rows* stored, const headwater_mutable_rows* out,
                    const headwater_lse_output* lse) {
        EXPECT_EQ(q->data, rows_.data() + 2);
        EXPECT_EQ(out->data, rows_.data() + 3);
        EXPECT_EQ(lse->data, rows_.data() + 4);
        EXPECT_EQ(stored->struct_size, sizeof *stored);
        EXPECT_EQ(stored->keys, rows.keys);
        EXPECT_EQ(stored->values, rows.values);
        EXPECT_EQ(std::vector({stored->rows, stored->key_row_stride, stored->key_head_stride,
                               stored->value_row_stride, stored->value_head_stride, stored->table_size,
                               stored->page_rows, stored->pages, stored->key_page_stride,
                               stored->value_page_stride}),
                  (std::vector<std::int64_t>{6, 7, 8, 9, 10, 2, 3, 5, 11, 12}));
        EXPECT_EQ(std::vector(stored->table, stored->table + 2), (std::vector<std::int32_t>{4, 1}));
        return HEADWATER_OK;
      });
  opened->attend_stored(2, {rows_.data() + 2, DType::f32, 1, 2}, rows, {rows_.data() + 3, DType::f32, 3, 4},
                        {rows_.data() + 4, 1, 1});
  // DEC-2: no queries and no outputs are NULL, and so are no log-sum-exps.
  EXPECT_CALL(calls_, attend_stored(session(), 0, IsNull(), NotNull(), IsNull(), IsNull()))
      .WillOnce(Return(HEADWATER_OK));
  opened->attend_stored(0, {}, rows, {}, {});
  EXPECT_CALL(calls_, attend(session(), 0, IsNull(), NotNull(), NotNull(), IsNull()))
      .WillOnce(Return(HEADWATER_OK));
  const Rows own{rows_.data(), DType::f32, 1, 2};
  opened->attend(0, {}, own, own, {});
  EXPECT_CALL(calls_, attend_stored(_, _, _, _, _, _))
      .WillOnce([&](headwater_session*, std::int64_t, const headwater_rows*,
                    const headwater_stored_rows* stored, const headwater_mutable_rows*,
                    const headwater_lse_output*) {
        const_cast<std::int32_t*>(stored->table)[1] = 0;
        return HEADWATER_OK;
      });
  EXPECT_THROW(opened->attend_stored(0, own, rows, {rows_.data() + 3, DType::f32, 3, 4}, {}), Violation);
  EXPECT_CALL(calls_, close(session()));
}

// STATE-12: a session that was loaded says itself which chunks it holds.
TEST_F(Plugin, SavesAndLoadsByItsOwnFunctions) {
  headwater_engine_table saves = MockTable::table();
  saves.claims = HEADWATER_CLAIM_SAVE;
  load(saves);
  shape_.capacity = 20;
  EXPECT_CALL(calls_, load(NotNull(), NotNull(), ::testing::StrEq("file"), ::testing::StrEq("a model"), _))
      .WillOnce(DoAll(SetArgPointee<4>(session()), Return(HEADWATER_OK)));
  expect_questions_of_open();
  const auto loaded = conformance::load_session(*engine_, shape_, {}, "file", "a model");
  const auto chunk_is = [&](std::int64_t memory_count) {
    EXPECT_CALL(calls_, session_chunk_count(session(), _))
        .WillOnce(DoAll(SetArgPointee<1>(1), Return(HEADWATER_OK)));
    EXPECT_CALL(calls_, session_chunk(session(), 0, _, _))
        .WillOnce(DoAll(SetArgPointee<2>(headwater_chunk{0, 7, HEADWATER_CHUNK_DECODE, 0}),
                        SetArgPointee<3>(memory_count), Return(HEADWATER_OK)));
  };
  chunk_is(0);
  EXPECT_EQ(loaded->chunks().back().end, 7);
  chunk_is(3);
  EXPECT_THROW((void)loaded->chunks(), Violation) << "a decode step reads no memory set";
  EXPECT_CALL(calls_, session_chunk_count(session(), _))
      .WillOnce(DoAll(SetArgPointee<1>(21), Return(HEADWATER_OK)));
  EXPECT_THROW((void)loaded->chunks(), Violation) << "every chunk has a token";
  EXPECT_CALL(calls_, save(session(), ::testing::StrEq("file"), IsNull())).WillOnce(Return(HEADWATER_OK));
  conformance::save_session(*engine_, *loaded, "file", "");
  EXPECT_CALL(calls_, load(_, _, _, IsNull(), _))
      .WillOnce(DoAll(SetArgPointee<4>(nullptr), Return(HEADWATER_OK)));
  EXPECT_THROW((void)conformance::load_session(*engine_, shape_, {}, "file", ""), Violation);
  EXPECT_CALL(calls_, close(session()));
}

// Tables end where their header ended: before session_failed, before abort, or anywhere after it.
TEST_F(Plugin, ATableThatEndsBeforeAFunctionDoesWithoutIt) {
  headwater_engine_table older = MockTable::table();
  older.struct_size = offsetof(headwater_engine_table, abort);
  older.claims = 0;
  load(older);
  {
    const auto opened = open();
    EXPECT_CALL(calls_, session_failed(session(), _))
        .WillOnce(DoAll(SetArgPointee<1>(1), Return(HEADWATER_OK)));
    EXPECT_TRUE(opened->failed()) << "this table has session_failed";
    EXPECT_CALL(calls_, close(session()));
  }
  older.struct_size = offsetof(headwater_engine_table, set_interrupt);
  older.claims = HEADWATER_CLAIM_ABORT | HEADWATER_CLAIM_TRUNCATE;
  load(older);
  const auto opened = open();
  EXPECT_CALL(calls_, truncate(session(), 0)).WillOnce(Return(HEADWATER_OK));
  opened->truncate(0);
  EXPECT_CALL(calls_, close(session()));
}

TEST_F(Plugin, AClaimWithoutItsFunctionIsRefusedInOneLine) {
  struct {
    std::uint64_t claim;
    const char* function;
    std::size_t offset;
  } const claims[] = {
      {HEADWATER_CLAIM_ABORT, "abort", offsetof(headwater_engine_table, abort)},
      {HEADWATER_CLAIM_TRUNCATE, "truncate", offsetof(headwater_engine_table, truncate)},
      {HEADWATER_CLAIM_INTERRUPT, "set_interrupt", offsetof(headwater_engine_table, set_interrupt)},
      {HEADWATER_CLAIM_LSE, "attend_lse", offsetof(headwater_engine_table, attend_lse)},
      {HEADWATER_CLAIM_ESTIMATE, "estimate", offsetof(headwater_engine_table, estimate)},
      {HEADWATER_CLAIM_FORK, "fork", offsetof(headwater_engine_table, fork)},
      {HEADWATER_CLAIM_STORED_ROWS, "attend_stored", offsetof(headwater_engine_table, attend_stored)},
      {HEADWATER_CLAIM_SAVE, "save", offsetof(headwater_engine_table, save)},
      {HEADWATER_CLAIM_SAVE, "load", offsetof(headwater_engine_table, load)},
      {HEADWATER_CLAIM_SAVE, "session_chunk_count", offsetof(headwater_engine_table, session_chunk_count)},
      {HEADWATER_CLAIM_SAVE, "session_chunk", offsetof(headwater_engine_table, session_chunk)}};
  for (const auto& [claim, function, offset] : claims) {
    const std::string said = std::string(MOCK_PLUGIN) + ": its table makes a claim and has no function " +
                             function + " for it; allowed: a table with both or neither";
    headwater_engine_table table = MockTable::table();
    table.claims = claim;
    load(table);  // with its function
    table.struct_size = offset;
    expect_error([&] { load(table); }, ErrorCode::invalid_argument, said);
    table.struct_size = sizeof table;
    std::memset(reinterpret_cast<unsigned char*>(&table) + offset, 0, sizeof(void*));
    expect_error([&] { load(table); }, ErrorCode::invalid_argument, said);
    table.claims = 0;
    load(table);  // without its claim
  }
}

// No table has a question for the chunks of all steps: the kit derives them (STATE-8, STATE-9).
TEST_F(Plugin, ChunksFollowAbortAndTruncate) {
  shape_.capacity = 20;
  const auto opened = open();
  EXPECT_CALL(calls_, begin_prefill(session(), _, 0)).WillRepeatedly(Return(HEADWATER_OK));
  EXPECT_CALL(calls_, begin_decode(session(), 1)).WillRepeatedly(Return(HEADWATER_OK));
  EXPECT_CALL(calls_, abort(session())).WillRepeatedly(Return(HEADWATER_OK));
  EXPECT_CALL(calls_, close(session()));
  const auto ends = [&] {
    std::vector<std::int64_t> all;
    for (const Chunk& chunk : opened->chunks()) all.push_back(chunk.end);
    return all;
  };
  using Ends = std::vector<std::int64_t>;
  plan_is({{0, 4, ChunkMode::sparse}, {4, 8, ChunkMode::sparse}, {8, 9, ChunkMode::sparse}});
  opened->begin(Step::prefill(9));
  EXPECT_CALL(calls_, end(session())).WillRepeatedly(Return(HEADWATER_OK));
  opened->end();
  plan_is({{9, 10, ChunkMode::decode}});
  opened->begin(Step::decode());
  EXPECT_EQ(ends(), (Ends{4, 8, 9, 10}));
  EXPECT_CALL(calls_, truncate(session(), 3)).WillOnce(Return(HEADWATER_WRONG_STATE)).RetiresOnSaturation();
  EXPECT_CALL(calls_, last_error()).WillRepeatedly(Return("a step is open"));
  expect_error([&] { opened->truncate(3); }, ErrorCode::wrong_state, "a step is open");
  EXPECT_EQ(ends(), (Ends{4, 8, 9, 10})) << "a truncate() that was refused";
  opened->abort();
  EXPECT_EQ(ends(), (Ends{4, 8, 9}));
  const auto truncate = [&](std::int64_t n) {
    EXPECT_CALL(calls_, truncate(session(), n)).WillOnce(Return(HEADWATER_OK)).RetiresOnSaturation();
    opened->truncate(n);
    return ends();
  };
  EXPECT_EQ(truncate(9), (Ends{4, 8, 9}));
  EXPECT_EQ(truncate(8), (Ends{4, 8}));
  EXPECT_EQ(truncate(5), (Ends{4, 5}));
  plan_is({{5, 6, ChunkMode::decode}});
  opened->begin(Step::decode());
  opened->end();
  EXPECT_EQ(ends(), (Ends{4, 5, 6}));
  EXPECT_EQ(truncate(0), Ends{});
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

TEST_F(PluginObserver, AfterOneThatThrewAbortIsLegal) {
  struct Stop {};
  set([&](const ChunkRecord&) { throw Stop{}; });
  EXPECT_CALL(calls_, session_failed(session(), _))
      .WillRepeatedly(DoAll(SetArgPointee<1>(0), Return(HEADWATER_OK)));
  begin();
  EXPECT_THROW(attend_showing(1), Stop);
  EXPECT_TRUE(opened_->failed());
  EXPECT_CALL(calls_, abort(session())).WillOnce(Return(HEADWATER_OK));
  opened_->abort();
  EXPECT_FALSE(opened_->failed());
  begin();
}

// ---- interrupt ------------------------------------------------------------------------------------------------------

class PluginInterrupt : public Plugin {
 protected:
  PluginInterrupt() : opened_(open()) {
    EXPECT_CALL(calls_, close(session()));
    EXPECT_CALL(calls_, begin_decode(session(), 1)).WillRepeatedly(Return(HEADWATER_OK));
    EXPECT_CALL(calls_, last_error()).WillRepeatedly(Return("interrupted"));
  }

  void set(const Interrupt& interrupt) {
    EXPECT_CALL(calls_, set_interrupt(session(), NotNull(), NotNull()))
        .WillOnce(DoAll(SaveArg<1>(&function_), SaveArg<2>(&user_), Return(HEADWATER_OK)))
        .RetiresOnSaturation();
    opened_->set_interrupt(interrupt);
  }
  /// attend() of a plug-in that asks up to `times` times.
  void attend_asking(int times) {
    EXPECT_CALL(calls_, attend(session(), 0, _, _, _, _))
        .WillOnce([this, times] {
          for (int i = 0; i < times; ++i) {
            if (function_(user_) != 0) return HEADWATER_INTERRUPTED;
          }
          return HEADWATER_OK;
        })
        .RetiresOnSaturation();
    attend(*opened_);
  }

  std::unique_ptr<Session> opened_;
  headwater_interrupt function_ = nullptr;
  void* user_ = nullptr;
};

TEST_F(PluginInterrupt, ItsAnswerIsHandedOn) {
  int left = 3;
  set([&] { return --left == 0; });
  opened_->begin(Step::decode());
  attend_asking(2);
  expect_error([&] { attend_asking(2); }, ErrorCode::interrupted, "interrupted");
  EXPECT_EQ(left, 0) << "asked after it said stop";
}

// INTR-1 in session.hpp: an exception ends the call with that exception. C is told to stop.
TEST_F(PluginInterrupt, WhatItThrowsComesOutOfAttendAndFailsTheStep) {
  struct Stop {};
  int calls = 0;
  set([&]() -> bool {
    ++calls;
    throw Stop{};
  });
  opened_->begin(Step::decode());
  EXPECT_THROW(attend_asking(2), Stop);
  EXPECT_EQ(calls, 1);
  EXPECT_CALL(calls_, session_failed(session(), _))
      .WillRepeatedly(DoAll(SetArgPointee<1>(0), Return(HEADWATER_OK)));
  EXPECT_TRUE(opened_->failed());
  EXPECT_CALL(calls_, abort(session())).WillOnce(Return(HEADWATER_OK));
  opened_->abort();
  EXPECT_FALSE(opened_->failed());
}

TEST_F(PluginInterrupt, AskedElsewhereIsAFaultOfThePlugin) {
  int calls = 0;
  set([&] {
    ++calls;
    return false;
  });
  opened_->begin(Step::decode());
  EXPECT_EQ(function_(user_), 1) << "after attend() returned, on its thread";
  EXPECT_CALL(calls_, end(session())).WillOnce(Return(HEADWATER_OK));
  try {
    opened_->end();  // or whatever is called next
    ADD_FAILURE() << "no violation";
  } catch (const Violation& violation) {
    EXPECT_STREQ(violation.what(),
                 "plug-in: the interrupt was called outside of attend(), or from another thread than that of "
                 "attend()");
  }
  EXPECT_EQ(calls, 0);
}

TEST_F(PluginInterrupt, AskedFromAnotherThreadIsAFaultOfThePlugin) {
  int calls = 0;
  set([&] {
    ++calls;
    return false;
  });
  opened_->begin(Step::decode());
  EXPECT_CALL(calls_, attend(session(), 0, _, _, _, _)).WillOnce([this] {
    std::thread([this] { (void)function_(user_); }).join();
    return HEADWATER_OK;
  });
  EXPECT_THROW(attend(*opened_), Violation);
  EXPECT_EQ(calls, 0);
}

TEST_F(PluginInterrupt, AnEmptyOneIsTakenAwayAndARefusedOneIsNotAsked) {
  int first = 0;
  set([&] {
    ++first;
    return false;
  });
  EXPECT_CALL(calls_, set_interrupt(session(), NotNull(), NotNull())).WillOnce(Return(HEADWATER_INTERNAL));
  EXPECT_THROW(opened_->set_interrupt([] { return true; }), Error);
  opened_->begin(Step::decode());
  attend_asking(1);
  EXPECT_EQ(first, 1);
  EXPECT_CALL(calls_, set_interrupt(session(), IsNull(), IsNull())).WillOnce(Return(HEADWATER_OK));
  opened_->set_interrupt({});
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
