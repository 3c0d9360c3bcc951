/* Conversations: options, turns, losses, comparisons, what they store. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime_c_abi/talks.h"

void test_conversation_options(headwater_model* model) {
  headwater_conversation_options options;
  headwater_conversation* talk = (headwater_conversation*)&options;
  headwater_options attention;
  const float numbers[64] = {0};
  OK(headwater_conversation_options_init(&options, sizeof options));
  CHECK(options.struct_size == sizeof options && options.engine == NULL && options.attention == NULL);
  CHECK(options.capacity == 0 && options.dense_tail == 64 && options.cache_type == HEADWATER_CACHE_AUTO);
  REFUSED(headwater_conversation_options_init(NULL, sizeof options), "options is NULL");
  REFUSED(headwater_conversation_options_init(&options, 40), "struct_size is 40");
  REFUSED(headwater_conversation_open(NULL, &options, &talk), "model is NULL");
  CHECK(talk == NULL);
  REFUSED(headwater_conversation_open(model, &options, NULL), "conversation is NULL");
#define OPTION(change, part)                                            \
  do {                                                                  \
    OK(headwater_conversation_options_init(&options, sizeof options));  \
    options.change;                                                     \
    REFUSED(headwater_conversation_open(model, &options, &talk), part); \
  } while (0)
  OPTION(cache_type = 5, "options.cache_type is 5; allowed: 0 .. 4");
  OPTION(capacity = -1, "options.capacity is -1");
  OPTION(capacity = 2147483648, "options.capacity is 2147483648");
  OPTION(dense_tail = -1, "options.dense_tail is -1");
  OPTION(reserved = 1, "options.reserved is 1");
  OPTION(struct_size = 4, "options.struct_size is 4");
  OK(headwater_conversation_options_init(&options, sizeof options));
  options.engine = "warp";
  FAILS(headwater_conversation_open(model, &options, &talk), HEADWATER_ENGINE_UNAVAILABLE, "warp");
  options.engine = NULL;
  options.attention = &attention;
#define ATTENTION(change, part)                                         \
  do {                                                                  \
    CHECK_OK(headwater_options_init(&attention, sizeof attention));     \
    attention.change;                                                   \
    REFUSED(headwater_conversation_open(model, &options, &talk), part); \
  } while (0)
  ATTENTION(scale = 1, "attention.scale is set");
  ATTENTION(softcap = 1, "attention.softcap is set");
  ATTENTION(sinks = numbers, "attention.sinks is set");
  ATTENTION(alibi = numbers, "attention.alibi is set");
  ATTENTION(kv_owner = HEADWATER_KV_OF_CALLER, "attention.kv_owner is set");
  ATTENTION(row_memory = HEADWATER_DEVICE_MEMORY, "attention.row_memory is set");
  ATTENTION(stream = &attention, "attention.stream is set");
  ATTENTION(chunk = 0, "chunk is 0");
  ATTENTION(threads = -1, "options.threads is -1");
  ATTENTION(threads = 513, "options.threads is 513; allowed: 0 .. 512");
  ATTENTION(select = 3, "options.select is 3");
  CHECK(talk == NULL);
  headwater_conversation_close(NULL);
}

static int32_t never(void* user) {
  ++*(int*)user;
  return 0;
}

static int32_t at_third(void* user) { return ++*(int*)user >= 3; }

/* The logits after what the conversation holds, copied. */
static void copy_logits(const headwater_conversation* talk, float* copy) {
  const float* logits = NULL;
  int64_t count = 0;
  OK(headwater_conversation_logits(talk, &logits, &count));
  CHECK_EQUAL(count, VOCABULARY);
  memcpy(copy, logits, VOCABULARY * sizeof copy[0]);
}

/* The last chunk that the session of a conversation has computed. */
static headwater_chunk last_chunk(const headwater_conversation* talk) {
  const headwater_session* session = NULL;
  headwater_chunk chunk = {0};
  int64_t count = 0;
  OK(headwater_conversation_session(talk, &session));
  CHECK_OK(headwater_session_chunk_count(session, &count));
  CHECK_OK(headwater_session_chunk(session, count - 1, &chunk, &count));
  return chunk;
}

