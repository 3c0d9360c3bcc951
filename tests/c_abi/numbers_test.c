/* Two sessions side by side: sparse prefill (PLAN-1, MEM-1, MEM-4, FUSE-2), decode (DEC-1), scores by replay
 * (SCORE-2, SCORE-3), what a session holds; every output against plain_attention.c. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/c_abi/check.h"
#include "tests/c_abi/plain_attention.h"

enum { kPrefill = 20, kDecodeSteps = 4, kChunk = 8, kBatch = 16, kLocal = 3, kHeavy = 2 };
enum { kMemory = kLocal + kHeavy, kMostChunks = 4 };

/* F32 inputs of size 3 in rows of 8: 40 products and exponentials of 2^-24 each are far below this. */
static const double kOutputBound = 1e-5;

/* What the observer saw. */
typedef struct trace {
  int chunks[kLayers];
  headwater_chunk chunk[kLayers][kMostChunks];
  int64_t memory_count[kLayers][kMostChunks];
  int32_t memory[kLayers][kMostChunks][kHeads][kMemory];
  float replayed[kLayers][kHeads][kTokens]; /* scores recomputed from the column sums (SCORE-6) */
  double lse[kLayers][kHeads][kTokens];
} trace;

/* Round to nearest even; the values here are finite and positive (SCORE-4). */
static float round_to_bf16(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  bits += 0x7FFFu + ((bits >> 16) & 1u);
  bits &= 0xFFFF0000u;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void record(void* user, const headwater_chunk_record* seen) {
  trace* t = user;
  const int64_t layer = seen->layer;
  const int c = t->chunks[layer]++;
  CHECK(seen->struct_size >= sizeof(headwater_chunk_record));
  CHECK(c < kMostChunks);
  if (c >= kMostChunks) return;
  t->chunk[layer][c] = seen->chunk;
  t->memory_count[layer][c] = seen->memory_count;
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t n = 0; n < seen->memory_count && n < kMemory; ++n) {
      const int32_t position = seen->memory[h * seen->memory_stride + n];
      t->memory[layer][c][h][n] = position;
      float* score = &t->replayed[layer][h][position];
      *score = round_to_bf16(*score + seen->colsum_inter[h * seen->memory_stride + n]);
    }
    for (int64_t p = seen->chunk.begin; p < seen->chunk.end; ++p) {
      const int64_t n = h * seen->row_stride + p - seen->chunk.begin;
      t->lse[layer][h][p] = (double)seen->lse[n];
      if (seen->colsum_intra != NULL) t->replayed[layer][h][p] = round_to_bf16(seen->colsum_intra[n]);
    }
  }
}

/* Rows of tokens [first, ...) of [tokens][heads][width]. */
static headwater_rows rows(const float* tensor, int first, int heads, int width) {
  headwater_rows view = {tensor + (ptrdiff_t)first * heads * width, (int64_t)heads * width, width,
                         HEADWATER_F32, 0};
  return view;
}

/* One layer of the open step; out is a contiguous [kTokens][kHeads][kValueWidth]. */
static headwater_status attend(headwater_session* session, const problem* p, int layer, int first,
                               float* out) {
  const headwater_rows q = rows(&p->q[layer][0][0][0], first, kHeads, kWidth);
  const headwater_rows k = rows(&p->k[layer][0][0][0], first, kHeadsKv, kWidth);
  const headwater_rows v = rows(&p->v[layer][0][0][0], first, kHeadsKv, kValueWidth);
  const headwater_mutable_rows o = {out + (ptrdiff_t)first * kHeads * kValueWidth, kHeads * kValueWidth,
                                    kValueWidth, HEADWATER_F32, 0};
  return headwater_attend(session, layer, &q, &k, &v, &o);
}

static headwater_session* open_session(const char* engine, const problem* p) {
  const headwater_shape shape = {kLayers, kHeads, kHeadsKv, kWidth, kValueWidth, kTokens, HEADWATER_F32, 0};
  headwater_options options;
  headwater_session* session = NULL;
  CHECK_OK(headwater_options_init(&options, sizeof options));
  options.batch = kBatch;
  options.chunk = kChunk;
  options.local = kLocal;
  options.heavy = kHeavy;
  options.softcap = p->softcap;
  options.sinks = p->sinks;
  options.alibi = p->alibi;
  options.threads = 2;
  CHECK_OK(headwater_open(engine, &shape, &options, &session));
  return session;
}

