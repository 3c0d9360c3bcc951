/* Models: what they say of themselves, and the options that they are opened with. */

#include <math.h>
#include <string.h>

#include "tests/runtime_c_abi/talks.h"

void test_model(headwater_model* model) {
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
  REFUSED(headwater_model_open(MODEL_FILE, 0, NULL), "model is NULL");
  REFUSED(headwater_model_open(NULL, 0, &none), "path is NULL");
  CHECK(none == NULL);
  REFUSED(headwater_model_open(MODEL_FILE, 4, &none), "projections is 4; allowed: 0 .. 3");
  REFUSED(headwater_model_open("/nowhere/model.gguf", 0, &none), "/nowhere/model.gguf");
  REFUSED(headwater_model_open(MODELS "/eval-4k.txt", 0, &none), "GGUF");
  if (facts.projections == HEADWATER_PROJECTIONS_F32) {
    REFUSED(headwater_model_open(MODEL_FILE, HEADWATER_PROJECTIONS_BF16, &none), "AVX512_BF16");
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
  OK(headwater_model_open_with(MODEL_FILE, options, &model));
  OK(headwater_conversation_open(model, NULL, &talk));
  OK(headwater_conversation_feed(talk, ids, sizeof ids / sizeof *ids));
  OK(headwater_conversation_logits(talk, &logits, &count));
  for (int64_t i = 0; i < count; ++i) best = logits[i] > best ? logits[i] : best;
  headwater_conversation_close(talk);
  headwater_model_close(model);
  return best;
}

/* Each field changes what is computed, and nothing does that is left alone. */
void test_model_options(void) {
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
  REFUSED(headwater_model_open_with(MODEL_FILE, &yarn, NULL), "model is NULL");
  REFUSED(headwater_model_open_with(NULL, &yarn, &none), "path is NULL");
#define BAD(change, part)                                              \
  do {                                                                 \
    headwater_model_options bad = yarn;                                \
    bad.change;                                                        \
    REFUSED(headwater_model_open_with(MODEL_FILE, &bad, &none), part); \
    CHECK(none == NULL);                                               \
  } while (0)
  BAD(struct_size = 56, "options.struct_size is 56");
  BAD(projections = -1, "projections is -1; allowed: 0 .. 3");
  BAD(rope_scaling = 4, "rope_scaling is 4; allowed: 0 .. 3");
  BAD(rope_scale = 0.5, "rope_scale is 0.5; allowed: at least 1");
  BAD(rope_freq_base = -2, "rope_freq_base is -2; allowed: a number > 0");
  BAD(yarn_attn_factor = NAN, "yarn_attn_factor holds nan; it must be finite");
  BAD(yarn_beta_fast = 1e300, "yarn_beta_fast holds inf; it must be finite");
  BAD(yarn_beta_slow = -1, "yarn_beta_slow is -1; allowed: a number > 0");
  BAD(yarn_orig_ctx = -1, "yarn_orig_ctx is -1; allowed: 1 .. 2147483647");
  yarn.rope_scaling = HEADWATER_ROPE_SCALING_FILE, yarn.yarn_beta_fast = 4;
  REFUSED(headwater_model_open_with(MODEL_FILE, &yarn, &none),
          "yarn_beta_fast is 4, and the scaling is linear");
}
