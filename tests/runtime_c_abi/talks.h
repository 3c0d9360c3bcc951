#ifndef HEADWATER_TESTS_RUNTIME_C_ABI_TALKS_H_
#define HEADWATER_TESTS_RUNTIME_C_ABI_TALKS_H_

/* What the tests of runtime.h share. */

#include <stdio.h>

#include "headwater/runtime.h"
#include "tests/c_abi/check.h"

/* check_status() of check.h for calls of the runtime, whose library has a line of its own. */
void check_call(headwater_status actual, headwater_status expected, const char* part, const char* text,
                const char* file, int line);
#define OK(call) check_call((call), HEADWATER_OK, "", #call, __FILE__, __LINE__)
#define FAILS(call, status, part) check_call((call), (status), (part), #call, __FILE__, __LINE__)
#define REFUSED(call, part) FAILS(call, HEADWATER_INVALID_ARGUMENT, part)

#define MODEL_FILE MODELS "/headwater-tiny-f16.gguf"
enum { VOCABULARY = 4096 }; /* its own */

headwater_model* opened(const char* path);
/* Memory sets of 8 local and 8 heavy tokens, one thread. */
void small_attention(headwater_options* attention, int32_t select, int64_t chunk, int64_t batch);
headwater_conversation* talk_with(headwater_model* model, const headwater_options* attention,
                                  int64_t capacity, int64_t dense_tail);
headwater_conversation* talk_of(headwater_model* model, int32_t select, int64_t capacity, int64_t chunk,
                                int64_t batch, int64_t dense_tail);
/* Of 200 tokens in chunks of 32. */
headwater_conversation* small_talk(headwater_model* model, int32_t select);
int64_t tokens_of(const headwater_conversation* talk);

void test_model(headwater_model* model);
void test_model_options(void);
void test_tokens(headwater_model* model);
void test_chat(void);
void test_long_texts(void);
void test_conversation_options(headwater_model* model);
void test_conversation(headwater_model* model);
void test_compare_other_chunks(headwater_model* model);
void test_cache_types(headwater_model* model);
void test_long_windows(void);
void test_sampling(void);
void test_grammars(headwater_model* model);
/* Conversations that go on in several. */
void test_forks(const char* path);
/* A fork and what it was made of, on two threads. */
void test_forks_on_threads(const char* path);

#endif /* HEADWATER_TESTS_RUNTIME_C_ABI_TALKS_H_ */