/* Of `next` after what the conversation holds, nats. */
static double loss_of(const headwater_conversation* talk, int32_t next) {
  const float* logits = NULL;
  int64_t count = 0;
  OK(headwater_conversation_logits(talk, &logits, &count));
  double sum = 0, most = logits[0];
  for (int64_t i = 1; i < count; ++i) most = fmax(most, logits[i]);
  for (int64_t i = 0; i < count; ++i) sum += exp(logits[i] - most);
  return most + log(sum) - logits[next];
}

enum { ALL = 150, DECODED = 20 };

/* Two conversations side by side: the losses of each alone, flags of the second one's chunks (32 tokens), and a divergence
 * that is 0 between equals. `alone`: what headwater_conversation_losses() said of `talk`, whose rule is BLOCKS. */
static void compare(headwater_conversation* talk, headwater_conversation* other, const int32_t* ids,
                    const double* alone) {
  headwater_comparison positions[ALL];
  double others[ALL - 1];
  int asked = 0, ends = 0;
  OK(headwater_conversation_losses(other, ids, ALL, DECODED, others));
  OK(headwater_conversation_feed(talk, ids, 10));
  OK(headwater_conversation_compare(other, talk, ids, ALL, DECODED, positions));
  CHECK(tokens_of(talk) == 0 && tokens_of(other) == 0);
  double sum = 0;
  for (int i = 0; i < ALL; ++i) {
    const headwater_comparison* at = &positions[i];
    CHECK(i == ALL - 1 ? isnan(at->loss) && isnan(at->other_loss)
                       : at->loss == others[i] && at->other_loss == alone[i]);
    CHECK(at->divergence > -1e-9 && isfinite(at->divergence));
    CHECK(at->same_likeliest == 0 || at->same_likeliest == 1);
    CHECK_EQUAL(at->flags & HEADWATER_AFTER_FIRST_CHUNK, i >= 32 ? HEADWATER_AFTER_FIRST_CHUNK : 0);
    if ((at->flags & HEADWATER_ENDS_QUERY_BLOCK) != 0) {
      CHECK(i % 32 == 31 || i == ALL - DECODED - 1);
      ++ends;
    }
    sum += at->divergence;
  }
  CHECK_EQUAL(ends, 5);
  CHECK(sum > 1e-6);
  OK(headwater_conversation_compare(talk, other, ids, ALL, 0, positions));
  for (int i = 0; i < ALL; ++i) CHECK((positions[i].flags & HEADWATER_ENDS_QUERY_BLOCK) == 0);

  OK(headwater_conversation_set_interrupt(other, at_third, &asked));
  FAILS(headwater_conversation_compare(talk, other, ids, ALL, DECODED, positions), HEADWATER_INTERRUPTED, "");
  asked = 0;
  FAILS(headwater_conversation_compare(other, talk, ids, ALL, DECODED, positions), HEADWATER_INTERRUPTED, "");
  CHECK(tokens_of(talk) == 0 && tokens_of(other) == 0);
  OK(headwater_conversation_set_interrupt(other, NULL, NULL));

  REFUSED(headwater_conversation_compare(NULL, other, ids, 20, 1, positions), "conversation is NULL");
  REFUSED(headwater_conversation_compare(talk, NULL, ids, 20, 1, positions), "other is NULL");
  REFUSED(headwater_conversation_compare(talk, talk, ids, 20, 1, positions),
          "other is the same conversation");
  REFUSED(headwater_conversation_compare(talk, other, NULL, 20, 1, positions), "ids is NULL");
  REFUSED(headwater_conversation_compare(talk, other, ids, 1, 0, positions), "n is 1; allowed: 2 ..");
  REFUSED(headwater_conversation_compare(talk, other, ids, 20, 20, positions),
          "decode is 20; allowed: 0 .. 19");
  REFUSED(headwater_conversation_compare(talk, other, ids, 20, 1, NULL), "positions is NULL");
  FAILS(headwater_conversation_compare(talk, other, ids, 201, 1, positions), HEADWATER_CAPACITY_EXCEEDED,
        "allowed: 200");
}

