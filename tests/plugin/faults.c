/* The broken copy's own file: which fault is on, and those that have nothing to do with the algorithm. */

#define _GNU_SOURCE

#include "tests/plugin/faults.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/plugin/naive.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum naive_fault naive_fault = FAULT_none;

bool choose_fault(void) {
  static const char* const kNames[] = {
#define NAIVE_NAME(name) #name,
      NAIVE_FAULTS(NAIVE_NAME)
#undef NAIVE_NAME
  };
  const char* wanted = getenv("NAIVE_FAULT");
  if (wanted == NULL) return false; /* NAIVE_FAULT must name a fault */
  for (size_t i = 0; i < sizeof kNames / sizeof kNames[0]; ++i) {
    if (strcmp(wanted, kNames[i]) != 0) continue;
    naive_fault = (enum naive_fault)i;
    return true;
  }
  return false;
}

/* The first output moves by one unit in the last place. */
static void nudge(const headwater_mutable_rows* out) {
  if (out->type == HEADWATER_F32) {
    const float value = (float)load_element(out->data, HEADWATER_F32, 0);
    store_element(out->data, HEADWATER_F32, 0, nextafterf(value, 2.0f * fabsf(value) + 1.0f));
  } else {
    store_element(out->data, out->type, 0, load_element(out->data, out->type, 0) * 1.01 + 1e-3);
  }
}

static void* observe_from_thread(void* session) {
  headwater_session* s = session;
  const headwater_chunk_record record = {.struct_size = sizeof record, .chunk = {0, 1, 0, 0}};
  if (s->observer != NULL) s->observer(s->user, &record);
  return NULL;
}

/* Writes what looks like a result of the kit to every open file. */
static void write_to_every_file(void) {
  static const char kText[] = "result{{\"status\":0,\"message\":\"\",\"seconds\":0,\"errors\":[]}}result";
  for (int file = 3; file < 256; ++file) {
    if (write(file, kText, sizeof kText - 1) < 0) continue; /* not open */
  }
  _exit(0);
}

/* What a kernel may do to be fast, and must undo. */
static void flush_subnormals(void) {
#ifdef __SSE__
  _mm_setcsr(_mm_getcsr() | 0x8040);
#else
  fesetround(FE_TOWARDZERO); /* no portable name; the kit must see this one, too */
#endif
}

/* A process that outlives the call, and would outlive the case. Its number goes where LEFT_BEHIND says. */
static void leave_a_process(void) {
  const char* name = getenv("LEFT_BEHIND");
  FILE* file = name == NULL ? NULL : fopen(name, "w");
  if (file == NULL) return;
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    for (;;) pause();
  }
  fprintf(file, "%d", (int)child);
  fclose(file);
}

/* Every case loads the plug-in in a process of its own; a file that LEFT_BEHIND names remembers the first time. */
static bool loaded_before(void) {
  const char* name = getenv("LEFT_BEHIND");
  if (name == NULL) return false;
  if (access(name, F_OK) == 0) return true;
  FILE* file = fopen(name, "w");
  if (file != NULL) fclose(file);
  return false;
}

/* The table, or one with the claims that NAIVE_CLAIMS says; with NAIVE_FIRST_TABLE one of the first header, after whose
 * end nothing may be read. */
const headwater_engine_table* with_other_claims(const headwater_engine_table* table) {
  static headwater_engine_table changed;
  changed = *table;
  const char* claims = getenv("NAIVE_CLAIMS");
  if (claims != NULL) changed.claims = strtoull(claims, NULL, 10);
  if (getenv("NAIVE_FIRST_TABLE") != NULL) {
    changed.struct_size = offsetof(headwater_engine_table, session_failed);
    changed.claims &= 0xFF; /* of that header */
    memset((char*)&changed + changed.struct_size, 0xAB, sizeof changed - changed.struct_size);
  }
  if (FAULT(claims_change) && loaded_before()) changed.claims = 0;
  return &changed;
}

