/* Every function of runtime.h: what it gives, NULL for each pointer, and what must be refused. */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/runtime_c_abi/talks.h"

headwater_status generate(headwater_model* model, const char* prompt, int most, FILE* out);

static const char* const kModel = MODELS "/headwater-tiny-f16.gguf";
static const char* const kChatModel = FIXTURES "/llama3.gguf";

static void test_model(headwater_model* model) {
  headwater_model_facts facts;
  headwater_model* none = model;
  unsigned char longer[sizeof facts + 8];
  CHECK_EQUAL(headwater_runtime_abi_version(), HEADWATER_RUNTIME_ABI_VERSION);
  CHECK(strcmp(headwater_model_name(model), "headwater-tiny") == 0);
  CHECK(strcmp(headwater_model_architecture(model), "qwen3") == 0);
  OK(headwater_model_describe(model, &facts, sizeof facts));
  CHECK_EQUAL(facts.layers, 8);
  CHECK_EQUAL(facts.vocabulary, 4096);
  CHECK_EQUAL(facts.adds_bos, 0);
  CHECK(facts.tokens > 0 && facts.tokens <= facts.vocabulary);
  CHECK(facts.heads % facts.heads_kv == 0 && facts.bytes > 1000000 && facts.context == 32768);
  CHECK(facts.projections >= HEADWATER_PROJECTIONS_F32 && facts.projections <= HEADWATER_PROJECTIONS_INT8);
  memset(longer, 0xFF, sizeof longer);
  OK(headwater_model_describe(model, (headwater_model_facts*)(void*)longer, sizeof longer));
  for (size_t i = sizeof facts; i < sizeof longer; ++i) CHECK_EQUAL(longer[i], 0);

  CHECK(headwater_model_name(NULL) == NULL && headwater_model_architecture(NULL) == NULL);
  CHECK(strstr(headwater_runtime_last_error(), "model is NULL") != NULL);
  CHECK(strcmp(headwater_model_warnings(model), "") == 0);
  CHECK(headwater_model_warnings(NULL) == NULL);
  REFUSED(headwater_model_describe(NULL, &facts, sizeof facts), "model is NULL");
  REFUSED(headwater_model_describe(model, NULL, sizeof facts), "facts is NULL");
  REFUSED(headwater_model_describe(model, &facts, 8), "struct_size is 8; allowed: 112 ..");
  static unsigned char longest[4096];
  OK(headwater_model_describe(model, (headwater_model_facts*)(void*)longest, sizeof longest));
  REFUSED(headwater_model_describe(model, (headwater_model_facts*)(void*)longest, 4097),
          "allowed: 112 .. 4096");
  REFUSED(headwater_model_open(kModel, 0, NULL), "model is NULL");
  REFUSED(headwater_model_open(NULL, 0, &none), "path is NULL");
  CHECK(none == NULL);
  REFUSED(headwater_model_open(kModel, 4, &none), "projections is 4; allowed: 0 .. 3");
  REFUSED(headwater_model_open("/nowhere/model.gguf", 0, &none), "/nowhere/model.gguf");
  REFUSED(headwater_model_open(MODELS "/eval-4k.txt", 0, &none), "GGUF");
  if (facts.projections == HEADWATER_PROJECTIONS_F32) {
    REFUSED(headwater_model_open(kModel, HEADWATER_PROJECTIONS_BF16, &none), "AVX512_BF16");
  }
  headwater_model_close(NULL);
}

/* Logits of the best token after a few, of the model with these options; 0 where it is refused. */
static float logit_with(const headwater_model_options* options) {
  static const int32_t ids[] = {5, 900, 77, 2040, 3, 5, 11, 900};
  headwater_model* model = NULL;
  headwater_conversation* talk = NULL;
  const float* logits = NULL;
  float best = 0;
  int64_t count = 0;
  OK(headwater_model_open_with(kModel, options, &model));
  OK(headwater_conversation_open(model, NULL, &talk));
  OK(headwater_conversation_feed(talk, ids, sizeof ids / sizeof *ids));
  OK(headwater_conversation_logits(talk, &logits, &count));
  for (int64_t i = 0; i < count; ++i) best = logits[i] > best ? logits[i] : best;
  headwater_conversation_close(talk);
  headwater_model_close(model);
  return best;
}

