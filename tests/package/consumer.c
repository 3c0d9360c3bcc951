#include <headwater/headwater.h>
#include <stdio.h>

enum { TOKENS = 2048, HEADS = 4, KV_HEADS = 2, WIDTH = 64 };
static float q[TOKENS * HEADS * WIDTH], k[TOKENS * KV_HEADS * WIDTH], v[TOKENS * KV_HEADS * WIDTH];
static float out[TOKENS * HEADS * WIDTH];

int main(void) {
  for (int i = 0; i < TOKENS * KV_HEADS * WIDTH; ++i) v[i] = 0.5f;
  const headwater_shape shape = {1, HEADS, KV_HEADS, WIDTH, WIDTH, TOKENS, HEADWATER_F32, 0};
  const headwater_rows q_rows = {q, HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  const headwater_rows k_rows = {k, KV_HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  const headwater_rows v_rows = {v, KV_HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  const headwater_mutable_rows out_rows = {out, HEADS * WIDTH, WIDTH, HEADWATER_F32, 0};
  headwater_session* session = NULL;
  if (headwater_open("cpu", &shape, NULL, &session) != HEADWATER_OK ||
      headwater_begin_prefill(session, TOKENS, 0) != HEADWATER_OK ||
      headwater_attend(session, 0, &q_rows, &k_rows, &v_rows, &out_rows) != HEADWATER_OK ||
      headwater_end(session) != HEADWATER_OK) {
    fprintf(stderr, "%s\n", headwater_last_error());
    return 1;
  }
  printf("last output %.4f\n", (double)out[TOKENS * HEADS * WIDTH - 1]);
  headwater_close(session);
  return 0;
}
