// The C ABI where engine and session are mocks. headwater.h: its functions are those of Session and Engine; what they throw
// is a status and one line; a refused argument does not reach the session.

#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/c_abi_support.hpp"
#include "tests/mocks/mock_session.hpp"

namespace headwater::mocks {
namespace {

using ::testing::_;
using ::testing::ByMove;
using ::testing::HasSubstr;
using ::testing::InSequence;
using ::testing::MockFunction;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::ReturnRef;
using ::testing::SaveArg;
using ::testing::StrictMock;
using ::testing::Throw;

struct Close {
  void operator()(headwater_session* handle) const { headwater_close(handle); }
};
using Handle = std::unique_ptr<headwater_session, Close>;

/// The handle as headwater_open() makes it, and its session.
template <template <class> class Mood>
struct Opened {
  Opened() {
    auto owned = std::make_unique<Mood<MockSession>>();
    session = owned.get();
    handle.reset(new headwater_session{std::move(owned)});
  }
  headwater_session* get() const { return handle.get(); }
  MockSession* session = nullptr;
  Handle handle;
};

std::array<float, 8> memory_of_rows{};
constexpr headwater_rows kQ{memory_of_rows.data(), 11, 12, HEADWATER_F32, 0};
constexpr headwater_rows kK{memory_of_rows.data() + 1, 21, 22, HEADWATER_F16, 0};
constexpr headwater_rows kV{memory_of_rows.data() + 2, 31, 32, HEADWATER_BF16, 0};
constexpr headwater_mutable_rows kOut{memory_of_rows.data() + 3, 41, 42, HEADWATER_F16, 0};
constexpr headwater_lse_output kLse{memory_of_rows.data() + 4, 51, 52};

auto is_lse(const float* data, std::int64_t row_stride, std::int64_t head_stride) {
  return ::testing::AllOf(::testing::Field("data", &LseOutput::data, data),
                          ::testing::Field("row_stride", &LseOutput::row_stride, row_stride),
                          ::testing::Field("head_stride", &LseOutput::head_stride, head_stride));
}

TEST(CAbiSteps, AreOneCallEachWithTheCallersArguments) {
  Opened<StrictMock> opened;
  MockFunction<void()> destroyed;
  opened.session->on_destruction = destroyed.AsStdFunction();
  {
    const InSequence order;
    EXPECT_CALL(*opened.session, begin(prefill(7, 9)));
    EXPECT_CALL(
        *opened.session,
        attend(5, is_view<Rows>(kQ.data, DType::f32, 11, 12), is_view<Rows>(kK.data, DType::f16, 21, 22),
               is_view<Rows>(kV.data, DType::bf16, 31, 32),
               is_view<MutableRows>(kOut.data, DType::f16, 41, 42), is_lse(nullptr, 0, 0)));
    EXPECT_CALL(
        *opened.session,
        attend(6, is_view<Rows>(kQ.data, DType::f32, 11, 12), is_view<Rows>(kK.data, DType::f16, 21, 22),
               is_view<Rows>(kV.data, DType::bf16, 31, 32),
               is_view<MutableRows>(kOut.data, DType::f16, 41, 42), is_lse(kLse.data, 51, 52)));
    EXPECT_CALL(*opened.session, end());
    EXPECT_CALL(*opened.session, truncate(std::int64_t{1} << 40));
    EXPECT_CALL(*opened.session, begin(decode(3)));
    EXPECT_CALL(*opened.session, abort());
    EXPECT_CALL(*opened.session, reset());
    // Closing gives back the memory and nothing else: it ends no step.
    EXPECT_CALL(destroyed, Call());
  }
  EXPECT_EQ(headwater_begin_prefill(opened.get(), 7, 9), HEADWATER_OK);
  EXPECT_EQ(headwater_attend(opened.get(), 5, &kQ, &kK, &kV, &kOut), HEADWATER_OK);
  EXPECT_EQ(headwater_attend_lse(opened.get(), 6, &kQ, &kK, &kV, &kOut, &kLse), HEADWATER_OK);
  EXPECT_EQ(headwater_end(opened.get()), HEADWATER_OK);
  EXPECT_EQ(headwater_truncate(opened.get(), std::int64_t{1} << 40), HEADWATER_OK);
  EXPECT_EQ(headwater_begin_decode(opened.get(), 3), HEADWATER_OK);
  EXPECT_EQ(headwater_abort(opened.get()), HEADWATER_OK);
  EXPECT_EQ(headwater_reset(opened.get()), HEADWATER_OK);
  headwater_close(opened.handle.release());
}

TEST(CAbiSteps, ARefusedArgumentDoesNotReachTheSession) {
  const Opened<StrictMock> opened;
  headwater_rows other = kK;
  const auto refused = [&](const headwater_rows* k, const char* why) {
    EXPECT_EQ(headwater_attend(opened.get(), 0, &kQ, k, &kV, &kOut), HEADWATER_INVALID_ARGUMENT);
    EXPECT_THAT(headwater_last_error(), HasSubstr(why));
  };
  refused(nullptr, "k is NULL");
  other.reserved = 1;
  refused(&other, "k.reserved is 1");
  other = kK;
  other.type = 3;
  refused(&other, "k.type is 3");
  const auto refused_lse = [&](const headwater_mutable_rows* out, const headwater_lse_output* lse,
                               const char* why) {
    EXPECT_EQ(headwater_attend_lse(opened.get(), 0, &kQ, &kK, &kV, out, lse), HEADWATER_INVALID_ARGUMENT);
    EXPECT_STREQ(headwater_last_error(), why);
  };
  const headwater_lse_output nowhere{nullptr, 51, 52};
  refused_lse(&kOut, nullptr, "lse is NULL; allowed: a valid pointer");
  refused_lse(&kOut, &nowhere, "lse.data is NULL; allowed: a valid pointer");
  refused_lse(nullptr, &kLse, "out is NULL; allowed: a valid pointer");
  EXPECT_EQ(headwater_scores(opened.get(), 0, nullptr), HEADWATER_INVALID_ARGUMENT);
  EXPECT_EQ(headwater_memory(opened.get(), 0, nullptr), HEADWATER_INVALID_ARGUMENT);
}

// Only the session knows whether a step has failed (STATE-5): the ABI keeps no state of its own.
TEST(CAbiSteps, AfterAFailureTheSessionIsAskedAgain) {
  Opened<StrictMock> opened;
  {
    const InSequence order;
    EXPECT_CALL(*opened.session, begin(prefill(9)))
        .WillOnce(Throw(Error(ErrorCode::capacity_exceeded, "full")));
    EXPECT_CALL(*opened.session, failed()).WillOnce(Return(false));
    EXPECT_CALL(*opened.session, begin(prefill(4)));
    EXPECT_CALL(*opened.session, attend(0, _, _, _, _, _)).WillOnce(Throw(std::bad_alloc()));
    EXPECT_CALL(*opened.session, failed()).WillOnce(Return(true));
    EXPECT_CALL(*opened.session, end()).WillOnce(Throw(Error(ErrorCode::wrong_state, "reset() first")));
    EXPECT_CALL(*opened.session, reset());
  }
  std::int32_t failed = -1;
  EXPECT_EQ(headwater_begin_prefill(opened.get(), 9, 0), HEADWATER_CAPACITY_EXCEEDED);
  EXPECT_EQ(headwater_session_failed(opened.get(), &failed), HEADWATER_OK);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(headwater_begin_prefill(opened.get(), 4, 0), HEADWATER_OK);
  EXPECT_EQ(headwater_attend(opened.get(), 0, &kQ, &kK, &kV, &kOut), HEADWATER_OUT_OF_MEMORY);
  EXPECT_EQ(headwater_session_failed(opened.get(), &failed), HEADWATER_OK);
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(headwater_end(opened.get()), HEADWATER_WRONG_STATE);
  EXPECT_STREQ(headwater_last_error(), "reset() first");
  EXPECT_EQ(headwater_reset(opened.get()), HEADWATER_OK);
  EXPECT_STREQ(headwater_last_error(), "");
}

// ---- errors --------------------------------------------------------------------------------------------------------

/// A function of the ABI, and the method behind it, which throws.
struct FailingCall {
  const char* name;
  std::function<void(MockSession&)> expect;
  std::function<headwater_status(headwater_session*)> call;
};

template <class Exception>
std::vector<FailingCall> calls_that_throw(const Exception& exception) {
  static float row[4];
  const auto thrown = Throw(exception);
#define HEADWATER_FAILING(method, c_call)                                                                   \
  {                                                                                                         \
#c_call, [=](MockSession &                                                                              \
                 session) { EXPECT_CALL(session, method).WillOnce(thrown); }, [](headwater_session *        \
                                                                                 handle) { return c_call; } \
  }
  static std::int32_t number;
  static std::int64_t count;
  static headwater_effective_options effective;
  static headwater_memory_bytes bytes;
  static headwater_stage_seconds seconds;
  static headwater_chunk chunk;
  static headwater_score_view scores;
  static headwater_memory_view memory;
  static const char* text;
  return {
      HEADWATER_FAILING(begin(_), headwater_begin_prefill(handle, 1, 0)),
      HEADWATER_FAILING(begin(_), headwater_begin_decode(handle, 1)),
      HEADWATER_FAILING(attend, headwater_attend(handle, 0, &kQ, &kK, &kV, &kOut)),
      HEADWATER_FAILING(end(), headwater_end(handle)),
      HEADWATER_FAILING(attend, headwater_attend_lse(handle, 0, &kQ, &kK, &kV, &kOut, &kLse)),
      HEADWATER_FAILING(reset(), headwater_reset(handle)),
      HEADWATER_FAILING(abort(), headwater_abort(handle)),
      HEADWATER_FAILING(truncate(_), headwater_truncate(handle, 1)),
      HEADWATER_FAILING(state(), headwater_session_state(handle, &number)),
      HEADWATER_FAILING(failed(), headwater_session_failed(handle, &number)),
      HEADWATER_FAILING(tokens(), headwater_session_tokens(handle, &count)),
      HEADWATER_FAILING(options(), headwater_session_options(handle, &effective, sizeof effective)),
      HEADWATER_FAILING(options(), headwater_warning_count(handle, &count)),
      HEADWATER_FAILING(options(), headwater_warning(handle, 0, &text)),
      HEADWATER_FAILING(memory_bytes(), headwater_session_memory_bytes(handle, &bytes, sizeof bytes)),
      HEADWATER_FAILING(stage_seconds(), headwater_session_stage_seconds(handle, &seconds, sizeof seconds)),
      HEADWATER_FAILING(plan(), headwater_plan_count(handle, &count)),
      HEADWATER_FAILING(plan(), headwater_plan_chunk(handle, 0, &chunk)),
      HEADWATER_FAILING(scores(_), headwater_scores(handle, 0, &scores)),
      HEADWATER_FAILING(scores(_), headwater_copy_scores(handle, 0, 0, 0, 1, row)),
      HEADWATER_FAILING(memory(_), headwater_memory(handle, 0, &memory)),
      HEADWATER_FAILING(read_key, headwater_read_key(handle, 0, 0, 0, row, 4)),
      HEADWATER_FAILING(read_value, headwater_read_value(handle, 0, 0, 0, row, 4)),
      HEADWATER_FAILING(set_observer(_), headwater_set_observer(handle, nullptr, nullptr)),
      HEADWATER_FAILING(set_observer(_), headwater_set_stopping_observer(handle, nullptr, nullptr)),
      HEADWATER_FAILING(set_interrupt(_), headwater_set_interrupt(handle, nullptr, nullptr)),
  };
#undef HEADWATER_FAILING
}

template <class Exception>
void expect_status(const Exception& exception, headwater_status status, const char* text) {
  Shape shape;
  shape.d_head = shape.d_value = 4;
  const EffectiveOptions options;
  for (const FailingCall& failing : calls_that_throw(exception)) {
    SCOPED_TRACE(failing.name);
    Opened<NiceMock> opened;
    ON_CALL(*opened.session, shape()).WillByDefault(ReturnRef(shape));
    ON_CALL(*opened.session, options()).WillByDefault(ReturnRef(options));
    failing.expect(*opened.session);
    EXPECT_EQ(failing.call(opened.get()), status);
    EXPECT_STREQ(headwater_last_error(), text);
    ::testing::Mock::VerifyAndClearExpectations(opened.session);
    EXPECT_EQ(headwater_end(opened.get()), HEADWATER_OK);
    EXPECT_STREQ(headwater_last_error(), "") << "after a success";
  }
}

TEST(CAbiErrors, EveryCodeOfAnErrorIsItsStatusAndKeepsItsText) {
  for (const auto& [code, status] : {std::pair{ErrorCode::invalid_argument, HEADWATER_INVALID_ARGUMENT},
                                     std::pair{ErrorCode::wrong_state, HEADWATER_WRONG_STATE},
                                     std::pair{ErrorCode::capacity_exceeded, HEADWATER_CAPACITY_EXCEEDED},
                                     std::pair{ErrorCode::engine_unavailable, HEADWATER_ENGINE_UNAVAILABLE},
                                     std::pair{ErrorCode::out_of_memory, HEADWATER_OUT_OF_MEMORY},
                                     std::pair{ErrorCode::internal, HEADWATER_INTERNAL},
                                     std::pair{ErrorCode::interrupted, HEADWATER_INTERRUPTED},
                                     std::pair{ErrorCode::unsupported, HEADWATER_UNSUPPORTED}}) {
    expect_status(Error(code, "x is 3; allowed: 4"), status, "x is 3; allowed: 4");
  }
}

// An engine may throw what Session does not allow; no exception may leave the library (headwater.h).
TEST(CAbiErrors, WhatIsNoErrorBecomesAStatus) {
  expect_status(std::bad_alloc(), HEADWATER_OUT_OF_MEMORY, "out of memory");
  expect_status(std::runtime_error("a vector of none"), HEADWATER_INTERNAL, "a vector of none");
  expect_status(7, HEADWATER_INTERNAL, "an exception of unknown type (from the observer?)");
}

// ---- what a session holds ------------------------------------------------------------------------------------------

TEST(CAbiInspection, EveryFieldIsTheSessionsOwn) {
  const Opened<NiceMock> opened;
  const MockSession& session = *opened.session;
  EffectiveOptions effective;
  effective.batch = 1, effective.chunk = 2, effective.local = 3, effective.heavy = 4, effective.sparse = true;
  effective.scale = 0.5, effective.softcap = 1.5, effective.score_type = ScoreType::f32;
  effective.schedule = Schedule::chunk_major, effective.threads = 6;
  effective.select = Select::blocks, effective.key_block = 7, effective.query_block = 8, effective.pool = 9;
  effective.refine = 10, effective.pinned = 11, effective.dense_below = 12, effective.dense_layers = {1};
  effective.checkpoints = 13;
  effective.warnings = {"first", "second"};
  const std::vector<Chunk> plan{{0, 5, ChunkMode::sparse}, {5, 8, ChunkMode::decode}};
  const std::int32_t set = 0;
  EXPECT_CALL(session, state()).WillOnce(Return(SessionState::decoding));
  EXPECT_CALL(session, failed()).WillOnce(Return(true));
  EXPECT_CALL(session, tokens()).WillOnce(Return(std::int64_t{1} << 40));
  EXPECT_CALL(session, options()).WillRepeatedly(ReturnRef(effective));
  EXPECT_CALL(session, memory_bytes()).WillOnce(Return(MemoryBytes{1, 2, 3, 4}));
  EXPECT_CALL(session, stage_seconds()).WillOnce(Return(StageSeconds{0.25}));
  EXPECT_CALL(session, plan()).WillRepeatedly(Return(std::span<const Chunk>(plan)));
  EXPECT_CALL(session, scores(7)).WillOnce(Return(ScoreView{ScoreType::f32, &set, 9}));
  EXPECT_CALL(session, memory(8)).WillOnce(Return(MemoryView{&set, 10, 11, 12}));

  headwater_session* const handle = opened.get();
  std::int32_t number = -1;
  std::int64_t count = -1;
  EXPECT_EQ(headwater_session_state(handle, &number), HEADWATER_OK);
  EXPECT_EQ(number, HEADWATER_DECODING);
  EXPECT_EQ(headwater_session_failed(handle, &number), HEADWATER_OK);
  EXPECT_EQ(number, 1);
  EXPECT_EQ(headwater_session_tokens(handle, &count), HEADWATER_OK);
  EXPECT_EQ(count, std::int64_t{1} << 40);

  headwater_effective_options said{};
  EXPECT_EQ(headwater_session_options(handle, &said, sizeof said), HEADWATER_OK);
  EXPECT_EQ(said.batch, 1);
  EXPECT_EQ(said.chunk, 2);
  EXPECT_EQ(said.local, 3);
  EXPECT_EQ(said.heavy, 4);
  EXPECT_EQ(said.scale, 0.5);
  EXPECT_EQ(said.softcap, 1.5);
  EXPECT_EQ(said.sparse, 1);
  EXPECT_EQ(said.score_type, HEADWATER_SCORE_F32);
  EXPECT_EQ(said.schedule, HEADWATER_CHUNK_MAJOR);
  EXPECT_EQ(said.threads, 6);
  EXPECT_EQ(std::tuple(said.select, said.reserved), std::tuple(HEADWATER_SELECT_BLOCKS, 0));
  EXPECT_EQ(std::tuple(said.key_block, said.query_block, said.pool, said.refine), std::tuple(7, 8, 9, 10));
  EXPECT_EQ(std::tuple(said.pinned, said.dense_below, said.checkpoints), std::tuple(11, 12, 13));
  headwater_effective_options shorter{};
  EXPECT_EQ(headwater_session_options(handle, &shorter, offsetof(headwater_effective_options, checkpoints)),
            HEADWATER_OK);
  EXPECT_EQ(std::tuple(shorter.dense_below, shorter.checkpoints), std::tuple(12, 0)) << "an older caller";
  const char* text = nullptr;
  EXPECT_EQ(headwater_warning_count(handle, &count), HEADWATER_OK);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(headwater_warning(handle, 1, &text), HEADWATER_OK);
  EXPECT_STREQ(text, "second");

  headwater_memory_bytes bytes{};
  EXPECT_EQ(headwater_session_memory_bytes(handle, &bytes, sizeof bytes), HEADWATER_OK);
  EXPECT_EQ(std::vector({bytes.kv, bytes.scores, bytes.memory_sets, bytes.workspace}),
            (std::vector<std::int64_t>{1, 2, 3, 4}));
  headwater_stage_seconds seconds{};
  EXPECT_EQ(headwater_session_stage_seconds(handle, &seconds, sizeof seconds), HEADWATER_OK);
  EXPECT_EQ(seconds.selection, 0.25);

  headwater_chunk chunk{};
  EXPECT_EQ(headwater_plan_count(handle, &count), HEADWATER_OK);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(headwater_plan_chunk(handle, 1, &chunk), HEADWATER_OK);
  EXPECT_EQ(std::tuple(chunk.begin, chunk.end, chunk.mode), std::tuple(5, 8, HEADWATER_CHUNK_DECODE));

  headwater_score_view scores{};
  EXPECT_EQ(headwater_scores(handle, 7, &scores), HEADWATER_OK);
  EXPECT_EQ(scores.data, &set);
  EXPECT_EQ(scores.head_stride, 9);
  EXPECT_EQ(scores.type, HEADWATER_SCORE_F32);
  headwater_memory_view memory{};
  EXPECT_EQ(headwater_memory(handle, 8, &memory), HEADWATER_OK);
  EXPECT_EQ(memory.data, &set);
  EXPECT_EQ(std::tuple(memory.head_stride, memory.width, memory.count), std::tuple(10, 11, 12));
}

TEST(CAbiInspection, RowsAreReadIntoTheCallersMemoryAtTheWidthOfTheirKind) {
  const Opened<NiceMock> opened;
  const Shape shape{.n_layer = 5, .d_head = 7, .d_value = 2};
  EffectiveOptions options;
  options.layers.resize(5);
  options.layers[1].d_head = 3;  // LAYER-1
  ON_CALL(*opened.session, shape()).WillByDefault(ReturnRef(shape));
  ON_CALL(*opened.session, options()).WillByDefault(ReturnRef(options));
  float row[3] = {};
  const auto is_row = [&](std::size_t width) {
    return ::testing::Truly(
        [&row, width](std::span<float> to) { return to.data() == row && to.size() == width; });
  };
  EXPECT_CALL(*opened.session, read_key(1, 2, 3, is_row(3)));
  EXPECT_CALL(*opened.session, read_value(4, 5, 6, is_row(2)));
  EXPECT_EQ(headwater_read_key(opened.get(), 1, 2, 3, row, 3), HEADWATER_OK);
  EXPECT_EQ(headwater_read_value(opened.get(), 4, 5, 6, row, 2), HEADWATER_OK);
  // A row of the other kind's width is refused before the session is called.
  EXPECT_EQ(headwater_read_key(opened.get(), 1, 2, 3, row, 2), HEADWATER_INVALID_ARGUMENT);
  EXPECT_EQ(headwater_read_value(opened.get(), 4, 5, 6, row, 3), HEADWATER_INVALID_ARGUMENT);
}

// ---- observer ------------------------------------------------------------------------------------------------------

TEST(CAbiObserver, IsShownTheRecordAndItsOwnPointerAndIsTakenAway) {
  Opened<StrictMock> opened;
  Observer set;
  Observer unset = [](const ChunkRecord&) {};
  {
    const InSequence order;
    EXPECT_CALL(*opened.session, set_observer(_)).WillOnce(SaveArg<0>(&set));
    EXPECT_CALL(*opened.session, set_observer(_)).WillOnce(SaveArg<0>(&unset));
  }
  struct Seen {
    int calls = 0;
    headwater_chunk_record record{};
  } seen;
  const headwater_observer note = [](void* user, const headwater_chunk_record* record) {
    auto* to = static_cast<Seen*>(user);
    ++to->calls;
    to->record = *record;
  };
  ASSERT_EQ(headwater_set_observer(opened.get(), note, &seen), HEADWATER_OK);
  EXPECT_EQ(seen.calls, 0);

  const std::int32_t memory = 0;
  const std::array<float, 3> sums{};
  ASSERT_TRUE(set);
  const std::array<float, 2> votes{};
  set({1,
       {2, 3, ChunkMode::dense},
       4,
       5,
       &memory,
       &sums[0],
       6,
       &sums[1],
       &sums[2],
       7,
       8,
       &votes[0],
       9,
       &votes[1]});
  EXPECT_EQ(seen.calls, 1);
  const headwater_chunk_record& record = seen.record;
  EXPECT_EQ(record.struct_size, sizeof record);
  EXPECT_EQ(record.layer, 1);
  EXPECT_EQ(record.chunk.begin, 2);
  EXPECT_EQ(record.chunk.end, 3);
  EXPECT_EQ(record.chunk.mode, HEADWATER_CHUNK_DENSE);
  EXPECT_EQ(record.memory_count, 4);
  EXPECT_EQ(record.memory_stride, 5);
  EXPECT_EQ(record.memory, &memory);
  EXPECT_EQ(record.colsum_inter, &sums[0]);
  EXPECT_EQ(record.row_stride, 6);
  EXPECT_EQ(record.colsum_intra, &sums[1]);
  EXPECT_EQ(record.lse, &sums[2]);
  EXPECT_EQ(record.query_blocks, 7);
  EXPECT_EQ(record.candidate_blocks, 8);
  EXPECT_EQ(record.block_votes, &votes[0]);
  EXPECT_EQ(record.voted_tokens, 9);
  EXPECT_EQ(record.token_votes, &votes[1]);

  // NULL switches it off: what is said as `user` then changes nothing.
  ASSERT_EQ(headwater_set_observer(opened.get(), nullptr, &seen), HEADWATER_OK);
  EXPECT_FALSE(unset) << "an observer was left";
}

TEST(CAbiObserver, ItsAnswerStopsTheCallWithOneLine) {
  Opened<StrictMock> opened;
  Observer set;
  Observer unset = [](const ChunkRecord&) {};
  {
    const InSequence order;
    EXPECT_CALL(*opened.session, set_observer(_)).WillOnce(SaveArg<0>(&set));
    EXPECT_CALL(*opened.session, attend(3, _, _, _, _, _)).Times(4).WillRepeatedly([&] {
      ChunkRecord record;
      record.layer = 3;
      record.chunk = {70000, 70100, ChunkMode::sparse};
      set(record);
    });
    EXPECT_CALL(*opened.session, set_observer(_)).WillOnce(SaveArg<0>(&unset));
  }
  struct Seen {
    std::int32_t answer = 0;
    std::int64_t begin = -1;
  } seen;
  const headwater_stopping_observer judge = [](void* user, const headwater_chunk_record* record) {
    auto* to = static_cast<Seen*>(user);
    to->begin = record->chunk.begin;
    return to->answer;
  };
  ASSERT_EQ(headwater_set_stopping_observer(opened.get(), judge, &seen), HEADWATER_OK);
  for (const std::int32_t answer : {0, 1, -1, std::numeric_limits<std::int32_t>::min()}) {
    seen = {answer, -1};
    const headwater_status status = headwater_attend(opened.get(), 3, &kQ, &kK, &kV, &kOut);
    EXPECT_EQ(seen.begin, 70000);
    EXPECT_EQ(status, answer == 0 ? HEADWATER_OK : HEADWATER_INTERRUPTED);
    const std::string said = "the observer returned " + std::to_string(answer) +
                             " at layer 3, chunk [70000, 70100); 0 would go on";
    EXPECT_EQ(headwater_last_error(), answer == 0 ? "" : said);
  }
  ASSERT_EQ(headwater_set_stopping_observer(opened.get(), nullptr, &seen), HEADWATER_OK);
  EXPECT_FALSE(unset) << "an observer was left";
}

TEST(CAbiInterrupt, AnyAnswerButZeroStopsAndNullTakesItAway) {
  Opened<StrictMock> opened;
  Interrupt set;
  Interrupt unset = [] { return true; };
  {
    const InSequence order;
    EXPECT_CALL(*opened.session, set_interrupt(_)).WillOnce(SaveArg<0>(&set));
    EXPECT_CALL(*opened.session, set_interrupt(_)).WillOnce(SaveArg<0>(&unset));
  }
  std::int32_t answer = 0;
  const headwater_interrupt read = [](void* user) { return *static_cast<std::int32_t*>(user); };
  ASSERT_EQ(headwater_set_interrupt(opened.get(), read, &answer), HEADWATER_OK);
  ASSERT_TRUE(set);
  EXPECT_FALSE(set());
  for (const std::int32_t stop : {1, 256, -1, std::numeric_limits<std::int32_t>::min()}) {
    answer = stop;
    EXPECT_TRUE(set()) << stop;
  }
  ASSERT_EQ(headwater_set_interrupt(opened.get(), nullptr, &answer), HEADWATER_OK);
  EXPECT_FALSE(unset) << "an interrupt was left";
}

// ---- opening -------------------------------------------------------------------------------------------------------

void count_calls(void* context, std::int64_t n, headwater_parallel_body body, void* argument) {
  *static_cast<std::int64_t*>(context) += n;
  for (std::int64_t i = 0; i < n; ++i) body(argument, i);
}

headwater_shape some_shape() { return {2, 6, 3, 40, 50, 700, HEADWATER_BF16, 0}; }

TEST(CAbiOpen, TheEngineGetsWhatTheCallerAskedFor) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  MockFunction<void()> destroyed;
  Shape shape;
  Options options;
  {
    const InSequence order;
    EXPECT_CALL(list, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine));
    EXPECT_CALL(engine, open(_, _)).WillOnce([&](const Shape& for_shape, const Options& asked) {
      shape = for_shape;
      options = asked;
      auto session = std::make_unique<StrictMock<MockSession>>();
      session->on_destruction = destroyed.AsStdFunction();
      return session;
    });
    EXPECT_CALL(destroyed, Call());
  }
  headwater_options asked;
  ASSERT_EQ(headwater_options_init(&asked, sizeof asked), HEADWATER_OK);
  std::vector<float> sinks{1, 2, 3, 4, 5, 6};
  std::vector<float> slopes{6, 5, 4, 3, 2, 1};
  int stream = 0;
  asked.batch = 11, asked.chunk = 12, asked.local = 13, asked.heavy = 14, asked.clamp = 0, asked.dense = 1;
  asked.scale = 0.5, asked.softcap = 1.5, asked.sinks = sinks.data(), asked.alibi = slopes.data();
  asked.score_type = HEADWATER_SCORE_F32, asked.schedule = HEADWATER_CHUNK_MAJOR, asked.threads = 15;
  asked.row_memory = HEADWATER_DEVICE_MEMORY, asked.stream = &stream;
  asked.select = HEADWATER_SELECT_BLOCKS, asked.key_block = 16, asked.query_block = 17, asked.pool = 18;
  asked.refine = 19, asked.pinned = 20, asked.dense_below = 21;
  std::vector<std::int64_t> layers{1, 0};  // in any order: what is allowed is the engine's to say
  asked.dense_layers = layers.data(), asked.dense_layer_count = 2;
  std::int64_t calls = 0;
  asked.checkpoints = 65536, asked.parallel_for = count_calls, asked.parallel_context = &calls;
  const headwater_shape wanted = some_shape();
  headwater_session* handle = nullptr;
  ASSERT_EQ(headwater_open("mine", &wanted, &asked, &handle), HEADWATER_OK);
  ASSERT_NE(handle, nullptr);

  EXPECT_EQ(shape.n_layer, 2);
  EXPECT_EQ(shape.n_head, 6);
  EXPECT_EQ(shape.n_head_kv, 3);
  EXPECT_EQ(shape.d_head, 40);
  EXPECT_EQ(shape.d_value, 50);
  EXPECT_EQ(shape.capacity, 700);
  EXPECT_EQ(shape.kv_type, DType::bf16);
  EXPECT_EQ(options.batch, 11);
  EXPECT_EQ(options.chunk, 12);
  EXPECT_EQ(options.local, 13);
  EXPECT_EQ(options.heavy, 14);
  EXPECT_FALSE(options.clamp);
  EXPECT_TRUE(options.dense);
  EXPECT_EQ(options.scale, 0.5);
  EXPECT_EQ(options.softcap, 1.5);
  EXPECT_EQ(options.sinks, sinks);
  EXPECT_EQ(options.alibi, slopes);
  EXPECT_EQ(options.score_type, ScoreType::f32);
  EXPECT_EQ(options.schedule, Schedule::chunk_major);
  EXPECT_EQ(options.threads, 15);
  EXPECT_EQ(options.row_memory, RowMemory::device);
  EXPECT_EQ(options.stream, &stream);
  EXPECT_EQ(options.select, Select::blocks);
  EXPECT_EQ(std::tuple(options.key_block, options.query_block, options.pool, options.refine),
            std::tuple(16, 17, 18, 19));
  EXPECT_EQ(std::tuple(options.pinned, options.dense_below), std::tuple(20, 21));
  EXPECT_EQ(options.dense_layers, layers);
  EXPECT_EQ(options.checkpoints, 65536);
  ASSERT_NE(options.parallel_for, nullptr);
  std::int64_t sum = 0;
  options.parallel_for(
      options.parallel_context, 5, [](void* to, std::int64_t i) { *static_cast<std::int64_t*>(to) += i; },
      &sum);
  EXPECT_EQ(std::tuple(calls, sum), std::tuple(5, 0 + 1 + 2 + 3 + 4));
  headwater_close(handle);
}

