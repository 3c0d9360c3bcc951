/* Conversations that go on in several: headwater_conversation_fork(), and what headwater_conversation_truncate() leaves. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime_c_abi/talks.h"

headwater_status go_on_with(headwater_conversation* talk, const int32_t* held, const int32_t* ids,
                            int64_t count);

enum { MOST = 4096, CHUNK = 32, CAPACITY = 400, BEGIN = 140, RULES = 4, DENSE = 3, PAGE = 256, LONG = 4400 };

typedef struct {
  int64_t count;
  float values[MOST];
} logits_of_all;

static void keep(const headwater_conversation* talk, logits_of_all* to) {
  const float* logits = NULL;
  OK(headwater_conversation_logits(talk, &logits, &to->count));
  CHECK(to->count > 0 && to->count <= MOST);
  if (logits != NULL) memcpy(to->values, logits, (size_t)to->count * sizeof logits[0]);
}

static int says(const headwater_conversation* talk, const logits_of_all* wanted) {
  const float* logits = NULL;
  int64_t count = 0;
  return headwater_conversation_logits(talk, &logits, &count) == HEADWATER_OK && count == wanted->count &&
         memcmp(logits, wanted->values, (size_t)count * sizeof logits[0]) == 0;
}

/* The tokens of a conversation: those of another `text` are others. */
static const int32_t* ids_of(int text) {
  static int32_t ids[3][LONG];
  for (int i = 0; i < LONG && ids[text][LONG - 1] == 0; ++i) ids[text][i] = 3 + (i * 37 + text * 11) % 197;
  return ids[text];
}

static headwater_conversation* of_rule(headwater_model* model, int rule, int64_t dense_tail) {
  headwater_options attention;
  small_attention(&attention, rule == DENSE ? HEADWATER_SELECT_H2O : rule, CHUNK, CHUNK);
  attention.dense = rule == DENSE;
  return talk_with(model, &attention, CAPACITY, dense_tail);
}

static headwater_conversation* fork_of(headwater_conversation* talk) {
  headwater_conversation* fork = NULL;
  OK(headwater_conversation_fork(talk, &fork));
  CHECK(fork != NULL && fork != talk);
  return fork;
}

/* A second turn, or what is left of the first one, and an answer of one token. */
static void go_on(headwater_conversation* talk, int text) {
  OK(headwater_conversation_feed(talk, ids_of(text), 70 + text));
  OK(headwater_conversation_append(talk, ids_of(text)[70 + text]));
}

/* A fork and what it was made of go on differently, each with the bits of a conversation that nobody forked, whichever of
 * them goes on and is closed first. With a dense tail the turn has ended; without one it goes on. */
static void test_bits(headwater_model* model, int rule, int64_t dense_tail) {
  static logits_of_all begun, wanted[3];
  for (int text = 1; text < 3; ++text) {
    headwater_conversation* const talk = of_rule(model, rule, dense_tail);
    OK(headwater_conversation_feed(talk, ids_of(0), BEGIN));
    keep(talk, &begun);
    go_on(talk, text);
    keep(talk, &wanted[text]);
    headwater_conversation_close(talk);
  }
  CHECK(memcmp(wanted[1].values, wanted[2].values, sizeof begun.values) != 0);
  for (int order = 0; order < 4; ++order) {
    headwater_conversation* talk = of_rule(model, rule, dense_tail);
    OK(headwater_conversation_feed(talk, ids_of(0), BEGIN));
    headwater_conversation* fork = fork_of(talk);
    CHECK(tokens_of(fork) == BEGIN && says(fork, &begun) && says(talk, &begun));
    if (order == 0) headwater_conversation_close(talk), talk = NULL;
    if (order == 1) headwater_conversation_close(fork), fork = NULL;
    if (order == 2) go_on(talk, 1);
    if (fork != NULL) go_on(fork, 2);
    if (talk != NULL && order != 2) go_on(talk, 1);
    CHECK(talk == NULL || (tokens_of(talk) == BEGIN + 72 && says(talk, &wanted[1])));
    CHECK(fork == NULL || (tokens_of(fork) == BEGIN + 73 && says(fork, &wanted[2])));
    headwater_conversation_close(order == 2 ? talk : fork);
    headwater_conversation_close(order == 2 ? fork : talk);
  }
}