void test_conversation(headwater_model* model) {
  headwater_conversation* talk = small_talk(model, HEADWATER_SELECT_BLOCKS);
  headwater_conversation* other = small_talk(model, HEADWATER_SELECT_H2O);
  const headwater_session* session = NULL;
  headwater_effective_options effective;
  const float* logits = NULL;
  float kept[VOCABULARY], now[VOCABULARY];
  double losses[ALL - 1];
  int32_t ids[ALL];
  int64_t count = 0;
  int asked = 0;
  for (int i = 0; i < ALL; ++i) ids[i] = 300 + (i * 37) % 500;

  FAILS(headwater_conversation_logits(talk, &logits, &count), HEADWATER_WRONG_STATE, "empty");
  OK(headwater_conversation_set_interrupt(talk, never, &asked));
  OK(headwater_conversation_set_dense_tail(talk, 5));
  OK(headwater_conversation_feed(talk, ids, 140));
  CHECK(asked > 5);
  CHECK_EQUAL(tokens_of(talk), 140);
  OK(headwater_conversation_session(talk, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK(effective.chunk == 32 && effective.select == HEADWATER_SELECT_BLOCKS && effective.threads == 1);
  const headwater_chunk chunk = last_chunk(talk);
  CHECK(chunk.begin == 135 && chunk.end == 140 && chunk.mode == HEADWATER_CHUNK_DECODE);
  OK(headwater_conversation_append(talk, ids[140]));
  copy_logits(talk, kept);

  /* A turn that is stopped was never begun, with a rule that can be truncated; with the other one nothing is left. */
  asked = 0;
  OK(headwater_conversation_set_interrupt(talk, at_third, &asked));
  FAILS(headwater_conversation_feed(talk, ids, 50), HEADWATER_INTERRUPTED, "");
  CHECK_EQUAL(tokens_of(talk), 141);
  copy_logits(talk, now);
  CHECK(memcmp(kept, now, sizeof kept) == 0);
  OK(headwater_conversation_set_interrupt(talk, NULL, NULL));
  OK(headwater_conversation_feed(talk, ids, 50));
  copy_logits(talk, kept);
  OK(headwater_conversation_reset(talk));
  CHECK_EQUAL(tokens_of(talk), 0);
  OK(headwater_conversation_feed(talk, ids, 140));
  OK(headwater_conversation_append(talk, ids[140]));
  OK(headwater_conversation_feed(talk, ids, 50));
  copy_logits(talk, now);
  CHECK(memcmp(kept, now, sizeof kept) == 0);
  OK(headwater_conversation_feed(other, ids, 60));
  asked = -8; /* layers of the first step */
  OK(headwater_conversation_set_interrupt(other, at_third, &asked));
  FAILS(headwater_conversation_feed(other, ids, 100), HEADWATER_INTERRUPTED, "");
  CHECK(tokens_of(other) == 0 || tokens_of(other) == 60);
  OK(headwater_conversation_set_interrupt(other, NULL, NULL));

  /* Losses begin and end with an empty conversation. */
  OK(headwater_conversation_losses(talk, ids, ALL, DECODED, losses));
  CHECK_EQUAL(tokens_of(talk), 0);
  for (int i = 0; i < ALL - 1; ++i) CHECK(isfinite(losses[i]) && losses[i] > 0);
  OK(headwater_conversation_set_dense_tail(talk, 0));
  OK(headwater_conversation_feed(talk, ids, ALL - DECODED));
  /* The program's rows of many tokens may be products of BF16; one row's are F32. */
  CHECK_NEAR(losses[ALL - DECODED - 1], loss_of(talk, ids[ALL - DECODED]), 0.1);

  compare(talk, other, ids, losses);
  OK(headwater_conversation_feed(talk, ids, ALL - DECODED));

  REFUSED(headwater_conversation_feed(NULL, ids, 1), "conversation is NULL");
  REFUSED(headwater_conversation_feed(talk, NULL, 1), "ids is NULL");
  REFUSED(headwater_conversation_feed(talk, ids, 0), "0 tokens");
  REFUSED(headwater_conversation_feed(talk, ids, -1), "n is -1");
  REFUSED(headwater_conversation_feed(talk, ids, 2147483648), "n is 2147483648; allowed: 0 .. 2147483647");
  const int32_t bad[2] = {5, 4096};
  REFUSED(headwater_conversation_feed(talk, bad, 2), "ids[1] is 4096; allowed: 0 .. 4095");
  REFUSED(headwater_conversation_append(talk, -1), "ids[0] is -1; allowed: 0 .. 4095");
  REFUSED(headwater_conversation_append(NULL, 1), "conversation is NULL");
  FAILS(headwater_conversation_feed(talk, ids, 100), HEADWATER_CAPACITY_EXCEEDED, "allowed: 200 tokens");
  CHECK_EQUAL(tokens_of(talk), ALL - DECODED);
  REFUSED(headwater_conversation_logits(NULL, &logits, &count), "conversation is NULL");
  REFUSED(headwater_conversation_logits(talk, NULL, &count), "logits is NULL");
  REFUSED(headwater_conversation_logits(talk, &logits, NULL), "count is NULL");
  REFUSED(headwater_conversation_tokens(NULL, &count), "conversation is NULL");
  REFUSED(headwater_conversation_tokens(talk, NULL), "tokens is NULL");
  REFUSED(headwater_conversation_reset(NULL), "conversation is NULL");
  REFUSED(headwater_conversation_session(NULL, &session), "conversation is NULL");
  REFUSED(headwater_conversation_session(talk, NULL), "session is NULL");
  REFUSED(headwater_conversation_set_interrupt(NULL, never, &asked), "conversation is NULL");
  REFUSED(headwater_conversation_set_dense_tail(NULL, 1), "conversation is NULL");
  REFUSED(headwater_conversation_set_dense_tail(talk, -1), "dense_tail is -1");
  REFUSED(headwater_conversation_losses(NULL, ids, 2, 0, losses), "conversation is NULL");
  REFUSED(headwater_conversation_losses(talk, NULL, 2, 0, losses), "ids is NULL");
  REFUSED(headwater_conversation_losses(talk, ids, 1, 0, losses), "n is 1; allowed: 2 ..");
  REFUSED(headwater_conversation_losses(talk, ids, 20, 20, losses), "decode is 20; allowed: 0 .. 19");
  REFUSED(headwater_conversation_losses(talk, ids, 20, 1, NULL), "losses is NULL");
  FAILS(headwater_conversation_losses(talk, ids, 201, 1, losses), HEADWATER_CAPACITY_EXCEEDED,
        "allowed: 200");
  CHECK_EQUAL(tokens_of(talk), ALL - DECODED);
  headwater_conversation_close(other);
  headwater_conversation_close(talk);
}

/* Conversations with chunks of their own: what depends on them is the second one's, the losses are those of each alone. */
void test_compare_other_chunks(headwater_model* model) {
  enum { TOKENS = 190, LAST = 13 };
  const int64_t chunks[2] = {40, 64};
  headwater_conversation* talks[2] = {talk_of(model, HEADWATER_SELECT_BLOCKS, 200, chunks[0], 320, 0),
                                      talk_of(model, HEADWATER_SELECT_BLOCKS, 210, chunks[1], 320, 0)};
  headwater_comparison positions[TOKENS];
  double losses[2][TOKENS - 1];
  int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; ++i) ids[i] = 300 + (i * 53) % 700;
  for (int i = 0; i < 2; ++i) OK(headwater_conversation_losses(talks[i], ids, TOKENS, LAST, losses[i]));
  for (int second = 0; second < 2; ++second) {
    const int64_t chunk = chunks[second];
    int wrong = 0;
    OK(headwater_conversation_compare(talks[1 - second], talks[second], ids, TOKENS, LAST, positions));
    for (int64_t i = 0; i < TOKENS; ++i) {
      const int inside = i < TOKENS - LAST;
      const int ends =
          inside && ((i % chunk + 1) % 32 == 0 || i % chunk == chunk - 1 || i == TOKENS - LAST - 1);
      const int flags =
          (i >= chunk ? HEADWATER_AFTER_FIRST_CHUNK : 0) | (ends ? HEADWATER_ENDS_QUERY_BLOCK : 0);
      wrong += positions[i].flags != flags;
      if (i + 1 == TOKENS) continue;
      wrong += positions[i].loss != losses[1 - second][i] || positions[i].other_loss != losses[second][i];
    }
    CHECK_EQUAL(wrong, 0);
  }
  /* The smaller one's capacity counts, whichever it is. */
  static int32_t many[205];
  static headwater_comparison more[205];
  for (int i = 0; i < 2; ++i) {
    FAILS(headwater_conversation_compare(talks[i], talks[1 - i], many, 205, 1, more),
          HEADWATER_CAPACITY_EXCEEDED, "allowed: 200");
  }
  for (int i = 0; i < 2; ++i) headwater_conversation_close(talks[i]);
}

static int multiplies_bf16(void) {
  headwater_model* model = NULL;
  const headwater_status status = headwater_model_open(MODEL_FILE, HEADWATER_PROJECTIONS_BF16, &model);
  headwater_model_close(model);
  return status == HEADWATER_OK;
}

/* Keys and values are stored in the type that is asked for: by the bits that it leaves of an F32. */
void test_cache_types(headwater_model* model) {
  enum { TOKENS = 20, WIDTH = 256 };
  headwater_model_facts facts;
  int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; ++i) ids[i] = 300 + i * 7;
  OK(headwater_model_describe(model, &facts, sizeof facts));
  CHECK(facts.d_head <= WIDTH && facts.d_value <= WIDTH);
  int64_t bytes[5] = {0};
  for (int32_t type = 0; type < 5; ++type) {
    headwater_conversation_options options;
    headwater_conversation* talk = NULL;
    const headwater_session* session = NULL;
    headwater_memory_bytes memory;
    OK(headwater_conversation_options_init(&options, sizeof options));
    options.cache_type = type;
    options.capacity = TOKENS;
    OK(headwater_conversation_open(model, &options, &talk));
    if (talk == NULL) return;
    OK(headwater_conversation_feed(talk, ids, TOKENS));
    OK(headwater_conversation_session(talk, &session));
    CHECK_OK(headwater_session_memory_bytes(session, &memory, sizeof memory));
    bytes[type] = memory.kv;
    /* Bits below those of F16 (above 2^-14) and of BF16. */
    int below_half = 0, below_bf16 = 0;
    for (int64_t layer = 0; layer < facts.layers; ++layer) {
      for (int64_t head = 0; head < facts.heads_kv; ++head) {
        for (int64_t t = 0; t < TOKENS; ++t) {
          float rows[2][WIDTH];
          CHECK_OK(headwater_read_key(session, layer, head, t, rows[0], facts.d_head));
          CHECK_OK(headwater_read_value(session, layer, head, t, rows[1], facts.d_value));
          for (int which = 0; which < 2; ++which) {
            for (int64_t i = 0; i < (which == 0 ? facts.d_head : facts.d_value); ++i) {
              uint32_t bits = 0;
              memcpy(&bits, &rows[which][i], sizeof bits);
              if (fabsf(rows[which][i]) >= 0x1p-14F) below_half += (bits & 0x1FFF) != 0;
              below_bf16 += (bits & 0xFFFF) != 0;
            }
          }
        }
      }
    }
    const int32_t native = facts.projections != HEADWATER_PROJECTIONS_F32 && multiplies_bf16()
                               ? HEADWATER_CACHE_BF16
                               : HEADWATER_CACHE_F16;
    const int32_t stored = type == HEADWATER_CACHE_AUTO || type == HEADWATER_CACHE_Q8_0 ? native : type;
    CHECK_EQUAL(below_half > 0, stored == HEADWATER_CACHE_F32);
    CHECK_EQUAL(below_bf16 == 0, stored == HEADWATER_CACHE_BF16);
    headwater_conversation_close(talk);
  }
  /* What is beside the rows is as much for all. */
  const int64_t beside = 2 * bytes[HEADWATER_CACHE_F16] - bytes[HEADWATER_CACHE_F32];
  CHECK(beside >= 0 && beside < 1000);
  CHECK_EQUAL(bytes[HEADWATER_CACHE_BF16], bytes[HEADWATER_CACHE_F16]);
  /* 34 bytes in place of 64 (STATE-13). */
  const int64_t ideal = (bytes[HEADWATER_CACHE_F16] - beside) * 17 / 32;
  CHECK(llabs(bytes[HEADWATER_CACHE_Q8_0] - beside - ideal) < 1000);
}