static void check_row(const problem* p, const trace* t, const float* out, int layer, int head, int i,
                      const int32_t* keys, int count) {
  double expected[kValueWidth];
  double lse = 0.0;
  attend_to_keys(p, layer, head, i, keys, count, expected, &lse);
  for (int e = 0; e < kValueWidth; ++e) {
    CHECK_NEAR((double)out[(i * kHeads + head) * kValueWidth + e], expected[e], kOutputBound);
  }
  CHECK_NEAR(t->lse[layer][head][i], lse, kOutputBound);
}

/* MEM-1, MEM-4: ascending, before the chunk, the newest kLocal among them. */
static void check_memory(const int32_t* memory, int64_t count, int64_t chunk_begin) {
  CHECK_EQUAL(count, chunk_begin < kMemory ? chunk_begin : kMemory);
  for (int64_t n = 0; n < count; ++n) {
    CHECK(memory[n] >= 0 && memory[n] < chunk_begin);
    CHECK(n == 0 || memory[n - 1] < memory[n]);
  }
  for (int64_t n = 1; n <= kLocal && n <= count; ++n) CHECK_EQUAL(memory[count - n], chunk_begin - n);
}

static void check_prefill(const problem* p, const trace* t, const float* out, int layer) {
  static const int64_t kBoundaries[] = {0, 8, 16, 20};
  CHECK_EQUAL(t->chunks[layer], 3);
  for (int c = 0; c < 3; ++c) {
    const headwater_chunk chunk = t->chunk[layer][c];
    CHECK_EQUAL(chunk.begin, kBoundaries[c]);
    CHECK_EQUAL(chunk.end, kBoundaries[c + 1]);
    CHECK_EQUAL(chunk.mode, HEADWATER_CHUNK_SPARSE);
    for (int h = 0; h < kHeads; ++h) {
      int32_t keys[kMemory + kChunk];
      const int count = (int)t->memory_count[layer][c];
      check_memory(t->memory[layer][c][h], count, chunk.begin);
      memcpy(keys, t->memory[layer][c][h], (size_t)count * sizeof keys[0]);
      for (int64_t i = chunk.begin; i < chunk.end; ++i) {
        keys[count + i - chunk.begin] = (int32_t)i;
        check_row(p, t, out, layer, h, (int)i, keys, count + (int)(i - chunk.begin) + 1);
      }
    }
  }
}

static void check_scores(const headwater_session* session, const trace* t, int layer) {
  headwater_score_view view;
  CHECK_OK(headwater_scores(session, layer, &view));
  CHECK_EQUAL(view.type, HEADWATER_SCORE_BF16);
  CHECK_EQUAL(view.head_stride, kTokens);
  for (int h = 0; h < kHeads; ++h) {
    float copied[kTokens];
    CHECK_OK(headwater_copy_scores(session, layer, h, 0, kTokens, copied));
    for (int i = 0; i < kTokens; ++i) {
      uint32_t bits = 0;
      const uint16_t raw = ((const uint16_t*)view.data)[h * view.head_stride + i];
      memcpy(&bits, &copied[i], sizeof bits);
      CHECK_EQUAL(bits >> 16, raw);
      CHECK_EQUAL(bits & 0xFFFFu, 0);
      CHECK(copied[i] == (i < kPrefill ? t->replayed[layer][h][i] : 0.0f));
      CHECK(i >= kPrefill || copied[i] > 0.0f);
    }
    CHECK_OK(headwater_copy_scores(session, layer, h, kPrefill - 1, 1, copied));
    CHECK(copied[0] == t->replayed[layer][h][kPrefill - 1]);
    CHECK_OK(headwater_copy_scores(session, layer, h, kTokens, 0, NULL));
  }
}

