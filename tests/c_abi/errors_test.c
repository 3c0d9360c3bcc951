/* Every call that must be refused: the status, and a line that names what and what is allowed. */

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/c_abi/check.h"

enum { kHeads = 4, kHeadsKv = 2, kWidth = 8, kValueWidth = 6, kCapacity = 10, kMostTokens = 16 };
enum { kFirstOptions = 96 }; /* size of headwater_options in the first header */

static const headwater_shape kShape = {2, kHeads, kHeadsKv, kWidth, kValueWidth, kCapacity, HEADWATER_F32, 0};

static headwater_options defaults(void) {
  headwater_options options;
  CHECK_OK(headwater_options_init(&options, sizeof options));
  return options;
}

static void check_open_fails(const headwater_shape* shape, const headwater_options* options,
                             headwater_status status, const char* part) {
  /* Any non-null value: open must set it to NULL. */
  headwater_session* session = (headwater_session*)&session;
  CHECK_FAILS(headwater_open("reference", shape, options, &session), status, part);
  CHECK(session == NULL);
}

static void test_names(void) {
  CHECK(strcmp(headwater_status_name(HEADWATER_OK), "ok") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_INVALID_ARGUMENT), "invalid_argument") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_WRONG_STATE), "wrong_state") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_CAPACITY_EXCEEDED), "capacity_exceeded") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_ENGINE_UNAVAILABLE), "engine_unavailable") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_OUT_OF_MEMORY), "out_of_memory") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_INTERNAL), "internal") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_INTERRUPTED), "interrupted") == 0);
  CHECK(strcmp(headwater_status_name(HEADWATER_UNSUPPORTED), "unsupported") == 0);
  CHECK(strcmp(headwater_status_name(9), "unknown") == 0);
  CHECK(strcmp(headwater_status_name(-1), "unknown") == 0);
  CHECK(headwater_engine_name(-1) == NULL);
  CHECK(strstr(headwater_last_error(), "engine index is -1; allowed: 0 .. ") != NULL);
  CHECK(headwater_engine_isa(headwater_engine_count()) == NULL);
  CHECK(headwater_engine_description(INT32_MAX) == NULL);
  CHECK(headwater_engine_unavailable_because(INT32_MIN) == NULL);
  CHECK(headwater_engine_name(0) != NULL);
  CHECK(headwater_last_error()[0] == '\0');
}

static void test_engine_choice(void) {
  headwater_session* session = NULL;
  CHECK_FAILS(headwater_open("no-such-engine", &kShape, NULL, &session), HEADWATER_ENGINE_UNAVAILABLE,
              "'no-such-engine'");
  CHECK(strstr(headwater_last_error(), "reference") != NULL); /* lists what there is */
  CHECK(strstr(headwater_last_error(), "cpu-portable") != NULL);
  CHECK_FAILS(headwater_open("cpu-none", &kShape, NULL, &session), HEADWATER_ENGINE_UNAVAILABLE, "cpu-none");
  CHECK_FAILS(headwater_open("two\nlines\x1b[31m\xff", &kShape, NULL, &session), HEADWATER_ENGINE_UNAVAILABLE,
              "'two\\x0alines\\x1b[31m\\xff'");

  CHECK(setenv("HEADWATER_ENGINE", "junk\tof the environment that is longer than any name of an engine", 1) ==
        0);
  CHECK_FAILS(headwater_open(NULL, &kShape, NULL, &session), HEADWATER_ENGINE_UNAVAILABLE,
              "HEADWATER_ENGINE");
  CHECK(strstr(headwater_last_error(), "junk\\x09of") != NULL);
  CHECK(strlen(headwater_last_error()) < 400);
  CHECK_OK(headwater_open("reference", &kShape, NULL, &session)); /* a name wins over the environment */
  headwater_close(session);
  CHECK(setenv("HEADWATER_ENGINE", "reference", 1) == 0);
  CHECK_OK(headwater_open("", &kShape, NULL, &session));
  headwater_close(session);
  CHECK(unsetenv("HEADWATER_ENGINE") == 0);
  CHECK_OK(headwater_open(NULL, &kShape, NULL, &session)); /* "cpu" */
  headwater_close(session);
  headwater_close(NULL);
}

