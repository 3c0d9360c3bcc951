/* Every function of runtime.h: what it gives, NULL for each pointer, and what must be refused. */

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/runtime_c_abi/talks.h"

headwater_status generate(headwater_model* model, const char* prompt, int most, FILE* out);

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
enum { THREADS = 4 };
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
  headwater_model* const model = opened(MODEL_FILE);
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
  test_forks_on_threads(MODEL_FILE);
  if (argc > 1) return failed_checks() == 0 ? 0 : 1;
  headwater_model* model = opened(MODEL_FILE);
  test_model(model);
  test_model_options();
  test_tokens(model);
  test_chat();
  test_conversation_options(model);
  test_conversation(model);
  test_compare_other_chunks(model);
  test_cache_types(model);
  test_forks(MODEL_FILE);
  headwater_model* in_f32 = NULL;
  OK(headwater_model_open(MODEL_FILE, HEADWATER_PROJECTIONS_F32, &in_f32));
  test_cache_types(in_f32);
  headwater_model_close(in_f32);
  test_long_windows();
  test_long_texts();
  test_sampling();
  test_grammars(model);
  test_example(model);
  /* A conversation keeps what it needs of its model. */
  headwater_conversation* talk = small_talk(model, HEADWATER_SELECT_BLOCKS);
  headwater_model_close(model);
  const int32_t ids[3] = {300, 301, 302};
  OK(headwater_conversation_feed(talk, ids, 3));
  headwater_conversation_close(talk);
  printf("%d checks, %d failed\n", made_checks(), failed_checks());
  return failed_checks() == 0 ? 0 : 1;
}