static int32_t always(void* user) { return ++*(int*)user; }

/* What a fork takes over and what it does not; forks of an empty conversation and of forks; arguments. */
static void test_what_is_taken(headwater_model* model) {
  headwater_conversation* talk = of_rule(model, HEADWATER_SELECT_BLOCKS, 64);
  const headwater_session *session = NULL, *other = NULL;
  headwater_effective_options effective;
  headwater_chunk chunk;
  logits_of_all begun;
  const float* logits = NULL;
  int64_t count = 0;
  int asked = 0;
  headwater_conversation* empty = fork_of(talk);
  CHECK_EQUAL(tokens_of(empty), 0);
  FAILS(headwater_conversation_logits(empty, &logits, &count), HEADWATER_WRONG_STATE, "is empty");
  OK(headwater_conversation_set_dense_tail(talk, 5));
  OK(headwater_conversation_set_interrupt(talk, always, &asked));
  headwater_conversation* fork = fork_of(talk);
  OK(headwater_conversation_feed(fork, ids_of(0), BEGIN)); /* nobody asks it to stop */
  CHECK_EQUAL(asked, 0);
  OK(headwater_conversation_session(fork, &session));
  CHECK_OK(headwater_session_options(session, &effective, sizeof effective));
  CHECK(effective.chunk == CHUNK && effective.select == HEADWATER_SELECT_BLOCKS && effective.threads == 1);
  CHECK_OK(headwater_session_chunk_count(session, &count));
  CHECK_OK(headwater_session_chunk(session, count - 1, &chunk, &count));
  CHECK(chunk.begin == BEGIN - 5 && chunk.end == BEGIN && chunk.mode == HEADWATER_CHUNK_DECODE);
  OK(headwater_conversation_session(talk, &other));
  CHECK(other != session);
  FAILS(headwater_conversation_feed(talk, ids_of(0), BEGIN), HEADWATER_INTERRUPTED, "");
  OK(headwater_conversation_set_interrupt(talk, NULL, NULL));
  keep(fork, &begun);

  /* A fork of a fork, and what a turn that is stopped leaves of it: what it was made with. */
  headwater_conversation* second = fork_of(fork);
  asked = 0;
  OK(headwater_conversation_set_interrupt(second, always, &asked));
  FAILS(headwater_conversation_feed(second, ids_of(1), 90), HEADWATER_INTERRUPTED, "");
  CHECK(asked > 0 && tokens_of(second) == BEGIN && says(second, &begun));
  FAILS(headwater_conversation_feed(second, ids_of(1), CAPACITY), HEADWATER_CAPACITY_EXCEEDED,
        "allowed: 400");
  CHECK(tokens_of(second) == BEGIN && says(second, &begun));
  OK(headwater_conversation_reset(second));
  OK(headwater_conversation_reset(fork));
  CHECK(tokens_of(fork) == 0 && tokens_of(second) == 0 && tokens_of(talk) == 0);
  /* Losses empty one alone. */
  double losses[9];
  OK(headwater_conversation_feed(talk, ids_of(0), BEGIN));
  headwater_conversation* third = fork_of(talk);
  OK(headwater_conversation_losses(third, ids_of(0), 10, 0, losses));
  CHECK(tokens_of(third) == 0 && tokens_of(talk) == BEGIN && says(talk, &begun));

  headwater_conversation* none = talk;
  REFUSED(headwater_conversation_fork(NULL, &none), "conversation is NULL");
  CHECK(none == NULL);
  REFUSED(headwater_conversation_fork(talk, NULL), "fork is NULL");
  REFUSED(headwater_conversation_truncate(NULL, 0), "conversation is NULL");
  headwater_conversation* const all[] = {talk, empty, fork, second, third};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) headwater_conversation_close(all[i]);
}

