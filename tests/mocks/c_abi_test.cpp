// The C ABI where engine and session are mocks. headwater.h: its functions are those of Session and Engine; what they throw
// is a status and one line; a refused argument does not reach the session.

#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
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
using ::testing::Property;
using ::testing::ResultOf;
using ::testing::Return;
using ::testing::ReturnRef;
using ::testing::SaveArg;
using ::testing::StartsWith;
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

const std::int32_t some_table = 0;
const headwater_stored_rows kStored{sizeof(headwater_stored_rows),
                                    memory_of_rows.data() + 5,
                                    memory_of_rows.data() + 6,
                                    1,
                                    2,
                                    3,
                                    4,
                                    5,
                                    &some_table,
                                    6,
                                    7,
                                    8,
                                    9,
                                    10};

auto numbers_of(const StoredRows& rows) {
  return std::tuple(rows.keys, rows.values, rows.rows, rows.key_row_stride, rows.key_head_stride,
                    rows.value_row_stride, rows.value_head_stride, rows.table, rows.table_size,
                    rows.page_rows, rows.pages, rows.key_page_stride, rows.value_page_stride);
}
const auto kStoredNumbers =
    std::tuple(kStored.keys, kStored.values, std::int64_t{1}, std::int64_t{2}, std::int64_t{3},
               std::int64_t{4}, std::int64_t{5}, &some_table, std::int64_t{6}, std::int64_t{7},
               std::int64_t{8}, std::int64_t{9}, std::int64_t{10});

auto is_stored() {
  return ResultOf([](const StoredRows& rows) { return numbers_of(rows); }, kStoredNumbers);
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
  {
    const InSequence order;
    EXPECT_CALL(*opened.session,
                attend_stored(5, is_view<Rows>(kQ.data, DType::f32, 11, 12), is_stored(),
                              is_view<MutableRows>(kOut.data, DType::f16, 41, 42), is_lse(nullptr, 0, 0)));
    // DEC-2: without queries.
    EXPECT_CALL(*opened.session,
                attend_stored(6, is_view<Rows>(nullptr, DType::f32, 0, 0), is_stored(),
                              is_view<MutableRows>(nullptr, DType::f32, 0, 0), is_lse(kLse.data, 51, 52)));
  }
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
  const headwater_lse_output nowhere{nullptr, 51, 52};
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
               {&kQ, &kStored, &kOut, &nowhere, "lse.data is NULL"}};
  for (const auto& one : cases) {
    EXPECT_EQ(headwater_attend_stored(opened.get(), 0, one.q, one.rows, one.out, one.lse),
              HEADWATER_INVALID_ARGUMENT);
    EXPECT_THAT(headwater_last_error(), StartsWith(one.why));
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
      EXPECT_CALL(session(1), attend_stored(8, _, is_stored(), _, is_lse(kLse.data, 51, 52)))
          .WillOnce(action);
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
                    std::tuple(call.lse.data, call.lse.row_stride, call.lse.head_stride), stored);
}