/* Each field changes what is computed, and nothing does that is left alone. */
static void test_model_options(void) {
  headwater_model_options options;
  headwater_model_options yarn;
  headwater_model* none = NULL;
  float found[8];
  OK(headwater_model_options_init(&options, sizeof options));
  CHECK_EQUAL(options.struct_size, sizeof options);
  yarn = options;
  yarn.rope_scaling = HEADWATER_ROPE_SCALING_YARN, yarn.rope_scale = 4;
  headwater_model_options all[8] = {options, options, options, yarn, yarn, yarn, yarn, yarn};
  all[1].rope_freq_base = 20000;
  all[2].rope_scaling = HEADWATER_ROPE_SCALING_LINEAR, all[2].rope_scale = 4;
  all[4].yarn_orig_ctx = 64;
  all[5].yarn_attn_factor = 1.25;
  all[6].yarn_beta_fast = 4000;
  all[7].yarn_beta_slow = 20;
  for (int i = 0; i < 8; ++i) {
    found[i] = logit_with(&all[i]);
    for (int other = 0; other < i; ++other) CHECK(found[i] != found[other]);
  }
  CHECK(logit_with(NULL) == found[0]);
  options.rope_scaling = HEADWATER_ROPE_SCALING_NONE;
  CHECK(logit_with(&options) == found[0]);
  options.rope_scaling = HEADWATER_ROPE_SCALING_FILE, options.rope_scale = 4;
  CHECK(logit_with(&options) == found[2]);

  REFUSED(headwater_model_options_init(NULL, sizeof options), "options is NULL");
  REFUSED(headwater_model_options_init(&options, 56), "struct_size is 56");
  REFUSED(headwater_model_open_with(kModel, &yarn, NULL), "model is NULL");
  REFUSED(headwater_model_open_with(NULL, &yarn, &none), "path is NULL");
  struct {
    headwater_model_options options;
    const char* said;
  } cases[9] = {{yarn, "options.struct_size is 56"},
                {yarn, "projections is -1; allowed: 0 .. 3"},
                {yarn, "rope_scaling is 4; allowed: 0 .. 3"},
                {yarn, "rope_scale is 0.5; allowed: at least 1"},
                {yarn, "rope_freq_base is -2; allowed: a number > 0"},
                {yarn, "yarn_attn_factor holds nan; it must be finite"},
                {yarn, "yarn_beta_fast holds inf; it must be finite"},
                {yarn, "yarn_beta_slow is -1; allowed: a number > 0"},
                {yarn, "yarn_orig_ctx is -1; allowed: 1 .. 2147483647"}};
  cases[0].options.struct_size = 56;
  cases[1].options.projections = -1;
  cases[2].options.rope_scaling = 4;
  cases[3].options.rope_scale = 0.5;
  cases[4].options.rope_freq_base = -2;
  cases[5].options.yarn_attn_factor = NAN;
  cases[6].options.yarn_beta_fast = 1e300;
  cases[7].options.yarn_beta_slow = -1;
  cases[8].options.yarn_orig_ctx = -1;
  for (int i = 0; i < 9; ++i) {
    REFUSED(headwater_model_open_with(kModel, &cases[i].options, &none), cases[i].said);
    CHECK(none == NULL);
  }
  yarn.rope_scaling = HEADWATER_ROPE_SCALING_FILE, yarn.yarn_beta_fast = 4;
  REFUSED(headwater_model_open_with(kModel, &yarn, &none), "yarn_beta_fast is 4, and the scaling is linear");
}

static int multiplies_bf16(void) {
  headwater_model* model = NULL;
  const headwater_status status = headwater_model_open(kModel, HEADWATER_PROJECTIONS_BF16, &model);
  headwater_model_close(model);
  return status == HEADWATER_OK;
}

