/* Rule BLOCKS (chapter 17): what the observer sees, sets by their votes (SEL-11), every output against
 * plain_attention.c under these sets, and what must be refused. Options and record of rule SKETCHES (chapter 18). */

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/c_abi/check.h"
#include "tests/c_abi/plain_attention.h"

enum { kPrefill = 20, kChunk = 8, kLocal = 3, kHeavy = 4, kMemory = kLocal + kHeavy, kChunks = 3 };
enum { kKeyBlock = 2, kQueryBlock = 3, kPool = 3, kRefine = 2, kQueryBlocks = 3, kMostBlocks = 8 };
enum {
  kSecondOptions = 120,
  kFirstEffective = 64
}; /* sizes of the structures before there was another rule */

static const double kOutputBound = 1e-5; /* as in numbers_test.c */

/* SEL-2 for chunks that begin at 0, 8 and 16. */
static const int64_t kLocalBegin[kChunks] = {0, 6, 14};
static const int64_t kCandidates[kChunks] = {0, 3, 7};
static const int64_t kVoted[kChunks] = {0, 6, 8}; /* SEL-7 */

typedef struct trace {
  int chunks[kLayers];
  int decoded[kLayers];
  int64_t count[kLayers][kChunks];
  int32_t set[kLayers][kChunks][kHeadsKv][kQueryBlocks][kMemory];
  double lse[kLayers][kHeads][kTokens];
} trace;

/* Marks the `count` highest of n votes, the first of equal ones before the others (MEM-3). */
static void mark_best(const float* votes, int64_t n, int64_t count, int* marked) {
  memset(marked, 0, (size_t)n * sizeof *marked);
  for (int64_t round = 0; round < count && round < n; ++round) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i) {
      if (!marked[i] && (best < 0 || votes[i] > votes[best])) best = i;
    }
    marked[best] = 1;
  }
}

/* SEL-6 to SEL-8 of one set. */
static void check_set(const headwater_chunk_record* seen, int c, int64_t set) {
  int marked[kMostBlocks * kKeyBlock];
  int32_t tokens[kMostBlocks * kKeyBlock];
  int32_t expected[kMemory];
  int64_t candidates = 0;
  int64_t count = 0;
  if (kCandidates[c] > 0) {
    const float* votes = seen->block_votes + set * kCandidates[c];
    float top = -1.0f;
    for (int64_t b = 0; b < kCandidates[c]; ++b) {
      CHECK(votes[b] <= 0.0f);
      if (votes[b] > top) top = votes[b];
    }
    CHECK(top == 0.0f);
    mark_best(votes, kCandidates[c], kRefine * kHeavy / kKeyBlock, marked);
    for (int64_t b = 0; b < kCandidates[c]; ++b) {
      for (int x = 0; marked[b] && x < kKeyBlock; ++x) tokens[candidates++] = (int32_t)(b * kKeyBlock + x);
    }
    CHECK_EQUAL(candidates, kVoted[c]);
    mark_best(seen->token_votes + set * kVoted[c], kVoted[c], kHeavy, marked);
    for (int64_t t = 0; t < kVoted[c]; ++t) {
      if (marked[t]) expected[count++] = tokens[t];
    }
  }
  for (int64_t p = kLocalBegin[c]; p < seen->chunk.begin; ++p) expected[count++] = (int32_t)p;
  CHECK_EQUAL(seen->memory_count, count);
  for (int64_t n = 0; n < seen->memory_stride; ++n) {
    CHECK_EQUAL(seen->memory[set * seen->memory_stride + n], n < count ? expected[n] : -1);
  }
}