TEST(CAbiOpen, WithoutOptionsTheEngineGetsTheDefaults) {
  NiceMock<EngineList> list;
  StrictMock<MockEngine> engine;
  Options options;
  options.batch = 1;
  // A NULL name is the empty one, which stands for the environment's engine.
  EXPECT_CALL(list, engine(std::string_view())).WillOnce(ReturnRef(engine));
  EXPECT_CALL(engine, open(_, _))
      .WillOnce(::testing::DoAll(SaveArg<1>(&options), Return(ByMove(std::make_unique<MockSession>()))));
  const headwater_shape wanted = some_shape();
  headwater_session* handle = nullptr;
  ASSERT_EQ(headwater_open(nullptr, &wanted, nullptr, &handle), HEADWATER_OK);
  const Handle owner(handle);
  EXPECT_EQ(options.batch, Options{}.batch);
  EXPECT_EQ(options.scale, std::nullopt);
  EXPECT_TRUE(options.sinks.empty());
  EXPECT_EQ(std::tuple(options.pinned, options.dense_below), std::tuple(0, 0));
  EXPECT_TRUE(options.dense_layers.empty());
  EXPECT_EQ(options.checkpoints, 0);
  EXPECT_EQ(options.parallel_for, nullptr);
  EXPECT_EQ(options.parallel_context, nullptr);
}