/* The error names the engine that has no device. */
static void test_row_memory(void) {
  static const char* const kWithoutDevice[] = {"reference", "cpu", "cpu-portable"};
  for (size_t i = 0; i < sizeof kWithoutDevice / sizeof *kWithoutDevice; ++i) {
    headwater_session* session = NULL;
    char own_name[64];
    snprintf(own_name, sizeof own_name, "engine %s has no device", kWithoutDevice[i]);
    headwater_options options = defaults();
    options.row_memory = HEADWATER_DEVICE_MEMORY;
    CHECK_FAILS(headwater_open(kWithoutDevice[i], &kShape, &options, &session), HEADWATER_INVALID_ARGUMENT,
                own_name);
    CHECK(session == NULL);
    options = defaults();
    options.device_plus_1 = 1;
    CHECK_FAILS(headwater_open(kWithoutDevice[i], &kShape, &options, &session), HEADWATER_INVALID_ARGUMENT,
                own_name);
    options = defaults();
    options.stream = &options;
    CHECK_FAILS(headwater_open(kWithoutDevice[i], &kShape, &options, &session), HEADWATER_INVALID_ARGUMENT,
                "row_memory is 0 (host)");
  }
  headwater_options options = defaults();
  options.row_memory = 2;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.row_memory is 2");
  options = defaults();
  options.reserved2 = 1;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.reserved2 is 1");
  options = defaults();
  options.reserved3 = 1;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.reserved3 is 1");
  options = defaults();
  options.device_plus_1 = -1;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.device_plus_1 is -1");
}

static void test_options_struct(void) {
  headwater_options options = defaults();
  CHECK_EQUAL(options.struct_size, sizeof options);
  CHECK_EQUAL(options.batch, 4096);
  CHECK_EQUAL(options.chunk, 1024);
  CHECK_EQUAL(options.local, 256);
  CHECK_EQUAL(options.heavy, 256);
  CHECK_EQUAL(options.clamp, 1);
  CHECK_EQUAL(options.dense, 0);
  CHECK(isnan(options.scale));
  CHECK(options.softcap == 0.0 && options.sinks == NULL && options.alibi == NULL);
  CHECK_FAILS(headwater_options_init(NULL, sizeof options), HEADWATER_INVALID_ARGUMENT, "options is NULL");
  CHECK(options.row_memory == HEADWATER_HOST_MEMORY && options.stream == NULL && options.device_plus_1 == 0);
  CHECK_FAILS(headwater_options_init(&options, kFirstOptions - 1), HEADWATER_INVALID_ARGUMENT,
              "struct_size is 95");
  CHECK_FAILS(headwater_options_init(&options, SIZE_MAX), HEADWATER_INVALID_ARGUMENT, "struct_size is");

  /* A program that knows a longer structure: the library zeroes what it does not know, accepts it zero, and
   * refuses what it cannot honour. */
  struct {
    headwater_options known;
    int64_t later;
  } longer;
  headwater_session* session = NULL;
  memset(&longer, 0xAB, sizeof longer);
  CHECK_OK(headwater_options_init(&longer.known, sizeof longer));
  CHECK_EQUAL(longer.later, 0);
  CHECK_OK(headwater_open("reference", &kShape, &longer.known, &session));
  headwater_close(session);
  longer.later = 1;
  check_open_fails(&kShape, &longer.known, HEADWATER_INVALID_ARGUMENT, "byte 296 is set");

  /* A program of the first header: what lies after its structure stays as it is. */
  memset(&options, 0xAB, sizeof options);
  CHECK_OK(headwater_options_init(&options, kFirstOptions));
  CHECK(options.stream != NULL);
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  headwater_close(session);

  options = defaults();
  options.struct_size = 0;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.struct_size is 0");
}

