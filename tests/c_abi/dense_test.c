/* Pinned tokens (MEM-7), dense layers (STATE-7) and short turns (STATE-3): what the observer sees, every output against
 * plain_attention.c under the sets that were reported, and what must be refused. */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/c_abi/check.h"
#include "tests/c_abi/plain_attention.h"

/* A dense turn of 10, a decoded token, a sparse turn of 13. */
enum { kShort = 10, kLong = 13, kBase = kShort + 1, kChunk = 8, kLocal = 3, kHeavy = 4, kChunks = 2 };
enum { kKeyBlock = 2, kQueryBlock = 4, kPinned = 2, kMemory = kLocal + kHeavy, kMostSets = 4 };
enum { kThirdOptions = 160, kSecondEffective = 104 }; /* sizes of the structures before these options */

static const double kOutputBound = 1e-5; /* as in numbers_test.c */

typedef struct trace {
  int chunks[kLayers];
  headwater_chunk chunk[kLayers][2 + kChunks];
  int64_t count[kLayers][2 + kChunks];
  int64_t query_blocks[2 + kChunks];
  int32_t set[2 + kChunks][kMostSets][kMemory]; /* of the sparse layer */
  double lse[kLayers][kHeads][kTokens];
} trace;

static void record(void* user, const headwater_chunk_record* seen) {
  trace* t = user;
  const int64_t layer = seen->layer;
  const int c = t->chunks[layer]++;
  CHECK(c < 2 + kChunks);
  if (c >= 2 + kChunks) return;
  t->chunk[layer][c] = seen->chunk;
  t->count[layer][c] = seen->memory_count;
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t p = seen->chunk.begin; p < seen->chunk.end; ++p) {
      t->lse[layer][h][p] = (double)seen->lse[h * seen->row_stride + p - seen->chunk.begin];
    }
  }
  if (seen->chunk.mode != HEADWATER_CHUNK_SPARSE) {
    CHECK(seen->colsum_inter == NULL && seen->colsum_intra == NULL && seen->block_votes == NULL);
    CHECK_EQUAL(seen->query_blocks, 0);
    return;
  }
  CHECK_EQUAL(layer, 0);
  CHECK(seen->memory_count > kPinned);
  if (seen->memory_count <= kPinned) return;
  t->query_blocks[c] = seen->query_blocks;
  const int64_t sets = seen->query_blocks > 0 ? kHeadsKv * seen->query_blocks : kHeads;
  CHECK(sets <= kMostSets);
  for (int64_t set = 0; set < sets && set < kMostSets; ++set) {
    const int32_t* entries = seen->memory + set * seen->memory_stride;
    for (int p = 0; p < kPinned; ++p) CHECK_EQUAL(entries[p], p);
    memcpy(t->set[c][set], entries, (size_t)seen->memory_count * sizeof(int32_t));
  }
}

static const headwater_shape kShape = {kLayers,     kHeads,  kHeadsKv,      kWidth,
                                       kValueWidth, kTokens, HEADWATER_F32, 0};

static headwater_options small_options(int32_t select) {
  headwater_options options;
  CHECK_OK(headwater_options_init(&options, sizeof options));
  options.chunk = kChunk;
  options.local = kLocal;
  options.heavy = kHeavy;
  options.threads = 2;
  options.select = select;
  options.key_block = kKeyBlock;
  options.query_block = kQueryBlock;
  options.pool = kQueryBlock;
  return options;
}

static headwater_rows rows_of(const float* tensor, int64_t first, int heads, int width) {
  headwater_rows view = {tensor + first * heads * width, (int64_t)heads * width, width, HEADWATER_F32, 0};
  return view;
}

static void attend(headwater_session* session, const problem* p, int layer, int64_t first, float* out) {
  const headwater_rows q = rows_of(&p->q[layer][0][0][0], first, kHeads, kWidth);
  const headwater_rows k = rows_of(&p->k[layer][0][0][0], first, kHeadsKv, kWidth);
  const headwater_rows v = rows_of(&p->v[layer][0][0][0], first, kHeadsKv, kValueWidth);
  const headwater_mutable_rows o = {out + first * kHeads * kValueWidth, kHeads * kValueWidth, kValueWidth,
                                    HEADWATER_F32, 0};
  CHECK_OK(headwater_attend(session, layer, &q, &k, &v, &o));
}