static void record(void* user, const headwater_chunk_record* seen) {
  trace* t = user;
  const int64_t layer = seen->layer;
  CHECK(seen->struct_size >= sizeof(headwater_chunk_record));
  CHECK(seen->colsum_inter == NULL && seen->colsum_intra == NULL); /* SEL-9 */
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t p = seen->chunk.begin; p < seen->chunk.end; ++p) {
      t->lse[layer][h][p] = (double)seen->lse[h * seen->row_stride + p - seen->chunk.begin];
    }
  }
  if (seen->chunk.mode != HEADWATER_CHUNK_SPARSE) {
    ++t->decoded[layer];
    CHECK_EQUAL(seen->memory_count, 0);
    CHECK_EQUAL(seen->query_blocks, 0);
    CHECK_EQUAL(seen->candidate_blocks, 0);
    CHECK_EQUAL(seen->voted_tokens, 0);
    CHECK(seen->block_votes == NULL && seen->token_votes == NULL);
    return;
  }
  const int c = t->chunks[layer]++;
  CHECK(c < kChunks);
  if (c >= kChunks) return;
  const int64_t rows = seen->chunk.end - seen->chunk.begin;
  CHECK_EQUAL(seen->chunk.begin, c * kChunk);
  CHECK_EQUAL(seen->query_blocks, (rows + kQueryBlock - 1) / kQueryBlock);
  CHECK_EQUAL(seen->candidate_blocks, kCandidates[c]);
  CHECK_EQUAL(seen->voted_tokens, kVoted[c]);
  CHECK((seen->block_votes != NULL) == (kCandidates[c] > 0));
  CHECK((seen->token_votes != NULL) == (kVoted[c] > 0));
  CHECK(seen->memory_count <= kMemory && seen->memory_count <= seen->memory_stride);
  t->count[layer][c] = seen->memory_count;
  for (int64_t set = 0; set < kHeadsKv * seen->query_blocks; ++set) {
    check_set(seen, c, set);
    if (seen->memory_count == 0) continue;
    memcpy(t->set[layer][c][set / seen->query_blocks][set % seen->query_blocks],
           seen->memory + set * seen->memory_stride, (size_t)seen->memory_count * sizeof(int32_t));
  }
}

static headwater_rows rows_of(const float* tensor, int first, int heads, int width) {
  headwater_rows view = {tensor + (ptrdiff_t)first * heads * width, (int64_t)heads * width, width,
                         HEADWATER_F32, 0};
  return view;
}

static headwater_status attend(headwater_session* session, const problem* p, int layer, int first,
                               float* out) {
  const headwater_rows q = rows_of(&p->q[layer][0][0][0], first, kHeads, kWidth);
  const headwater_rows k = rows_of(&p->k[layer][0][0][0], first, kHeadsKv, kWidth);
  const headwater_rows v = rows_of(&p->v[layer][0][0][0], first, kHeadsKv, kValueWidth);
  const headwater_mutable_rows o = {out + (ptrdiff_t)first * kHeads * kValueWidth, kHeads * kValueWidth,
                                    kValueWidth, HEADWATER_F32, 0};
  return headwater_attend(session, layer, &q, &k, &v, &o);
}

static const headwater_shape kShape = {kLayers,     kHeads,  kHeadsKv,      kWidth,
                                       kValueWidth, kTokens, HEADWATER_F32, 0};

static headwater_options small_blocks(void) {
  headwater_options options;
  CHECK_OK(headwater_options_init(&options, sizeof options));
  options.chunk = kChunk;
  options.local = kLocal;
  options.heavy = kHeavy;
  options.threads = 2;
  options.select = HEADWATER_SELECT_BLOCKS;
  options.key_block = kKeyBlock;
  options.query_block = kQueryBlock;
  options.pool = kPool;
  options.refine = kRefine;
  return options;
}

/* One softmax over the set of the row's query block and the chunk so far (FUSE-2), or over everything (DEC-1). */
static void check_row(const problem* p, const trace* t, const float* out, int layer, int h, int i) {
  int32_t keys[kMemory + kTokens];
  double expected[kValueWidth];
  double lse = 0.0;
  int count = 0;
  const int begin = i < kPrefill ? i / kChunk * kChunk : 0;
  if (i < kPrefill) {
    const int c = i / kChunk;
    const int32_t* set = t->set[layer][c][h / (kHeads / kHeadsKv)][(i - begin) / kQueryBlock];
    while (count < t->count[layer][c]) keys[count] = set[count], ++count;
  }
  for (int j = begin; j <= i; ++j) keys[count++] = j;
  attend_to_keys(p, layer, h, i, keys, count, expected, &lse);
  for (int e = 0; e < kValueWidth; ++e) {
    CHECK_NEAR((double)out[(i * kHeads + h) * kValueWidth + e], expected[e], kOutputBound);
  }
  CHECK_NEAR(t->lse[layer][h][i], lse, kOutputBound);
}

