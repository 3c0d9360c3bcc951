/* Samplers. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime_c_abi/talks.h"

void test_sampling(void) {
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
    OK(headwater_sampler_accept(twin, second)); /* without a grammar it changes nothing */
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

/* What the small model writes under a grammar, up to the token that ends it; `text` has 256 bytes. */
static void write_answer(headwater_model* model, headwater_sampler* sampler, char* text) {
  headwater_conversation* talk = small_talk(model, HEADWATER_SELECT_BLOCKS);
  int32_t id = 300, flags = 0;
  int64_t bytes = 0, used = 0, count = 0;
  const float* logits = NULL;
  OK(headwater_conversation_feed(talk, &id, 1));
  for (int i = 0; i < 60; ++i) {
    OK(headwater_conversation_logits(talk, &logits, &count));
    OK(headwater_sampler_draw(sampler, logits, count, &id));
    OK(headwater_sampler_accept(sampler, id));
    OK(headwater_token_piece(model, id, text + used, 255 - used, &bytes, &flags));
    if ((flags & HEADWATER_TOKEN_END) != 0) break;
    used += bytes;
    OK(headwater_conversation_append(talk, id));
  }
  text[used] = '\0';
  CHECK((flags & HEADWATER_TOKEN_END) != 0);
  /* What has ended goes on with nothing but its end. */
  OK(headwater_sampler_draw(sampler, logits, count, &id));
  OK(headwater_token_piece(model, id, NULL, 0, &bytes, &flags));
  CHECK((flags & HEADWATER_TOKEN_END) != 0);
  headwater_conversation_close(talk);
}

static headwater_status restricted(headwater_sampler* sampler, const headwater_model* model, int32_t kind,
                                   const char* text) {
  return headwater_sampler_restrict(sampler, model, kind, text, text == NULL ? 0 : (int64_t)strlen(text));
}

void test_grammars(headwater_model* model) {
  headwater_sampling sampling;
  headwater_sampler *sampler = NULL, *other = NULL;
  int32_t ids[3] = {0}, id = -1;
  int64_t count = 0;
  static float logits[VOCABULARY];
  OK(headwater_tokenize(model, "y", 1, 0, 0, ids, 3, &count));
  logits[ids[0]] = 1;
  OK(headwater_sampler_open(NULL, VOCABULARY, &sampler));
  OK(headwater_sampler_open(NULL, VOCABULARY - 1, &other));
  REFUSED(restricted(NULL, model, HEADWATER_GRAMMAR_GBNF, "root ::= \"a\""), "sampler is NULL");
  REFUSED(restricted(sampler, NULL, HEADWATER_GRAMMAR_GBNF, "root ::= \"a\""), "model is NULL");
  REFUSED(headwater_sampler_restrict(sampler, model, HEADWATER_GRAMMAR_GBNF, NULL, 3), "text is NULL");
  REFUSED(headwater_sampler_restrict(sampler, model, HEADWATER_GRAMMAR_GBNF, "root", -1), "bytes is -1");
  REFUSED(restricted(sampler, model, HEADWATER_GRAMMAR_JSON_SCHEMA, NULL), "it is no JSON");
  REFUSED(restricted(sampler, model, HEADWATER_GRAMMAR_JSON_OBJECT, "{}"), "bytes is 2, and kind");
  REFUSED(restricted(sampler, model, 3, NULL), "kind is 3; allowed: 0 .. 2");
  REFUSED(restricted(sampler, model, -1, NULL), "kind is -1");
  REFUSED(restricted(other, model, HEADWATER_GRAMMAR_JSON_OBJECT, NULL), "4096 tokens; allowed: 4095");
  headwater_sampler_close(other);

  /* The last grammar that was accepted. */
  OK(restricted(sampler, model, HEADWATER_GRAMMAR_GBNF, "root ::= \"x\""));
  OK(restricted(sampler, model, HEADWATER_GRAMMAR_GBNF, "root ::= \"yes\" | \"no\""));
  REFUSED(restricted(sampler, model, HEADWATER_GRAMMAR_GBNF, "root ::= \"x\n"), "grammar, line 2");
  REFUSED(headwater_sampler_accept(NULL, 1), "sampler is NULL");
  REFUSED(headwater_sampler_accept(sampler, -1), "id is -1; allowed: 0 .. 4095");
  REFUSED(headwater_sampler_accept(sampler, VOCABULARY), "id is 4096");
  OK(headwater_sampler_accept(sampler, ids[0]));
  REFUSED(headwater_sampler_accept(sampler, ids[0]), "does not go on with a text of the grammar");
  FAILS(restricted(sampler, model, HEADWATER_GRAMMAR_JSON_OBJECT, NULL), HEADWATER_WRONG_STATE,
        "drawn or accepted");
  headwater_sampler_close(sampler);
  OK(headwater_sampler_open(NULL, VOCABULARY, &sampler));
  OK(headwater_sampler_draw(sampler, logits, VOCABULARY, &id));
  FAILS(restricted(sampler, model, HEADWATER_GRAMMAR_JSON_OBJECT, NULL), HEADWATER_WRONG_STATE,
        "drawn or accepted");
  headwater_sampler_close(sampler);

  /* A draw that is refused is none. */
  OK(headwater_sampler_open(NULL, VOCABULARY, &sampler));
  REFUSED(headwater_sampler_draw(sampler, logits, 1, &id), "count is 1");
  OK(restricted(sampler, model, HEADWATER_GRAMMAR_GBNF, "root ::= \"y\""));
  headwater_sampler_close(sampler);

  /* Drawn answers are of the schema, and differ. */
  char first[256] = {0}, text[256] = {0};
  OK(headwater_sampling_init(&sampling, sizeof sampling));
  sampling.temperature = 2;
  for (int i = 0; i < 8; ++i) {
    char name = 0, rest = 0;
    int number = -1;
    sampling.seed = (uint64_t)i;
    OK(headwater_sampler_open(&sampling, VOCABULARY, &sampler));
    OK(restricted(
        sampler, model, HEADWATER_GRAMMAR_JSON_SCHEMA,
        "{\"properties\": {\"name\": {\"enum\": [\"x\", \"y\"]}, \"n\": {\"type\": \"integer\", \"minimum\": "
        "0, "
        "\"maximum\": 99}}, \"required\": [\"name\", \"n\"], \"additionalProperties\": false}"));
    write_answer(model, sampler, text);
    CHECK_EQUAL(sscanf(text, " { \"name\" : \"%c\" , \"n\" : %d %c", &name, &number, &rest), 3);
    CHECK((name == 'x' || name == 'y') && number >= 0 && number <= 99 && rest == '}');
    if (i == 0) strcpy(first, text);
    headwater_sampler_close(sampler);
  }
  CHECK(strcmp(first, text) != 0);

  /* A sampler keeps what it needs of its model. */
  headwater_model* const closed = opened(MODEL_FILE);
  OK(headwater_sampler_open(NULL, VOCABULARY, &sampler));
  OK(restricted(sampler, closed, HEADWATER_GRAMMAR_JSON_OBJECT, NULL));
  headwater_model_close(closed);
  OK(headwater_sampler_draw(sampler, logits, VOCABULARY, &id));
  CHECK(id != ids[0]);
  headwater_sampler_close(sampler);
}
