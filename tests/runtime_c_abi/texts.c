/* Texts, tokens and chats. */

#include <string.h>
#include <unistd.h>

#include "tests/runtime_c_abi/talks.h"

static const char* const kChatModel = FIXTURES "/llama3.gguf";

void test_tokens(headwater_model* model) {
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

/* Its result goes into ids, count and question, whatever those are there. */
#define ENCODE(model, messages, count_of_messages, size, first) \
  headwater_chat_encode(model, messages, count_of_messages, size, first, ids, 256, &count, &question)

void test_chat(void) {
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
  OK(ENCODE(model, messages, 2, sizeof messages[0], 1));
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

  REFUSED(ENCODE(NULL, messages, 2, size, 1), "model is NULL");
  REFUSED(ENCODE(model, NULL, 2, size, 1), "messages is NULL");
  REFUSED(ENCODE(model, messages, 0, size, 1), "message_count is 0");
  REFUSED(ENCODE(model, messages, 2, 8, 1), "messages[0].struct_size is 8");
  REFUSED(ENCODE(model, messages, 2, size, 2), "first is 2");
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, NULL, 256, &count, &question), "ids is NULL");
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, ids, 256, NULL, &question), "count is NULL");
  REFUSED(headwater_chat_encode(model, messages, 2, size, 1, ids, 256, &count, NULL), "question is NULL");
  messages[0].role = "wizard";
  REFUSED(ENCODE(model, messages, 2, size, 1), "wizard");
  messages[0].role = NULL;
  REFUSED(ENCODE(model, messages, 2, size, 1), "messages[0].role");
  messages[0].role = "user";
  messages[0].text = NULL;
  REFUSED(ENCODE(model, messages, 2, size, 1), "messages[0].text");
  headwater_model_close(model);
  model = opened(FIXTURES "/llama-linear.gguf");
  REFUSED(ENCODE(model, messages + 1, 1, size, 1), "ChatML");
  headwater_model_close(model);
}

enum { LONG = 70000 };

/* Texts and chats beyond 2^16 tokens, a file beyond 2^32 bytes. */
void test_long_texts(void) {
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