TEST(CAbiTogether, EveryCallIsCheckedAndThenTheFirstSessionGetsAll) {
  Three three;
  StoredRows stored{kStored.keys, kStored.values, 1, 2, 3, 4, 5, &some_table, 6, 7, 8, 9, 10};
  const Rows q{kQ.data, DType::f32, 11, 12};
  const Rows k{kK.data, DType::f16, 21, 22};
  const Rows v{kV.data, DType::bf16, 31, 32};
  const MutableRows out{kOut.data, DType::f16, 41, 42};
  std::vector<decltype(numbers_of(SequenceCall{}))> wanted{
      numbers_of(SequenceCall{&three.session(0), 7, q, k, v, nullptr, out}),
      numbers_of(SequenceCall{&three.session(1), 8, q, {}, {}, &stored, out, {kLse.data, 51, 52}}),
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
  const headwater_lse_output nowhere{nullptr, 51, 52};
  headwater_stored_rows shorter = kStored;
  shorter.struct_size -= 8;
  const struct {
    std::function<void(Three&)> change;
    const char* why;
  } cases[] = {
      {[](Three& three) { three.calls[2].known.session = nullptr; }, "calls[2].session is NULL"},
      {[](Three& three) { three.calls[2].known.session = three.opened[1].get(); },
       "calls[2]: session is that of calls[1], too"},
      {[](Three& three) { three.calls[1].known.q = nullptr; }, "calls[1].q is NULL"},
      {[](Three& three) { three.calls[0].known.out = nullptr; }, "calls[0].out is NULL"},
      {[](Three& three) { three.calls[2].known.k = nullptr; }, "calls[2].k is NULL"},
      {[](Three& three) { three.calls[0].known.v = nullptr; }, "calls[0].v is NULL"},
      {[&](Three& three) { three.calls[1].known.lse = &nowhere; }, "calls[1].lse.data is NULL"},
      {[&](Three& three) { three.calls[1].known.stored = &shorter; }, "calls[1].stored.struct_size is 104"},
      {[](Three& three) { three.calls[2].later = 1; }, "calls[2].struct_size is 72 and byte 64 is set"}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.why);
    Three three;
    one.change(three);
    EXPECT_EQ(three.attend(), HEADWATER_INVALID_ARGUMENT);
    EXPECT_THAT(headwater_last_error(), StartsWith(one.why));
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
    EXPECT_EQ(three.attend(), HEADWATER_UNSUPPORTED);
    EXPECT_EQ(headwater_last_error(), "calls[" + std::to_string(refused) + "]: lse is not offered");

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
    EXPECT_EQ(three.attend(), HEADWATER_INTERNAL);
    EXPECT_THAT(headwater_last_error(), HasSubstr("the device is gone"));
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
    headwater_session other{nullptr};
    headwater_session* forked = &other;
    EXPECT_EQ(headwater_fork(session, &forked), status);
    EXPECT_EQ(forked, nullptr);
    EXPECT_STREQ(headwater_last_error(), text);
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

// ---- files ---------------------------------------------------------------------------------------------------------

headwater_shape some_shape() { return {2, 6, 3, 40, 50, 700, HEADWATER_BF16, 0}; }

/// A folder with a file of a session, or the name of one, and a session that gives or takes `numbers` and `entries`.
class CAbiFiles : public ::testing::Test {
 protected:
  CAbiFiles() {
    std::string name = ::testing::TempDir() + "headwater-mocks-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    file_ = (folder_ / "session").string();
    shape_.d_head = 40;
    expect_sizes(*opened_.session);
  }
  ~CAbiFiles() override { std::filesystem::remove_all(folder_); }

  void expect_sizes(MockSession& session) {
    EXPECT_CALL(session, shape()).WillRepeatedly(ReturnRef(shape_));
    EXPECT_CALL(session, options()).WillRepeatedly(ReturnRef(options_));
  }
  static auto is_archive(bool loading) { return Property("loading", &StateArchive::loading, loading); }
  void exchange(StateArchive& archive) {
    archive.numbers("chunks", numbers_, 3);
    const std::int64_t dim = std::ssize(entries_);
    const StateArchive::Piece piece{entries_.data(), dim * 4};
    archive.array("set.0", StateArchive::Element::i32, std::span(&dim, 1), std::span(&piece, 1));
  }
  void save() {
    EXPECT_CALL(*opened_.session, exchange_state(is_archive(false)))
        .Times(2)
        .WillRepeatedly([this](auto& to) { exchange(to); });
    ASSERT_EQ(headwater_save(opened_.get(), file_.c_str(), "model 7"), HEADWATER_OK)
        << headwater_last_error();
  }
  std::string text() const {
    std::ifstream file(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::int64_t files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  std::filesystem::path folder_;
  std::string file_;
  Shape shape_;
  EffectiveOptions options_;
  std::vector<std::int64_t> numbers_{1, -2, std::int64_t{1} << 40};
  std::vector<std::int32_t> entries_{5, 6, 7, 8};
  Opened<StrictMock> opened_;
  StrictMock<EngineList> list_;
  StrictMock<MockEngine> engine_;
};

TEST_F(CAbiFiles, TheSessionGivesItsStateAndAnotherTakesIt) {
  save();
  const std::vector<std::int64_t> numbers = std::exchange(numbers_, {});
  const std::vector<std::int32_t> entries = std::exchange(entries_, std::vector<std::int32_t>(4));
  auto owned = std::make_unique<StrictMock<MockSession>>();
  MockSession& loaded = *owned;
  expect_sizes(loaded);
  headwater_options asked;
  ASSERT_EQ(headwater_options_init(&asked, sizeof asked), HEADWATER_OK);
  asked.batch = 11;
  const InSequence order;
  EXPECT_CALL(list_, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine_));
  EXPECT_CALL(engine_, open(_, _)).WillOnce([&](const Shape& shape, const Options& options) {
    EXPECT_EQ(std::tuple(shape.d_value, shape.capacity, options.batch), std::tuple(50, 700, 11));
    return std::move(owned);
  });
  EXPECT_CALL(loaded, exchange_state(is_archive(true))).WillOnce([this](auto& from) { exchange(from); });
  EXPECT_CALL(loaded, begin(decode(3)));
  const headwater_shape shape = some_shape();
  headwater_session* handle = nullptr;
  ASSERT_EQ(headwater_load("mine", &shape, &asked, file_.c_str(), "model 7", &handle), HEADWATER_OK)
      << headwater_last_error();
  const Handle owner(handle);
  EXPECT_EQ(numbers_, numbers);
  EXPECT_EQ(entries_, entries);
  EXPECT_EQ(headwater_begin_decode(handle, 3), HEADWATER_OK);
}

// headwater.h: the file is there whole or not at all; one that exists stays.
TEST_F(CAbiFiles, ASaveThatFailsLeavesTheFileThatWasThere) {
  const struct {
    std::function<void()> fail;
    headwater_status status;
    const char* text;
  } cases[] = {
      {[] { throw Error(ErrorCode::wrong_state, "save() while a step is open"); }, HEADWATER_WRONG_STATE,
       "save() while a step is open"},
      {[] { throw Error(ErrorCode::unsupported, "not offered"); }, HEADWATER_UNSUPPORTED, "not offered"},
      {[] { throw std::bad_alloc(); }, HEADWATER_OUT_OF_MEMORY, "no memory for a session's file"},
      {[] { throw std::runtime_error("a vector of none"); }, HEADWATER_INTERNAL, "a vector of none"}};
  std::ofstream(file_) << "old";
  for (const auto& one : cases) {
    for (const int done : {0, 1}) {  // passes over the state: sizes, data
      SCOPED_TRACE(std::string(one.text) + ", " + std::to_string(done));
      int calls = 0;
      EXPECT_CALL(*opened_.session, exchange_state(is_archive(false)))
          .Times(done + 1)
          .WillRepeatedly([&](auto& to) {
            exchange(to);
            if (calls++ == done) one.fail();
          });
      EXPECT_EQ(headwater_save(opened_.get(), file_.c_str(), nullptr), one.status);
      EXPECT_THAT(headwater_last_error(), HasSubstr(one.text));
      EXPECT_EQ(text(), "old");
      EXPECT_EQ(files(), 1) << "a part was left";
    }
  }
  for (const auto& [path, fingerprint] : {std::pair<const char*, const char*>{nullptr, nullptr},
                                          {"", nullptr},
                                          {file_.c_str(), "two\nlines"},
                                          {folder_.c_str(), nullptr}}) {
    EXPECT_EQ(headwater_save(opened_.get(), path, fingerprint), HEADWATER_INVALID_ARGUMENT);
  }
  save();
  EXPECT_NE(text(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(CAbiFiles, ALoadThatFailsLeavesNoSession) {
  save();
  const headwater_shape shape = some_shape();
  EXPECT_CALL(list_, engine(_)).WillRepeatedly(ReturnRef(engine_));
  const auto fails = [&](const std::string& file, const char* fingerprint, headwater_status status,
                         const char* text) {
    SCOPED_TRACE(text);
    headwater_session other{nullptr};
    headwater_session* handle = &other;
    EXPECT_EQ(headwater_load("mine", &shape, nullptr, file.c_str(), fingerprint, &handle), status);
    EXPECT_EQ(handle, nullptr);
    EXPECT_THAT(headwater_last_error(), HasSubstr(text));
  };
  fails(file_ + ".not", "model 7", HEADWATER_INVALID_ARGUMENT, "does not exist");
  EXPECT_CALL(engine_, open(_, _)).WillOnce(Throw(Error(ErrorCode::out_of_memory, "no memory for keys")));
  fails(file_, "model 7", HEADWATER_OUT_OF_MEMORY, "no memory for keys");

  MockFunction<void()> destroyed;
  const auto opens = [&](const std::function<void(StateArchive&)>& take) {
    EXPECT_CALL(engine_, open(_, _)).WillOnce([this, take, &destroyed](auto&&...) {
      auto session = std::make_unique<StrictMock<MockSession>>();
      expect_sizes(*session);
      session->on_destruction = destroyed.AsStdFunction();
      if (take) EXPECT_CALL(*session, exchange_state(is_archive(true))).WillOnce(take);
      return session;
    });
    EXPECT_CALL(destroyed, Call());
  };
  opens({});
  fails(file_, "model 8", HEADWATER_INVALID_ARGUMENT,
        "fingerprint is 'model 7' in the file; allowed: 'model 8'");
  opens({});
  fails(file_, nullptr, HEADWATER_INVALID_ARGUMENT, "fingerprint is 'model 7' in the file; allowed: ''");
  const struct {
    std::function<void()> fail;
    headwater_status status;
    std::string text;
  } cases[] = {{[] { throw Error(ErrorCode::invalid_argument, "701 tokens; allowed: 700"); },
                HEADWATER_INVALID_ARGUMENT, "file '" + file_.substr(0, 20)},
               {[] { throw Error(ErrorCode::internal, "the device is gone"); }, HEADWATER_INTERNAL,
                "the device is gone"},
               {[] { throw std::bad_alloc(); }, HEADWATER_OUT_OF_MEMORY, "no memory for a session's file"}};
  for (const auto& one : cases) {
    opens([this, &one](StateArchive& from) {
      exchange(from);
      one.fail();
    });
    fails(file_, "model 7", one.status, one.text.c_str());
  }
  opens([this](StateArchive& from) { from.numbers("chunks", numbers_, 2); });
  fails(file_, "model 7", HEADWATER_INVALID_ARGUMENT, "chunks is 'I64' [3]; allowed: I64 [0 .. 2]");
  opens([this](StateArchive& from) { from.numbers("chunks", numbers_, 3); });
  fails(file_, "model 7", HEADWATER_INVALID_ARGUMENT, "tensor 'set.0' is none of such a session");

  opens([this](StateArchive& from) { exchange(from); });
  headwater_session* handle = nullptr;
  EXPECT_EQ(headwater_load("mine", &shape, nullptr, file_.c_str(), "model 7", &handle), HEADWATER_OK);
  EXPECT_NE(handle, nullptr);
  headwater_close(handle);
}

// ---- memory of a session that is not opened ------------------------------------------------------------------------

TEST(CAbiEstimate, TheEngineGetsShapeAndOptionsAndOpensNothing) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  EXPECT_CALL(list, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine));
  EXPECT_CALL(engine, estimate(::testing::AllOf(::testing::Field(&Shape::n_layer, 2),
                                                ::testing::Field(&Shape::d_value, 50),
                                                ::testing::Field(&Shape::kv_type, DType::bf16)),
                               ::testing::AllOf(::testing::Field(&Options::batch, 11),
                                                ::testing::Field(&Options::dense, true))))
      .WillOnce(Return(MemoryEstimate{{1, 2, 3, 4}, {5, 6, 7, std::int64_t{1} << 40}}));
  headwater_options asked;
  ASSERT_EQ(headwater_options_init(&asked, sizeof asked), HEADWATER_OK);
  asked.batch = 11, asked.dense = 1;
  const headwater_shape shape = some_shape();
  // As a later version may have it: what this one does not know is 0.
  struct Newer {
    headwater_memory_bytes known;
    std::int64_t later;
  } opened, full;
  opened.later = full.later = -1;
  ASSERT_EQ(headwater_estimate("mine", &shape, &asked, &opened.known, &full.known, sizeof full),
            HEADWATER_OK);
  const auto all = [](const Newer& bytes) {
    return std::vector{bytes.known.kv, bytes.known.scores, bytes.known.memory_sets, bytes.known.workspace,
                       bytes.later};
  };
  EXPECT_EQ(all(opened), (std::vector<std::int64_t>{1, 2, 3, 4, 0}));
  EXPECT_EQ(all(full), (std::vector<std::int64_t>{5, 6, 7, std::int64_t{1} << 40, 0}));
}

TEST(CAbiEstimate, WhatFailsWritesNothing) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  const headwater_shape shape = some_shape();
  headwater_shape odd = shape;
  odd.kv_type = 3;
  headwater_memory_bytes opened{-1, -1, -1, -1};
  headwater_memory_bytes full = opened;
  const auto fails = [&](const headwater_shape* of, headwater_memory_bytes* to, headwater_memory_bytes* other,
                         std::size_t size, headwater_status status, const char* text) {
    EXPECT_EQ(headwater_estimate(nullptr, of, nullptr, to, other, size), status);
    EXPECT_THAT(headwater_last_error(), StartsWith(text));
    for (const headwater_memory_bytes& bytes : {opened, full}) {
      EXPECT_EQ(std::tuple(bytes.kv, bytes.scores, bytes.memory_sets, bytes.workspace),
                std::tuple(-1, -1, -1, -1))
          << text;
    }
  };
  // The engine is not asked.
  fails(nullptr, &opened, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "shape is NULL");
  fails(&odd, &opened, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "shape.kv_type is 3");
  fails(&shape, nullptr, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "opened is NULL");
  fails(&shape, &opened, nullptr, sizeof full, HEADWATER_INVALID_ARGUMENT, "full is NULL");
  fails(&shape, &opened, &full, sizeof full - 1, HEADWATER_INVALID_ARGUMENT, "struct_size is 31");
  EXPECT_CALL(list, engine(std::string_view()))
      .WillOnce(Throw(Error(ErrorCode::engine_unavailable, "no such")))
      .WillRepeatedly(ReturnRef(engine));
  fails(&shape, &opened, &full, sizeof full, HEADWATER_ENGINE_UNAVAILABLE, "no such");
  EXPECT_CALL(engine, estimate(_, _))
      .WillOnce(Throw(Error(ErrorCode::invalid_argument, "shape.d_head is 40; allowed: 64")))
      .WillOnce(Throw(Error(ErrorCode::out_of_memory, "more than 2^63 bytes")))
      .WillOnce(Throw(Error(ErrorCode::unsupported, "not offered")));
  fails(&shape, &opened, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "shape.d_head is 40; allowed: 64");
  fails(&shape, &opened, &full, sizeof full, HEADWATER_OUT_OF_MEMORY, "more than 2^63 bytes");
  fails(&shape, &opened, &full, sizeof full, HEADWATER_UNSUPPORTED, "not offered");
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
  effective.checkpoints = 13, effective.least_weight = 0.125;
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
  EXPECT_EQ(said.least_weight, 0.125);
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

// MEM-4: of each chunk, its memory set as the session's options have it.
TEST(CAbiInspection, ChunksOfAllStepsWithTheirMemorySets) {
  const Opened<NiceMock> opened;
  EffectiveOptions options;
  options.select = Select::h2o, options.local = 3, options.heavy = 4;
  const std::vector<Chunk> chunks{
      {0, 5, ChunkMode::sparse}, {5, 70000, ChunkMode::sparse}, {70000, 70001, ChunkMode::dense}};
  ON_CALL(*opened.session, options()).WillByDefault(ReturnRef(options));
  ON_CALL(*opened.session, chunks()).WillByDefault(Return(std::span<const Chunk>(chunks)));
  std::int64_t count = -1;
  EXPECT_EQ(headwater_session_chunk_count(opened.get(), &count), HEADWATER_OK);
  EXPECT_EQ(count, 3);
  headwater_chunk chunk{};
  for (const auto& [index, entries] : {std::pair{0, 0}, std::pair{1, 5}, std::pair{2, 0}}) {
    ASSERT_EQ(headwater_session_chunk(opened.get(), index, &chunk, &count), HEADWATER_OK);
    const Chunk& wanted = chunks[static_cast<std::size_t>(index)];
    EXPECT_EQ(std::tuple(chunk.begin, chunk.end, chunk.mode, chunk.reserved, count),
              std::tuple(wanted.begin, wanted.end, static_cast<int>(wanted.mode), 0, entries));
  }
  for (const std::int64_t index : {-1, 3}) {
    EXPECT_EQ(headwater_session_chunk(opened.get(), index, &chunk, &count), HEADWATER_INVALID_ARGUMENT);
    EXPECT_EQ(headwater_last_error(), "chunk index is " + std::to_string(index) + "; allowed: 0 .. 2");
  }
  EXPECT_EQ(std::tuple(chunk.begin, count), std::tuple(70000, 0)) << "written by a call that failed";
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
  asked.refine = 19, asked.pinned = 20, asked.dense_below = 21, asked.least_weight = 0.25;
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
  EXPECT_EQ(options.least_weight, 0.25);
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