static void test_open(void) {
  headwater_session* session = NULL;
  CHECK_FAILS(headwater_open("reference", &kShape, NULL, NULL), HEADWATER_INVALID_ARGUMENT,
              "session is NULL");
  CHECK_FAILS(headwater_open("reference", NULL, NULL, &session), HEADWATER_INVALID_ARGUMENT, "shape is NULL");

  headwater_shape shape = kShape;
  shape.n_head_kv = 3;
  check_open_fails(&shape, NULL, HEADWATER_INVALID_ARGUMENT, "n_head_kv");
  shape = kShape;
  shape.capacity = 0;
  check_open_fails(&shape, NULL, HEADWATER_INVALID_ARGUMENT, "capacity");
  shape = kShape;
  shape.kv_type = 3;
  check_open_fails(&shape, NULL, HEADWATER_INVALID_ARGUMENT, "shape.kv_type is 3; allowed: 0 .. 2");
  shape.kv_type = -1;
  check_open_fails(&shape, NULL, HEADWATER_INVALID_ARGUMENT, "shape.kv_type is -1");
  shape.kv_type = 0x7F000000; /* not silently cut to the byte of the C++ enumeration */
  check_open_fails(&shape, NULL, HEADWATER_INVALID_ARGUMENT, "shape.kv_type is 2130706432");
  shape = kShape;
  shape.reserved = 1;
  check_open_fails(&shape, NULL, HEADWATER_INVALID_ARGUMENT, "shape.reserved is 1; allowed: 0");

  headwater_options options = defaults();
  options.chunk = 0;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "chunk");
  options = defaults();
  options.clamp = 2;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.clamp is 2");
  options = defaults();
  options.dense = -1;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.dense is -1");
  options = defaults();
  options.score_type = 256; /* a byte-sized enumeration would read 0 */
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.score_type is 256");
  options = defaults();
  options.schedule = 2;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.schedule is 2");
  options = defaults();
  options.reserved = 5;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "options.reserved is 5");
  options = defaults();
  options.threads = -1;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "threads");
  options = defaults();
  options.scale = INFINITY;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "scale");
  options = defaults();
  options.softcap = NAN;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "softcap");

  const float bad[kHeads] = {0.0f, NAN, 0.0f, 0.0f};
  options = defaults();
  options.sinks = bad;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "sinks[1]");
  options = defaults();
  options.alibi = bad;
  check_open_fails(&kShape, &options, HEADWATER_INVALID_ARGUMENT, "alibi[1]");
  shape = kShape;
  shape.n_head = INT64_MAX; /* says how many sinks are read: checked first */
  check_open_fails(&shape, &options, HEADWATER_INVALID_ARGUMENT, "n_head is 9223372036854775807");
}

static void test_warnings(void) {
  headwater_options options = defaults();
  headwater_session* session = NULL;
  headwater_effective_options effective;
  int64_t count = 0;
  const char* text = NULL;
  options.chunk = 8; /* L + H = 512: clamped (CFG-3) */
  options.batch = 4; /* read as 8 (CFG-4) */
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  CHECK_OK(headwater_warning_count(session, &count));
  CHECK_EQUAL(count, 2);
  for (int64_t i = 0; i < count; ++i) {
    CHECK_OK(headwater_warning(session, i, &text));
    CHECK(text != NULL && text[0] != '\0' && strchr(text, '\n') == NULL);
  }
  CHECK_FAILS(headwater_warning(session, 2, &text), HEADWATER_INVALID_ARGUMENT,
              "warning index is 2; allowed: 0 .. 1");
  CHECK_FAILS(headwater_warning(session, -1, &text), HEADWATER_INVALID_ARGUMENT, "warning index is -1");
  CHECK_FAILS(headwater_warning(session, 0, NULL), HEADWATER_INVALID_ARGUMENT, "text is NULL");
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.batch, 8);
  CHECK_EQUAL(effective.local, 7);
  CHECK_EQUAL(effective.heavy, 0);
  headwater_close(session);
}