/* What truncate() keeps, and that there are no logits of it. */
static void test_truncated(headwater_model* model) {
  static logits_of_all begun, wanted;
  const float* logits = NULL;
  int64_t count = 0;
  headwater_conversation* talk = of_rule(model, HEADWATER_SELECT_BLOCKS, 0);
  OK(headwater_conversation_truncate(talk, 0));
  OK(headwater_conversation_feed(talk, ids_of(0), BEGIN));
  keep(talk, &begun);
  OK(headwater_conversation_truncate(talk, BEGIN));
  CHECK(tokens_of(talk) == BEGIN && says(talk, &begun));
  REFUSED(headwater_conversation_truncate(talk, BEGIN + 1), "n = 141 tokens; allowed: 0 .. 140");
  REFUSED(headwater_conversation_truncate(talk, -1), "n = -1 tokens; allowed: 0 .. 140");
  REFUSED(headwater_conversation_truncate(talk, INT64_MAX), "allowed: 0 .. 140");
  CHECK(tokens_of(talk) == BEGIN && says(talk, &begun));

  OK(headwater_conversation_truncate(talk, 3 * CHUNK));
  CHECK_EQUAL(tokens_of(talk), 3 * CHUNK);
  FAILS(headwater_conversation_logits(talk, &logits, &count), HEADWATER_WRONG_STATE, "was truncated");
  headwater_conversation* fork = fork_of(talk);
  FAILS(headwater_conversation_logits(fork, &logits, &count), HEADWATER_WRONG_STATE, "was truncated");
  /* A turn that is stopped brings no logits. */
  int asked = 0;
  OK(headwater_conversation_set_interrupt(fork, always, &asked));
  FAILS(headwater_conversation_feed(fork, ids_of(1), BEGIN - 3 * CHUNK), HEADWATER_INTERRUPTED, "");
  CHECK_EQUAL(tokens_of(fork), 3 * CHUNK);
  FAILS(headwater_conversation_logits(fork, &logits, &count), HEADWATER_WRONG_STATE, "was truncated");
  OK(headwater_conversation_set_interrupt(fork, NULL, NULL));
  OK(headwater_conversation_feed(fork, ids_of(0) + 3 * CHUNK, BEGIN - 3 * CHUNK));
  CHECK(says(fork, &begun));
  OK(headwater_conversation_append(talk, 7));
  keep(talk, &wanted);
  OK(headwater_conversation_truncate(talk, 3 * CHUNK));
  OK(headwater_conversation_append(talk, 7));
  CHECK(says(talk, &wanted));
  OK(headwater_conversation_truncate(talk, 0));
  CHECK_EQUAL(tokens_of(talk), 0);
  FAILS(headwater_conversation_logits(talk, &logits, &count), HEADWATER_WRONG_STATE, "is empty");
  headwater_conversation_close(fork);

  /* Rule h2o goes back to what is not settled, and says where that is. */
  headwater_conversation* settled = of_rule(model, HEADWATER_SELECT_H2O, 0);
  OK(headwater_conversation_feed(settled, ids_of(0), BEGIN));
  keep(settled, &wanted);
  REFUSED(headwater_conversation_truncate(settled, 3 * CHUNK), "allowed: 0, or 140 .. 140");
  CHECK(tokens_of(settled) == BEGIN && says(settled, &wanted));
  OK(headwater_conversation_append(settled, 7));
  OK(headwater_conversation_truncate(settled, BEGIN));
  CHECK_EQUAL(tokens_of(settled), BEGIN);
  headwater_options attention;
  small_attention(&attention, HEADWATER_SELECT_H2O, CHUNK, CHUNK);
  attention.checkpoints = 2;
  headwater_conversation* open = talk_with(model, &attention, CAPACITY, 0);
  OK(headwater_conversation_feed(open, ids_of(0), BEGIN));
  fork = fork_of(open);
  OK(headwater_conversation_truncate(fork, 3 * CHUNK));
  OK(headwater_conversation_feed(fork, ids_of(0) + 3 * CHUNK, BEGIN - 3 * CHUNK));
  CHECK(says(fork, &wanted) && says(open, &wanted));
  headwater_conversation_close(fork);
  headwater_conversation_close(open);

  /* The example: with a rule that goes back, and with one that does not. */
  OK(headwater_conversation_feed(talk, ids_of(0), BEGIN));
  int32_t prompt[BEGIN];
  memcpy(prompt, ids_of(0), sizeof prompt);
  prompt[4 * CHUNK] = 199;
  for (int which = 0; which < 2; ++which) {
    headwater_conversation* const one = which == 0 ? talk : settled;
    headwater_conversation* const anew = of_rule(model, which == 0 ? HEADWATER_SELECT_BLOCKS : 0, 0);
    OK(headwater_conversation_feed(anew, prompt, BEGIN));
    keep(anew, &wanted);
    headwater_conversation_close(anew);
    OK(go_on_with(one, ids_of(0), prompt, BEGIN));
    CHECK(tokens_of(one) == BEGIN && says(one, &wanted));
  }
  /* The same prompt again is its last token again. */
  OK(go_on_with(talk, prompt, prompt, BEGIN));
  CHECK_EQUAL(tokens_of(talk), BEGIN);
  headwater_conversation_close(settled);
  headwater_conversation_close(talk);
}