/// What the engine is asked for, or the line of a refusal that comes before it.
struct Asked {
  std::optional<Options> options;
  std::string refusal;
};

Asked ask(const headwater_options& options, std::int64_t layers) {
  NiceMock<EngineList> list;
  NiceMock<MockEngine> engine;
  Asked asked;
  ON_CALL(list, engine(_)).WillByDefault(ReturnRef(engine));
  ON_CALL(engine, open(_, _)).WillByDefault([&](const Shape&, const Options& wanted) {
    asked.options = wanted;
    return std::make_unique<NiceMock<MockSession>>();
  });
  headwater_shape shape = some_shape();
  shape.n_layer = layers;
  headwater_session* handle = nullptr;
  const headwater_status status = headwater_open("mine", &shape, &options, &handle);
  const Handle owner(handle);
  EXPECT_EQ(status, asked.options ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT);
  EXPECT_EQ(handle != nullptr, asked.options.has_value());
  if (!asked.options) asked.refusal = headwater_last_error();
  return asked;
}

// A count of hostile callers must not decide how much is read or allocated.
TEST(CAbiOpen, DenseLayersAreCountedBeforeTheyAreRead) {
  headwater_options asked;
  ASSERT_EQ(headwater_options_init(&asked, sizeof asked), HEADWATER_OK);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const std::int64_t layer = 1;
  for (const std::int64_t* layers : {&layer, static_cast<const std::int64_t*>(nullptr)}) {
    asked.dense_layers = layers;
    for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{3}, kMost, kLeast}) {
      asked.dense_layer_count = count;
      EXPECT_EQ(ask(asked, 2).refusal,
                "options.dense_layer_count is " + std::to_string(count) + "; allowed: 0 .. 2");
    }
    for (const std::int64_t absurd :
         {std::int64_t{0}, std::int64_t{-1}, std::int64_t{65537}, kMost, kLeast}) {
      asked.dense_layer_count = absurd > 0 ? absurd : 1;
      EXPECT_EQ(ask(asked, absurd).refusal,
                "shape.n_layer is " + std::to_string(absurd) + "; allowed: 1 .. 65536");
    }
    asked.dense_layer_count = 0;  // nothing is read, and n_layer is the engine's to judge
    for (const std::int64_t any : {std::int64_t{2}, kMost}) {
      const Asked none = ask(asked, any);
      ASSERT_TRUE(none.options);
      EXPECT_TRUE(none.options->dense_layers.empty());
    }
  }
  asked.dense_layer_count = 1;
  EXPECT_THAT(ask(asked, 2).refusal, HasSubstr("options.dense_layers is NULL"));
  std::vector<std::int64_t> all(65536);
  asked.dense_layers = all.data();
  asked.dense_layer_count = 65536;
  const Asked most = ask(asked, 65536);
  ASSERT_TRUE(most.options);
  EXPECT_EQ(most.options->dense_layers, all);
}

