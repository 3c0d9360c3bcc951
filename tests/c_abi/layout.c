/* The layout of HEADWATER_ABI_VERSION 1 on x86-64. A number that changes here breaks programs that are already
 * compiled: append a field, or raise the version. */

#include <assert.h>
#include <stddef.h>

#include "headwater/headwater.h"

#define AT(type, field, offset) \
  static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")
#define SIZE(type, size) static_assert(sizeof(type) == (size), #type " has another size")

static_assert(HEADWATER_ABI_VERSION == 1, "new version: new numbers");

SIZE(headwater_shape, 56);
AT(headwater_shape, n_layer, 0);
AT(headwater_shape, n_head, 8);
AT(headwater_shape, n_head_kv, 16);
AT(headwater_shape, d_head, 24);
AT(headwater_shape, d_value, 32);
AT(headwater_shape, capacity, 40);
AT(headwater_shape, kv_type, 48);
AT(headwater_shape, reserved, 52);

SIZE(headwater_options, 296);
AT(headwater_options, struct_size, 0);
AT(headwater_options, batch, 8);
AT(headwater_options, chunk, 16);
AT(headwater_options, local, 24);
AT(headwater_options, heavy, 32);
AT(headwater_options, clamp, 40);
AT(headwater_options, dense, 44);
AT(headwater_options, scale, 48);
AT(headwater_options, softcap, 56);
AT(headwater_options, sinks, 64);
AT(headwater_options, alibi, 72);
AT(headwater_options, score_type, 80);
AT(headwater_options, schedule, 84);
AT(headwater_options, threads, 88);
AT(headwater_options, reserved, 92);
AT(headwater_options, row_memory, 96);
AT(headwater_options, reserved2, 100);
AT(headwater_options, stream, 104);
AT(headwater_options, device_plus_1, 112);
AT(headwater_options, reserved3, 116);
AT(headwater_options, select, 120);
AT(headwater_options, reserved4, 124);
AT(headwater_options, key_block, 128);
AT(headwater_options, query_block, 136);
AT(headwater_options, pool, 144);
AT(headwater_options, refine, 152);
AT(headwater_options, pinned, 160);
AT(headwater_options, dense_below, 168);
AT(headwater_options, dense_layers, 176);
AT(headwater_options, dense_layer_count, 184);
AT(headwater_options, checkpoints, 192);
AT(headwater_options, parallel_for, 200);
AT(headwater_options, parallel_context, 208);
AT(headwater_options, kv_owner, 216);
AT(headwater_options, reserved5, 220);
AT(headwater_options, layers, 224);
AT(headwater_options, layer_count, 232);
AT(headwater_options, layer_size, 240);
AT(headwater_options, page, 248);
AT(headwater_options, allocate, 256);
AT(headwater_options, release, 264);
AT(headwater_options, allocator_context, 272);
AT(headwater_options, least_weight, 280);
AT(headwater_options, kv_bits, 288);

SIZE(headwater_layer_options, 48);
AT(headwater_layer_options, window, 0);
AT(headwater_layer_options, scale, 8);
AT(headwater_layer_options, softcap, 16);
AT(headwater_layer_options, sinks, 24);
AT(headwater_layer_options, d_head, 32);
AT(headwater_layer_options, d_value, 40);

SIZE(headwater_stored_rows, 112);
AT(headwater_stored_rows, struct_size, 0);
AT(headwater_stored_rows, keys, 8);
AT(headwater_stored_rows, values, 16);
AT(headwater_stored_rows, rows, 24);
AT(headwater_stored_rows, key_row_stride, 32);
AT(headwater_stored_rows, key_head_stride, 40);
AT(headwater_stored_rows, value_row_stride, 48);
AT(headwater_stored_rows, value_head_stride, 56);
AT(headwater_stored_rows, table, 64);
AT(headwater_stored_rows, table_size, 72);
AT(headwater_stored_rows, page_rows, 80);
AT(headwater_stored_rows, pages, 88);
AT(headwater_stored_rows, key_page_stride, 96);
AT(headwater_stored_rows, value_page_stride, 104);

SIZE(headwater_sequence_call, 64);
AT(headwater_sequence_call, session, 0);
AT(headwater_sequence_call, layer, 8);
AT(headwater_sequence_call, q, 16);
AT(headwater_sequence_call, k, 24);
AT(headwater_sequence_call, v, 32);
AT(headwater_sequence_call, stored, 40);
AT(headwater_sequence_call, out, 48);
AT(headwater_sequence_call, lse, 56);

SIZE(headwater_rows, 32);
SIZE(headwater_mutable_rows, 32);
AT(headwater_rows, data, 0);
AT(headwater_rows, row_stride, 8);
AT(headwater_rows, head_stride, 16);
AT(headwater_rows, type, 24);
AT(headwater_mutable_rows, data, 0);
AT(headwater_mutable_rows, row_stride, 8);
AT(headwater_mutable_rows, head_stride, 16);
AT(headwater_mutable_rows, type, 24);
SIZE(headwater_lse_output, 24);
AT(headwater_lse_output, data, 0);
AT(headwater_lse_output, row_stride, 8);
AT(headwater_lse_output, head_stride, 16);

SIZE(headwater_effective_options, 160);
AT(headwater_effective_options, heavy, 24);
AT(headwater_effective_options, scale, 32);
AT(headwater_effective_options, sparse, 48);
AT(headwater_effective_options, threads, 60);
AT(headwater_effective_options, select, 64);
AT(headwater_effective_options, key_block, 72);
AT(headwater_effective_options, refine, 96);
AT(headwater_effective_options, pinned, 104);
AT(headwater_effective_options, dense_below, 112);
AT(headwater_effective_options, checkpoints, 120);
AT(headwater_effective_options, kv_owner, 128);
AT(headwater_effective_options, reserved2, 132);
AT(headwater_effective_options, page, 136);
AT(headwater_effective_options, least_weight, 144);
AT(headwater_effective_options, kv_bits, 152);

SIZE(headwater_memory_bytes, 32);
SIZE(headwater_stage_seconds, 8);
SIZE(headwater_chunk, 24);
AT(headwater_chunk, mode, 16);
SIZE(headwater_score_view, 24);
AT(headwater_score_view, type, 16);
SIZE(headwater_memory_view, 32);

SIZE(headwater_chunk_record, 136);
AT(headwater_chunk_record, layer, 8);
AT(headwater_chunk_record, chunk, 16);
AT(headwater_chunk_record, memory_count, 40);
AT(headwater_chunk_record, memory, 56);
AT(headwater_chunk_record, colsum_inter, 64);
AT(headwater_chunk_record, row_stride, 72);
AT(headwater_chunk_record, colsum_intra, 80);
AT(headwater_chunk_record, lse, 88);
AT(headwater_chunk_record, query_blocks, 96);
AT(headwater_chunk_record, candidate_blocks, 104);
AT(headwater_chunk_record, block_votes, 112);
AT(headwater_chunk_record, voted_tokens, 120);
AT(headwater_chunk_record, token_votes, 128);
