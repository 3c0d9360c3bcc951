// Dense causal attention over everything stored: dense prefill calls (CFG-2, STATE-3) and decode steps (DEC-1).

#include <algorithm>
#include <cmath>

#include "cpu/cpu_session.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

void CpuSession::run_dense(const Call& call, const Chunk& chunk) {
  if (decodes_by_rows(chunk)) {
    run_decode(call, chunk);
  } else {
    run_dense_blocks(call, chunk);
  }
  ChunkRecord record;
  record.layer = call.layer;
  record.chunk = chunk;
  record.row_stride = shape().capacity;
  record.lse = lse_.data();
  observe(record);
}

void CpuSession::run_dense_blocks(const Call& call, const Chunk& chunk) {
  if (call.bf16) {
    const std::int64_t tiles = key_tiles(chunk.end);
#pragma omp parallel for schedule(static) num_threads(threads_)
    for (std::int64_t task = 0; task < shape().n_head_kv * tiles; ++task) {
      const std::int64_t first = task % tiles * kKeyTile;
      pack_rows(call.layer, task / tiles, first, std::min(kKeyTile, chunk.end - first), first);
    }
  }
  // Groups of whole runs of kGroupRows positions, so that their blocks end where tiles of keys do. Later groups see
  // more keys: dealt out one by one from the longest, the shares of the threads differ by about one group.
  const std::int64_t first_group = chunk.begin / kGroupRows;
  const std::int64_t groups = (chunk.end + kGroupRows - 1) / kGroupRows - first_group;
#pragma omp parallel for schedule(static, 1) num_threads(threads_)
  for (std::int64_t task = 0; task < groups * shape().n_head; ++task) {
    const std::int64_t group = first_group + groups - 1 - task / shape().n_head;
    const std::int64_t head = task % shape().n_head;
    const std::int64_t begin = std::max(group * kGroupRows, chunk.begin);
    const std::int64_t end = std::min((group + 1) * kGroupRows, chunk.end);
    if (call.bf16) {
      dense_bf16_group(call, head, begin, end, thread_scratch());
    } else {
      dense_group(call, head, begin, end, thread_scratch());
    }
  }
}

void CpuSession::dense_group(const Call& call, std::int64_t head, std::int64_t begin, std::int64_t end,
                             Scratch& scratch) {
  const std::int64_t d = kv_.d_head();
  const std::int64_t dv = kv_.d_value();
  const auto block_at = [&](std::int64_t row) {
    const std::int64_t index = (row - begin) / kBlockRows;
    return AttentionBlock{kernels_,
                          scale_,
                          logit_map(head),
                          d,
                          dv,
                          std::min(kBlockRows, end - row),
                          row,
                          scratch.packed.data() + index * kBlockRows * d,
                          scratch.states.data()[index],
                          scratch.out.data() + index * kBlockRows * dv};
  };
  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    const AttentionBlock block = block_at(row);
    load_queries(kernels_, call.q, row - call.base, block.rows, head, d, scratch.rows.data(),
                 scratch.packed.data() + (row - begin) * d);
    block.start(sink(head));
  }
  // Segments outside, blocks inside: keys are widened once for all rows of the group.
  const bool oldest_lost = end > 4096 && HEADWATER_SABOTAGE("cpu.dense.oldest_segment_beyond_4096");
  for (std::int64_t first = oldest_lost ? segment_keys_ : 0; first < end; first += segment_keys_) {
    const std::int64_t last = std::min(first + segment_keys_, end);
    const KeyRows rows = consecutive_rows(call.layer, kv_head(head), first, last - first, scratch);
    for (std::int64_t row = begin; row < end; row += kBlockRows) {
      const AttentionBlock block = block_at(row);
      const std::int64_t visible = std::min(last, row + block.rows) - first;
      if (visible > 0) block.add_keys(rows.keys, rows.values, first, visible, scratch.block.data());
    }
  }
  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    const AttentionBlock block = block_at(row);
    block.finish();
    block.normalise();
    for (std::int64_t r = 0; r < block.rows; ++r) {
      store_row(call, row + r, head, block.out + r * dv);
      lse_.data()[head * shape().capacity + (row + r - call.base)] = static_cast<float>(
          static_cast<double>(block.state.max[r]) + std::log(static_cast<double>(block.state.sum[r])));
    }
  }
}

}  // namespace headwater::cpu