static void test_tokens(headwater_model* model) {
  const char* const text = "def mean(values):\n    return";
  const int64_t bytes = (int64_t)strlen(text);
  int32_t ids[64] = {0};
  int32_t few[2] = {-7, -7};
  char back[64];
  int64_t count = 0;
  int64_t more = 0;
  int32_t flags = -1;
  OK(headwater_tokenize(model, text, bytes, 1, 0, ids, 64, &count));
  CHECK(count > 2 && count < bytes);
  OK(headwater_tokenize(model, text, bytes, 1, 0, few, 1, &more)); /* what fits, and the number of all */
  CHECK_EQUAL(more, count);
  CHECK(few[0] == ids[0] && few[1] == -7);
  OK(headwater_tokenize(model, NULL, 0, 0, 0, NULL, 0, &more));
  CHECK_EQUAL(more, 0);
  OK(headwater_detokenize(model, ids, count, back, 64, &more));
  CHECK(more == bytes && memcmp(back, text, (size_t)bytes) == 0);
  OK(headwater_token_piece(model, ids[0], back, 64, &more, &flags));
  CHECK(flags == 0 && more >= 1 && memcmp(back, text, (size_t)more) == 0);

  OK(headwater_text_losses(model, text, bytes, &count, &more));
  CHECK(count == -1 && more == -1);
  OK(headwater_text_losses(model, "ab\xFFz", 4, &count, &more));
  CHECK(count == 2 && more == -1);
  REFUSED(headwater_text_losses(NULL, text, bytes, &count, &more), "model is NULL");
  REFUSED(headwater_text_losses(model, NULL, 3, &count, &more), "text is NULL");
  REFUSED(headwater_text_losses(model, text, -1, &count, &more), "bytes is -1");
  REFUSED(headwater_text_losses(model, text, bytes, NULL, &more), "ill_formed is NULL");
  REFUSED(headwater_text_losses(model, text, bytes, &count, NULL), "without_token is NULL");
  REFUSED(headwater_tokenize(NULL, text, bytes, 0, 0, ids, 64, &count), "model is NULL");
  REFUSED(headwater_tokenize(model, NULL, 3, 0, 0, ids, 64, &count), "text is NULL");
  REFUSED(headwater_tokenize(model, text, -1, 0, 0, ids, 64, &count), "bytes is -1");
  REFUSED(headwater_tokenize(model, text, bytes, 2, 0, ids, 64, &count), "add_special is 2; allowed: 0 .. 1");
  REFUSED(headwater_tokenize(model, text, bytes, 0, -1, ids, 64, &count), "parse_special is -1");
  REFUSED(headwater_tokenize(model, text, bytes, 0, 0, NULL, 64, &count), "ids is NULL");
  REFUSED(headwater_tokenize(model, text, bytes, 0, 0, ids, -1, &count), "capacity is -1");
  REFUSED(headwater_tokenize(model, text, bytes, 0, 0, ids, 64, NULL), "count is NULL");
  REFUSED(headwater_detokenize(NULL, ids, 1, back, 64, &more), "model is NULL");
  REFUSED(headwater_detokenize(model, NULL, 1, back, 64, &more), "ids is NULL");
  REFUSED(headwater_detokenize(model, ids, -1, back, 64, &more), "n is -1");
  REFUSED(headwater_detokenize(model, ids, 1, NULL, 64, &more), "text is NULL");
  ids[1] = INT32_MAX;
  REFUSED(headwater_detokenize(model, ids, 2, back, 64, &more), "2147483647");
  REFUSED(headwater_token_piece(NULL, 1, back, 64, &more, &flags), "model is NULL");
  REFUSED(headwater_token_piece(model, -1, back, 64, &more, &flags), "-1");
  REFUSED(headwater_token_piece(model, 1, NULL, 64, &more, &flags), "piece is NULL");
  REFUSED(headwater_token_piece(model, 1, back, 64, NULL, &flags), "count is NULL");
  REFUSED(headwater_token_piece(model, 1, back, 64, &more, NULL), "flags is NULL");
}