/* Memory of rows, sets and scores, taken and given back; none beyond `most`. */
typedef struct {
  int64_t taken, most;
} budget;

static void* take(void* context, size_t bytes, size_t alignment) {
  budget* const own = context;
  if (own->taken + (int64_t)bytes > own->most) return NULL;
  void* const block = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (block != NULL) own->taken += (int64_t)bytes;
  return block;
}

static void give(void* context, void* block, size_t bytes, size_t alignment) {
  (void)alignment;
  ((budget*)context)->taken -= (int64_t)bytes;
  free(block);
}

/* What forks of a long document take: a table of pages, then a page each and what is not rows. Where even that is not there the turn
 * is refused, and both are what they were. At and beside borders of pages each way to go back has the same bits. */
static void test_pages(void) {
  static logits_of_all begun, wanted;
  enum { FORKS = 8 };
  headwater_model* model = opened(FIXTURES "/qwen3-plain.gguf");
  headwater_options attention;
  headwater_memory_bytes held, own;
  const headwater_session* session = NULL;
  headwater_conversation* forks[FORKS];
  budget memory = {0, INT64_MAX};
  small_attention(&attention, HEADWATER_SELECT_BLOCKS, PAGE, PAGE);
  attention.page = PAGE;
  attention.allocate = take;
  attention.release = give;
  attention.allocator_context = &memory;
  headwater_conversation* talk = talk_with(model, &attention, LONG, 0);
  OK(headwater_conversation_feed(talk, ids_of(0), 4200));
  keep(talk, &begun);
  OK(headwater_conversation_session(talk, &session));
  CHECK_OK(headwater_session_memory_bytes(session, &held, sizeof held));
  const int64_t page = held.kv / ((4200 + PAGE - 1) / PAGE); /* and its share of the table of pages */
  const int64_t before = memory.taken;
  for (int i = 0; i < FORKS; ++i) forks[i] = fork_of(talk);
  const int64_t forked = memory.taken;
  CHECK(forked - before < FORKS * page / 16);
  memory.most = forked;
  FAILS(headwater_conversation_feed(forks[0], ids_of(1), 9), HEADWATER_OUT_OF_MEMORY, "no memory");
  FAILS(headwater_conversation_append(talk, 7), HEADWATER_OUT_OF_MEMORY, "no memory");
  FAILS(headwater_conversation_reset(forks[0]), HEADWATER_OUT_OF_MEMORY, "no memory");
  FAILS(headwater_conversation_truncate(forks[0], 0), HEADWATER_OUT_OF_MEMORY, "no memory");
  CHECK(tokens_of(forks[0]) == 4200 && says(forks[0], &begun));
  CHECK(tokens_of(talk) == 4200 && says(talk, &begun));
  CHECK_EQUAL(memory.taken, forked);
  memory.most = INT64_MAX;
  for (int i = 0; i < FORKS; ++i) {
    OK(headwater_conversation_feed(forks[i], ids_of(1), 9));
    OK(headwater_conversation_session(forks[i], &session));
    CHECK_OK(headwater_session_memory_bytes(session, &own, sizeof own));
    CHECK(own.kv >= held.kv);
  }
  const int64_t each = (memory.taken - before) / FORKS;
  CHECK(each >= page / 2 && each <= page + own.scores + own.memory_sets + own.workspace);
  for (int i = 0; i < FORKS; ++i) headwater_conversation_close(forks[i]);
  CHECK_EQUAL(memory.taken, before);

  const int64_t borders[] = {1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 4095, 4096, 4097, 4199, 4200};
  for (size_t i = 0; i < sizeof borders / sizeof borders[0]; ++i) {
    const int64_t n = borders[i];
    headwater_conversation* const fork = fork_of(talk);
    headwater_conversation* const other = talk_with(model, &attention, LONG, 0);
    OK(headwater_conversation_truncate(fork, n));
    CHECK(tokens_of(fork) == n && tokens_of(talk) == 4200);
    OK(headwater_conversation_feed(fork, ids_of(2), 150));
    /* By its own rows; a whole number of chunks has the bits of these tokens alone. */
    OK(headwater_conversation_feed(other, ids_of(0), n % PAGE == 0 ? n : 4200));
    OK(headwater_conversation_truncate(other, n));
    OK(headwater_conversation_feed(other, ids_of(2), 150));
    keep(other, &wanted);
    CHECK(tokens_of(fork) == n + 150 && says(fork, &wanted));
    headwater_conversation_close(fork);
    headwater_conversation_close(other);
    CHECK(says(talk, &begun));
  }
  headwater_conversation_close(talk);
  CHECK_EQUAL(memory.taken, 0);
  headwater_model_close(model);
}

