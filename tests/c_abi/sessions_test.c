/* Abort (STATE-8), truncate (STATE-9, STATE-10), interrupts (INTR-1), log-sum-exps (LSE-1) and threads of the host (HOST-1),
 * bit for bit against sessions that were only given the tokens that are left. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/c_abi/check.h"
#include "tests/c_abi/plain_attention.h"

/* A sparse prompt of chunks of 4, decode steps of 1. */
enum { kPrompt = 18, kChunk = 4, kLocal = 2, kHeavy = 2, kCheckpoints = 2, kThreads = 3 };

static const headwater_shape kShape = {kLayers,     kHeads,  kHeadsKv,      kWidth,
                                       kValueWidth, kTokens, HEADWATER_F32, 0};

typedef struct outputs {
  float out[kLayers][kTokens][kHeads][kValueWidth];
  float lse[kLayers][kTokens][kHeads];
} outputs;

static headwater_options small_options(void) {
  headwater_options options;
  CHECK_OK(headwater_options_init(&options, sizeof options));
  options.chunk = kChunk;
  options.local = kLocal;
  options.heavy = kHeavy;
  options.threads = kThreads;
  return options;
}

static headwater_session* open_session(const char* engine, const headwater_options* options) {
  headwater_session* session = NULL;
  CHECK_OK(headwater_open(engine, &kShape, options, &session));
  if (session == NULL) abort();
  return session;
}

static headwater_rows rows_of(const float* tensor, int64_t first, int heads, int width) {
  headwater_rows view = {tensor + first * heads * width, (int64_t)heads * width, width, HEADWATER_F32, 0};
  return view;
}

/* One layer of the tokens from `first` on; with log-sum-exps where with_lse. */
static headwater_status attend(headwater_session* session, const problem* p, int layer, int64_t first,
                               outputs* to, int with_lse) {
  const headwater_rows q = rows_of(&p->q[layer][0][0][0], first, kHeads, kWidth);
  const headwater_rows k = rows_of(&p->k[layer][0][0][0], first, kHeadsKv, kWidth);
  const headwater_rows v = rows_of(&p->v[layer][0][0][0], first, kHeadsKv, kValueWidth);
  const headwater_mutable_rows o = {to->out[layer][first], kHeads * kValueWidth, kValueWidth, HEADWATER_F32,
                                    0};
  const headwater_lse_output lse = {to->lse[layer][first], kHeads, 1};
  return with_lse ? headwater_attend_lse(session, layer, &q, &k, &v, &o, &lse)
                  : headwater_attend(session, layer, &q, &k, &v, &o);
}

static void run_step(headwater_session* session, const problem* p, int prefill, int64_t n, outputs* to) {
  int64_t first = 0;
  CHECK_OK(headwater_session_tokens(session, &first));
  CHECK_OK(prefill ? headwater_begin_prefill(session, n, 0) : headwater_begin_decode(session, n));
  for (int layer = 0; layer < kLayers; ++layer) CHECK_OK(attend(session, p, layer, first, to, 0));
  CHECK_OK(headwater_end(session));
}

/* Everything that can be read of both sessions is the same, bit for bit. */
static void check_same(const headwater_session* a, const headwater_session* b) {
  int64_t tokens[2] = {-1, -2};
  int64_t counts[2] = {-1, -2};
  int64_t memory_counts[2] = {-1, -2};
  int32_t states[2] = {-1, -2};
  headwater_chunk chunks[2];
  const headwater_session* both[2] = {a, b};
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(headwater_session_tokens(both[i], &tokens[i]));
    CHECK_OK(headwater_session_state(both[i], &states[i]));
    CHECK_OK(headwater_session_chunk_count(both[i], &counts[i]));
  }
  CHECK_EQUAL(tokens[0], tokens[1]);
  CHECK_EQUAL(states[0], states[1]);
  CHECK_EQUAL(counts[0], counts[1]);
  for (int64_t c = 0; c < counts[0] && counts[0] == counts[1]; ++c) {
    for (int i = 0; i < 2; ++i) CHECK_OK(headwater_session_chunk(both[i], c, &chunks[i], &memory_counts[i]));
    CHECK(memcmp(&chunks[0], &chunks[1], sizeof chunks[0]) == 0);
    CHECK_EQUAL(memory_counts[0], memory_counts[1]);
  }
  for (int layer = 0; layer < kLayers && tokens[0] == tokens[1]; ++layer) {
    headwater_memory_view sets[2];
    float scores[2][kTokens];
    float row[2][kWidth];
    for (int i = 0; i < 2; ++i) CHECK_OK(headwater_memory(both[i], layer, &sets[i]));
    CHECK_EQUAL(sets[0].count, sets[1].count);
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < 2; ++i) CHECK_OK(headwater_copy_scores(both[i], layer, h, 0, tokens[i], scores[i]));
      CHECK(memcmp(scores[0], scores[1], (size_t)tokens[0] * sizeof(float)) == 0);
      if (sets[0].count == 0 || sets[0].count != sets[1].count) continue;
      CHECK(memcmp(sets[0].data + h * sets[0].head_stride, sets[1].data + h * sets[1].head_stride,
                   (size_t)sets[0].count * sizeof(int32_t)) == 0);
    }
    for (int64_t p = 0; p < tokens[0]; ++p) {
      for (int i = 0; i < 2; ++i) CHECK_OK(headwater_read_key(both[i], layer, 1, p, row[i], kWidth));
      CHECK(memcmp(row[0], row[1], sizeof row[0]) == 0);
    }
  }
}