/* Every function refuses a NULL session and a NULL result by name. */
static void test_null(void) {
  const headwater_status bad = HEADWATER_INVALID_ARGUMENT;
  headwater_session* session = NULL;
  headwater_effective_options effective;
  headwater_memory_bytes bytes;
  headwater_stage_seconds seconds;
  headwater_score_view scores;
  headwater_memory_view memory;
  headwater_chunk chunk;
  headwater_rows in = {&chunk, 0, 0, HEADWATER_F32, 0};
  headwater_mutable_rows out = {&chunk, 0, 0, HEADWATER_F32, 0};
  const char* text = NULL;
  float row[kWidth];
  headwater_lse_output lse = {row, 1, 1};
  int64_t number = 0;
  int32_t state = 0;
  CHECK_FAILS(headwater_begin_prefill(NULL, 1, 0), bad, "session is NULL");
  CHECK_FAILS(headwater_begin_decode(NULL, 1), bad, "session is NULL");
  CHECK_FAILS(headwater_attend(NULL, 0, &in, &in, &in, &out), bad, "session is NULL");
  CHECK_FAILS(headwater_attend_lse(NULL, 0, &in, &in, &in, &out, &lse), bad, "session is NULL");
  CHECK_FAILS(headwater_end(NULL), bad, "session is NULL");
  CHECK_FAILS(headwater_reset(NULL), bad, "session is NULL");
  CHECK_FAILS(headwater_abort(NULL), bad, "session is NULL");
  CHECK_FAILS(headwater_truncate(NULL, 0), bad, "session is NULL");
  CHECK_FAILS(headwater_session_state(NULL, &state), bad, "session is NULL");
  CHECK_FAILS(headwater_session_failed(NULL, &state), bad, "session is NULL");
  CHECK_FAILS(headwater_session_tokens(NULL, &number), bad, "session is NULL");
  CHECK_FAILS(headwater_session_options(NULL, &effective, sizeof effective), bad, "session is NULL");
  CHECK_FAILS(headwater_session_memory_bytes(NULL, &bytes, sizeof bytes), bad, "session is NULL");
  CHECK_FAILS(headwater_session_stage_seconds(NULL, &seconds, sizeof seconds), bad, "session is NULL");
  CHECK_FAILS(headwater_warning_count(NULL, &number), bad, "session is NULL");
  CHECK_FAILS(headwater_warning(NULL, 0, &text), bad, "session is NULL");
  CHECK_FAILS(headwater_plan_count(NULL, &number), bad, "session is NULL");
  CHECK_FAILS(headwater_plan_chunk(NULL, 0, &chunk), bad, "session is NULL");
  CHECK_FAILS(headwater_session_chunk_count(NULL, &number), bad, "session is NULL");
  CHECK_FAILS(headwater_session_chunk(NULL, 0, &chunk, &number), bad, "session is NULL");
  CHECK_FAILS(headwater_scores(NULL, 0, &scores), bad, "session is NULL");
  CHECK_FAILS(headwater_copy_scores(NULL, 0, 0, 0, 0, row), bad, "session is NULL");
  CHECK_FAILS(headwater_memory(NULL, 0, &memory), bad, "session is NULL");
  CHECK_FAILS(headwater_read_key(NULL, 0, 0, 0, row, kWidth), bad, "session is NULL");
  CHECK_FAILS(headwater_read_value(NULL, 0, 0, 0, row, kValueWidth), bad, "session is NULL");
  CHECK_FAILS(headwater_set_observer(NULL, NULL, NULL), bad, "session is NULL");
  CHECK_FAILS(headwater_set_stopping_observer(NULL, NULL, NULL), bad, "session is NULL");
  CHECK_FAILS(headwater_set_interrupt(NULL, NULL, NULL), bad, "session is NULL");
  CHECK_OK(headwater_open("reference", &kShape, NULL, &session));
  CHECK_FAILS(headwater_session_state(session, NULL), bad, "state is NULL");
  CHECK_FAILS(headwater_session_failed(session, NULL), bad, "failed is NULL");
  CHECK_FAILS(headwater_session_tokens(session, NULL), bad, "tokens is NULL");
  CHECK_FAILS(headwater_session_options(session, NULL, sizeof effective), bad, "options is NULL");
  CHECK_FAILS(headwater_session_options(session, &effective, 63), bad, "struct_size is 63");
  CHECK_FAILS(headwater_session_memory_bytes(session, NULL, sizeof bytes), bad, "bytes is NULL");
  CHECK_FAILS(headwater_session_memory_bytes(session, &bytes, 0), bad, "struct_size is 0");
  CHECK_FAILS(headwater_session_stage_seconds(session, NULL, sizeof seconds), bad, "seconds is NULL");
  CHECK_FAILS(headwater_session_stage_seconds(session, &seconds, 7), bad, "struct_size is 7");
  CHECK_FAILS(headwater_warning_count(session, NULL), bad, "count is NULL");
  CHECK_FAILS(headwater_plan_count(session, NULL), bad, "count is NULL");
  CHECK_FAILS(headwater_plan_chunk(session, 0, NULL), bad, "chunk is NULL");
  CHECK_FAILS(headwater_plan_chunk(session, 0, &chunk), bad, "chunk index is 0; allowed: none");
  CHECK_FAILS(headwater_session_chunk_count(session, NULL), bad, "count is NULL");
  CHECK_FAILS(headwater_session_chunk(session, 0, NULL, &number), bad, "chunk is NULL");
  CHECK_FAILS(headwater_session_chunk(session, 0, &chunk, NULL), bad, "memory_count is NULL");
  CHECK_FAILS(headwater_session_chunk(session, 0, &chunk, &number), bad, "chunk index is 0; allowed: none");
  CHECK_FAILS(headwater_scores(session, 0, NULL), bad, "view is NULL");
  CHECK_FAILS(headwater_memory(session, 0, NULL), bad, "view is NULL");
  CHECK_FAILS(headwater_scores(session, 2, &scores), bad, "layer");
  CHECK_FAILS(headwater_memory(session, -1, &memory), bad, "layer");
  headwater_close(session);
}