void test_forks(const char* path) {
  headwater_model* model = opened(path);
  for (int rule = 0; rule < RULES; ++rule) {
    test_bits(model, rule, 0);
    test_bits(model, rule, 5);
  }
  test_what_is_taken(model);
  test_truncated(model);
  /* The model may go first, and then what the fork was made of. */
  headwater_conversation* talk = of_rule(model, HEADWATER_SELECT_SKETCHES, 5);
  OK(headwater_conversation_feed(talk, ids_of(0), BEGIN));
  headwater_model_close(model);
  headwater_conversation* fork = fork_of(talk);
  headwater_conversation_close(talk);
  go_on(fork, 1);
  headwater_conversation_close(fork);
  test_pages();
}

typedef struct {
  headwater_conversation* talk;
  int text;
  int failed;
} worker;

static void* work(void* argument) {
  worker* const own = argument;
  for (int i = 0; i < 3; ++i) {
    headwater_conversation* fork = NULL; /* while the others go on */
    const int32_t* const ids = ids_of(own->text);
    own->failed += headwater_conversation_feed(own->talk, ids, 40) != HEADWATER_OK;
    own->failed += headwater_conversation_append(own->talk, ids[40]) != HEADWATER_OK;
    own->failed += headwater_conversation_fork(own->talk, &fork) != HEADWATER_OK;
    headwater_conversation_close(own->talk);
    own->talk = fork;
  }
  return NULL;
}

void test_forks_on_threads(const char* path) {
  static logits_of_all said[3][3];
  headwater_model* model = opened(path);
  for (int text = 0; text < 3; ++text) (void)ids_of(text);
  for (int rule = 0; rule < 3; ++rule) {
    for (int together = 0; together < 2; ++together) {
      worker workers[3];
      pthread_t threads[3];
      workers[0] = (worker){of_rule(model, rule, 0), 0, 0};
      OK(headwater_conversation_feed(workers[0].talk, ids_of(0), BEGIN));
      for (int i = 1; i < 3; ++i) workers[i] = (worker){fork_of(workers[0].talk), i, 0};
      for (int i = 0; i < 3; ++i) {
        if (together == 0) (void)work(&workers[i]);
        if (together == 1) CHECK_EQUAL(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
      }
      for (int i = 0; i < 3; ++i) {
        if (together == 1) CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
        CHECK_EQUAL(workers[i].failed, 0);
        if (together == 0) keep(workers[i].talk, &said[rule][i]);
        CHECK(says(workers[i].talk, &said[rule][i]));
        headwater_conversation_close(workers[i].talk);
      }
    }
  }
  headwater_model_close(model);
}