static void check_contents(const headwater_session* session, const problem* p, const trace* t) {
  headwater_effective_options effective;
  headwater_memory_bytes bytes;
  headwater_stage_seconds seconds;
  headwater_memory_view memory;
  headwater_chunk chunk;
  int64_t number = -1;
  int32_t state = -1;
  CHECK_OK(headwater_session_tokens(session, &number));
  CHECK_EQUAL(number, kTokens);
  CHECK_OK(headwater_session_state(session, &state));
  CHECK_EQUAL(state, HEADWATER_DECODING);
  CHECK_OK(headwater_plan_count(session, &number));
  CHECK_EQUAL(number, 1);
  CHECK_OK(headwater_plan_chunk(session, 0, &chunk));
  CHECK_EQUAL(chunk.begin, kTokens - 1);
  CHECK_EQUAL(chunk.end, kTokens);
  CHECK_EQUAL(chunk.mode, HEADWATER_CHUNK_DECODE);
  CHECK_OK(headwater_session_chunk_count(session, &number));
  CHECK_EQUAL(number, 3 + kDecodeSteps);
  for (int64_t c = 0; c < number; ++c) {
    int64_t count = -1;
    const int64_t begin = c < 3 ? c * kChunk : kPrefill + c - 3;
    CHECK_OK(headwater_session_chunk(session, c, &chunk, &count));
    CHECK_EQUAL(chunk.begin, begin);
    CHECK_EQUAL(chunk.end, c < 2 ? begin + kChunk : c == 2 ? kPrefill : begin + 1);
    CHECK_EQUAL(chunk.mode, c < 3 ? HEADWATER_CHUNK_SPARSE : HEADWATER_CHUNK_DECODE);
    CHECK_EQUAL(count, c == 1 || c == 2 ? kMemory : 0);
  }
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.batch, kBatch);
  CHECK_EQUAL(effective.chunk, kChunk);
  CHECK_EQUAL(effective.local, kLocal);
  CHECK_EQUAL(effective.heavy, kHeavy);
  CHECK_EQUAL(effective.sparse, 1);
  CHECK_EQUAL(effective.score_type, HEADWATER_SCORE_BF16);
  CHECK_EQUAL(effective.schedule, HEADWATER_LAYER_MAJOR);
  CHECK(effective.threads >= 1);
  CHECK_NEAR(effective.scale, 1.0 / sqrt((double)kWidth), 1e-15);
  CHECK_NEAR(effective.softcap, p->softcap, 0.0);
  CHECK_OK(headwater_session_memory_bytes(session, &bytes, sizeof bytes));
  CHECK(bytes.kv >= (int64_t)sizeof p->k + (int64_t)sizeof p->v);
  CHECK(bytes.scores >= (int64_t)kLayers * kHeads * kTokens * (int64_t)sizeof(uint16_t));
  CHECK(bytes.memory_sets >= (int64_t)kLayers * kHeads * kMemory * (int64_t)sizeof(int32_t));
  CHECK(bytes.workspace >= 0);
  CHECK_OK(headwater_session_stage_seconds(session, &seconds, sizeof seconds));
  CHECK(seconds.selection >= 0 || seconds.selection == -1);
  CHECK_OK(headwater_warning_count(session, &number));
  CHECK_EQUAL(number, 0);
  for (int layer = 0; layer < kLayers; ++layer) {
    check_scores(session, t, layer);
    CHECK_OK(headwater_memory(session, layer, &memory));
    CHECK_EQUAL(memory.count, kMemory);
    CHECK_EQUAL(memory.width, kMemory);
    for (int h = 0; h < kHeads; ++h) {
      CHECK(memcmp(memory.data + h * memory.head_stride, t->memory[layer][2][h],
                   sizeof t->memory[layer][2][h]) == 0);
    }
    for (int i = 0; i < kTokens; ++i) {
      float key[kWidth];
      float value[kValueWidth];
      const int h = i % kHeadsKv;
      CHECK_OK(headwater_read_key(session, layer, h, i, key, kWidth));
      CHECK_OK(headwater_read_value(session, layer, h, i, value, kValueWidth));
      CHECK(memcmp(key, p->k[layer][i][h], sizeof key) == 0);
      CHECK(memcmp(value, p->v[layer][i][h], sizeof value) == 0);
    }
  }
}