/* One layer of n tokens from zeroed tensors. */
static headwater_status attend(headwater_session* session, int64_t layer) {
  static const float inputs[kMostTokens * kHeads * kWidth];
  static float outputs[kMostTokens * kHeads * kWidth];
  const headwater_rows q = {inputs, kHeads * kWidth, kWidth, HEADWATER_F32, 0};
  const headwater_rows kv = {inputs, kHeadsKv * kWidth, kWidth, HEADWATER_F32, 0};
  const headwater_mutable_rows out = {outputs, kHeads * kValueWidth, kValueWidth, HEADWATER_F32, 0};
  return headwater_attend(session, layer, &q, &kv, &kv, &out);
}

static void check_tokens(const headwater_session* session, int64_t expected, int32_t expected_state) {
  int64_t tokens = -1;
  int32_t state = -1;
  CHECK_OK(headwater_session_tokens(session, &tokens));
  CHECK_OK(headwater_session_state(session, &state));
  CHECK_EQUAL(tokens, expected);
  CHECK_EQUAL(state, expected_state);
}

static int32_t has_failed(const headwater_session* session) {
  int32_t failed = -1;
  CHECK_OK(headwater_session_failed(session, &failed));
  return failed;
}

/* STATE-1, STATE-5. */
static void test_protocol(const char* engine) {
  headwater_session* session = NULL;
  CHECK_OK(headwater_open(engine, &kShape, NULL, &session));
  check_tokens(session, 0, HEADWATER_EMPTY);
  CHECK_FAILS(attend(session, 0), HEADWATER_WRONG_STATE, "begin");
  CHECK_FAILS(headwater_end(session), HEADWATER_WRONG_STATE, "begin");
  CHECK_FAILS(headwater_begin_prefill(session, 0, 0), HEADWATER_INVALID_ARGUMENT, "n");
  CHECK_FAILS(headwater_begin_prefill(session, INT64_MIN, 0), HEADWATER_INVALID_ARGUMENT, "n");
  CHECK_FAILS(headwater_begin_decode(session, -1), HEADWATER_INVALID_ARGUMENT, "n");
  CHECK_FAILS(headwater_begin_prefill(session, 4, 3), HEADWATER_INVALID_ARGUMENT, "turn_length");
  CHECK_FAILS(headwater_begin_prefill(session, kCapacity + 1, 0), HEADWATER_CAPACITY_EXCEEDED, "capacity");
  CHECK_FAILS(headwater_begin_decode(session, INT64_MAX), HEADWATER_CAPACITY_EXCEEDED, "capacity");
  check_tokens(session, 0, HEADWATER_EMPTY); /* all refused: as it was */
  CHECK_EQUAL(has_failed(session), 0);
  CHECK_OK(headwater_begin_prefill(session, 4, 8));
  CHECK_OK(attend(session, 1));
  CHECK_FAILS(attend(session, 2), HEADWATER_INVALID_ARGUMENT, "layer");
  CHECK_FAILS(attend(session, -1), HEADWATER_INVALID_ARGUMENT, "layer");
  CHECK_EQUAL(has_failed(session), 0); /* a refused argument did not fail the step */
  CHECK_OK(attend(session, 0));
  CHECK_OK(headwater_end(session));
  CHECK_FAILS(headwater_begin_prefill(session, 4, 9), HEADWATER_INVALID_ARGUMENT, "turn_length");
  CHECK_FAILS(headwater_begin_prefill(session, 7, 0), HEADWATER_CAPACITY_EXCEEDED, "capacity");
  check_tokens(session, 4, HEADWATER_PREFILLING);

  CHECK_OK(headwater_begin_decode(session, 1));
  CHECK_OK(attend(session, 0));
  CHECK_EQUAL(has_failed(session), 0);
  CHECK_FAILS(attend(session, 0), HEADWATER_WRONG_STATE, "layer");
  CHECK_EQUAL(has_failed(session), 1);
  CHECK_FAILS(attend(session, 1), HEADWATER_WRONG_STATE, "reset");
  CHECK_FAILS(headwater_end(session), HEADWATER_WRONG_STATE, "reset");
  CHECK_FAILS(headwater_begin_decode(session, 1), HEADWATER_WRONG_STATE, "reset");
  CHECK_OK(headwater_reset(session));
  CHECK_EQUAL(has_failed(session), 0);
  check_tokens(session, 0, HEADWATER_EMPTY);

  CHECK_OK(headwater_begin_decode(session, 1)); /* from empty, too (STATE-1) */
  CHECK_OK(attend(session, 0));
  CHECK_FAILS(headwater_end(session), HEADWATER_WRONG_STATE, "layer");
  CHECK_EQUAL(has_failed(session), 1);
  CHECK_FAILS(headwater_begin_prefill(session, 1, 0), HEADWATER_WRONG_STATE, "reset");
  CHECK_OK(headwater_reset(session));
  CHECK_OK(headwater_begin_decode(session, 1));
  CHECK_FAILS(headwater_begin_decode(session, 1), HEADWATER_WRONG_STATE, "end");
  CHECK_EQUAL(has_failed(session), 1);
  CHECK_OK(headwater_reset(session));
  headwater_close(session);
}

