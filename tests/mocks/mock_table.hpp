#pragma once

#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>

#include "headwater/plugin.h"

namespace headwater::mocks {

/// The functions of a plug-in. The table's pointers call the one object that exists.
class MockTable {
 public:
  MockTable();
  ~MockTable();
  MockTable(const MockTable&) = delete;
  MockTable& operator=(const MockTable&) = delete;

  MOCK_METHOD(const char*, last_error, ());
  MOCK_METHOD(headwater_status, open,
              (const headwater_shape*, const headwater_options*, headwater_session**));
  MOCK_METHOD(void, close, (headwater_session*));
  MOCK_METHOD(headwater_status, begin_prefill, (headwater_session*, std::int64_t, std::int64_t));
  MOCK_METHOD(headwater_status, begin_decode, (headwater_session*, std::int64_t));
  MOCK_METHOD(headwater_status, attend,
              (headwater_session*, std::int64_t, const headwater_rows*, const headwater_rows*,
               const headwater_rows*, const headwater_mutable_rows*));
  MOCK_METHOD(headwater_status, end, (headwater_session*));
  MOCK_METHOD(headwater_status, reset, (headwater_session*));
  MOCK_METHOD(headwater_status, session_state, (const headwater_session*, std::int32_t*));
  MOCK_METHOD(headwater_status, session_tokens, (const headwater_session*, std::int64_t*));
  MOCK_METHOD(headwater_status, session_options,
              (const headwater_session*, headwater_effective_options*, std::size_t));
  MOCK_METHOD(headwater_status, warning_count, (const headwater_session*, std::int64_t*));
  MOCK_METHOD(headwater_status, warning, (const headwater_session*, std::int64_t, const char**));
  MOCK_METHOD(headwater_status, session_memory_bytes,
              (const headwater_session*, headwater_memory_bytes*, std::size_t));
  MOCK_METHOD(headwater_status, plan_count, (const headwater_session*, std::int64_t*));
  MOCK_METHOD(headwater_status, plan_chunk, (const headwater_session*, std::int64_t, headwater_chunk*));
  MOCK_METHOD(headwater_status, scores, (const headwater_session*, std::int64_t, headwater_score_view*));
  MOCK_METHOD(headwater_status, memory, (const headwater_session*, std::int64_t, headwater_memory_view*));
  MOCK_METHOD(headwater_status, read_key,
              (const headwater_session*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t));
  MOCK_METHOD(headwater_status, read_value,
              (const headwater_session*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t));
  MOCK_METHOD(headwater_status, set_observer, (headwater_session*, headwater_observer, void*));
  MOCK_METHOD(headwater_status, session_failed, (const headwater_session*, std::int32_t*));
  MOCK_METHOD(headwater_status, abort, (headwater_session*));
  MOCK_METHOD(headwater_status, truncate, (headwater_session*, std::int64_t));
  MOCK_METHOD(headwater_status, set_interrupt, (headwater_session*, headwater_interrupt, void*));
  MOCK_METHOD(headwater_status, attend_lse,
              (headwater_session*, std::int64_t, const headwater_rows*, const headwater_rows*,
               const headwater_rows*, const headwater_mutable_rows*, const headwater_lse_output*));
  MOCK_METHOD(headwater_status, estimate,
              (const headwater_shape*, const headwater_options*, headwater_memory_bytes*,
               headwater_memory_bytes*, std::size_t));
  MOCK_METHOD(headwater_status, fork, (headwater_session*, headwater_session**));
  MOCK_METHOD(headwater_status, attend_stored,
              (headwater_session*, std::int64_t, const headwater_rows*, const headwater_stored_rows*,
               const headwater_mutable_rows*, const headwater_lse_output*));
  MOCK_METHOD(headwater_status, save, (headwater_session*, const char*, const char*));
  MOCK_METHOD(headwater_status, load,
              (const headwater_shape*, const headwater_options*, const char*, const char*,
               headwater_session**));
  MOCK_METHOD(headwater_status, session_chunk_count, (const headwater_session*, std::int64_t*));
  MOCK_METHOD(headwater_status, session_chunk,
              (const headwater_session*, std::int64_t, headwater_chunk*, std::int64_t*));

  /// A table of all of them, of an engine "mock" that runs here.
  static headwater_engine_table table() {
    return {.struct_size = sizeof(headwater_engine_table),
            .abi_version = HEADWATER_PLUGIN_VERSION,
            .reserved = 0,
            .claims = HEADWATER_CLAIM_ABORT | HEADWATER_CLAIM_TRUNCATE | HEADWATER_CLAIM_INTERRUPT |
                      HEADWATER_CLAIM_LSE | HEADWATER_CLAIM_ESTIMATE | HEADWATER_CLAIM_FORK |
                      HEADWATER_CLAIM_LAYERS | HEADWATER_CLAIM_STORED_ROWS | HEADWATER_CLAIM_ROWS_ALONE,
            .name = "mock",
            .isa = "none",
            .description = "what a test says",
            .unavailable_because = "",
            .last_error = &Function<&MockTable::last_error>::call,
            .open = &Function<&MockTable::open>::call,
            .close = &Function<&MockTable::close>::call,
            .begin_prefill = &Function<&MockTable::begin_prefill>::call,
            .begin_decode = &Function<&MockTable::begin_decode>::call,
            .attend = &Function<&MockTable::attend>::call,
            .end = &Function<&MockTable::end>::call,
            .reset = &Function<&MockTable::reset>::call,
            .session_state = &Function<&MockTable::session_state>::call,
            .session_tokens = &Function<&MockTable::session_tokens>::call,
            .session_options = &Function<&MockTable::session_options>::call,
            .warning_count = &Function<&MockTable::warning_count>::call,
            .warning = &Function<&MockTable::warning>::call,
            .session_memory_bytes = &Function<&MockTable::session_memory_bytes>::call,
            .plan_count = &Function<&MockTable::plan_count>::call,
            .plan_chunk = &Function<&MockTable::plan_chunk>::call,
            .scores = &Function<&MockTable::scores>::call,
            .memory = &Function<&MockTable::memory>::call,
            .read_key = &Function<&MockTable::read_key>::call,
            .read_value = &Function<&MockTable::read_value>::call,
            .set_observer = &Function<&MockTable::set_observer>::call,
            .session_failed = &Function<&MockTable::session_failed>::call,
            .abort = &Function<&MockTable::abort>::call,
            .truncate = &Function<&MockTable::truncate>::call,
            .set_interrupt = &Function<&MockTable::set_interrupt>::call,
            .attend_lse = &Function<&MockTable::attend_lse>::call,
            .estimate = &Function<&MockTable::estimate>::call,
            .fork = &Function<&MockTable::fork>::call,
            .attend_stored = &Function<&MockTable::attend_stored>::call,
            .save = &Function<&MockTable::save>::call,
            .load = &Function<&MockTable::load>::call,
            .session_chunk_count = &Function<&MockTable::session_chunk_count>::call,
            .session_chunk = &Function<&MockTable::session_chunk>::call};
  }

 private:
  template <auto method>
  struct Function;
  template <class Result, class... Arguments, Result (MockTable::*method)(Arguments...)>
  struct Function<method> {
    static Result call(Arguments... arguments) { return (current_->*method)(arguments...); }
  };

  static inline MockTable* current_ = nullptr;
};

}  // namespace headwater::mocks
