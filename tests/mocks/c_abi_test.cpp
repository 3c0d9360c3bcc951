// The C ABI where the session is a mock: its functions are those of Session (headwater.h); what it throws is
// a status and one line; a refused argument does not reach it. Opening is in c_abi_open_test.cpp.

#include <cstddef>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tests/mocks/session_handle.hpp"

namespace headwater::mocks {
namespace {

using ::testing::_;
using ::testing::ByMove;
using ::testing::HasSubstr;
using ::testing::InSequence;
using ::testing::MockFunction;
using ::testing::NiceMock;
using ::testing::ResultOf;
using ::testing::Return;
using ::testing::ReturnRef;
using ::testing::SaveArg;
using ::testing::StartsWith;
using ::testing::StrictMock;
using ::testing::Throw;

constexpr LseOutput kNoLse{};
constexpr headwater_lse_output kNowhere{nullptr, 51, 52};

auto numbers_of(const LseOutput& lse) { return std::tuple(lse.data, lse.row_stride, lse.head_stride); }
auto is_lse(const LseOutput& wanted) {
  return ResultOf([](const LseOutput& lse) { return numbers_of(lse); }, numbers_of(wanted));
}
auto is_given_lse() { return is_lse({kLse.data, 51, 52}); }

auto is_q() { return is_view<Rows>(kQ.data, DType::f32, 11, 12); }
auto is_k() { return is_view<Rows>(kK.data, DType::f16, 21, 22); }
auto is_v() { return is_view<Rows>(kV.data, DType::bf16, 31, 32); }
auto is_out() { return is_view<MutableRows>(kOut.data, DType::f16, 41, 42); }

const std::int32_t some_table = 0;
/// The same rows for the library and for a caller.
const StoredRows kRows{
    memory_of_rows.data() + 5, memory_of_rows.data() + 6, 1, 2, 3, 4, 5, &some_table, 6, 7, 8, 9, 10};
const headwater_stored_rows kStored{
    sizeof kStored, kRows.keys, kRows.values, 1, 2, 3, 4, 5, &some_table, 6, 7, 8, 9, 10};

auto numbers_of(const StoredRows& rows) {
  return std::tuple(rows.keys, rows.values, rows.rows, rows.key_row_stride, rows.key_head_stride,
                    rows.value_row_stride, rows.value_head_stride, rows.table, rows.table_size,
                    rows.page_rows, rows.pages, rows.key_page_stride, rows.value_page_stride);
}
auto is_stored() {
  return ResultOf([](const StoredRows& rows) { return numbers_of(rows); }, numbers_of(kRows));
}

/// One call for this session alone.
headwater_status together(headwater_session* session) {
  const headwater_sequence_call call{session, 0, &kQ, &kK, &kV, nullptr, &kOut, nullptr};
  return headwater_attend_together(&call, 1, sizeof call);
}

TEST(CAbiSteps, AreOneCallEachWithTheCallersArguments) {
  Opened<StrictMock> opened;
  MockFunction<void()> destroyed;
  opened.session->on_destruction = destroyed.AsStdFunction();
  {
    const InSequence order;
    EXPECT_CALL(*opened.session, begin(prefill(7, 9)));
    EXPECT_CALL(*opened.session, attend(5, is_q(), is_k(), is_v(), is_out(), is_lse(kNoLse)));
    EXPECT_CALL(*opened.session, attend(6, is_q(), is_k(), is_v(), is_out(), is_given_lse()));
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
  headwater_session* const handle = opened.get();
  headwater_rows reserved = kK;
  reserved.reserved = 1;
  headwater_rows typed = kK;
  typed.type = 3;
  expect_refused(headwater_attend(handle, 0, &kQ, nullptr, &kV, &kOut),
                 "k is NULL; allowed: a valid pointer");
  expect_refused(headwater_attend(handle, 0, &kQ, &reserved, &kV, &kOut), "k.reserved is 1; allowed: 0");
  expect_refused(headwater_attend(handle, 0, &kQ, &typed, &kV, &kOut), "k.type is 3; allowed: 0 .. 2");
  expect_refused(headwater_attend_lse(handle, 0, &kQ, &kK, &kV, &kOut, nullptr),
                 "lse is NULL; allowed: a valid pointer");
  expect_refused(headwater_attend_lse(handle, 0, &kQ, &kK, &kV, &kOut, &kNowhere),
                 "lse.data is NULL; allowed: a valid pointer");
  expect_refused(headwater_attend_lse(handle, 0, &kQ, &kK, &kV, nullptr, &kLse),
                 "out is NULL; allowed: a valid pointer");
  expect_refused(headwater_scores(handle, 0, nullptr), "view is NULL; allowed: a valid pointer");
  expect_refused(headwater_memory(handle, 0, nullptr), "view is NULL; allowed: a valid pointer");
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

/// Throw() of an exception of any type. One type of action for all: the compiler makes the mocks' expectations once.
struct Rethrow {
  std::exception_ptr exception;
  template <class R, class... A>
  operator ::testing::Action<R(A...)>() const {  // NOLINT(google-explicit-constructor)
    return [thrown = exception](A...) -> R { std::rethrow_exception(thrown); };
  }
};

/// A function of the ABI, and the method behind it, which throws.
struct FailingCall {
  const char* name;
  std::function<void(MockSession&)> expect;
  std::function<headwater_status(headwater_session*)> call;
};

std::vector<FailingCall> calls_that_throw(const Rethrow& thrown) {
  static float row[4];
#define HEADWATER_FAILING(method, c_call)                                                                   \
  FailingCall {                                                                                             \
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
  static headwater_session* forked;
  static const char* text;
  return {
      HEADWATER_FAILING(begin(_), headwater_begin_prefill(handle, 1, 0)),
      HEADWATER_FAILING(begin(_), headwater_begin_decode(handle, 1)),
      HEADWATER_FAILING(attend, headwater_attend(handle, 0, &kQ, &kK, &kV, &kOut)),
      HEADWATER_FAILING(end(), headwater_end(handle)),
      HEADWATER_FAILING(attend, headwater_attend_lse(handle, 0, &kQ, &kK, &kV, &kOut, &kLse)),
      HEADWATER_FAILING(attend_stored, headwater_attend_stored(handle, 0, &kQ, &kStored, &kOut, nullptr)),
      HEADWATER_FAILING(attend_group, together(handle)),
      HEADWATER_FAILING(fork(), headwater_fork(handle, &forked)),
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
      HEADWATER_FAILING(chunks(), headwater_session_chunk_count(handle, &count)),
      HEADWATER_FAILING(chunks(), headwater_session_chunk(handle, 0, &chunk, &count)),
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

void expect_status(const std::exception_ptr& exception, headwater_status status, const char* text) {
  Shape shape;
  shape.d_head = shape.d_value = 4;
  const EffectiveOptions options;
  for (const FailingCall& failing : calls_that_throw({exception})) {
    SCOPED_TRACE(failing.name);
    Opened<NiceMock> opened;
    ON_CALL(*opened.session, shape()).WillByDefault(ReturnRef(shape));
    ON_CALL(*opened.session, options()).WillByDefault(ReturnRef(options));
    failing.expect(*opened.session);
    expect_refused(failing.call(opened.get()), text, status);
    ::testing::Mock::VerifyAndClearExpectations(opened.session);
    EXPECT_EQ(headwater_end(opened.get()), HEADWATER_OK);
    EXPECT_STREQ(headwater_last_error(), "") << "after a success";
  }
}

TEST(CAbiErrors, EveryCodeOfAnErrorIsItsStatusAndKeepsItsText) {
  const std::pair<ErrorCode, headwater_status> codes[] = {
      {ErrorCode::invalid_argument, HEADWATER_INVALID_ARGUMENT},
      {ErrorCode::wrong_state, HEADWATER_WRONG_STATE},
      {ErrorCode::capacity_exceeded, HEADWATER_CAPACITY_EXCEEDED},
      {ErrorCode::engine_unavailable, HEADWATER_ENGINE_UNAVAILABLE},
      {ErrorCode::out_of_memory, HEADWATER_OUT_OF_MEMORY},
      {ErrorCode::internal, HEADWATER_INTERNAL},
      {ErrorCode::interrupted, HEADWATER_INTERRUPTED},
      {ErrorCode::unsupported, HEADWATER_UNSUPPORTED}};
  for (const auto& [code, status] : codes) {
    expect_status(std::make_exception_ptr(Error(code, "x is 3; allowed: 4")), status, "x is 3; allowed: 4");
  }
}

// An engine may throw what Session does not allow; no exception may leave the library (headwater.h).
TEST(CAbiErrors, WhatIsNoErrorBecomesAStatus) {
  expect_status(std::make_exception_ptr(std::bad_alloc()), HEADWATER_OUT_OF_MEMORY, "out of memory");
  expect_status(std::make_exception_ptr(std::runtime_error("a vector of none")), HEADWATER_INTERNAL,
                "a vector of none");
  expect_status(std::make_exception_ptr(7), HEADWATER_INTERNAL,
                "an exception of unknown type (from the observer?)");
}

// ---- rows of the caller, several sessions ---------------------------------------------------------------------------

TEST(CAbiStored, RowsOfTheCallerArriveAsTheyAre) {
  const Opened<StrictMock> opened;
  const InSequence order;
  EXPECT_CALL(*opened.session, attend_stored(5, is_q(), is_stored(), is_out(), is_lse(kNoLse)));
  // DEC-2: without queries.
  EXPECT_CALL(*opened.session,
              attend_stored(6, is_view<Rows>(nullptr, DType::f32, 0, 0), is_stored(),
                            is_view<MutableRows>(nullptr, DType::f32, 0, 0), is_given_lse()));
  EXPECT_EQ(headwater_attend_stored(opened.get(), 5, &kQ, &kStored, &kOut, nullptr), HEADWATER_OK);
  EXPECT_EQ(headwater_attend_stored(opened.get(), 6, nullptr, &kStored, nullptr, &kLse), HEADWATER_OK);
}

TEST(CAbiStored, ARefusedArgumentDoesNotReachTheSession) {
  const Opened<StrictMock> opened;
  struct {
    headwater_stored_rows known = kStored;
    std::int64_t later = 1;
  } newer;
  newer.known.struct_size = sizeof newer;
  headwater_stored_rows shorter = kStored;
  shorter.struct_size -= 8;
  const struct {
    const headwater_rows* q;
    const headwater_stored_rows* rows;
    const headwater_mutable_rows* out;
    const headwater_lse_output* lse;
    const char* why;
  } cases[] = {{&kQ, nullptr, &kOut, nullptr, "rows is NULL"},
               {&kQ, &shorter, &kOut, nullptr, "rows.struct_size is 104"},
               {&kQ, &newer.known, &kOut, nullptr, "rows.struct_size is 120 and byte 112 is set"},
               {nullptr, &kStored, &kOut, nullptr, "q is NULL"},
               {&kQ, &kStored, nullptr, nullptr, "out is NULL"},
               {&kQ, &kStored, &kOut, &kNowhere, "lse.data is NULL"}};
  for (const auto& one : cases) {
    expect_refused(headwater_attend_stored(opened.get(), 0, one.q, one.rows, one.out, one.lse),
                   StartsWith(one.why));
  }
}

/// Three sessions and a call for each: rows that the session keeps, rows of the caller, and rows without queries.
struct Three {
  // As a later version may have it.
  struct Call {
    headwater_sequence_call known;
    std::int64_t later = 0;
  };
  std::array<Opened<StrictMock>, 3> opened;
  std::array<Call, 3> calls{{{{opened[0].get(), 7, &kQ, &kK, &kV, nullptr, &kOut, nullptr}},
                             {{opened[1].get(), 8, &kQ, nullptr, nullptr, &kStored, &kOut, &kLse}},
                             {{opened[2].get(), 9, nullptr, &kK, &kV, nullptr, nullptr, nullptr}}}};

  MockSession& session(std::size_t i) { return *opened[i].session; }
  headwater_status attend() { return headwater_attend_together(&calls[0].known, 3, sizeof calls[0]); }
  void expect_checks(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) EXPECT_CALL(session(i), check_call(_));
  }
  /// The attend() or attend_stored() of a call.
  void expect_call(
      std::size_t i, const std::function<void()>& then = [] {}) {
    const auto action = [then](auto&&...) { then(); };
    if (i == 1) {
      EXPECT_CALL(session(1), attend_stored(8, _, is_stored(), _, is_given_lse())).WillOnce(action);
    } else {
      EXPECT_CALL(session(i), attend(i == 0 ? 7 : 9, _, _, _, _, _)).WillOnce(action);
    }
  }
};

/// Everything of a call.
auto numbers_of(const SequenceCall& call) {
  const auto view = [](const auto& rows) {
    return std::tuple(static_cast<const void*>(rows.data), rows.type, rows.row_stride, rows.head_stride);
  };
  std::optional<decltype(numbers_of(*call.stored))> stored;
  if (call.stored) stored = numbers_of(*call.stored);
  return std::tuple(call.session, call.layer, view(call.q), view(call.k), view(call.v), view(call.out),
                    numbers_of(call.lse), stored);
}

TEST(CAbiTogether, EveryCallIsCheckedAndThenTheFirstSessionGetsAll) {
  Three three;
  const Rows q{kQ.data, DType::f32, 11, 12};
  const Rows k{kK.data, DType::f16, 21, 22};
  const Rows v{kV.data, DType::bf16, 31, 32};
  const MutableRows out{kOut.data, DType::f16, 41, 42};
  std::vector<decltype(numbers_of(SequenceCall{}))> wanted{
      numbers_of(SequenceCall{&three.session(0), 7, q, k, v, nullptr, out}),
      numbers_of(SequenceCall{&three.session(1), 8, q, {}, {}, &kRows, out, {kLse.data, 51, 52}}),
      numbers_of(SequenceCall{&three.session(2), 9, {}, k, v, nullptr, {}})};
  const InSequence order;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_CALL(three.session(i),
                check_call(ResultOf([](const SequenceCall& call) { return numbers_of(call); }, wanted[i])));
  }
  const auto all = [](std::span<const SequenceCall> calls) {
    std::vector<decltype(numbers_of(SequenceCall{}))> numbers;
    for (const SequenceCall& call : calls) numbers.push_back(numbers_of(call));
    return numbers;
  };
  EXPECT_CALL(three.session(0), attend_group(ResultOf(all, wanted)));
  for (std::size_t i = 0; i < 3; ++i) three.expect_call(i);
  EXPECT_EQ(three.attend(), HEADWATER_OK);
}

TEST(CAbiTogether, WhatIsRefusedReachesNoSession) {
  headwater_stored_rows shorter = kStored;
  shorter.struct_size -= 8;
  const struct {
    std::function<void(Three&, headwater_sequence_call&)> change;
    std::size_t call;  // that is changed
    const char* why;
  } cases[] = {{[](auto&, auto& call) { call.session = nullptr; }, 2, "calls[2].session is NULL"},
               {[](auto& three, auto& call) { call.session = three.opened[1].get(); }, 2,
                "calls[2]: session is that of calls[1], too"},
               {[](auto&, auto& call) { call.q = nullptr; }, 1, "calls[1].q is NULL"},
               {[](auto&, auto& call) { call.out = nullptr; }, 0, "calls[0].out is NULL"},
               {[](auto&, auto& call) { call.k = nullptr; }, 2, "calls[2].k is NULL"},
               {[](auto&, auto& call) { call.v = nullptr; }, 0, "calls[0].v is NULL"},
               {[](auto&, auto& call) { call.lse = &kNowhere; }, 1, "calls[1].lse.data is NULL"},
               {[&](auto&, auto& call) { call.stored = &shorter; }, 1, "calls[1].stored.struct_size is 104"},
               {[](auto& three, auto&) { three.calls[2].later = 1; }, 2,
                "calls[2].struct_size is 72 and byte 64 is set"}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.why);
    Three three;
    one.change(three, three.calls[one.call].known);
    expect_refused(three.attend(), StartsWith(one.why));
  }
}

// SEQ-1: nothing is computed where one call is refused, and the sessions go on.
TEST(CAbiTogether, ACallThatASessionRefusesHasItsNumberAndNoneIsMade) {
  for (std::size_t refused = 0; refused < 3; ++refused) {
    SCOPED_TRACE(refused);
    Three three;
    const InSequence order;
    three.expect_checks(refused);
    EXPECT_CALL(three.session(refused), check_call(_))
        .WillOnce(Throw(Error(ErrorCode::unsupported, "lse is not offered")));
    expect_refused(three.attend(), "calls[" + std::to_string(refused) + "]: lse is not offered",
                   HEADWATER_UNSUPPORTED);

    three.expect_checks(3);
    EXPECT_CALL(three.session(0), attend_group(_));
    for (std::size_t i = 0; i < 3; ++i) three.expect_call(i);
    EXPECT_EQ(three.attend(), HEADWATER_OK);
    EXPECT_STREQ(headwater_last_error(), "");
  }
}

// SEQ-1: calls before one that cannot finish are done, those after it are not begun. Each session is asked for itself.
TEST(CAbiTogether, ACallThatCannotFinishIsTheLastOne) {
  for (std::size_t failing = 0; failing < 3; ++failing) {
    SCOPED_TRACE(failing);
    Three three;
    const InSequence order;
    three.expect_checks(3);
    EXPECT_CALL(three.session(0), attend_group(_));
    for (std::size_t i = 0; i < failing; ++i) three.expect_call(i);
    three.expect_call(failing, [] { throw Error(ErrorCode::internal, "the device is gone"); });
    expect_refused(three.attend(), HasSubstr("the device is gone"), HEADWATER_INTERNAL);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_CALL(three.session(i), failed()).WillOnce(Return(i == failing));
      std::int32_t failed = -1;
      EXPECT_EQ(headwater_session_failed(three.opened[i].get(), &failed), HEADWATER_OK);
      EXPECT_EQ(failed, i == failing ? 1 : 0);
    }
  }
}

// ---- forks ---------------------------------------------------------------------------------------------------------

TEST(CAbiFork, IsASessionOfItsOwnThatMayLiveLonger) {
  Opened<StrictMock> opened;
  MockFunction<void(int)> destroyed;
  opened.session->on_destruction = [&] { destroyed.Call(0); };
  auto owned = std::make_unique<StrictMock<MockSession>>();
  MockSession& own = *owned;
  own.on_destruction = [&] { destroyed.Call(1); };
  const InSequence order;
  EXPECT_CALL(*opened.session, fork()).WillOnce(Return(ByMove(std::move(owned))));
  EXPECT_CALL(own, begin(decode(3)));
  EXPECT_CALL(*opened.session, begin(prefill(7)));
  EXPECT_CALL(destroyed, Call(0));
  EXPECT_CALL(own, end());
  EXPECT_CALL(destroyed, Call(1));
  headwater_session* forked = nullptr;
  ASSERT_EQ(headwater_fork(opened.get(), &forked), HEADWATER_OK);
  ASSERT_NE(forked, nullptr);
  EXPECT_NE(forked, opened.get());
  EXPECT_EQ(headwater_begin_decode(forked, 3), HEADWATER_OK);
  EXPECT_EQ(headwater_begin_prefill(opened.get(), 7, 0), HEADWATER_OK);
  opened.handle.reset();
  EXPECT_EQ(headwater_end(forked), HEADWATER_OK);
  headwater_close(forked);
}

TEST(CAbiFork, WhatFailsLeavesNoHandleAndTheSessionGoesOn) {
  const Opened<StrictMock> opened;
  EXPECT_CALL(*opened.session, fork())
      .WillOnce(Throw(Error(ErrorCode::wrong_state, "fork() while a step is open")))
      .WillOnce(Throw(std::bad_alloc()))
      .WillOnce(Return(ByMove(std::make_unique<MockSession>())));
  const auto fails = [&](headwater_session* session, headwater_status status, const char* text) {
    expect_no_session([=](auto** forked) { return headwater_fork(session, forked); }, status, text);
  };
  fails(nullptr, HEADWATER_INVALID_ARGUMENT, "session is NULL; allowed: a valid pointer");
  fails(opened.get(), HEADWATER_WRONG_STATE, "fork() while a step is open");
  fails(opened.get(), HEADWATER_OUT_OF_MEMORY, "out of memory");
  EXPECT_EQ(headwater_fork(opened.get(), nullptr), HEADWATER_INVALID_ARGUMENT);
  headwater_session* forked = nullptr;
  EXPECT_EQ(headwater_fork(opened.get(), &forked), HEADWATER_OK);
  EXPECT_NE(forked, nullptr);
  headwater_close(forked);
}

// ---- what a session holds -------------------------------------------------------------------------------------------

/// What a function of the ABI writes.
template <class Value>
Value read(headwater_status (*function)(const headwater_session*, Value*), const headwater_session* handle) {
  Value value{};
  EXPECT_EQ(function(handle, &value), HEADWATER_OK);
  return value;
}
/// The same of a caller whose structure has this size.
template <class Value>
Value read(headwater_status (*function)(const headwater_session*, Value*, std::size_t),
           const headwater_session* handle, std::size_t size = sizeof(Value)) {
  Value value{};
  EXPECT_EQ(function(handle, &value, size), HEADWATER_OK);
  return value;
}
/// The same of an index or a layer.
template <class Value>
Value read(headwater_status (*function)(const headwater_session*, std::int64_t, Value*),
           const headwater_session* handle, std::int64_t at) {
  Value value{};
  EXPECT_EQ(function(handle, at, &value), HEADWATER_OK);
  return value;
}

TEST(CAbiInspection, EveryFieldIsTheSessionsOwn) {
  const Opened<NiceMock> opened;
  const MockSession& session = *opened.session;
  EffectiveOptions effective;
  effective.batch = 1, effective.chunk = 2, effective.local = 3, effective.heavy = 4, effective.sparse = true;
  effective.scale = 0.5, effective.softcap = 1.5, effective.score_type = ScoreType::f32;
  effective.schedule = Schedule::chunk_major, effective.threads = 6;
  effective.select = Select::blocks, effective.key_block = 7, effective.query_block = 8, effective.pool = 9;
  effective.refine = 10, effective.pinned = 11, effective.dense_below = 12, effective.dense_layers = {1};
  effective.checkpoints = 13, effective.least_weight = 0.125, effective.kv_bits = 14;
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
  EXPECT_EQ(read(headwater_session_state, handle), HEADWATER_DECODING);
  EXPECT_EQ(read(headwater_session_failed, handle), 1);
  EXPECT_EQ(read(headwater_session_tokens, handle), std::int64_t{1} << 40);

  const headwater_effective_options said = read(headwater_session_options, handle);
  EXPECT_EQ(std::tuple(said.batch, said.chunk, said.local, said.heavy, said.threads),
            std::tuple(1, 2, 3, 4, 6));
  EXPECT_EQ(std::tuple(said.scale, said.softcap, said.least_weight), std::tuple(0.5, 1.5, 0.125));
  EXPECT_EQ(std::tuple(said.sparse, said.score_type, said.schedule, said.select, said.reserved),
            std::tuple(1, HEADWATER_SCORE_F32, HEADWATER_CHUNK_MAJOR, HEADWATER_SELECT_BLOCKS, 0));
  EXPECT_EQ(std::tuple(said.key_block, said.query_block, said.pool, said.refine), std::tuple(7, 8, 9, 10));
  EXPECT_EQ(std::tuple(said.pinned, said.dense_below, said.checkpoints, said.kv_bits),
            std::tuple(11, 12, 13, 14));
  const auto shorter =
      read(headwater_session_options, handle, offsetof(headwater_effective_options, checkpoints));
  EXPECT_EQ(std::tuple(shorter.dense_below, shorter.checkpoints), std::tuple(12, 0)) << "an older caller";
  EXPECT_EQ(read(headwater_warning_count, handle), 2);
  EXPECT_STREQ(read(headwater_warning, handle, 1), "second");

  const headwater_memory_bytes bytes = read(headwater_session_memory_bytes, handle);
  EXPECT_EQ(std::tuple(bytes.kv, bytes.scores, bytes.memory_sets, bytes.workspace), std::tuple(1, 2, 3, 4));
  EXPECT_EQ(read(headwater_session_stage_seconds, handle).selection, 0.25);

  EXPECT_EQ(read(headwater_plan_count, handle), 2);
  const headwater_chunk chunk = read(headwater_plan_chunk, handle, 1);
  EXPECT_EQ(std::tuple(chunk.begin, chunk.end, chunk.mode), std::tuple(5, 8, HEADWATER_CHUNK_DECODE));

  const headwater_score_view scores = read(headwater_scores, handle, 7);
  EXPECT_EQ(std::tuple(scores.data, scores.head_stride, scores.type),
            std::tuple(&set, 9, HEADWATER_SCORE_F32));
  const headwater_memory_view memory = read(headwater_memory, handle, 8);
  EXPECT_EQ(std::tuple(memory.data, memory.head_stride, memory.width, memory.count),
            std::tuple(&set, 10, 11, 12));
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

// MEM-4: of each chunk, its memory set as the session's options have it.
TEST(CAbiInspection, ChunksOfAllStepsWithTheirMemorySets) {
  const Opened<NiceMock> opened;
  EffectiveOptions options;
  options.select = Select::h2o, options.local = 3, options.heavy = 4;
  const std::vector<Chunk> chunks{
      {0, 5, ChunkMode::sparse}, {5, 70000, ChunkMode::sparse}, {70000, 70001, ChunkMode::dense}};
  ON_CALL(*opened.session, options()).WillByDefault(ReturnRef(options));
  ON_CALL(*opened.session, chunks()).WillByDefault(Return(std::span<const Chunk>(chunks)));
  EXPECT_EQ(read(headwater_session_chunk_count, opened.get()), 3);
  std::int64_t count = -1;
  headwater_chunk chunk{};
  for (const auto& [index, entries] : {std::pair{0, 0}, std::pair{1, 5}, std::pair{2, 0}}) {
    ASSERT_EQ(headwater_session_chunk(opened.get(), index, &chunk, &count), HEADWATER_OK);
    const Chunk& wanted = chunks[static_cast<std::size_t>(index)];
    EXPECT_EQ(std::tuple(chunk.begin, chunk.end, chunk.mode, chunk.reserved, count),
              std::tuple(wanted.begin, wanted.end, static_cast<int>(wanted.mode), 0, entries));
  }
  for (const std::int64_t index : {-1, 3}) {
    expect_refused(headwater_session_chunk(opened.get(), index, &chunk, &count),
                   "chunk index is " + std::to_string(index) + "; allowed: 0 .. 2");
  }
  EXPECT_EQ(std::tuple(chunk.begin, count), std::tuple(70000, 0)) << "written by a call that failed";
}

// ---- observer and interrupt ----------------------------------------------------------------------------------------

TEST(CAbiObserver, IsShownTheRecordAndItsOwnPointerAndIsTakenAway) {
  Opened<StrictMock> opened;
  Observer set;
  Observer unset = [](const ChunkRecord&) {};
  EXPECT_CALL(*opened.session, set_observer(_)).WillOnce(SaveArg<0>(&set)).WillOnce(SaveArg<0>(&unset));
  std::vector<headwater_chunk_record> seen;
  const headwater_observer note = [](void* user, const headwater_chunk_record* record) {
    static_cast<std::vector<headwater_chunk_record>*>(user)->push_back(*record);
  };
  ASSERT_EQ(headwater_set_observer(opened.get(), note, &seen), HEADWATER_OK);
  EXPECT_EQ(seen.size(), 0U);

  const std::int32_t memory = 0;
  const std::array<float, 5> values{};
  ChunkRecord shown;
  shown.layer = 1, shown.chunk = {2, 3, ChunkMode::dense};
  shown.memory_count = 4, shown.memory_stride = 5, shown.row_stride = 6, shown.query_blocks = 7;
  shown.candidate_blocks = 8, shown.voted_tokens = 9, shown.memory = &memory;
  shown.colsum_inter = &values[0], shown.colsum_intra = &values[1], shown.lse = &values[2];
  shown.block_votes = &values[3], shown.token_votes = &values[4];
  ASSERT_TRUE(set);
  set(shown);
  ASSERT_EQ(seen.size(), 1U);
  const headwater_chunk_record& record = seen[0];
  EXPECT_EQ(record.struct_size, sizeof record);
  EXPECT_EQ(std::tuple(record.layer, record.chunk.begin, record.chunk.end, record.chunk.mode),
            std::tuple(1, 2, 3, HEADWATER_CHUNK_DENSE));
  EXPECT_EQ(std::tuple(record.memory_count, record.memory_stride, record.row_stride, record.query_blocks,
                       record.candidate_blocks, record.voted_tokens),
            std::tuple(4, 5, 6, 7, 8, 9));
  EXPECT_EQ(std::tuple(record.memory, record.colsum_inter, record.colsum_intra, record.lse,
                       record.block_votes, record.token_votes),
            std::tuple(&memory, &values[0], &values[1], &values[2], &values[3], &values[4]));

  // NULL switches it off: what is said as `user` then changes nothing.
  ASSERT_EQ(headwater_set_observer(opened.get(), nullptr, &seen), HEADWATER_OK);
  EXPECT_FALSE(unset) << "an observer was left";
}

TEST(CAbiObserver, ItsAnswerStopsTheCallWithOneLine) {
  Opened<StrictMock> opened;
  Observer set;
  Observer unset = [](const ChunkRecord&) {};
  EXPECT_CALL(*opened.session, set_observer(_)).WillOnce(SaveArg<0>(&set)).WillOnce(SaveArg<0>(&unset));
  EXPECT_CALL(*opened.session, attend(3, _, _, _, _, _)).Times(4).WillRepeatedly([&] {
    ChunkRecord record;
    record.layer = 3;
    record.chunk = {70000, 70100, ChunkMode::sparse};
    set(record);
  });
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
  EXPECT_CALL(*opened.session, set_interrupt(_)).WillOnce(SaveArg<0>(&set)).WillOnce(SaveArg<0>(&unset));
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

}  // namespace
}  // namespace headwater::mocks