static void test_arguments_of_a_step(const char* engine) {
  const headwater_status bad = HEADWATER_INVALID_ARGUMENT;
  static float buffer[kMostTokens * kHeads * kWidth];
  headwater_session* session = NULL;
  headwater_rows in = {buffer, kHeads * kWidth, kWidth, HEADWATER_F32, 0};
  static float outputs[kMostTokens * kHeads * kWidth];
  headwater_mutable_rows out = {outputs, kHeads * kValueWidth, kValueWidth, HEADWATER_F32, 0};
  float row[kWidth];
  CHECK_OK(headwater_open(engine, &kShape, NULL, &session));
  CHECK_OK(headwater_begin_prefill(session, 2, 0));
  CHECK_FAILS(headwater_attend(session, 0, NULL, &in, &in, &out), bad, "q is NULL");
  CHECK_FAILS(headwater_attend(session, 0, NULL, &in, &in, NULL), bad,
              "q.data"); /* DEC-2: not in a prefill call */
  CHECK_FAILS(headwater_attend(session, 0, &in, NULL, &in, &out), bad, "k is NULL");
  CHECK_FAILS(headwater_attend(session, 0, &in, &in, NULL, &out), bad, "v is NULL");
  CHECK_FAILS(headwater_attend(session, 0, &in, &in, &in, NULL), bad, "out is NULL");
  headwater_rows wrong = in;
  wrong.data = NULL;
  CHECK_FAILS(headwater_attend(session, 0, &in, &wrong, &in, &out), bad, "k.data");
  wrong = in;
  wrong.type = 256;
  CHECK_FAILS(headwater_attend(session, 0, &wrong, &in, &in, &out), bad, "q.type is 256; allowed: 0 .. 2");
  wrong = in;
  wrong.reserved = 1;
  CHECK_FAILS(headwater_attend(session, 0, &in, &in, &wrong, &out), bad, "v.reserved is 1");
  out.type = -1;
  CHECK_FAILS(headwater_attend(session, 0, &in, &in, &in, &out), bad, "out.type is -1");
  out.type = HEADWATER_F32;
  out.data = NULL;
  CHECK_FAILS(headwater_attend(session, 0, &in, &in, &in, &out), bad, "out.data");
  out.data = outputs;
  headwater_lse_output lse = {NULL, kHeads, 1};
  CHECK_FAILS(headwater_attend_lse(session, 0, &in, &in, &in, &out, NULL), bad, "lse is NULL");
  CHECK_FAILS(headwater_attend_lse(session, 0, &in, &in, &in, &out, &lse), bad, "lse.data is NULL");
  lse.data = row;
  CHECK_FAILS(headwater_attend_lse(session, 0, NULL, &in, &in, &out, &lse), bad, "q is NULL");
  CHECK_FAILS(headwater_attend_lse(session, 0, &in, &in, &in, NULL, &lse), bad, "out is NULL");
  CHECK_OK(headwater_attend(session, 0, &in, &in, &in, &out)); /* all refused: the step is still good */
  CHECK_OK(headwater_attend(session, 1, &in, &in, &in, &out));
  CHECK_OK(headwater_end(session));
  CHECK_OK(headwater_read_key(session, 0, 0, 1, row, kWidth));
  CHECK_FAILS(headwater_read_key(session, 0, 0, 1, NULL, kWidth), bad, "row is NULL");
  CHECK_FAILS(headwater_read_key(session, 0, 0, 1, row, kWidth - 1), bad, "width is 7; allowed: 8");
  CHECK_FAILS(headwater_read_key(session, 0, 0, 2, row, kWidth), bad, "position");
  CHECK_FAILS(headwater_read_key(session, 0, 0, -1, row, kWidth), bad, "position");
  CHECK_FAILS(headwater_read_key(session, 0, kHeadsKv, 0, row, kWidth), bad, "head_kv");
  CHECK_FAILS(headwater_read_key(session, 2, 0, 0, row, kWidth), bad, "layer");
  CHECK_FAILS(headwater_read_value(session, 0, 0, 1, row, kWidth), bad, "width is 8; allowed: 6");
  CHECK_FAILS(headwater_copy_scores(session, 0, kHeads, 0, 1, row), bad, "head is 4; allowed: 0 .. 3");
  CHECK_FAILS(headwater_copy_scores(session, 0, 0, 3, 0, row), bad, "first is 3; allowed: 0 .. 2");
  CHECK_FAILS(headwater_copy_scores(session, 0, 0, 1, INT64_MAX, row), bad, "count is 9223372036854775807");
  CHECK_FAILS(headwater_copy_scores(session, 0, 0, 1, 2, row), bad, "count is 2; allowed: 0 .. 1");
  CHECK_FAILS(headwater_copy_scores(session, 0, 0, 0, -1, row), bad, "count is -1");
  CHECK_FAILS(headwater_copy_scores(session, 0, 0, 0, 1, NULL), bad, "scores is NULL");
  CHECK_FAILS(headwater_copy_scores(session, 2, 0, 0, 1, row), bad, "layer");
  headwater_close(session);
}