/* SEL-9: no scores, an empty memory view; the chunks say what they read. */
static void check_contents(const headwater_session* session) {
  headwater_effective_options effective;
  headwater_memory_view memory;
  headwater_chunk chunk;
  float scores[kTokens];
  int64_t count = -1;
  struct {
    headwater_effective_options known;
    int64_t later;
  } longer;
  memset(&effective, 0xAB, sizeof effective);
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.local, kLocal);
  CHECK_EQUAL(effective.heavy, kHeavy);
  CHECK_EQUAL(effective.select, HEADWATER_SELECT_BLOCKS);
  CHECK_EQUAL(effective.reserved, 0);
  CHECK_EQUAL(effective.key_block, kKeyBlock);
  CHECK_EQUAL(effective.query_block, kQueryBlock);
  CHECK_EQUAL(effective.pool, kPool);
  CHECK_EQUAL(effective.refine, kRefine);
  memset(&effective, 0xAB, sizeof effective); /* a program of the first header */
  CHECK_OK(headwater_session_options(session, &effective, kFirstEffective));
  CHECK_EQUAL(effective.heavy, kHeavy);
  CHECK(effective.select != HEADWATER_SELECT_BLOCKS && effective.refine != kRefine);
  memset(&longer, 0xAB, sizeof longer);
  CHECK_OK(headwater_session_options(session, &longer.known, sizeof longer));
  CHECK_EQUAL(longer.known.refine, kRefine);
  CHECK_EQUAL(longer.later, 0);
  for (int layer = 0; layer < kLayers; ++layer) {
    CHECK_OK(headwater_memory(session, layer, &memory));
    CHECK_EQUAL(memory.count, 0);
    for (int h = 0; h < kHeads; ++h) {
      CHECK_OK(headwater_copy_scores(session, layer, h, 0, kTokens, scores));
      for (int i = 0; i < kTokens; ++i) CHECK(scores[i] == 0.0f);
    }
  }
  for (int64_t c = 0; c < kChunks; ++c) {
    CHECK_OK(headwater_session_chunk(session, c, &chunk, &count));
    CHECK_EQUAL(count, c == 0 ? 0 : chunk.begin - kLocalBegin[c] + kHeavy);
  }
}

/* 1 where the engine has no such rule and says so. */
static int refuses_the_rule(const char* engine) {
  const headwater_options options = small_blocks();
  headwater_session* session = NULL;
  char own_name[64];
  if (headwater_open(engine, &kShape, &options, &session) == HEADWATER_OK) {
    headwater_close(session);
    return 0;
  }
  snprintf(own_name, sizeof own_name, "engine %s has no other rule", engine);
  CHECK_FAILS(headwater_open(engine, &kShape, &options, &session), HEADWATER_INVALID_ARGUMENT, own_name);
  CHECK(session == NULL);
  CHECK(strcmp(engine, "reference") != 0);
  return 1;
}

static void check_run(const char* engine, const headwater_options* options, const problem* p, trace* t) {
  static float out[kLayers][kTokens][kHeads][kValueWidth];
  headwater_session* session = NULL;
  memset(out, 0xFF, sizeof out);
  memset(t, 0, sizeof *t);
  CHECK_OK(headwater_open(engine, &kShape, options, &session));
  CHECK_OK(headwater_set_observer(session, record, t));
  CHECK_OK(headwater_begin_prefill(session, kPrefill, 0));
  for (int layer = 0; layer < kLayers; ++layer) {
    CHECK_OK(attend(session, p, layer, 0, &out[layer][0][0][0]));
    CHECK_EQUAL(t->chunks[layer], kChunks);
  }
  CHECK_OK(headwater_end(session));
  CHECK_OK(headwater_begin_decode(session, kTokens - kPrefill));
  for (int layer = 0; layer < kLayers; ++layer) {
    CHECK_OK(attend(session, p, layer, kPrefill, &out[layer][0][0][0]));
    CHECK_EQUAL(t->decoded[layer], 1);
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kTokens; ++i) check_row(p, t, &out[layer][0][0][0], layer, h, i);
    }
  }
  CHECK_OK(headwater_end(session));
  check_contents(session);
  headwater_close(session);
}

void test_blocks(const char* engine) {
  if (refuses_the_rule(engine)) {
    printf("SKIP rule BLOCKS of engine %s: %s\n", engine, headwater_last_error());
    return;
  }
  problem* p = calloc(1, sizeof *p);
  trace* t = calloc(1, sizeof *t);
  if (p == NULL || t == NULL) abort();
  fill_problem(p);
  headwater_options options = small_blocks();
  options.softcap = p->softcap;
  options.sinks = p->sinks;
  options.alibi = p->alibi;
  check_run(engine, &options, p, t);
  options.schedule = HEADWATER_CHUNK_MAJOR;
  check_run(engine, &options, p, t);
  free(t);
  free(p);
}

