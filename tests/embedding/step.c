/* The C example of docs/embedding.md: what stands between the marks is shown there, and runs here. */

#include <stdio.h>
#include <stdlib.h>

#include "headwater/headwater.h"

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, WIDTH = 16, CAPACITY = 200, TOKENS = 100 };
static float q[TOKENS * HEADS * WIDTH], k[TOKENS * KV_HEADS * WIDTH], v[TOKENS * KV_HEADS * WIDTH];
static float out[TOKENS * HEADS * WIDTH];

/* Stands for a model: values are all one half. */
static void project(int layer) {
  for (int i = 0; i < TOKENS * KV_HEADS * WIDTH; ++i) k[i] = (float)(layer + i % 7), v[i] = 0.5f;
}

/* [step] */
/* Asked by headwater_attend() on its thread: another value than 0 stops it. */
static int32_t stopped(void* user) { return *(const volatile int*)user; }

/* n tokens through all layers; project() stands for yours and fills q, k and v. A step that fails never was. */
static headwater_status prefill(headwater_session* session, int64_t n) {
  const headwater_rows q_rows = {q, HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  const headwater_rows k_rows = {k, KV_HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  const headwater_rows v_rows = {v, KV_HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  const headwater_mutable_rows out_rows = {out, HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  headwater_status status = headwater_begin_prefill(session, n, 0);
  if (status != HEADWATER_OK) return status; /* no step is open */
  for (int layer = 0; layer < LAYERS && status == HEADWATER_OK; ++layer) {
    project(layer);
    status = headwater_attend(session, layer, &q_rows, &k_rows, &v_rows, &out_rows);
  }
  if (status == HEADWATER_OK) return headwater_end(session);
  fprintf(stderr, "%s\n", headwater_last_error());
  headwater_abort(session);
  return status;
}
/* [/step] */

static void require(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "failed: %s (%s)\n", what, headwater_last_error());
  exit(1);
}

int main(void) {
  static int stop = 1;
  const headwater_shape shape = {LAYERS, HEADS, KV_HEADS, WIDTH, WIDTH, CAPACITY, HEADWATER_F32, 0};
  headwater_session* session = NULL;
  int64_t tokens = -1;
  require(headwater_open(NULL, &shape, NULL, &session) == HEADWATER_OK, "open");
  require(headwater_set_interrupt(session, stopped, &stop) == HEADWATER_OK, "set_interrupt");
  require(prefill(session, TOKENS) == HEADWATER_INTERRUPTED, "a step that is stopped");
  require(headwater_session_tokens(session, &tokens) == HEADWATER_OK && tokens == 0, "no tokens");
  stop = 0;
  require(prefill(session, TOKENS) == HEADWATER_OK, "a step that is not stopped");
  require(headwater_session_tokens(session, &tokens) == HEADWATER_OK && tokens == TOKENS, "all tokens");
  require(out[TOKENS * HEADS * WIDTH - 1] == 0.5f, "the mean of halves");
  headwater_close(session);
  return 0;
}