enum { LONG = 70000, WINDOW = 66000, LAST = 390, PREFIX = 4992 }; /* whole query blocks */

/* Windows and turns beyond 2^16 tokens. */
void test_long_windows(void) {
  static int32_t ids[LONG];
  static double losses[WINDOW], prefix[PREFIX], others[PREFIX];
  static headwater_comparison positions[WINDOW];
  headwater_model* model = opened(FIXTURES "/qwen3-plain.gguf");
  headwater_conversation* talk = talk_of(model, HEADWATER_SELECT_BLOCKS, LONG, 512, 4096, 65536 + 5);
  headwater_conversation* other = talk_of(model, HEADWATER_SELECT_H2O, LONG, 512, 4096, 0);
  for (int i = 0; i < LONG; ++i) ids[i] = (int32_t)(((uint32_t)i * 2654435761U) >> 24);

  ids[LONG - 1] = 9999;
  REFUSED(headwater_conversation_feed(talk, ids, LONG), "ids[69999] is 9999");
  CHECK_EQUAL(tokens_of(talk), 0);

  /* A tail longer than the turn: all but its first token. */
  OK(headwater_conversation_set_dense_tail(other, 65536 + 6));
  for (int i = 0; i < 2; ++i) {
    headwater_conversation* const one = i == 0 ? talk : other;
    OK(headwater_conversation_feed(one, ids, 600));
    const headwater_chunk chunk = last_chunk(one);
    CHECK(chunk.begin == 1 && chunk.end == 600 && chunk.mode == HEADWATER_CHUNK_DECODE);
  }

  memset(positions, -1, sizeof positions);
  for (int i = 0; i < WINDOW; ++i) losses[i] = -1;
  OK(headwater_conversation_losses(talk, ids, WINDOW, LAST, losses));
  OK(headwater_conversation_losses(talk, ids, PREFIX, 0, prefix));
  OK(headwater_conversation_losses(other, ids, PREFIX, 0, others));
  CHECK(losses[WINDOW - 1] == -1 && memcmp(losses, prefix, (PREFIX - 1) * sizeof losses[0]) == 0);
  OK(headwater_conversation_compare(other, talk, ids, WINDOW, LAST, positions));
  int wrong = 0;
  for (int i = 0; i < WINDOW - 1; ++i) {
    const headwater_comparison* at = &positions[i];
    const int flags =
        (i >= 512 ? HEADWATER_AFTER_FIRST_CHUNK : 0) |
        (i < WINDOW - LAST && (i % 32 == 31 || i == WINDOW - LAST - 1) ? HEADWATER_ENDS_QUERY_BLOCK : 0);
    wrong += !(losses[i] > 0 && at->loss > 0 && at->other_loss == losses[i] && at->flags == flags);
    wrong += i < PREFIX - 1 && at->loss != others[i];
  }
  CHECK_EQUAL(wrong, 0);

  OK(headwater_conversation_set_dense_tail(talk, 0));
  OK(headwater_conversation_feed(talk, ids, WINDOW - LAST));
  CHECK_EQUAL(tokens_of(talk), WINDOW - LAST);
  for (int i = WINDOW - LAST - 1; i < WINDOW - LAST + 5; ++i) {
    CHECK_NEAR(losses[i], loss_of(talk, ids[i + 1]), 0.1);
    OK(headwater_conversation_append(talk, ids[i + 1]));
  }
  headwater_conversation_close(other);
  headwater_conversation_close(talk);
  headwater_model_close(model);
}