void commit_open_fault(headwater_session* s, const headwater_options* options) {
  if (FAULT(keeps_sinks_pointer)) s->their_sinks = options->sinks;
  if (FAULT(keeps_layers_pointer)) s->their_layers = options->layers;
  if (FAULT(writes_sinks) && options->sinks != NULL) {
    float* theirs;
    memcpy(&theirs, &options->sinks, sizeof theirs);
    theirs[s->shape.n_head] = 1.0f;
  }
  if (FAULT(writes_layers) && options->layers != NULL) {
    headwater_layer_options* theirs;
    memcpy(&theirs, &options->layers, sizeof theirs);
    theirs[0].window = 1;
  }
}

void commit_fork_fault(headwater_session* s, headwater_session* fork, headwater_session** forked) {
  const headwater_shape* shape = &s->shape;
  for (int64_t l = 0; l < shape->n_layer; ++l) {
    if (FAULT(fork_shares_scores)) fork->layers[l].scores = s->layers[l].scores;
    if (FAULT(fork_forgets_newest) && s->tokens > 0 && s->options.kv_owner == HEADWATER_KV_OF_SESSION) {
      store_element(fork->layers[l].keys, shape->kv_type, (s->tokens - 1) * fork->layers[l].d, 0.0);
    }
  }
  if (FAULT(fork_keeps_observer)) {
    fork->observer = s->observer;
    fork->user = s->user;
  }
  if (FAULT(fork_without_session)) *forked = NULL;
  if (FAULT(fork_is_itself)) *forked = s;
  if (FAULT(fork_writes_behind)) forked[1] = NULL;
}

void commit_attend_fault(headwater_session* s, const headwater_rows* q, const headwater_mutable_rows* out) {
  const headwater_shape* shape = &s->shape;
  /* One case of the kit has this width; the others must be judged as without the fault. */
  const bool wide = shape->d_head == 31 && shape->d_value == 31;
  const int64_t last =
      (s->n - 1) * out->row_stride + (shape->n_head - 1) * out->head_stride + shape->d_value - 1;
  switch (naive_fault) {
    case FAULT_differs_by_threads:
      if (s->threads_asked > 2) nudge(out);
      break;
    case FAULT_differs_by_run:
      if (s->opened % 2 == 1) nudge(out);
      break;
    case FAULT_differs_by_schedule:
      if (s->options.schedule == HEADWATER_CHUNK_MAJOR) nudge(out);
      break;
    case FAULT_allocates: {
      void* volatile taken = malloc(24); /* volatile: a compiler may leave out a pair that nothing reads */
      free(taken);
      break;
    }
    case FAULT_allocates_aligned: {
      void* taken = NULL;
      if (posix_memalign(&taken, 64, 24) == 0) free(taken);
      break;
    }
    case FAULT_writes_behind_rows: store_element(out->data, out->type, last + 1, 1.0); break;
    case FAULT_writes_far_behind_rows:
      memset((char*)out->data + (size_t)(last + 1) * element_size(out->type), 0, 1 << 20);
      break;
    case FAULT_writes_input: {
      void* theirs;
      memcpy(&theirs, &q->data, sizeof theirs);
      store_element(theirs, q->type, 0, load_element(theirs, q->type, 0) + 1.0);
      break;
    }
    case FAULT_writes_table:
      if (s->stored.table != NULL) {
        int32_t* theirs;
        memcpy(&theirs, &s->stored.table, sizeof theirs);
        theirs[0] ^= 1;
      }
      break;
    case FAULT_crashes:
      if (wide) raise(SIGSEGV);
      break;
    case FAULT_hangs:
      while (wide) pause();
      break;
    case FAULT_exits:
      if (wide) exit(0);
      break;
    case FAULT_writes_to_every_file:
      if (wide) write_to_every_file();
      break;
    case FAULT_leaves_a_process:
      if (wide) leave_a_process();
      break;
    case FAULT_flushes_subnormals: flush_subnormals(); break;
    case FAULT_rounds_upwards: fesetround(FE_UPWARD); break;
    case FAULT_prints: puts("<b>hello</b> from the plug-in"); break;
    case FAULT_observer_from_thread: {
      pthread_t thread;
      if (pthread_create(&thread, NULL, observe_from_thread, s) == 0) pthread_join(thread, NULL);
      break;
    }
    default: break;
  }
}