static void test_rotation(void) {
  const headwater_status bad = HEADWATER_INVALID_ARGUMENT;
  double frequencies[2] = {1.0, 0.5};
  float row[4] = {1, 2, 3, 4};
  headwater_mutable_rows view = {row, 4, 4, HEADWATER_F32, 0};
  CHECK_FAILS(headwater_rope_inverse_frequencies(3, 1e4, frequencies, 1), bad, "r");
  CHECK_FAILS(headwater_rope_inverse_frequencies(INT64_MAX - 1, 1e4, frequencies, 1), bad, "r");
  CHECK_FAILS(headwater_rope_inverse_frequencies(4, 0.0, frequencies, 2), bad, "theta");
  CHECK_FAILS(headwater_rope_inverse_frequencies(4, NAN, frequencies, 2), bad, "theta");
  CHECK_FAILS(headwater_rope_inverse_frequencies(4, 1e4, NULL, 2), bad, "frequencies is NULL");
  CHECK_FAILS(headwater_rope_inverse_frequencies(4, 1e4, frequencies, 1), bad, "count is 1; allowed: 2");
  CHECK_FAILS(headwater_rotate(NULL, 1, 1, 4, 0, frequencies, 2, 1.0, 0), bad, "rows is NULL");
  CHECK_FAILS(headwater_rotate(&view, 1, 1, 4, 0, NULL, 2, 1.0, 0), bad, "frequencies is NULL");
  CHECK_FAILS(headwater_rotate(&view, 1, 1, 4, 0, frequencies, 3, 1.0, 0), bad,
              "count is 3; allowed: 0 .. 2");
  CHECK_FAILS(headwater_rotate(&view, 1, 1, 4, 0, frequencies, -1, 1.0, 0), bad, "count is -1");
  CHECK_FAILS(headwater_rotate(&view, 1, 1, INT64_MIN, 0, frequencies, 1, 1.0, 0), bad, "count is 1");
  CHECK_FAILS(headwater_rotate(&view, 1, 1, 4, 0, frequencies, 2, 1.0, 2), bad, "layout is 2");
  CHECK_FAILS(headwater_rotate(&view, 1, 1, 4, 0, frequencies, 2, INFINITY, 0), bad, "magnitude");
  CHECK_FAILS(headwater_rotate(&view, 1, 1, 4, -1, frequencies, 2, 1.0, 0), bad, "first_position");
  CHECK_FAILS(headwater_rotate(&view, -1, 1, 4, 0, frequencies, 2, 1.0, 0), bad, "n");
  CHECK_FAILS(headwater_rotate(&view, 1, 0, 4, 0, frequencies, 2, 1.0, 0), bad, "heads");
  CHECK_OK(headwater_rotate(&view, 0, 1, 4, 0, frequencies, 2, 1.0, 0));
  CHECK(row[0] == 1 && row[1] == 2 && row[2] == 3 && row[3] == 4);
}

