/* The layout of HEADWATER_RUNTIME_ABI_VERSION 1 on x86-64. A number that changes here breaks programs that are already
 * compiled: append a field, or raise the version. */

#include <assert.h>
#include <stddef.h>

#include "headwater/runtime.h"

#define AT(type, field, offset) \
  static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")
#define SIZE(type, size) static_assert(sizeof(type) == (size), #type " has another size")

static_assert(HEADWATER_RUNTIME_ABI_VERSION == 1, "new version: new numbers");

SIZE(headwater_model_facts, 112);
AT(headwater_model_facts, layers, 0);
AT(headwater_model_facts, width, 8);
AT(headwater_model_facts, heads, 16);
AT(headwater_model_facts, heads_kv, 24);
AT(headwater_model_facts, d_head, 32);
AT(headwater_model_facts, d_value, 40);
AT(headwater_model_facts, feed_forward, 48);
AT(headwater_model_facts, vocabulary, 56);
AT(headwater_model_facts, tokens, 64);
AT(headwater_model_facts, context, 72);
AT(headwater_model_facts, bytes, 80);
AT(headwater_model_facts, bos, 88);
AT(headwater_model_facts, eos, 92);
AT(headwater_model_facts, adds_bos, 96);
AT(headwater_model_facts, turn_end, 100);
AT(headwater_model_facts, projections, 104);
AT(headwater_model_facts, reserved, 108);

SIZE(headwater_model_options, 64);
AT(headwater_model_options, struct_size, 0);
AT(headwater_model_options, projections, 8);
AT(headwater_model_options, rope_scaling, 12);
AT(headwater_model_options, rope_scale, 16);
AT(headwater_model_options, rope_freq_base, 24);
AT(headwater_model_options, yarn_attn_factor, 32);
AT(headwater_model_options, yarn_beta_fast, 40);
AT(headwater_model_options, yarn_beta_slow, 48);
AT(headwater_model_options, yarn_orig_ctx, 56);

SIZE(headwater_chat_message, 40);
AT(headwater_chat_message, role, 0);
AT(headwater_chat_message, text, 8);
AT(headwater_chat_message, text_bytes, 16);
AT(headwater_chat_message, question, 24);
AT(headwater_chat_message, question_bytes, 32);

SIZE(headwater_conversation_options, 48);
AT(headwater_conversation_options, struct_size, 0);
AT(headwater_conversation_options, engine, 8);
AT(headwater_conversation_options, attention, 16);
AT(headwater_conversation_options, capacity, 24);
AT(headwater_conversation_options, dense_tail, 32);
AT(headwater_conversation_options, cache_type, 40);
AT(headwater_conversation_options, reserved, 44);

SIZE(headwater_sampling, 48);
AT(headwater_sampling, struct_size, 0);
AT(headwater_sampling, temperature, 8);
AT(headwater_sampling, top_k, 16);
AT(headwater_sampling, top_p, 24);
AT(headwater_sampling, min_p, 32);
AT(headwater_sampling, seed, 40);

SIZE(headwater_comparison, 32);
AT(headwater_comparison, loss, 0);
AT(headwater_comparison, other_loss, 8);
AT(headwater_comparison, divergence, 16);
AT(headwater_comparison, same_likeliest, 24);
AT(headwater_comparison, flags, 28);