TEST(CAbiOpen, AnOlderCallerPinsNothingAndHasNoDenseLayers) {
  headwater_options asked;
  std::memset(&asked, 0xAB, sizeof asked);
  ASSERT_EQ(headwater_options_init(&asked, offsetof(headwater_options, pinned)), HEADWATER_OK);
  EXPECT_LT(asked.pinned, 0) << "written after the caller's structure";
  const auto said = [&](std::size_t size) {
    asked.struct_size = size;
    const Asked seen = ask(asked, 2);
    EXPECT_TRUE(seen.options) << seen.refusal;
    return seen.options.value_or(Options{});
  };
  Options options = said(offsetof(headwater_options, pinned));
  EXPECT_EQ(std::tuple(options.pinned, options.dense_below), std::tuple(0, 0));
  EXPECT_TRUE(options.dense_layers.empty());
  asked.pinned = 5;
  options = said(offsetof(headwater_options, dense_below));
  EXPECT_EQ(std::tuple(options.pinned, options.dense_below), std::tuple(5, 0));
  asked.dense_below = 6;
  options = said(offsetof(headwater_options, dense_layers));
  EXPECT_EQ(std::tuple(options.pinned, options.dense_below), std::tuple(5, 6));
  EXPECT_TRUE(options.dense_layers.empty());
  // The pointer without the count is not followed.
  EXPECT_TRUE(said(offsetof(headwater_options, dense_layer_count)).dense_layers.empty());
}