/* Calls of another thread: it only returns what it saw, because the checks count in one thread. */
static void* other_thread(void* seen) {
  char* texts = seen;
  texts[0] = headwater_last_error()[0];
  headwater_session* session = NULL;
  headwater_open("another engine", &kShape, NULL, &session);
  strncpy(texts + 1, headwater_last_error(), 99);
  return NULL;
}

/* The last error is of this thread: calls of others neither show nor wipe it. */
static void test_errors_of_two_threads(void) {
  char seen[101] = "x";
  headwater_session* session = NULL;
  CHECK_FAILS(headwater_open("my engine", &kShape, NULL, &session), HEADWATER_ENGINE_UNAVAILABLE,
              "my engine");
  pthread_t thread;
  CHECK_EQUAL(pthread_create(&thread, NULL, other_thread, seen), 0);
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  CHECK_EQUAL(seen[0], 0);
  CHECK(strstr(seen + 1, "another engine") != NULL);
  CHECK(strstr(headwater_last_error(), "my engine") != NULL);
}

void test_errors(void) {
  test_names();
  test_engine_choice();
  test_options_struct();
  test_row_memory();
  test_open();
  test_warnings();
  test_null();
  for (int32_t i = 0; i < headwater_engine_count(); ++i) {
    if (headwater_engine_unavailable_because(i)[0] != '\0') continue;
    test_protocol(headwater_engine_name(i));
    test_arguments_of_a_step(headwater_engine_name(i));
  }
  test_rotation();
  test_errors_of_two_threads();
}
