/* The example of docs/embedding.md. */

#include <stdio.h>
#include <string.h>

#include "headwater/runtime.h"

headwater_status generate(headwater_model* model, const char* prompt, int most, FILE* out);

/* [generate] */
/* Writes what the model says after a prompt, the likeliest token each time. */
headwater_status generate(headwater_model* model, const char* prompt, int most, FILE* out) {
  enum { LONGEST_PROMPT = 4096, LONGEST_PIECE = 256 };
  static int32_t ids[LONGEST_PROMPT];
  headwater_options attention;
  headwater_conversation_options options;
  headwater_conversation* talk = NULL;
  headwater_sampler* sampler = NULL;
  int64_t count = 0;
  headwater_options_init(&attention, sizeof attention);
  attention.select = HEADWATER_SELECT_BLOCKS;
  attention.local = 64;
  attention.heavy = 448;
  headwater_conversation_options_init(&options, sizeof options);
  options.attention = &attention;
  options.capacity = LONGEST_PROMPT + most;
  headwater_status status =
      headwater_tokenize(model, prompt, (int64_t)strlen(prompt), 1, 1, ids, LONGEST_PROMPT, &count);
  if (status == HEADWATER_OK && count > LONGEST_PROMPT) status = HEADWATER_CAPACITY_EXCEEDED;
  if (status == HEADWATER_OK) status = headwater_conversation_open(model, &options, &talk);
  if (status == HEADWATER_OK) status = headwater_conversation_feed(talk, ids, count);
  for (int i = 0; i < most && status == HEADWATER_OK; ++i) {
    const float* logits = NULL;
    char piece[LONGEST_PIECE];
    int64_t vocabulary = 0, bytes = 0;
    int32_t id = 0, flags = 0;
    status = headwater_conversation_logits(talk, &logits, &vocabulary);
    if (status == HEADWATER_OK && sampler == NULL)
      status = headwater_sampler_open(NULL, vocabulary, &sampler);
    if (status == HEADWATER_OK) status = headwater_sampler_draw(sampler, logits, vocabulary, &id);
    if (status == HEADWATER_OK)
      status = headwater_token_piece(model, id, piece, LONGEST_PIECE, &bytes, &flags);
    if (status != HEADWATER_OK || (flags & HEADWATER_TOKEN_END) != 0) break;
    if ((flags & HEADWATER_TOKEN_CONTROL) == 0 && bytes <= LONGEST_PIECE)
      fwrite(piece, 1, (size_t)bytes, out);
    status = headwater_conversation_append(talk, id);
  }
  if (status != HEADWATER_OK) fprintf(stderr, "%s\n", headwater_runtime_last_error());
  headwater_sampler_close(sampler);
  headwater_conversation_close(talk); /* the model may be closed before or after */
  return status;
}
/* [/generate] */