// Both directions: a program that knows less than this library, and one that knows more (AnUnknownFieldIsRefused...).
TEST(CAbiOpen, AnOlderCallerHasNoCheckpointsAndNoThreadsOfItsOwn) {
  headwater_options asked;
  std::memset(&asked, 0xAB, sizeof asked);
  ASSERT_EQ(headwater_options_init(&asked, offsetof(headwater_options, checkpoints)), HEADWATER_OK);
  EXPECT_LT(asked.checkpoints, 0) << "written after the caller's structure";
  EXPECT_NE(asked.parallel_context, nullptr) << "written after the caller's structure";
  asked.pinned = 5;
  const auto said = [&](std::size_t size) {
    asked.struct_size = size;
    const Asked seen = ask(asked, 2);
    EXPECT_TRUE(seen.options) << seen.refusal;
    return seen.options.value_or(Options{});
  };
  Options options = said(offsetof(headwater_options, checkpoints));
  EXPECT_EQ(std::tuple(options.pinned, options.checkpoints), std::tuple(5, 0));
  EXPECT_EQ(options.parallel_for, nullptr);
  EXPECT_EQ(options.parallel_context, nullptr);
  asked.checkpoints = 6;
  options = said(offsetof(headwater_options, parallel_for));
  EXPECT_EQ(options.checkpoints, 6);
  EXPECT_EQ(options.parallel_for, nullptr);
  asked.parallel_for = count_calls;
  options = said(offsetof(headwater_options, parallel_context));
  EXPECT_EQ(options.parallel_for, &count_calls);
  EXPECT_EQ(options.parallel_context, nullptr);
}

