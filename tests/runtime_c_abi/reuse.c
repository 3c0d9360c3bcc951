/* The example of docs/embedding.md of a prompt that begins like the one before. */

#include "headwater/runtime.h"

headwater_status go_on_with(headwater_conversation* talk, const int32_t* held, const int32_t* ids,
                            int64_t count);

/* [reuse] */
/* Brings a conversation, which holds the tokens `held`, to these ids: what both begin with is not computed again, but
 * for the last id, whose logits are wanted. */
headwater_status go_on_with(headwater_conversation* talk, const int32_t* held, const int32_t* ids,
                            int64_t count) {
  int64_t tokens = 0, same = 0;
  headwater_status status = headwater_conversation_tokens(talk, &tokens);
  while (same < tokens && same < count - 1 && held[same] == ids[same]) ++same;
  if (status == HEADWATER_OK) status = headwater_conversation_truncate(talk, same);
  if (status == HEADWATER_INVALID_ARGUMENT) { /* rule h2o cannot go back so far: from the beginning */
    same = 0;
    status = headwater_conversation_reset(talk);
  }
  if (status == HEADWATER_OK) status = headwater_conversation_feed(talk, ids + same, count - same);
  return status;
}
/* [/reuse] */