static void refuse_at(const char* engine, const headwater_options* options, const char* part) {
  headwater_session* session = (headwater_session*)&session; /* open must set it to NULL */
  CHECK_FAILS(headwater_open(engine, &kShape, options, &session), HEADWATER_INVALID_ARGUMENT, part);
  CHECK(session == NULL);
}

static void refuse(const headwater_options* options, const char* part) {
  refuse_at("reference", options, part);
  refuse_at("cpu-portable", options, part);
}

/* Field, value and what is allowed, each engine in its own words. */
static void refuse_value(const headwater_options* options, const char* name, int64_t value,
                         const char* allowed) {
  char part[160];
  snprintf(part, sizeof part, "%s = %lld is not allowed: must be %s", name, (long long)value, allowed);
  refuse_at("reference", options, part);
  snprintf(part, sizeof part, "%s is %lld; allowed: %s", name, (long long)value, allowed);
  refuse_at("cpu-portable", options, part);
}

static void open_and_close(const headwater_options* options) {
  headwater_session* session = NULL;
  CHECK_OK(headwater_open("reference", &kShape, options, &session));
  headwater_close(session);
}

static void test_defaults(void) {
  headwater_options options;
  headwater_effective_options effective;
  headwater_session* session = NULL;
  memset(&options, 0xAB, sizeof options);
  CHECK_OK(headwater_options_init(&options, sizeof options));
  CHECK_EQUAL(options.select, HEADWATER_SELECT_H2O);
  CHECK_EQUAL(options.reserved4, 0);
  CHECK_EQUAL(options.key_block, 8);
  CHECK_EQUAL(options.query_block, 32);
  CHECK_EQUAL(options.pool, 4);
  CHECK_EQUAL(options.refine, 2);
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  memset(&effective, 0xAB, sizeof effective);
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.select, HEADWATER_SELECT_H2O);
  CHECK_EQUAL(effective.reserved, 0);
  CHECK_EQUAL(effective.key_block, 0);
  CHECK_EQUAL(effective.query_block, 0);
  CHECK_EQUAL(effective.pool, 0);
  CHECK_EQUAL(effective.refine, 0);
  headwater_close(session);

  /* A program of the header before: nothing after its structure is read or written. */
  memset(&options, 0xAB, sizeof options);
  CHECK_OK(headwater_options_init(&options, kSecondOptions));
  CHECK_EQUAL(options.struct_size, kSecondOptions);
  CHECK(options.select != HEADWATER_SELECT_H2O && options.key_block < 0);
  open_and_close(&options);
  /* One that ends after the rule: sizes that are not there are 0. */
  options.struct_size = offsetof(headwater_options, key_block);
  options.select = HEADWATER_SELECT_H2O;
  options.reserved4 = 0;
  open_and_close(&options);
  options.select = HEADWATER_SELECT_BLOCKS;
  refuse_value(&options, "key_block", 0, "1 ");
}

#define FIELD(name) #name, offsetof(headwater_options, name)

typedef struct wrong {
  const char* name;
  size_t field;
  int64_t value;
  const char* allowed;
} wrong;

static void set_field(headwater_options* options, const wrong* one) {
  memcpy((unsigned char*)options + one->field, &one->value, sizeof one->value);
}

static void test_sizes(void) {
  static const wrong kWrong[] = {
      {FIELD(key_block), 0, "1 "},
      {FIELD(key_block), -2, "1 "},
      {FIELD(key_block), kChunk + 1, "1 "},
      {FIELD(key_block), INT64_MAX, "1 "},
      {FIELD(query_block), 0, "1 "},
      {FIELD(query_block), kChunk + 1, "1 "},
      {FIELD(query_block), INT64_MIN, "1 "},
      {FIELD(pool), 0, "1 "},
      {FIELD(pool), 2, "a divisor of query_block = 3"},
      {FIELD(pool), 6, "1 "},
      {FIELD(refine), 0, "1 "},
      {FIELD(refine), 17, "1 "},
  };
  for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; ++i) {
    headwater_options options = small_blocks();
    set_field(&options, &kWrong[i]);
    refuse_value(&options, kWrong[i].name, kWrong[i].value, kWrong[i].allowed);
    options.dense = 1; /* sizes are looked at all the same */
    refuse_value(&options, kWrong[i].name, kWrong[i].value, kWrong[i].allowed);
    options.dense = 0;
    options.select = HEADWATER_SELECT_H2O; /* not read */
    open_and_close(&options);
  }
  headwater_options options = small_blocks();
  options.query_block = 4;
  refuse_value(&options, "pool", kPool, "a divisor of query_block = 4");
  options = small_blocks();
  options.heavy = 5; /* half a key block; an engine may name either */
  refuse(&options, "heavy");
  refuse(&options, "key_block");
  options = small_blocks();
  options.chunk = 1024;
  options.key_block = 257;
  options.heavy = 257;
  refuse_value(&options, "key_block", 257, "1 ");
  options.key_block = 256;
  options.heavy = 512;
  options.refine = 16;
  open_and_close(&options);
}