/* One softmax over everything, or over the chunk so far and the set that the row read. */
static void check_row(const problem* p, const trace* t, const float* out, int layer, int h, int i) {
  int32_t keys[kMemory + kTokens];
  double expected[kValueWidth];
  double lse = 0.0;
  int count = 0;
  int begin = 0;
  if (layer == 0 && i >= kBase) {
    const int c = 2 + (i - kBase) / kChunk;
    begin = (int)t->chunk[0][c].begin;
    const int64_t blocks = t->query_blocks[c];
    const int64_t set = blocks > 0 ? h / (kHeads / kHeadsKv) * blocks + (i - begin) / kQueryBlock : h;
    while (count < t->count[0][c]) keys[count] = t->set[c][set][count], ++count;
  }
  for (int j = begin; j <= i; ++j) keys[count++] = j;
  attend_to_keys(p, layer, h, i, keys, count, expected, &lse);
  for (int e = 0; e < kValueWidth; ++e) {
    CHECK_NEAR((double)out[(i * kHeads + h) * kValueWidth + e], expected[e], kOutputBound);
  }
  CHECK_NEAR(t->lse[layer][h][i], lse, kOutputBound);
}

static void check_chunk(const headwater_chunk* chunk, int64_t begin, int64_t end, int32_t mode) {
  CHECK_EQUAL(chunk->begin, begin);
  CHECK_EQUAL(chunk->end, end);
  CHECK_EQUAL(chunk->mode, mode);
}

/* STATE-7: the plan is that of all layers; what a dense layer did stands in its records. */
static void check_contents(const headwater_session* session, const trace* t) {
  headwater_effective_options effective;
  headwater_memory_view memory;
  headwater_chunk chunk;
  float scores[kTokens];
  int64_t number = 0;
  CHECK_EQUAL(t->chunks[0], 2 + kChunks);
  CHECK_EQUAL(t->chunks[1], 3);
  for (int layer = 0; layer < kLayers; ++layer) {
    check_chunk(&t->chunk[layer][0], 0, kShort, HEADWATER_CHUNK_DENSE);
    check_chunk(&t->chunk[layer][1], kShort, kBase, HEADWATER_CHUNK_DECODE);
  }
  check_chunk(&t->chunk[0][2], kBase, kBase + kChunk, HEADWATER_CHUNK_SPARSE);
  check_chunk(&t->chunk[0][3], kBase + kChunk, kTokens, HEADWATER_CHUNK_SPARSE);
  check_chunk(&t->chunk[1][2], kBase, kTokens, HEADWATER_CHUNK_DENSE);
  CHECK_EQUAL(t->count[1][2], 0);
  CHECK_OK(headwater_plan_count(session, &number));
  CHECK_EQUAL(number, kChunks);
  CHECK_OK(headwater_session_chunk_count(session, &number));
  CHECK_EQUAL(number, 2 + kChunks);
  for (int c = 0; c < 2 + kChunks; ++c) {
    CHECK_OK(headwater_session_chunk(session, c, &chunk, &number));
    check_chunk(&chunk, t->chunk[0][c].begin, t->chunk[0][c].end, t->chunk[0][c].mode);
    CHECK_EQUAL(number, t->count[0][c]);
  }
  CHECK_OK(headwater_memory(session, 1, &memory));
  CHECK_EQUAL(memory.count, 0);
  for (int h = 0; h < kHeads; ++h) {
    CHECK_OK(headwater_copy_scores(session, 1, h, 0, kTokens, scores));
    for (int i = 0; i < kTokens; ++i) CHECK(scores[i] == 0.0f);
  }
  memset(&effective, 0xAB, sizeof effective);
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.pinned, kPinned);
  CHECK_EQUAL(effective.dense_below, kShort + 1);
  CHECK_EQUAL(effective.sparse, 1);
  memset(&effective, 0xAB, sizeof effective); /* a program of the header before */
  CHECK_OK(headwater_session_options(session, &effective, kSecondEffective));
  CHECK_EQUAL(effective.heavy, kHeavy);
  CHECK(effective.pinned != kPinned && effective.dense_below != kShort + 1);
}