TEST(CAbiOpen, WhatFailsLeavesNoHandle) {
  NiceMock<EngineList> list;
  StrictMock<MockEngine> engine;
  const headwater_shape wanted = some_shape();
  const auto fails = [&](headwater_status status, const char* text) {
    headwater_session other{nullptr};
    headwater_session* handle = &other;
    EXPECT_EQ(headwater_open("mine", &wanted, nullptr, &handle), status);
    EXPECT_EQ(handle, nullptr);
    EXPECT_STREQ(headwater_last_error(), text);
  };
  EXPECT_CALL(list, engine(_))
      .WillOnce(Throw(Error(ErrorCode::engine_unavailable, "no such")))
      .WillRepeatedly(ReturnRef(engine));
  fails(HEADWATER_ENGINE_UNAVAILABLE, "no such");
  EXPECT_CALL(engine, open(_, _))
      .WillOnce(Throw(Error(ErrorCode::invalid_argument, "shape.d_head is 40; allowed: 64")))
      .WillOnce(Throw(std::bad_alloc()));
  fails(HEADWATER_INVALID_ARGUMENT, "shape.d_head is 40; allowed: 64");
  fails(HEADWATER_OUT_OF_MEMORY, "out of memory");
}

TEST(CAbiOpen, AnUnknownFieldIsRefusedBeforeTheEngineTakesMemory) {
  NiceMock<EngineList> list;
  StrictMock<MockEngine> engine;
  ON_CALL(list, engine(_)).WillByDefault(ReturnRef(engine));
  struct {
    headwater_options known;
    std::int64_t later;
  } asked{};
  ASSERT_EQ(headwater_options_init(&asked.known, sizeof asked), HEADWATER_OK);
  asked.later = 1;
  const headwater_shape wanted = some_shape();
  headwater_session* handle = nullptr;
  EXPECT_EQ(headwater_open("mine", &wanted, &asked.known, &handle), HEADWATER_INVALID_ARGUMENT);
  EXPECT_EQ(handle, nullptr);
}