static void test_chat(void) {
  headwater_model* model = opened(kChatModel);
  headwater_chat_message messages[2] = {{"system", "be\0kind", 7, NULL, 0}, {"user", "a text", 6, "why?", 4}};
  headwater_model_facts facts;
  int32_t ids[256], again[256];
  int64_t count = 0, question = -1, fewer = 0;
  int32_t flags = 0;
  char piece[64];
  OK(headwater_model_describe(model, &facts, sizeof facts));
  CHECK(facts.turn_end >= 0);
  CHECK_EQUAL(facts.adds_bos, 1);
  OK(headwater_token_piece(model, facts.turn_end, piece, 64, &count, &flags));
  CHECK_EQUAL(flags, HEADWATER_TOKEN_CONTROL | HEADWATER_TOKEN_END);
  OK(headwater_chat_encode(model, messages, 2, sizeof messages[0], 1, ids, 256, &count, &question));
  CHECK(question > 0 && question < count && ids[0] == facts.bos);
  OK(headwater_chat_encode(model, messages + 1, 1, sizeof messages[0], 0, again, 256, &fewer, &question));
  CHECK(fewer < count && memcmp(ids + count - fewer, again, (size_t)fewer * sizeof again[0]) == 0);
  struct {
    headwater_chat_message message;
    char more[24];
  } larger[2] = {{messages[0], ""}, {messages[1], ""}}; /* of a later version */
  OK(headwater_chat_encode(model, &larger[0].message, 2, sizeof larger[0], 1, again, 256, &fewer, &question));
  CHECK(fewer == count && memcmp(ids, again, (size_t)count * sizeof ids[0]) == 0);
  messages[1].question = NULL; /* its length is not read then */
  OK(headwater_chat_encode(model, messages + 1, 1, sizeof messages[0], 0, again, 256, &fewer, &question));
  CHECK_EQUAL(question, 0);

  /* The conversation goes on: what ends the answer, and what is new, as above. */
  const size_t size = sizeof messages[0];
  headwater_chat_message all[3] = {
      {"user", "a text", 6, NULL, 0}, {"assistant", "yes", 3, NULL, 0}, messages[1]};
  int32_t anew = -1;
  OK(headwater_chat_encode(model, messages + 1, 1, size, 0, again, 256, &fewer, &question));
  OK(headwater_chat_continue(model, all, 3, size, ids, 256, &count, &question, &anew));
  CHECK(anew == 0 && count == fewer + 1 && ids[0] == facts.turn_end);
  CHECK(memcmp(ids + 1, again, (size_t)fewer * sizeof ids[0]) == 0);
  REFUSED(headwater_chat_continue(NULL, all, 3, size, ids, 256, &count, &question, &anew), "model is NULL");
  REFUSED(headwater_chat_continue(model, all, 0, size, ids, 256, &count, &question, &anew),
          "message_count is 0");
  REFUSED(headwater_chat_continue(model, all, 3, size, ids, 256, &count, NULL, &anew), "question is NULL");
  REFUSED(headwater_chat_continue(model, all, 3, size, ids, 256, &count, &question, NULL), "anew is NULL");

  /* Another template; one that drops what was said is fed anew. */
  static const char drops[] = "{{ messages[-1].role }}{{ messages|length }}";
  REFUSED(headwater_model_set_chat_template(NULL, drops, 1), "model is NULL");
  REFUSED(headwater_model_set_chat_template(model, NULL, 1), "text is NULL");
  REFUSED(headwater_model_set_chat_template(model, drops, -1), "bytes is -1");
  REFUSED(headwater_model_set_chat_template(model, "chatml", 6), "<|im_start|>");
  REFUSED(headwater_model_set_chat_template(model, "{% x %}", 7), "line 1: statement 'x' is not known");
  OK(headwater_chat_encode(model, messages + 1, 1, size, 0, again, 256, &count, &question));
  CHECK_EQUAL(count, fewer); /* nothing has changed */
  OK(headwater_model_set_chat_template(model, drops, sizeof drops - 1));
  OK(headwater_chat_continue(model, all, 3, size, ids, 256, &count, &question, &anew));
  CHECK(anew == 1 && ids[0] == facts.bos && count == 5); /* and u, s, er, 3 */
  OK(headwater_model_describe(model, &facts, sizeof facts));
  CHECK_EQUAL(facts.turn_end, -1);
  OK(headwater_model_set_chat_template(model, NULL, 0));
  OK(headwater_model_describe(model, &facts, sizeof facts));
  CHECK(facts.turn_end >= 0);

  REFUSED(headwater_chat_encode(NULL, messages, 2, size, 1, ids, 256, &count, &question), "model is NULL");
  REFUSED(headwater_chat_encode(model, NULL, 2, size, 1, ids, 256, &count, &question), "messages is NULL");
  REFUSED(headwater_chat_encode(model, messages, 0, size, 1, ids, 256, &count, &question),
          "message_count is 0");
  REFUSED(headwater_chat_encode(model, messages, 2, 8, 1, ids, 256, &count, &question),
          "messages[0].struct_size is 8");
  REFUSED(headwater_chat_encode(model, messages, 2, size, 2, ids, 256, &count, &question), "first is 2");
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, NULL, 256, &count, &question), "ids is NULL");
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, ids, 256, NULL, &question), "count is NULL");
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, ids, 256, &count, NULL), "question is NULL");
  messages[0].role = "wizard";
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, ids, 256, &count, &question), "wizard");
  messages[0].role = NULL;
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, ids, 256, &count, &question),
          "messages[0].role");
  messages[0].role = "user";
  messages[0].text = NULL;
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, ids, 256, &count, &question),
          "messages[0].text");
  headwater_model_close(model);
  model = opened(FIXTURES "/llama-linear.gguf");
  REFUSED(headwater_chat_encode(model, messages + 1, 1, size, 1, ids, 256, &count, &question), "ChatML");
  headwater_model_close(model);
}

static void test_conversation_options(headwater_model* model) {
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
  options.cache_type = 4;
  REFUSED(headwater_conversation_open(model, &options, &talk), "options.cache_type is 4; allowed: 0 .. 3");
  options.cache_type = 0;
  options.capacity = -1;
  REFUSED(headwater_conversation_open(model, &options, &talk), "options.capacity is -1");
  options.capacity = 2147483648;
  REFUSED(headwater_conversation_open(model, &options, &talk), "options.capacity is 2147483648");
  options.capacity = 100;
  options.dense_tail = -1;
  REFUSED(headwater_conversation_open(model, &options, &talk), "options.dense_tail is -1");
  options.dense_tail = 0;
  options.reserved = 1;
  REFUSED(headwater_conversation_open(model, &options, &talk), "options.reserved is 1");
  options.reserved = 0;
  options.struct_size = 4;
  REFUSED(headwater_conversation_open(model, &options, &talk), "options.struct_size is 4");
  options.struct_size = sizeof options;
  options.engine = "warp";
  FAILS(headwater_conversation_open(model, &options, &talk), HEADWATER_ENGINE_UNAVAILABLE, "warp");
  options.engine = NULL;
  options.attention = &attention;
#define ATTENTION(change, part)                                         \
  do {                                                                  \
    CHECK_OK(headwater_options_init(&attention, sizeof attention));     \
    change;                                                             \
    REFUSED(headwater_conversation_open(model, &options, &talk), part); \
  } while (0)
  ATTENTION(attention.scale = 1, "attention.scale is set");
  ATTENTION(attention.softcap = 1, "attention.softcap is set");
  ATTENTION(attention.sinks = numbers, "attention.sinks is set");
  ATTENTION(attention.alibi = numbers, "attention.alibi is set");
  ATTENTION(attention.kv_owner = HEADWATER_KV_OF_CALLER, "attention.kv_owner is set");
  ATTENTION(attention.row_memory = HEADWATER_DEVICE_MEMORY, "attention.row_memory is set");
  ATTENTION(attention.stream = &attention, "attention.stream is set");
  ATTENTION(attention.chunk = 0, "chunk is 0");
  ATTENTION(attention.threads = -1, "options.threads is -1");
  ATTENTION(attention.threads = 513, "options.threads is 513; allowed: 0 .. 512");
  ATTENTION(attention.select = 3, "options.select is 3");
  CHECK(talk == NULL);
  headwater_conversation_close(NULL);
}