static void check_run(const char* engine, headwater_options options, const problem* p) {
  static float out[kLayers][kTokens][kHeads][kValueWidth];
  static const int64_t kSteps[] = {kShort, 1, kLong};
  headwater_session* session = NULL;
  trace* t = calloc(1, sizeof *t);
  int64_t dense_layer = 1;
  int64_t base = 0;
  if (t == NULL) abort();
  memset(out, 0xFF, sizeof out);
  options.pinned = kPinned;
  options.dense_below = kShort + 1;
  options.dense_layers = &dense_layer;
  options.dense_layer_count = 1;
  CHECK_OK(headwater_open(engine, &kShape, &options, &session));
  dense_layer = 0; /* open has copied it */
  CHECK_OK(headwater_set_observer(session, record, t));
  for (int s = 0; s < 3; ++s) {
    if (s == 1) {
      CHECK_OK(headwater_begin_decode(session, 1));
    } else {
      CHECK_OK(headwater_begin_prefill(session, kSteps[s], 0));
    }
    for (int layer = 0; layer < kLayers; ++layer) attend(session, p, layer, base, &out[layer][0][0][0]);
    CHECK_OK(headwater_end(session));
    base += kSteps[s];
  }
  check_contents(session, t);
  const int as_planned = t->chunks[0] == 2 + kChunks && t->chunk[0][2].begin == kBase;
  for (int layer = 0; as_planned && layer < kLayers; ++layer) {
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kTokens; ++i) check_row(p, t, &out[layer][0][0][0], layer, h, i);
    }
  }
  headwater_close(session);
  free(t);
}

/* 1 where the engine refuses the option by name. */
static int refuses(const char* engine, const headwater_options* options, const char* words) {
  headwater_session* session = NULL;
  char own_name[96];
  if (headwater_open(engine, &kShape, options, &session) == HEADWATER_OK) {
    headwater_close(session);
    return 0;
  }
  snprintf(own_name, sizeof own_name, "engine %s %s", engine, words);
  CHECK_FAILS(headwater_open(engine, &kShape, options, &session), HEADWATER_INVALID_ARGUMENT, own_name);
  CHECK(strcmp(engine, "reference") != 0);
  printf("SKIP pinned tokens and dense layers of engine %s: %s\n", engine, headwater_last_error());
  return 1;
}

void test_dense(const char* engine) {
  headwater_options options = small_options(HEADWATER_SELECT_H2O);
  options.pinned = kPinned;
  if (refuses(engine, &options, "pins no tokens")) return;
  problem* p = calloc(1, sizeof *p);
  if (p == NULL) abort();
  fill_problem(p);
  for (int32_t select = HEADWATER_SELECT_H2O; select <= HEADWATER_SELECT_BLOCKS; ++select) {
    for (int32_t schedule = HEADWATER_LAYER_MAJOR; schedule <= HEADWATER_CHUNK_MAJOR; ++schedule) {
      options = small_options(select);
      options.softcap = p->softcap;
      options.sinks = p->sinks;
      options.alibi = p->alibi;
      options.schedule = schedule;
      check_run(engine, options, p);
    }
  }
  free(p);
}

static void refuse_at(const char* engine, const headwater_shape* shape, const headwater_options* options,
                      const char* part) {
  headwater_session* session = (headwater_session*)&session; /* open must set it to NULL */
  CHECK_FAILS(headwater_open(engine, shape, options, &session), HEADWATER_INVALID_ARGUMENT, part);
  CHECK(session == NULL);
}

static void refuse_both(const headwater_shape* shape, const headwater_options* options, const char* part) {
  refuse_at("reference", shape, options, part);
  refuse_at("cpu-portable", shape, options, part);
}

/* The library does not look behind the pointer before it knows how many there may be. */
static void test_counts(void) {
  static const int64_t kCounts[] = {-1, kLayers + 1, INT64_MAX, INT64_MIN, INT64_MAX / 8 + 1};
  const int64_t none = 0;
  headwater_options options = small_options(HEADWATER_SELECT_H2O);
  char part[96];
  for (size_t i = 0; i < sizeof kCounts / sizeof *kCounts; ++i) {
    snprintf(part, sizeof part, "options.dense_layer_count is %lld; allowed: 0 .. 2", (long long)kCounts[i]);
    options.dense_layer_count = kCounts[i];
    options.dense_layers = &none;
    refuse_both(&kShape, &options, part);
    options.dense_layers = NULL;
    refuse_both(&kShape, &options, part);
  }
  options.dense_layer_count = 1;
  refuse_both(&kShape, &options, "options.dense_layers is NULL");
  static const int64_t kAbsurd[] = {INT64_MAX, INT64_MIN, -1, 0, 65537};
  headwater_shape shape = kShape;
  options.dense_layers = &none;
  for (size_t i = 0; i < sizeof kAbsurd / sizeof *kAbsurd; ++i) {
    shape.n_layer = kAbsurd[i];
    options.dense_layer_count = kAbsurd[i] > 0 ? kAbsurd[i] : 1; /* as many as there are layers */
    refuse_both(&shape, &options, "n_layer");
  }
}

