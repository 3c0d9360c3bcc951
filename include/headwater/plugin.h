#ifndef HEADWATER_PLUGIN_H_
#define HEADWATER_PLUGIN_H_

/*
 * An engine in a shared object (C11 and C++). The object exports one function, headwater_plugin_v1(), that returns a
 * table: who the engine is, what it claims, and its functions. `headwater-conformance --engine-plugin ./libmine.so`
 * gives it the full kit; docs/conformance.md describes how to write one, tests/plugin/ has a whole engine in plain C
 * to copy from.
 *
 * The functions of the table are those of headwater.h without the prefix: same arguments, same meaning, same errors,
 * same lifetimes; what is written there is not repeated here. What differs is said below. The plug-in defines
 * `struct headwater_session` as it likes, needs this header and headwater.h only, and is not linked to libheadwater.
 */

#include "headwater/headwater.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Value of headwater_engine_table.abi_version; part of the function's name. */
#define HEADWATER_PLUGIN_VERSION 1

/* What an engine promises beyond the spec's tolerances; bits of headwater_engine_table.claims. Each becomes a test;
 * what is not claimed is not tested, and the report says so. */
#define HEADWATER_CLAIM_BITWISE_THREADS UINT64_C(1)    /* same bits for every number of threads (NUM-3) */
#define HEADWATER_CLAIM_BITWISE_RUNS UINT64_C(2)       /* same bits in every run (NUM-3) */
#define HEADWATER_CLAIM_BITWISE_SCHEDULES UINT64_C(4)  /* outputs: same bits in both schedules (SCHED-2) */
#define HEADWATER_CLAIM_NO_ALLOCATION UINT64_C(8)      /* after open() no memory is taken (NUM-4) */
#define HEADWATER_CLAIM_DOUBLE_ARITHMETIC UINT64_C(16) /* sums and softmax in double: bounds of 2^-53 */
#define HEADWATER_CLAIM_BF16_WEIGHTS UINT64_C(32) /* all-BF16 calls: weights in BF16, exp to 2^-17, flushed */
#define HEADWATER_CLAIM_DEVICE_MEMORY UINT64_C(64) /* open() takes no malloc's memory: not counted there */
#define HEADWATER_CLAIM_F16_WEIGHTS UINT64_C(128)  /* all-F16 calls: weights of outputs in F16 */
/* What is claimed here needs its function in the table; what is not claimed is never called. */
#define HEADWATER_CLAIM_ABORT UINT64_C(256)         /* abort (STATE-8) */
#define HEADWATER_CLAIM_TRUNCATE UINT64_C(512)      /* truncate (STATE-9), options.checkpoints */
#define HEADWATER_CLAIM_INTERRUPT UINT64_C(1024)    /* set_interrupt (INTR-1) */
#define HEADWATER_CLAIM_LSE UINT64_C(2048)          /* attend_lse (LSE-1) */
#define HEADWATER_CLAIM_HOST_THREADS UINT64_C(4096) /* works on options.parallel_for (HOST-1) */
#define HEADWATER_CLAIM_ESTIMATE UINT64_C(8192)     /* estimate (NUM-5) */
#define HEADWATER_CLAIM_HOST_MEMORY UINT64_C(16384) /* takes its memory by options.allocate (HOST-2) */
#define HEADWATER_CLAIM_FORK UINT64_C(32768)        /* fork (STATE-11) */
#define HEADWATER_CLAIM_SAVE UINT64_C(65536) /* save, load, session_chunk_count, session_chunk (STATE-12) */
#define HEADWATER_CLAIM_LAYERS UINT64_C(131072)      /* options.layers (LAYER-1, MASK-2) */
#define HEADWATER_CLAIM_STORED_ROWS UINT64_C(262144) /* attend_stored (ROWS-1), options.kv_owner */
#define HEADWATER_CLAIM_ROWS_ALONE UINT64_C(524288)  /* q and out NULL in a decode step (DEC-2) */
#define HEADWATER_CLAIM_KV_BITS UINT64_C(1048576)    /* options.kv_bits (STATE-13) */

/* The table. It and the texts live as long as the shared object is loaded. No function may be NULL but where that is said;
 * no C++ exception may leave one. Sessions are used by one thread at a time. New members are appended; struct_size says which are there. */
