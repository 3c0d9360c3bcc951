/* libheadwater's own C ABI as a plug-in: the functions of headwater.h are those of the table, one by one. So the kit judges
 * the ABI as a third party would see it, and this file compiles only while the table is what plugin.h says. */

#include "headwater/plugin.h"

static headwater_status open_engine(const headwater_shape* shape, const headwater_options* options,
                                    headwater_session** session) {
  return headwater_open("cpu-portable", shape, options, session);
}

static headwater_status estimate(const headwater_shape* shape, const headwater_options* options,
                                 headwater_memory_bytes* opened, headwater_memory_bytes* full,
                                 size_t struct_size) {
  return headwater_estimate("cpu-portable", shape, options, opened, full, struct_size);
}

static headwater_status load(const headwater_shape* shape, const headwater_options* options, const char* path,
                             const char* fingerprint, headwater_session** session) {
  return headwater_load("cpu-portable", shape, options, path, fingerprint, session);
}

static const headwater_engine_table kTable = {
    .struct_size = sizeof(headwater_engine_table),
    .abi_version = HEADWATER_PLUGIN_VERSION,
    .claims = HEADWATER_CLAIM_BITWISE_THREADS | HEADWATER_CLAIM_BITWISE_RUNS |
              HEADWATER_CLAIM_BITWISE_SCHEDULES | HEADWATER_CLAIM_NO_ALLOCATION | HEADWATER_CLAIM_ABORT |
              HEADWATER_CLAIM_TRUNCATE | HEADWATER_CLAIM_INTERRUPT | HEADWATER_CLAIM_LSE |
              HEADWATER_CLAIM_HOST_THREADS | HEADWATER_CLAIM_ESTIMATE | HEADWATER_CLAIM_HOST_MEMORY |
              HEADWATER_CLAIM_FORK | HEADWATER_CLAIM_SAVE | HEADWATER_CLAIM_LAYERS |
              HEADWATER_CLAIM_STORED_ROWS | HEADWATER_CLAIM_ROWS_ALONE | HEADWATER_CLAIM_KV_BITS,
    .name = "c-abi",
    .isa = "x86-64-v2",
    .description = "cpu-portable behind libheadwater's C ABI",
    .unavailable_because = "",
    .last_error = headwater_last_error,
    .open = open_engine,
    .close = headwater_close,
    .begin_prefill = headwater_begin_prefill,
    .begin_decode = headwater_begin_decode,
    .attend = headwater_attend,
    .end = headwater_end,
    .reset = headwater_reset,
    .session_state = headwater_session_state,
    .session_tokens = headwater_session_tokens,
    .session_options = headwater_session_options,
    .warning_count = headwater_warning_count,
    .warning = headwater_warning,
    .session_memory_bytes = headwater_session_memory_bytes,
    .plan_count = headwater_plan_count,
    .plan_chunk = headwater_plan_chunk,
    .scores = headwater_scores,
    .memory = headwater_memory,
    .read_key = headwater_read_key,
    .read_value = headwater_read_value,
    .set_observer = headwater_set_observer,
    .session_failed = headwater_session_failed,
    .abort = headwater_abort,
    .truncate = headwater_truncate,
    .set_interrupt = headwater_set_interrupt,
    .attend_lse = headwater_attend_lse,
    .estimate = estimate,
    .fork = headwater_fork,
    .attend_stored = headwater_attend_stored,
    .save = headwater_save,
    .load = load,
    .session_chunk_count = headwater_session_chunk_count,
    .session_chunk = headwater_session_chunk,
};

#ifdef SAVED_BROKEN
const headwater_engine_table* with_saved_faults(const headwater_engine_table* table);
const headwater_engine_table* headwater_plugin_v1(void) { return with_saved_faults(&kTable); }
#else
const headwater_engine_table* headwater_plugin_v1(void) { return &kTable; }
#endif