/* The steps that a list gives: n > 0 a prefill of n tokens, n < 0 a decode step of -n. */
static headwater_session* fresh(const char* engine, const headwater_options* options, const problem* p,
                                const int64_t* steps, outputs* to) {
  headwater_session* session = open_session(engine, options);
  for (; *steps != 0; ++steps) run_step(session, p, *steps > 0, *steps > 0 ? *steps : -*steps, to);
  return session;
}

/* The next steps of both sessions give the same bits, too. */
static void check_same_from_here(headwater_session* a, headwater_session* b, const problem* p) {
  static outputs to[2];
  headwater_session* both[2] = {a, b};
  int64_t first = 0;
  check_same(a, b);
  CHECK_OK(headwater_session_tokens(a, &first));
  memset(to, 0, sizeof to);
  for (int i = 0; i < 2; ++i) {
    run_step(both[i], p, 0, 1, &to[i]);
    run_step(both[i], p, 1, kTokens - first - 1, &to[i]);
  }
  check_same(a, b);
  CHECK(memcmp(&to[0], &to[1], sizeof to[0]) == 0);
}

static int32_t has_failed(const headwater_session* session) {
  int32_t failed = -1;
  CHECK_OK(headwater_session_failed(session, &failed));
  return failed;
}

static void test_abort(const char* engine, const problem* p) {
  static outputs to;
  const headwater_options options = small_options();
  const int64_t kept[] = {kPrompt - 6, -1, 0};
  headwater_session* session = open_session(engine, &options);
  CHECK_FAILS(headwater_abort(session), HEADWATER_WRONG_STATE, "begin");
  headwater_close(session);
  for (int attended = 0; attended <= kLayers; ++attended) {
    session = fresh(engine, &options, p, kept, &to);
    headwater_session* never = fresh(engine, &options, p, kept, &to);
    CHECK_OK(headwater_begin_prefill(session, 6, 0)); /* a later turn, sparse as well */
    for (int layer = 0; layer < attended; ++layer) CHECK_OK(attend(session, p, layer, kPrompt - 5, &to, 0));
    if (attended == 1) { /* a failed step, too */
      CHECK_FAILS(attend(session, p, 0, kPrompt - 5, &to, 0), HEADWATER_WRONG_STATE, "layer");
      CHECK_EQUAL(has_failed(session), 1);
    }
    CHECK_OK(headwater_abort(session));
    CHECK_EQUAL(has_failed(session), 0);
    check_same_from_here(session, never, p);
    headwater_close(never);
    headwater_close(session);
  }
}

static void test_truncate(const char* engine, const problem* p) {
  static outputs to;
  static const struct {
    int64_t n;
    int64_t steps[4];
  } kPossible[] = {{kPrompt + 3, {kPrompt, -2, -1, 0}},
                   {kPrompt + 1, {kPrompt, -1, 0}},
                   {kPrompt, {kPrompt, 0}},
                   {16, {16, 0}},
                   {12, {12, 0}},
                   {0, {0}}};
  headwater_options options = small_options();
  options.checkpoints = kCheckpoints;
  const int64_t all[] = {kPrompt, -2, -1, 0};
  for (size_t i = 0; i < sizeof kPossible / sizeof *kPossible; ++i) {
    headwater_session* session = fresh(engine, &options, p, all, &to);
    headwater_session* never = fresh(engine, &options, p, kPossible[i].steps, &to);
    CHECK_OK(headwater_truncate(session, kPossible[i].n));
    check_same_from_here(session, never, p);
    headwater_close(never);
    headwater_close(session);
  }
  headwater_session* session = fresh(engine, &options, p, all, &to);
  static const int64_t kImpossible[] = {-1, 1, 4, 8, 11, 13, 17, kPrompt + 4, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof kImpossible / sizeof *kImpossible; ++i) {
    CHECK_FAILS(headwater_truncate(session, kImpossible[i]), HEADWATER_INVALID_ARGUMENT, "allowed: ");
  }
  CHECK_OK(headwater_begin_decode(session, 1));
  CHECK_FAILS(headwater_truncate(session, 0), HEADWATER_WRONG_STATE, "step");
  CHECK_EQUAL(has_failed(session), 0); /* it stays open */
  CHECK_OK(headwater_abort(session));
  headwater_session* never = fresh(engine, &options, p, all, &to);
  check_same(session, never); /* all refused: as it was */
  headwater_close(never);
  headwater_close(session);

  options.select = HEADWATER_SELECT_BLOCKS; /* every n */
  options.checkpoints = 0;
  options.key_block = 2;
  options.query_block = options.pool = 2;
  for (int64_t n = 1; n <= kPrompt; ++n) {
    const int64_t shorter[] = {n, 0};
    session = fresh(engine, &options, p, all, &to);
    CHECK_OK(headwater_truncate(session, n));
    never = fresh(engine, &options, p, shorter, &to);
    check_same(session, never);
    headwater_close(never);
    headwater_close(session);
  }
}