static void test_values(void) {
  headwater_options options = small_options(HEADWATER_SELECT_H2O);
  int64_t layers[kLayers] = {0, 0};
  options.dense_layers = layers;
  options.dense_layer_count = kLayers;
  refuse_at("reference", &kShape, &options, "dense_layers[1] = 0 is not allowed");
  refuse_at("cpu-portable", &kShape, &options, "dense_layers[1] is 0; allowed: more than 0");
  layers[0] = -1;
  refuse_at("reference", &kShape, &options, "dense_layers[0] = -1 is not allowed");
  refuse_at("cpu-portable", &kShape, &options, "dense_layers[0] is -1; allowed: 0 .. 1");
  layers[0] = 0;
  layers[1] = kLayers;
  refuse_at("reference", &kShape, &options, "dense_layers[1] = 2 is not allowed");
  refuse_at("cpu-portable", &kShape, &options, "dense_layers[1] is 2; allowed: 0 .. 1");
  options.dense_layer_count = 0; /* nothing is read */
  options.pinned = kHeavy + 1;
  refuse_at("reference", &kShape, &options, "pinned = 5 is not allowed");
  refuse_at("cpu-portable", &kShape, &options, "pinned is 5; allowed: 0 .. 4");
  options.pinned = -1;
  refuse_at("cpu-portable", &kShape, &options, "pinned is -1; allowed: 0 .. 4");
  options.pinned = 0;
  options.dense_below = -1;
  refuse_at("reference", &kShape, &options, "dense_below = -1 is not allowed");
  refuse_at("cpu-portable", &kShape, &options, "dense_below is -1; allowed: 0 .. 2147483647");
  options = small_options(HEADWATER_SELECT_BLOCKS);
  options.pinned = 3;
  refuse_both(&kShape, &options, "a multiple of key_block = 2");
}

/* Defaults, and a program that was compiled before there were these options. */
static void test_older_programs(void) {
  headwater_options options;
  headwater_effective_options effective;
  headwater_session* session = NULL;
  memset(&options, 0xAB, sizeof options);
  CHECK_OK(headwater_options_init(&options, sizeof options));
  CHECK_EQUAL(options.pinned, 0);
  CHECK_EQUAL(options.dense_below, 0);
  CHECK(options.dense_layers == NULL);
  CHECK_EQUAL(options.dense_layer_count, 0);
  memset(&options, 0xAB, sizeof options);
  CHECK_OK(headwater_options_init(&options, kThirdOptions));
  CHECK(options.pinned < 0 && options.dense_below < 0 && options.dense_layer_count < 0); /* not written */
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.pinned, 0);
  CHECK_EQUAL(effective.dense_below, 0);
  headwater_close(session);
  /* One that ends between the pointer and the count names no layers. */
  options.struct_size = offsetof(headwater_options, dense_layer_count);
  options.pinned = 1;
  options.dense_below = 5;
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.pinned, 1);
  CHECK_EQUAL(effective.dense_below, 5);
  headwater_close(session);
  /* CFG-5: clamped with the heavy tokens, to none in a dense session. */
  options = small_options(HEADWATER_SELECT_H2O);
  options.heavy = 20;
  options.pinned = 9;
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.heavy, kChunk - 1 - kLocal);
  CHECK_EQUAL(effective.pinned, kChunk - 1 - kLocal);
  headwater_close(session);
  options.dense = 1;
  CHECK_OK(headwater_open("cpu-portable", &kShape, &options, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.pinned, 0);
  headwater_close(session);
}

void test_dense_options(void) {
  test_counts();
  test_values();
  test_older_programs();
}
