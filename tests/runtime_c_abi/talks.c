#include "tests/runtime_c_abi/talks.h"

#include <string.h>

void check_call(headwater_status actual, headwater_status expected, const char* part, const char* text,
                const char* file, int line) {
  const char* message = headwater_runtime_last_error();
  const int right = actual == expected && strstr(message, part) != NULL && strchr(message, '\n') == NULL &&
                    (expected != HEADWATER_OK || message[0] == '\0');
  if (!right) fprintf(stderr, "%s (%s)\n", headwater_status_name(actual), message);
  check_true(right, text, file, line);
}

headwater_model* opened(const char* path) {
  headwater_model* model = NULL;
  OK(headwater_model_open(path, HEADWATER_PROJECTIONS_AUTO, &model));
  CHECK(model != NULL);
  return model;
}

void small_attention(headwater_options* attention, int32_t select, int64_t chunk, int64_t batch) {
  CHECK_OK(headwater_options_init(attention, sizeof *attention));
  attention->chunk = chunk;
  attention->batch = batch;
  attention->local = 8;
  attention->heavy = 8;
  attention->select = select;
  attention->threads = 1;
}

headwater_conversation* talk_with(headwater_model* model, const headwater_options* attention,
                                  int64_t capacity, int64_t dense_tail) {
  headwater_conversation_options options;
  headwater_conversation* talk = NULL;
  OK(headwater_conversation_options_init(&options, sizeof options));
  options.attention = attention;
  options.capacity = capacity;
  options.dense_tail = dense_tail;
  OK(headwater_conversation_open(model, &options, &talk));
  CHECK(talk != NULL);
  return talk;
}

headwater_conversation* talk_of(headwater_model* model, int32_t select, int64_t capacity, int64_t chunk,
                                int64_t batch, int64_t dense_tail) {
  headwater_options attention;
  small_attention(&attention, select, chunk, batch);
  return talk_with(model, &attention, capacity, dense_tail);
}

headwater_conversation* small_talk(headwater_model* model, int32_t select) {
  return talk_of(model, select, 200, 32, 32, 64);
}

int64_t tokens_of(const headwater_conversation* talk) {
  int64_t tokens = -1;
  OK(headwater_conversation_tokens(talk, &tokens));
  return tokens;
}