static void test_checkpoint_options(const char* engine) {
  headwater_options options = small_options();
  headwater_effective_options effective;
  headwater_session* session = NULL;
  CHECK_EQUAL(options.checkpoints, 0);
  CHECK(options.parallel_for == NULL && options.parallel_context == NULL);
  static const int64_t kRefused[] = {-1, 65537, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof kRefused / sizeof *kRefused; ++i) {
    options.checkpoints = kRefused[i];
    CHECK_FAILS(headwater_open(engine, &kShape, &options, &session), HEADWATER_INVALID_ARGUMENT,
                "checkpoints");
    CHECK(session == NULL);
  }
  for (int end = 0; end < 2; ++end) {
    const int64_t e = end == 0 ? 1 : 65536;
    options.checkpoints = e;
    session = open_session(engine, &options);
    CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
    CHECK_EQUAL(effective.checkpoints, e);
    headwater_close(session);
  }
  options.dense = 1; /* nothing to take back */
  session = open_session(engine, &options);
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.checkpoints, 0);
  headwater_close(session);
}

/* Says stop at one of its questions, counted from 1. */
typedef struct questions {
  int64_t asked, stop_at;
  int32_t answer;
} questions;

static int32_t ask(void* user) {
  questions* q = user;
  return ++q->asked == q->stop_at ? q->answer : 0;
}

static int32_t watch(void* user, const headwater_chunk_record* record) {
  CHECK(record->struct_size == sizeof *record && record->lse != NULL);
  return ask(user);
}

/* Stopped at every question, aborted, and run again: the bits of a session that nobody stopped. */
static void test_stopping(const char* engine, const problem* p, int by_observer) {
  static outputs to, wanted;
  const headwater_options options = small_options();
  const int64_t steps[] = {kPrompt, 0};
  memset(&to, 0, sizeof to);
  memset(&wanted, 0, sizeof wanted);
  headwater_session* never = fresh(engine, &options, p, steps, &wanted);
  headwater_session* session = open_session(engine, &options);
  questions q = {0, 0, -1};
  CHECK_OK(by_observer ? headwater_set_stopping_observer(session, watch, &q)
                       : headwater_set_interrupt(session, ask, &q));
  run_step(session, p, 1, kPrompt, &to);
  CHECK(memcmp(to.out, wanted.out, sizeof to.out) == 0); /* an answer to go on changes nothing */
  check_same(session, never);
  const int64_t per_layer = q.asked / kLayers;
  CHECK(per_layer >= (kPrompt + kChunk - 1) / kChunk);
  for (int64_t stop_at = 1; stop_at <= per_layer; ++stop_at) {
    CHECK_OK(headwater_reset(session)); /* which keeps it */
    CHECK_OK(headwater_begin_prefill(session, kPrompt, 0));
    q = (questions){0, stop_at, stop_at % 2 == 0 ? 1 : -256};
    CHECK_FAILS(attend(session, p, 0, 0, &to, 0), HEADWATER_INTERRUPTED, "");
    CHECK(headwater_last_error()[0] != '\0');
    CHECK_EQUAL(q.asked, stop_at); /* not asked again */
    CHECK_EQUAL(has_failed(session), 1);
    q.stop_at = 0;
    CHECK_FAILS(attend(session, p, 1, 0, &to, 0), HEADWATER_WRONG_STATE, "abort");
    CHECK_FAILS(headwater_end(session), HEADWATER_WRONG_STATE, "abort");
    CHECK_OK(headwater_abort(session));
    memset(&to, 0, sizeof to);
    run_step(session, p, 1, kPrompt, &to);
    CHECK(memcmp(to.out, wanted.out, sizeof to.out) == 0);
    check_same(session, never);
  }
  q = (questions){0, 1, 1};
  CHECK_OK(by_observer ? headwater_set_stopping_observer(session, NULL, &q)
                       : headwater_set_interrupt(session, NULL, &q));
  run_step(session, p, 0, 1, &to);
  CHECK_EQUAL(q.asked, 0);
  headwater_close(session);
  headwater_close(never);
}