static void test_rule(void) {
  static const int32_t kRules[] = {3, -1, 256};
  for (size_t i = 0; i < sizeof kRules / sizeof *kRules; ++i) {
    headwater_options options = small_blocks();
    char part[64];
    options.select = kRules[i]; /* not silently cut to the byte of the C++ enumeration */
    snprintf(part, sizeof part, "options.select is %d; allowed: 0 .. 2", (int)kRules[i]);
    refuse(&options, part);
  }
  headwater_options options = small_blocks();
  options.reserved4 = 1;
  refuse(&options, "options.reserved4 is 1; allowed: 0");
  options.select = HEADWATER_SELECT_H2O;
  refuse(&options, "options.reserved4 is 1; allowed: 0");
}

/* Options by quality: a rule with pinned tokens or dense; what an engine without the rule gets instead is tested where
 * there is one (mocks). */
static void test_presets(void) {
  headwater_options options;
  headwater_session* session = NULL;
  memset(&options, 0xAB, sizeof options);
  CHECK_OK(headwater_options_preset("reference", HEADWATER_QUALITY_BALANCED, &options, sizeof options));
  CHECK_EQUAL(options.select, HEADWATER_SELECT_SKETCHES);
  CHECK_EQUAL(options.least_weight == 0.0005, 1);
  CHECK_EQUAL(options.chunk, 1024);
  CHECK_EQUAL(options.local, 32);
  CHECK_EQUAL(options.heavy, 480);
  CHECK_EQUAL(options.pinned, 8);
  CHECK_EQUAL(options.struct_size, sizeof options);
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  headwater_close(session);
  CHECK_OK(headwater_options_preset(NULL, HEADWATER_QUALITY_FAST, &options, sizeof options));
  CHECK_EQUAL(options.select, HEADWATER_SELECT_BLOCKS);
  CHECK_EQUAL(options.pinned, 8);
  CHECK_EQUAL(options.pool, 8);
  CHECK_EQUAL(options.refine, 1);
  CHECK_OK(headwater_options_preset(NULL, HEADWATER_QUALITY_EXACT, &options, sizeof options));
  CHECK_EQUAL(options.dense, 1);
  CHECK_FAILS(headwater_options_preset(NULL, 3, &options, sizeof options), HEADWATER_INVALID_ARGUMENT,
              "quality is 3");
  CHECK_FAILS(headwater_options_preset(NULL, -1, &options, sizeof options), HEADWATER_INVALID_ARGUMENT,
              "quality is -1");
  CHECK_FAILS(headwater_options_preset("none", 0, &options, sizeof options), HEADWATER_ENGINE_UNAVAILABLE,
              "none");
  CHECK_FAILS(headwater_options_preset(NULL, 0, NULL, sizeof options), HEADWATER_INVALID_ARGUMENT,
              "options is NULL");
}

/* SEL-1: clamped to whole key blocks. */
static void test_clamp(void) {
  headwater_options options = small_blocks();
  headwater_effective_options effective;
  headwater_session* session = NULL;
  int64_t count = 0;
  options.heavy = 20; /* CFG-3: 8 - 1 - 2 = 5, whole blocks of 2: 4 */
  options.local = 2;
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.local, 2);
  CHECK_EQUAL(effective.heavy, 4);
  CHECK_OK(headwater_warning_count(session, &count));
  CHECK_EQUAL(count, 1);
  headwater_close(session);
}

/* SKE-8: places after the last token of a set are empty. */
static void see_sketches(void* user, const headwater_chunk_record* seen) {
  int* shorter = user;
  CHECK_EQUAL(seen->candidate_blocks, 0);
  CHECK(seen->block_votes == NULL);
  CHECK((seen->token_votes != NULL) == (seen->voted_tokens > 0));
  for (int64_t set = 0; set < kHeadsKv * seen->query_blocks; ++set) {
    const int32_t* entries = seen->memory + set * seen->memory_stride;
    int64_t count = 0;
    while (count < seen->memory_stride && entries[count] >= 0) ++count;
    CHECK(count <= seen->memory_count);
    CHECK(seen->memory_count == 0 || count >= kLocal);
    *shorter += count < seen->memory_count;
  }
}