// Texts are copied once for the whole program: no other test may read them.
TEST(CAbiEngines, EachTextIsTheEnginesOwn) {
  NiceMock<EngineList> list;
  NiceMock<MockEngine> first;
  NiceMock<MockEngine> second;
  const std::array<const Engine*, 2> all{&first, &second};
  ON_CALL(list, engines()).WillByDefault(Return(std::span<const Engine* const>(all)));
  ON_CALL(second, name()).WillByDefault(Return("mine"));
  ON_CALL(second, isa()).WillByDefault(Return("scalar"));
  ON_CALL(second, description()).WillByDefault(Return("one line"));
  ON_CALL(second, unavailable_because()).WillByDefault(Return("needs a device"));
  EXPECT_EQ(headwater_engine_count(), 2);
  EXPECT_STREQ(headwater_engine_name(1), "mine");
  EXPECT_STREQ(headwater_engine_isa(1), "scalar");
  EXPECT_STREQ(headwater_engine_description(1), "one line");
  EXPECT_STREQ(headwater_engine_unavailable_because(1), "needs a device");
  EXPECT_EQ(headwater_engine_name(2), nullptr);
  EXPECT_THAT(headwater_last_error(), HasSubstr("engine index is 2"));
}

}  // namespace
}  // namespace headwater::mocks