/* LSE-1: asking changes nothing, and what comes has the bits that an observer is shown. */
typedef struct shown {
  float lse[kLayers][kTokens][kHeads];
} shown;

static void show(void* user, const headwater_chunk_record* record) {
  shown* s = user;
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t t = record->chunk.begin; t < record->chunk.end; ++t) {
      s->lse[record->layer][t][h] = record->lse[h * record->row_stride + t - record->chunk.begin];
    }
  }
}

static void test_lse(const char* engine, const problem* p) {
  static outputs to, wanted;
  static shown seen;
  const headwater_options options = small_options();
  const int64_t steps[] = {kPrompt, -1, 0};
  memset(&wanted, 0, sizeof wanted);
  headwater_session* never = fresh(engine, &options, p, steps, &wanted);
  for (int observed = 0; observed < 2; ++observed) {
    headwater_session* session = open_session(engine, &options);
    if (observed) CHECK_OK(headwater_set_observer(session, show, &seen));
    memset(&to, 0, sizeof to);
    int64_t first = 0;
    for (int s = 0; s < 2; ++s) {
      CHECK_OK(s == 0 ? headwater_begin_prefill(session, kPrompt, 0) : headwater_begin_decode(session, 1));
      for (int layer = 0; layer < kLayers; ++layer) CHECK_OK(attend(session, p, layer, first, &to, 1));
      CHECK_OK(headwater_end(session));
      first = kPrompt;
    }
    CHECK(memcmp(to.out, wanted.out, sizeof to.out) == 0);
    check_same(session, never);
    if (observed) CHECK(memcmp(to.lse, seen.lse, sizeof seen.lse) == 0);
    headwater_close(session);
  }
  headwater_close(never);
}

/* Threads of a host that runs all bodies itself, last index first, and counts them. */
typedef struct host {
  int64_t calls, most;
} host;

static void backwards(void* context, int64_t n, headwater_parallel_body body, void* argument) {
  host* h = context;
  ++h->calls;
  if (n > h->most) h->most = n;
  for (int64_t i = n - 1; i >= 0; --i) body(argument, i);
}

static void test_host_threads(const char* engine, const problem* p) {
  static outputs to, wanted;
  headwater_options options = small_options();
  const int64_t steps[] = {kPrompt, -1, 0};
  headwater_session* never = fresh(engine, &options, p, steps, &wanted);
  host h = {0, 0};
  options.parallel_for = backwards;
  options.parallel_context = &h;
  headwater_session* session = fresh(engine, &options, p, steps, &to);
  check_same(session, never);
  CHECK(memcmp(to.out, wanted.out, sizeof to.out) == 0);
  CHECK(h.most <= kThreads);
  CHECK((h.calls > 0) == (strncmp(engine, "cpu", 3) == 0)); /* the reference computes on the calling thread */
  headwater_close(session);
  headwater_close(never);
}

/* An engine that offers nothing of this says so, and the step goes on. */
static void test_unsupported(const char* engine, const problem* p) {
  static outputs to;
  headwater_options options = small_options();
  headwater_session* session = open_session(engine, &options);
  questions q = {0, 1, 1};
  CHECK_OK(headwater_begin_prefill(session, kPrompt, 0));
  CHECK_FAILS(headwater_abort(session), HEADWATER_UNSUPPORTED, "abort()");
  CHECK_FAILS(headwater_truncate(session, 0), HEADWATER_UNSUPPORTED, "truncate()");
  CHECK_FAILS(headwater_set_interrupt(session, ask, &q), HEADWATER_UNSUPPORTED, "set_interrupt()");
  CHECK_FAILS(attend(session, p, 0, 0, &to, 1), HEADWATER_UNSUPPORTED, "lse");
  CHECK_EQUAL(has_failed(session), 0);
  for (int layer = 0; layer < kLayers; ++layer) CHECK_OK(attend(session, p, layer, 0, &to, 0));
  CHECK_OK(headwater_end(session));
  headwater_close(session);
  options.checkpoints = 1;
  CHECK_FAILS(headwater_open(engine, &kShape, &options, &session), HEADWATER_UNSUPPORTED, "checkpoints");
}

void test_sessions(const char* engine) {
  problem* p = calloc(1, sizeof *p);
  if (p == NULL) abort();
  fill_problem(p);
  if (strncmp(engine, "cuda", 4) == 0) {
    test_unsupported(engine, p);
  } else {
    test_abort(engine, p);
    test_truncate(engine, p);
    test_checkpoint_options(engine);
    test_stopping(engine, p, 0);
    test_stopping(engine, p, 1);
    test_lse(engine, p);
    test_host_threads(engine, p);
  }
  free(p);
}