static int32_t never(void* user) {
  ++*(int*)user;
  return 0;
}

static int32_t at_third(void* user) { return ++*(int*)user >= 3; }

static headwater_conversation* small(headwater_model* model, int32_t select) {
  return talk_of(model, select, 200, 32, 32, 64);
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

static void test_conversation(headwater_model* model) {
  headwater_conversation* talk = small(model, HEADWATER_SELECT_BLOCKS);
  headwater_conversation* other = small(model, HEADWATER_SELECT_H2O);
  const headwater_session* session = NULL;
  headwater_effective_options effective;
  const float* logits = NULL;
  float kept[4096];
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
  headwater_chunk chunk;
  CHECK_OK(headwater_session_chunk_count(session, &count));
  CHECK_OK(headwater_session_chunk(session, count - 1, &chunk, &count));
  CHECK(chunk.begin == 135 && chunk.end == 140 && chunk.mode == HEADWATER_CHUNK_DECODE);
  OK(headwater_conversation_append(talk, ids[140]));
  OK(headwater_conversation_logits(talk, &logits, &count));
  CHECK_EQUAL(count, 4096);
  memcpy(kept, logits, sizeof kept);

  /* A turn that is stopped was never begun, with a rule that can be truncated; with the other one nothing is left. */
  asked = 0;
  OK(headwater_conversation_set_interrupt(talk, at_third, &asked));
  FAILS(headwater_conversation_feed(talk, ids, 50), HEADWATER_INTERRUPTED, "");
  CHECK_EQUAL(tokens_of(talk), 141);
  OK(headwater_conversation_logits(talk, &logits, &count));
  CHECK(memcmp(kept, logits, sizeof kept) == 0);
  OK(headwater_conversation_set_interrupt(talk, NULL, NULL));
  OK(headwater_conversation_feed(talk, ids, 50));
  OK(headwater_conversation_logits(talk, &logits, &count));
  memcpy(kept, logits, sizeof kept);
  OK(headwater_conversation_reset(talk));
  CHECK_EQUAL(tokens_of(talk), 0);
  OK(headwater_conversation_feed(talk, ids, 140));
  OK(headwater_conversation_append(talk, ids[140]));
  OK(headwater_conversation_feed(talk, ids, 50));
  OK(headwater_conversation_logits(talk, &logits, &count));
  CHECK(memcmp(kept, logits, sizeof kept) == 0);
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
static void test_compare_other_chunks(headwater_model* model) {
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

/* Keys and values are stored in the type that is asked for: by the bits that it leaves of an F32. */
static void test_cache_types(headwater_model* model) {
  enum { TOKENS = 20, WIDTH = 256 };
  headwater_model_facts facts;
  int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; ++i) ids[i] = 300 + i * 7;
  OK(headwater_model_describe(model, &facts, sizeof facts));
  CHECK(facts.d_head <= WIDTH && facts.d_value <= WIDTH);
  int64_t bytes[4] = {0};
  for (int32_t type = 0; type < 4; ++type) {
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
    const int32_t stored = type == HEADWATER_CACHE_AUTO ? native : type;
    CHECK_EQUAL(below_half > 0, stored == HEADWATER_CACHE_F32);
    CHECK_EQUAL(below_bf16 == 0, stored == HEADWATER_CACHE_BF16);
    headwater_conversation_close(talk);
  }
  /* What is beside the rows is as much for all. */
  const int64_t beside = 2 * bytes[HEADWATER_CACHE_F16] - bytes[HEADWATER_CACHE_F32];
  CHECK(beside >= 0 && beside < 1000);
  CHECK_EQUAL(bytes[HEADWATER_CACHE_BF16], bytes[HEADWATER_CACHE_F16]);
}

enum { LONG = 70000, WINDOW = 66000, LAST = 390, PREFIX = 4992 }; /* whole query blocks */

/* Windows and turns beyond 2^16 tokens. */
static void test_long_windows(void) {
  static int32_t ids[LONG];
  static double losses[WINDOW], prefix[PREFIX], others[PREFIX];
  static headwater_comparison positions[WINDOW];
  headwater_model* model = opened(FIXTURES "/qwen3-plain.gguf");
  headwater_conversation* talk = talk_of(model, HEADWATER_SELECT_BLOCKS, LONG, 512, 4096, 65536 + 5);
  headwater_conversation* other = talk_of(model, HEADWATER_SELECT_H2O, LONG, 512, 4096, 0);
  headwater_chunk chunk;
  const headwater_session* session = NULL;
  int64_t count = 0, memory = 0;
  for (int i = 0; i < LONG; ++i) ids[i] = (int32_t)(((uint32_t)i * 2654435761U) >> 24);

  ids[LONG - 1] = 9999;
  REFUSED(headwater_conversation_feed(talk, ids, LONG), "ids[69999] is 9999");
  CHECK_EQUAL(tokens_of(talk), 0);

  /* A tail longer than the turn: all but its first token. */
  OK(headwater_conversation_set_dense_tail(other, 65536 + 6));
  for (int i = 0; i < 2; ++i) {
    headwater_conversation* const one = i == 0 ? talk : other;
    OK(headwater_conversation_feed(one, ids, 600));
    OK(headwater_conversation_session(one, &session));
    CHECK_OK(headwater_session_chunk_count(session, &count));
    CHECK_OK(headwater_session_chunk(session, count - 1, &chunk, &memory));
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

/* Texts and chats beyond 2^16 tokens, a file beyond 2^32 bytes. */
static void test_long_texts(void) {
  static char text[LONG], back[LONG];
  static int32_t ids[LONG + 5000];
  static headwater_chat_message messages[65537];
  static const char context[] = "llama.context_length";
  FILE* const from = fopen(kChatModel, "rb");
  FILE* const file = tmpfile();
  char path[40];
  headwater_model_facts facts;
  int64_t count = 0, question = 0;
  CHECK(from != NULL && file != NULL);
  if (from == NULL || file == NULL) return;
  /* The model with a larger context, and a hole at its end, which takes no disk. */
  static char bytes[1 << 20];
  const size_t size = fread(bytes, 1, sizeof bytes, from);
  fclose(from);
  for (size_t i = 0; i + sizeof context < size; ++i) {
    if (memcmp(bytes + i, context, sizeof context - 1) == 0) bytes[i + sizeof context - 1 + 4 + 2] = 3;
  }
  CHECK(fwrite(bytes, 1, size, file) == size && fflush(file) == 0);
  CHECK(ftruncate(fileno(file), 5000000007) == 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
  headwater_model* model = opened(path);
  fclose(file);
  OK(headwater_model_describe(model, &facts, sizeof facts));
  CHECK_EQUAL(facts.bytes, 5000000007);
  CHECK_EQUAL(facts.context, 3 * 65536 + 256);

  for (int i = 0; i < LONG; ++i) text[i] = (char)('a' + i % 7);
  OK(headwater_tokenize(model, text, LONG, 0, 0, NULL, 0, &count));
  CHECK_EQUAL(count, LONG);
  ids[LONG - 5] = -7;
  OK(headwater_tokenize(model, text, LONG, 0, 0, ids, LONG - 5, &count));
  CHECK(count == LONG && ids[LONG - 5] == -7);
  OK(headwater_tokenize(model, text, LONG, 0, 0, ids, LONG, &count));
  OK(headwater_detokenize(model, ids, LONG, back, LONG - 5, &count));
  CHECK(count == LONG && memcmp(text, back, LONG - 5) == 0 && back[LONG - 5] == 0);

  for (int i = 0; i < 300; ++i) messages[i] = (headwater_chat_message){"user", text, 1, NULL, 0};
  messages[0].text_bytes = LONG;
  messages[299].question = "ab";
  messages[299].question_bytes = 2;
  OK(headwater_chat_encode(model, messages, 300, sizeof messages[0], 0, ids, LONG + 5000, &count, &question));
  CHECK(question > LONG + 299 && question + 2 < count);
  OK(headwater_detokenize(model, ids + question, 2, back, LONG, &count));
  CHECK(count == 2 && memcmp(back, "ab", 2) == 0);
  messages[299].role = "wizard";
  REFUSED(headwater_chat_encode(model, messages, 300, sizeof messages[0], 0, ids, LONG, &count, &question),
          "wizard");
  messages[299].role = NULL;
  REFUSED(headwater_chat_encode(model, messages, 300, sizeof messages[0], 0, ids, LONG, &count, &question),
          "messages[299].role");

  /* As many messages as are allowed, and one more. */
  int64_t one = 0, two = 0;
  for (int i = 0; i < 65537; ++i) messages[i] = (headwater_chat_message){"user", text, 1, NULL, 0};
  OK(headwater_chat_encode(model, messages, 1, sizeof messages[0], 0, NULL, 0, &one, &question));
  OK(headwater_chat_encode(model, messages, 2, sizeof messages[0], 0, NULL, 0, &two, &question));
  OK(headwater_chat_encode(model, messages, 65536, sizeof messages[0], 0, NULL, 0, &count, &question));
  CHECK_EQUAL(count, one + 65535 * (two - one));
  REFUSED(headwater_chat_encode(model, messages, 65537, sizeof messages[0], 0, NULL, 0, &count, &question),
          "message_count is 65537; allowed: 1 .. 65536");
  headwater_model_close(model);
}

static void test_sampling(void) {
  enum { COUNT = 50 };
  headwater_sampling sampling;
  headwater_sampler* sampler = (headwater_sampler*)&sampling;
  float logits[COUNT];
  int32_t id = -1;
  for (int i = 0; i < COUNT; ++i) logits[i] = (float)(i % 7);
  OK(headwater_sampling_init(&sampling, sizeof sampling));
  CHECK(sampling.temperature == 0 && sampling.top_k == 0 && sampling.top_p == 1 && sampling.min_p == 0);
  OK(headwater_sampler_open(NULL, COUNT, &sampler));
  OK(headwater_sampler_draw(sampler, logits, COUNT, &id));
  CHECK_EQUAL(id, 6); /* the first of the best */
  REFUSED(headwater_sampler_draw(NULL, logits, COUNT, &id), "sampler is NULL");
  REFUSED(headwater_sampler_draw(sampler, NULL, COUNT, &id), "logits is NULL");
  REFUSED(headwater_sampler_draw(sampler, logits, COUNT - 1, &id), "count is 49; allowed: 50");
  REFUSED(headwater_sampler_draw(sampler, logits, COUNT, NULL), "id is NULL");
  logits[3] = NAN;
  REFUSED(headwater_sampler_draw(sampler, logits, COUNT, &id), "NaN");
  logits[3] = 3;
  headwater_sampler_close(sampler);
  headwater_sampler_close(NULL);

  /* Equal seeds, equal tokens. */
  sampling.temperature = 1;
  sampling.seed = 7;
  headwater_sampler *twin = NULL, *third = NULL;
  int different = 0, others = 0;
  OK(headwater_sampler_open(&sampling, COUNT, &sampler));
  OK(headwater_sampler_open(&sampling, COUNT, &twin));
  sampling.seed = 7 + ((uint64_t)1 << 32);
  OK(headwater_sampler_open(&sampling, COUNT, &third));
  for (int i = 0; i < 100; ++i) {
    int32_t first = -1, second = -1, other = -1;
    OK(headwater_sampler_draw(sampler, logits, COUNT, &first));
    OK(headwater_sampler_draw(twin, logits, COUNT, &second));
    OK(headwater_sampler_draw(third, logits, COUNT, &other));
    CHECK_EQUAL(first, second);
    different += first != 6;
    others += first != other;
  }
  CHECK(different > 20 && others > 20);
  headwater_sampler_close(sampler);
  headwater_sampler_close(twin);
  headwater_sampler_close(third);

  /* Each way of leaving tokens out: of the seven best, whose logits are equal, and of the others. */
  struct {
    int64_t top_k;
    double top_p, min_p;
    int from, to; /* how many different ones are drawn */
  } kept[] = {{0, 1, 0, 12, COUNT}, {1, 1, 0, 1, 1}, {2, 1, 0, 2, 2},
              {0, 0.01, 0, 1, 1},   {0, 1, 1, 7, 7}, {9, 0.99, 0.999, 7, 7}};
  for (size_t c = 0; c < sizeof kept / sizeof kept[0]; ++c) {
    int seen[COUNT] = {0};
    int different_ones = 0;
    sampling.top_k = kept[c].top_k;
    sampling.top_p = kept[c].top_p;
    sampling.min_p = kept[c].min_p;
    sampling.temperature = c < 3 ? 2 : 1;
    OK(headwater_sampler_open(&sampling, COUNT, &sampler));
    for (int i = 0; i < 400; ++i) {
      OK(headwater_sampler_draw(sampler, logits, COUNT, &id));
      different_ones += id >= 0 && id < COUNT && seen[id]++ == 0;
      if (c > 0) CHECK_EQUAL(id % 7, 6);
    }
    CHECK(different_ones >= kept[c].from && different_ones <= kept[c].to);
    headwater_sampler_close(sampler);
  }
  sampling.top_k = 0;
  sampling.top_p = 1;
  sampling.min_p = 0;

  /* The last of a large vocabulary, and draws among its 70000 best: 2^16 more than 4464. */
  enum { LARGE = 151936 };
  float* const many = calloc(LARGE, sizeof many[0]);
  CHECK(many != NULL);
  if (many == NULL) return;
  sampling.temperature = 0;
  many[LARGE - 1] = 1;
  OK(headwater_sampler_open(&sampling, LARGE, &sampler));
  OK(headwater_sampler_draw(sampler, many, LARGE, &id));
  CHECK_EQUAL(id, LARGE - 1);
  headwater_sampler_close(sampler);
  sampling.temperature = 1;
  sampling.top_k = 70000;
  for (int i = 0; i < LARGE; ++i) many[i] = i < 70000 ? 1.0F : -20.0F;
  OK(headwater_sampler_open(&sampling, LARGE, &sampler));
  int beyond = 0;
  for (int i = 0; i < 5; ++i) {
    OK(headwater_sampler_draw(sampler, many, LARGE, &id));
    beyond += id >= 70000 - 65536;
  }
  CHECK(beyond > 0);
  headwater_sampler_close(sampler);
  free(many);
  sampling.top_k = 0;

  REFUSED(headwater_sampling_init(NULL, sizeof sampling), "sampling is NULL");
  REFUSED(headwater_sampling_init(&sampling, 4), "struct_size is 4");
  REFUSED(headwater_sampler_open(&sampling, COUNT, NULL), "sampler is NULL");
  REFUSED(headwater_sampler_open(&sampling, 0, &sampler), "vocabulary is 0");
  CHECK(sampler == NULL);
  sampling.temperature = -1;
  REFUSED(headwater_sampler_open(&sampling, COUNT, &sampler), "temperature is -1");
  sampling.temperature = 1;
  sampling.top_p = 1.5;
  REFUSED(headwater_sampler_open(&sampling, COUNT, &sampler), "top_p is 1.5; allowed: 0 .. 1");
  sampling.top_p = 1;
  sampling.struct_size = 5000;
  REFUSED(headwater_sampler_open(&sampling, COUNT, &sampler), "sampling.struct_size is 5000");
}

static void test_example(headwater_model* model) {
  FILE* const out = tmpfile();
  char text[256] = {0};
  CHECK(out != NULL);
  if (out == NULL) return;
  OK(generate(model, "def mean(values):\n    return", 24, out));
  rewind(out);
  CHECK(fread(text, 1, sizeof text - 1, out) > 10);
  CHECK(strstr(text, "values") != NULL);
  fclose(out);
}

/* A model that nothing was computed with, its first conversations opened by several threads at once. */
enum { THREADS = 4, VOCABULARY = 4096 };
static pthread_barrier_t at_once;
typedef struct {
  headwater_model* model;
  float logits[VOCABULARY];
  int64_t count;
} talker;

static void* talk_alone(void* argument) {
  talker* const own = argument;
  const int32_t ids[5] = {300, 301, 302, 303, 304};
  headwater_conversation* talk = NULL;
  headwater_conversation_options options;
  const float* logits = NULL;
  pthread_barrier_wait(&at_once);
  if (headwater_conversation_options_init(&options, sizeof options) == HEADWATER_OK &&
      headwater_conversation_open(own->model, &options, &talk) == HEADWATER_OK &&
      headwater_conversation_feed(talk, ids, 5) == HEADWATER_OK &&
      headwater_conversation_logits(talk, &logits, &own->count) == HEADWATER_OK && own->count == VOCABULARY) {
    memcpy(own->logits, logits, sizeof own->logits);
  }
  headwater_conversation_close(talk);
  return NULL;
}

static void test_threads(void) {
  static talker talkers[THREADS];
  pthread_t threads[THREADS];
  headwater_model* const model = opened(kModel);
  CHECK_EQUAL(pthread_barrier_init(&at_once, NULL, THREADS), 0);
  for (int t = 0; t < THREADS; ++t) {
    talkers[t].model = model;
    CHECK_EQUAL(pthread_create(&threads[t], NULL, talk_alone, &talkers[t]), 0);
  }
  for (int t = 0; t < THREADS; ++t) CHECK_EQUAL(pthread_join(threads[t], NULL), 0);
  for (int t = 0; t < THREADS; ++t) {
    CHECK_EQUAL(talkers[t].count, VOCABULARY);
    CHECK(memcmp(talkers[t].logits, talkers[0].logits, sizeof talkers[t].logits) == 0);
  }
  pthread_barrier_destroy(&at_once);
  headwater_model_close(model);
}

/* With an argument: the threads alone, for a checker of them, which takes minutes for the rest. */
int main(int argc, char** argv) {
  (void)argv;
  test_threads();
  test_forks_on_threads(kModel);
  if (argc > 1) return failed_checks() == 0 ? 0 : 1;
  headwater_model* model = opened(kModel);
  test_model(model);
  test_model_options();
  test_tokens(model);
  test_chat();
  test_conversation_options(model);
  test_conversation(model);
  test_compare_other_chunks(model);
  test_cache_types(model);
  test_forks(kModel);
  headwater_model* in_f32 = NULL;
  OK(headwater_model_open(kModel, HEADWATER_PROJECTIONS_F32, &in_f32));
  test_cache_types(in_f32);
  headwater_model_close(in_f32);
  test_long_windows();
  test_long_texts();
  test_sampling();
  test_example(model);
  /* A conversation keeps what it needs of its model. */
  headwater_conversation* talk = small(model, HEADWATER_SELECT_BLOCKS);
  headwater_model_close(model);
  const int32_t ids[3] = {300, 301, 302};
  OK(headwater_conversation_feed(talk, ids, 3));
  headwater_conversation_close(talk);
  printf("%d checks, %d failed\n", made_checks(), failed_checks());
  return failed_checks() == 0 ? 0 : 1;
}