typedef struct headwater_engine_table {
  size_t struct_size;  /* sizeof(headwater_engine_table) of the plug-in */
  int32_t abi_version; /* HEADWATER_PLUGIN_VERSION */
  int32_t reserved;    /* 0 */
  uint64_t claims;     /* HEADWATER_CLAIM_... */

  const char* name; /* "mine": 1 .. 64 letters, digits, '-', '_' and '.'; no engine of the library's own */
  const char* isa;  /* instruction set or device, one line: "scalar", "sm_90" */
  const char* description; /* one line */
  /* "" where this machine can run it, else one line that says what is missing: nothing is run then. */
  const char* unavailable_because;

  /* After a function returned another status than HEADWATER_OK, and in the same thread: one line of 1 .. 1023 bytes that
   * names field, value and what is allowed. Valid until the thread's next call. */
  const char* (*last_error)(void);

  /* headwater_open() without the engine's name. options is never NULL; its struct_size and its layer_size may be larger
   * than the plug-in's. Sinks and ALiBi slopes have n_head entries and must be copied, as must the options of layers. On
   * error *session must become NULL. */
  headwater_status (*open)(const headwater_shape* shape, const headwater_options* options,
                           headwater_session** session);
  void (*close)(headwater_session* session);

  headwater_status (*begin_prefill)(headwater_session* session, int64_t n, int64_t turn_length);
  headwater_status (*begin_decode)(headwater_session* session, int64_t n);
  headwater_status (*attend)(headwater_session* session, int64_t layer, const headwater_rows* q,
                             const headwater_rows* k, const headwater_rows* v,
                             const headwater_mutable_rows* out);
  headwater_status (*end)(headwater_session* session);
  headwater_status (*reset)(headwater_session* session);

  headwater_status (*session_state)(const headwater_session* session, int32_t* state);
  headwater_status (*session_tokens)(const headwater_session* session, int64_t* tokens);
  headwater_status (*session_options)(const headwater_session* session, headwater_effective_options* options,
                                      size_t struct_size);
  headwater_status (*warning_count)(const headwater_session* session, int64_t* count);
  headwater_status (*warning)(const headwater_session* session, int64_t index, const char** text);
  headwater_status (*session_memory_bytes)(const headwater_session* session, headwater_memory_bytes* bytes,
                                           size_t struct_size);
  headwater_status (*plan_count)(const headwater_session* session, int64_t* count);
  headwater_status (*plan_chunk)(const headwater_session* session, int64_t index, headwater_chunk* chunk);
  headwater_status (*scores)(const headwater_session* session, int64_t layer, headwater_score_view* view);
  headwater_status (*memory)(const headwater_session* session, int64_t layer, headwater_memory_view* view);
  headwater_status (*read_key)(const headwater_session* session, int64_t layer, int64_t head_kv,
                               int64_t position, float* row, int64_t width);
  headwater_status (*read_value)(const headwater_session* session, int64_t layer, int64_t head_kv,
                                 int64_t position, float* row, int64_t width);

  /* The observer sees every chunk of every layer that is attended, on the thread that called attend(). It is how the
   * kit learns memory sets, column sums and log-sum-exps: without it nothing can be replayed. */
  headwater_status (*set_observer)(headwater_session* session, headwater_observer observer, void* user);

  /* Not in the first tables, which end above: for those the kit derives it from the statuses of the step functions. */
  headwater_status (*session_failed)(const headwater_session* session, int32_t* failed);

  /* Appended later; each may be NULL where its claim is not made. */
  headwater_status (*abort)(headwater_session* session);
  headwater_status (*truncate)(headwater_session* session, int64_t n);
  headwater_status (*set_interrupt)(headwater_session* session, headwater_interrupt interrupt, void* user);
  headwater_status (*attend_lse)(headwater_session* session, int64_t layer, const headwater_rows* q,
                                 const headwater_rows* k, const headwater_rows* v,
                                 const headwater_mutable_rows* out, const headwater_lse_output* lse);
  /* headwater_estimate() without the engine's name. options is never NULL. */
  headwater_status (*estimate)(const headwater_shape* shape, const headwater_options* options,
                               headwater_memory_bytes* opened, headwater_memory_bytes* full,
                               size_t struct_size);
  /* On error *forked must become NULL. The fork is closed like any session, before or after the other. */
  headwater_status (*fork)(headwater_session* session, headwater_session** forked);
  headwater_status (*attend_stored)(headwater_session* session, int64_t layer, const headwater_rows* q,
                                    const headwater_stored_rows* rows, const headwater_mutable_rows* out,
                                    const headwater_lse_output* lse);
  /* The file may have any format. headwater_load() without the engine's name: options is never NULL; on error *session must
   * become NULL. The last two are how a loaded session says which chunks it holds. */
  headwater_status (*save)(headwater_session* session, const char* path, const char* fingerprint);
  headwater_status (*load)(const headwater_shape* shape, const headwater_options* options, const char* path,
                           const char* fingerprint, headwater_session** session);
  headwater_status (*session_chunk_count)(const headwater_session* session, int64_t* count);
  headwater_status (*session_chunk)(const headwater_session* session, int64_t index, headwater_chunk* chunk,
                                    int64_t* memory_count);
} headwater_engine_table;

/* The one symbol of a plug-in. Called once, before anything else; may return NULL for "no engine here". */
HEADWATER_API const headwater_engine_table* headwater_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif /* HEADWATER_PLUGIN_H_ */