/* Rule SKETCHES: least_weight, in a structure that has it and in one that ends before it. */
static void test_sketches(void) {
  headwater_options options = small_blocks();
  headwater_effective_options effective;
  headwater_session* session = NULL;
  problem* p = calloc(1, sizeof *p);
  static float out[kTokens][kHeads][kValueWidth];
  int shorter = 0;
  if (p == NULL) abort();
  fill_problem(p);
  CHECK(options.least_weight == 0.0005);
  options.select = HEADWATER_SELECT_SKETCHES;
  options.pinned = 1;
  options.key_block = options.pool = options.refine = -1; /* not read */
  options.least_weight = 1.0;
  refuse_at("reference", &options, "least_weight");
  options.least_weight = 0.999;
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK_EQUAL(effective.select, HEADWATER_SELECT_SKETCHES);
  CHECK_EQUAL(effective.query_block, kQueryBlock);
  CHECK_EQUAL(effective.pool, 0);
  CHECK(effective.least_weight == 0.999);
  CHECK_OK(headwater_set_observer(session, see_sketches, &shorter));
  CHECK_OK(headwater_begin_prefill(session, kPrefill, 0));
  CHECK_OK(attend(session, p, 0, 0, &out[0][0][0]));
  CHECK(shorter > 0); /* W asks for much */
  headwater_close(session);
  options.struct_size = offsetof(headwater_options, least_weight); /* NaN there is not read */
  options.least_weight = (double)NAN;
  CHECK_OK(headwater_open("reference", &kShape, &options, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK(effective.least_weight == 0.0005);
  headwater_close(session);
  free(p);
}

/* Rows in 8 bits (STATE-13): integers of a row that is 127 at most, in a structure that has kv_bits and in one that ends
 * before it. */
static void test_rows_in_8_bits(const char* engine) {
  enum { kGroup = 32 };
  headwater_shape shape = {1, 1, 1, kGroup, kGroup, 4, HEADWATER_F32, 0};
  headwater_options options;
  headwater_effective_options effective;
  headwater_session* session = NULL;
  float row[kGroup], out[kGroup], read[kGroup];
  for (int i = 0; i < kGroup; ++i) row[i] = i == 3 ? -127.0F : (float)i - 15.25F;
  const headwater_rows rows = {row, kGroup, kGroup, HEADWATER_F32, 0};
  const headwater_mutable_rows outs = {out, kGroup, kGroup, HEADWATER_F32, 0};
  CHECK_OK(headwater_options_init(&options, sizeof options));
  CHECK_EQUAL(options.kv_bits, 0);
  options.kv_bits = 8;
  for (int older = 0; older < 2; ++older) {
    if (older == 1) options.struct_size = offsetof(headwater_options, kv_bits);
    CHECK_OK(headwater_open(engine, &shape, &options, &session));
    CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
    CHECK_EQUAL(effective.kv_bits, older == 1 ? 0 : 8);
    CHECK_OK(headwater_begin_prefill(session, 1, 0));
    CHECK_OK(headwater_attend(session, 0, &rows, &rows, &rows, &outs));
    CHECK_OK(headwater_end(session));
    CHECK_OK(headwater_read_key(session, 0, 0, 0, read, kGroup));
    for (int i = 0; i < kGroup; ++i) CHECK(read[i] == (older == 1 ? row[i] : rintf(row[i])));
    CHECK(memcmp(read, out, sizeof read) == 0); /* the values of the only token */
    headwater_close(session);
  }
  options.struct_size = sizeof options;
  options.kv_bits = 4;
  CHECK_FAILS(headwater_open(engine, &shape, &options, &session), HEADWATER_INVALID_ARGUMENT, "kv_bits");
  options.kv_bits = 8;
  shape.d_value = 48;
  CHECK_FAILS(headwater_open(engine, &shape, &options, &session), HEADWATER_INVALID_ARGUMENT, "d_value");
}

void test_blocks_options(void) {
  test_sketches();
  test_rows_in_8_bits("reference");
  test_rows_in_8_bits("cpu-portable");
  test_defaults();
  test_presets();
  test_sizes();
  test_rule();
  test_clamp();
}