/* Rotation against the formula of ROPE-1, and back. */
static void check_rotation(const problem* p) {
  enum { kPairs = 3, kPosition = 1000 };
  double frequencies[kPairs];
  float row[kWidth];
  headwater_mutable_rows view = {row, kWidth, kWidth, HEADWATER_F32, 0};
  CHECK_OK(headwater_rope_inverse_frequencies(2 * kPairs, 10000.0, frequencies, kPairs));
  for (int layout = HEADWATER_ADJACENT_PAIRS; layout <= HEADWATER_SPLIT_HALVES; ++layout) {
    memcpy(row, p->q[0][0][0], sizeof row);
    CHECK_OK(headwater_rotate(&view, 1, 1, kWidth, kPosition, frequencies, kPairs, 1.0, layout));
    for (int i = 0; i < kPairs; ++i) {
      const int a = layout == HEADWATER_ADJACENT_PAIRS ? 2 * i : i;
      const int b = layout == HEADWATER_ADJACENT_PAIRS ? 2 * i + 1 : i + kPairs;
      const double angle = kPosition * pow(10000.0, -2.0 * i / (2.0 * kPairs));
      const double x = (double)p->q[0][0][0][a];
      const double y = (double)p->q[0][0][0][b];
      CHECK_NEAR(frequencies[i], pow(10000.0, -i / (double)kPairs), 1e-15);
      CHECK_NEAR((double)row[a], x * cos(angle) - y * sin(angle), 1e-6);
      CHECK_NEAR((double)row[b], x * sin(angle) + y * cos(angle), 1e-6);
    }
    for (int e = 2 * kPairs; e < kWidth; ++e) CHECK(row[e] == p->q[0][0][0][e]);
  }
}

void test_numbers(const char* engine) {
  static float out[kLayers][kTokens][kHeads][kValueWidth];
  static float twin_out[kLayers][kTokens][kHeads][kValueWidth];
  problem* p = calloc(1, sizeof *p);
  trace* t = calloc(1, sizeof *t);
  if (p == NULL || t == NULL) abort();
  fill_problem(p);
  memset(out, 0, sizeof out);
  memset(twin_out, 0xFF, sizeof twin_out); /* NaN: every element must be overwritten */

  headwater_session* session = open_session(engine, p);
  headwater_session* twin = open_session(engine, p);
  CHECK_OK(headwater_set_observer(session, record, t));
  for (int round = 0; round < 2; ++round) { /* the second one shows that reset forgets everything */
    memset(t, 0, sizeof *t);
    CHECK_OK(headwater_begin_prefill(session, kPrefill, 0));
    CHECK_OK(headwater_begin_prefill(twin, kPrefill, kPrefill));
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      CHECK_OK(attend(session, p, layer, 0, &out[layer][0][0][0]));
      CHECK_OK(attend(twin, p, layer, 0, &twin_out[layer][0][0][0]));
      check_prefill(p, t, &out[layer][0][0][0], layer);
    }
    CHECK_OK(headwater_end(session));
    CHECK_OK(headwater_end(twin));
    for (int i = kPrefill; i < kTokens; ++i) {
      int32_t keys[kTokens];
      for (int j = 0; j < kTokens; ++j) keys[j] = j;
      CHECK_OK(headwater_begin_decode(session, 1));
      CHECK_OK(headwater_begin_decode(twin, 1));
      for (int layer = 0; layer < kLayers; ++layer) {
        t->chunks[layer] = 3; /* a decode chunk is recorded after the last of prefill */
        CHECK_OK(attend(session, p, layer, i, &out[layer][0][0][0]));
        CHECK_OK(attend(twin, p, layer, i, &twin_out[layer][0][0][0]));
        CHECK_EQUAL(t->memory_count[layer][3], 0);
        for (int h = 0; h < kHeads; ++h) check_row(p, t, &out[layer][0][0][0], layer, h, i, keys, i + 1);
      }
      CHECK_OK(headwater_end(session));
      CHECK_OK(headwater_end(twin));
    }
    CHECK(memcmp(out, twin_out, sizeof out) == 0); /* NUM-3, and two sessions do not disturb each other */
    check_contents(session, p, t);
    CHECK_OK(headwater_reset(session));
    CHECK_OK(headwater_reset(twin));
  }
  check_rotation(p);

  CHECK_OK(headwater_set_observer(session, NULL, NULL));
  memset(t, 0, sizeof *t);
  CHECK_OK(headwater_begin_prefill(session, kPrefill, 0));
  CHECK_OK(attend(session, p, 0, 0, &out[0][0][0][0]));
  CHECK_EQUAL(t->chunks[0], 0); /* switched off */
  headwater_close(session);     /* in an open step, too */
  headwater_close(twin);
  free(t);
  free(p);
}
