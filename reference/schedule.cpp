#include "reference/schedule.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "headwater/error.hpp"
#include "reference/arguments.hpp"
#include "reference/block_rule.hpp"
#include "reference/dense.hpp"
#include "reference/fusion.hpp"
#include "reference/inter.hpp"
#include "reference/intra.hpp"
#include "reference/logits.hpp"
#include "reference/memory_set.hpp"
#include "reference/numbers.hpp"
#include "reference/scores.hpp"
#include "reference/sketch_rule.hpp"

namespace headwater::reference {
namespace {

/// The intra pass of one chunk, head after head.
using IntraState = std::vector<PassResult>;

/// What the observer is told of one chunk; the arrays of ChunkRecord.
struct Trace {
  std::vector<std::int32_t> memory;
  std::vector<float> colsum_inter;
  std::vector<float> colsum_intra;
  std::vector<float> lse;
  std::vector<float> block_votes;
  std::vector<float> token_votes;
};

std::int64_t chunk_tokens(const Chunk& chunk) { return chunk.end - chunk.begin; }

std::int64_t kv_head(const LayerStep& step, std::int64_t h) {
  return key_value_head(h, step.shape.n_head, step.shape.n_head_kv);
}

Matrix chunk_queries(const LayerStep& step, const Chunk& chunk, std::int64_t h) {
  return read_rows(step.q, chunk.begin - step.base, chunk.end - step.base, h, step.shape.d_head);
}

/// SCHED-1, phase 1.
IntraState intra_of_chunk(const LayerStep& step, const Chunk& chunk) {
  const LayerStorage& storage = step.storage;
  IntraState heads;
  for (std::int64_t h = 0; h < step.shape.n_head; ++h) {
    ask_to_stop(step);
    const Matrix q = chunk_queries(step, chunk, h);
    const Matrix k = read_rows(storage.keys(), chunk.begin, chunk.end, kv_head(step, h), step.shape.d_head);
    const Matrix v =
        read_rows(storage.values(), chunk.begin, chunk.end, kv_head(step, h), step.shape.d_value);
    heads.push_back(
        intra_pass(logit_rule(step.options, step.effective, step.layer, h), chunk.begin, q, k, v));
  }
  return heads;
}

/// MEM-5: the set that a chunk reads is built when it starts, from all `end` tokens before it; MEM-6: each head
/// alone. Empty for the first chunk of a session.
void build_memory_sets(LayerStep& step, std::int64_t end) {
  LayerStorage& storage = step.storage;
  std::size_t entries = 0;
  for (std::int64_t h = 0; h < step.shape.n_head; ++h) {
    const std::vector<std::int32_t> set = build_memory_set(
        storage.memory_set(h), storage.memory_end, end, step.effective.local, step.effective.heavy,
        [&](std::int64_t position) { return storage.score(h, position); }, step.effective.pinned);
    store_memory_set(set, storage.memory(h));
    entries = set.size();  // the same for every head: Local and the number of candidates do not depend on it
  }
  storage.memory_count = static_cast<std::int64_t>(entries);
  storage.memory_end = end;
}

/// SEL-4: the rows [begin, end) of a chunk that share their sets.
struct QueryBlock {
  std::int64_t begin;
  std::int64_t end;
};

std::vector<QueryBlock> query_blocks(const LayerStep& step, const Chunk& chunk) {
  std::vector<QueryBlock> blocks;
  for (std::int64_t begin = chunk.begin; begin < chunk.end; begin += step.effective.query_block) {
    blocks.push_back({begin, std::min(begin + step.effective.query_block, chunk.end)});
  }
  return blocks;
}

/// Rows of one query head.
Matrix block_queries(const LayerStep& step, const QueryBlock& block, std::int64_t h) {
  return read_rows(step.q, block.begin - step.base, block.end - step.base, h, step.shape.d_head);
}

/// SEL-2 .. SEL-8 for the query heads of key/value head g, from the stored keys before the chunk.
BlockSet set_of_query_block(const LayerStep& step, const QueryBlock& block, std::int64_t g, const Matrix& k,
                            const Summaries& summaries) {
  std::vector<PooledHead> heads;
  for (std::int64_t h = 0; h < step.shape.n_head; ++h) {
    if (kv_head(step, h) != g) continue;
    const Matrix queries = block_queries(step, block, h);
    heads.push_back({logit_rule(step.options, step.effective, step.layer, h),
                     pools(queries, block.begin, step.effective.pool),
                     pools(queries, block.begin, (step.effective.pool + 1) / 2)});
  }
  return choose_set(heads, k, summaries, step.effective);
}

/// SKE-2 .. SKE-8 for the query heads of key/value head g.
BlockSet sketched_set_of_query_block(const LayerStep& step, const Chunk& chunk, const QueryBlock& block,
                                     std::int64_t g) {
  const EffectiveOptions& effective = step.effective;
  const LayerStorage& storage = step.storage;
  const SketchedPast past = sketched_past(chunk.begin, effective.local, effective.heavy, effective.pinned);
  const Matrix k = read_rows(storage.keys(), 0, block.end, g, step.shape.d_head);
  std::vector<VotingHead> heads;
  for (std::int64_t h = 0; h < step.shape.n_head; ++h) {
    if (kv_head(step, h) != g) continue;
    VotingHead head{logit_rule(step.options, effective, step.layer, h), block_queries(step, block, h), {}};
    for (std::int64_t row = 0; row < head.q.rows; ++row) {
      head.own.push_back(
          own_weight(head.rule, head.q.row(row), block.begin + row, k, past.fixed, chunk.begin));
    }
    heads.push_back(std::move(head));
  }
  const Matrix before = read_rows(storage.keys(), 0, chunk.begin, g, step.shape.d_head);
  BlockSet set;
  set.token_votes =
      rounded_once(sketch_votes(heads, block.begin, before, past.candidates, sketch_columns(before)));
  set.positions = chosen_by_votes(past.candidates, set.token_votes, effective.least_weight,
                                  effective.heavy - effective.pinned);
  set.positions.insert(set.positions.end(), past.fixed.begin(), past.fixed.end());
  std::sort(set.positions.begin(), set.positions.end());
  return set;
}

/// INTER-1 .. INTER-3 for one head and the rows of a query block, column sums not used (SEL-9).
std::vector<SoftmaxRow> inter_of_query_block(const LayerStep& step, const QueryBlock& block, std::int64_t h,
                                             std::span<const std::int32_t> set) {
  const LayerStorage& storage = step.storage;
  const Matrix k = gather_rows(storage.keys(), set, kv_head(step, h), step.shape.d_head);
  const Matrix v = gather_rows(storage.values(), set, kv_head(step, h), step.shape.d_value);
  return inter_pass(logit_rule(step.options, step.effective, step.layer, h), block.begin,
                    block_queries(step, block, h), set, k, v)
      .rows;
}

/// INTER-1 .. INTER-3 for one head.
PassResult inter_of_chunk(const LayerStep& step, const Chunk& chunk, std::int64_t h,
                          std::span<const std::int32_t> memory) {
  const LayerStorage& storage = step.storage;
  const Matrix k = gather_rows(storage.keys(), memory, kv_head(step, h), step.shape.d_head);
  const Matrix v = gather_rows(storage.values(), memory, kv_head(step, h), step.shape.d_value);
  return inter_pass(logit_rule(step.options, step.effective, step.layer, h), chunk.begin,
                    chunk_queries(step, chunk, h), memory, k, v);
}

void write_output(const LayerStep& step, const Chunk& chunk, std::int64_t h, std::int64_t row,
                  const SoftmaxRow& result, Trace& trace) {
  const std::int64_t t = chunk.begin + row - step.base;
  write_row(step.out, t, h, result.o);
  const float lse = round_to_f32(log_sum_exp(result));
  trace.lse.push_back(lse);
  if (step.lse.data != nullptr) {  // LSE-1
    write_row(as_rows(step.lse), t, h, std::array<double, 1>{lse});
  }
}

void observe(const LayerStep& step, const Chunk& chunk, std::int64_t memory_count, const Trace& trace) {
  if (!step.observer) return;
  const bool sparse = chunk.mode == ChunkMode::sparse;
  ChunkRecord record;
  record.layer = step.layer;
  record.chunk = chunk;
  record.memory_count = memory_count;
  record.memory_stride = step.storage.memory_view().width;
  record.memory = trace.memory.data();
  record.colsum_inter = sparse ? trace.colsum_inter.data() : nullptr;
  record.row_stride = chunk_tokens(chunk);
  record.colsum_intra = sparse ? trace.colsum_intra.data() : nullptr;
  record.lse = trace.lse.data();
  step.observer(record);
}

void observe_blocks(const LayerStep& step, const Chunk& chunk, std::span<const BlockSet> sets,
                    const Trace& trace) {
  if (!step.observer) return;
  const BlockSet& first = sets.front();  // all sets of a chunk have as many votes
  const bool refined = !first.token_votes.empty();
  ChunkRecord record;
  record.layer = step.layer;
  record.chunk = chunk;
  record.memory_count = step.effective.memory_count(chunk.begin);  // SEL-8, SKE-8
  record.memory_stride = std::min(step.effective.memory(), step.shape.capacity);
  record.memory = trace.memory.data();
  record.row_stride = chunk_tokens(chunk);
  record.lse = trace.lse.data();
  record.query_blocks = static_cast<std::int64_t>(sets.size()) / step.shape.n_head_kv;
  record.candidate_blocks = static_cast<std::int64_t>(first.block_votes.size());
  record.block_votes = first.block_votes.empty() ? nullptr : trace.block_votes.data();
  record.voted_tokens = static_cast<std::int64_t>(first.token_votes.size());
  record.token_votes = refined ? trace.token_votes.data() : nullptr;
  step.observer(record);
}

/// The same as finish_chunk() with rules `blocks` and `sketches`: a set for each key/value head and query block, and no
/// scores (SEL-9).
void finish_chunk_of_blocks(const LayerStep& step, const Chunk& chunk, const IntraState& intra) {
  const std::vector<QueryBlock> blocks = query_blocks(step, chunk);
  const auto width = static_cast<std::size_t>(std::min(step.effective.memory(), step.shape.capacity));
  const LayerStorage& storage = step.storage;
  Trace trace;
  std::vector<BlockSet> sets;  // key/value head after key/value head
  for (std::int64_t g = 0; g < step.shape.n_head_kv; ++g) {
    const bool sketched = step.effective.select == Select::sketches;
    const Matrix k = read_rows(storage.keys(), 0, sketched ? 0 : chunk.begin, g, step.shape.d_head);
    const Summaries summaries =
        sketched ? Summaries{}
                 : summarize(k, candidate_blocks(chunk.begin, step.effective), step.effective.key_block);
    for (const QueryBlock& block : blocks) {
      ask_to_stop(step);
      sets.push_back(sketched ? sketched_set_of_query_block(step, chunk, block, g)
                              : set_of_query_block(step, block, g, k, summaries));
      const BlockSet& set = sets.back();
      trace.memory.insert(trace.memory.end(), set.positions.begin(), set.positions.end());
      trace.memory.resize(sets.size() * width, -1);  // SEL-8
      trace.block_votes.insert(trace.block_votes.end(), set.block_votes.begin(), set.block_votes.end());
      trace.token_votes.insert(trace.token_votes.end(), set.token_votes.begin(), set.token_votes.end());
    }
  }
  for (std::int64_t h = 0; h < step.shape.n_head; ++h) {
    ask_to_stop(step);
    const std::vector<SoftmaxRow>& own = intra[static_cast<std::size_t>(h)].rows;
    const std::span<const BlockSet> group =
        std::span(sets).subspan(static_cast<std::size_t>(kv_head(step, h)) * blocks.size(), blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::vector<SoftmaxRow> inter = inter_of_query_block(step, blocks[b], h, group[b].positions);
      for (std::size_t r = 0; r < inter.size(); ++r) {  // FUSE-2
        const std::int64_t row = blocks[b].begin - chunk.begin + static_cast<std::int64_t>(r);
        write_output(step, chunk, h, row, fuse(own[static_cast<std::size_t>(row)], inter[r]), trace);
      }
    }
  }
  observe_blocks(step, chunk, sets, trace);
}

/// SCHED-1, phase 2, for one chunk.
void finish_chunk(LayerStep& step, const Chunk& chunk, const IntraState& intra) {
  if (step.effective.select != Select::h2o) {
    finish_chunk_of_blocks(step, chunk, intra);
    return;
  }
  LayerStorage& storage = step.storage;
  const ScoreType type = step.effective.score_type;
  if (step.effective.checkpoints > 0) {  // STATE-10
    step.checkpoints.push_back({chunk.begin, storage.state(chunk.begin)});
  }
  build_memory_sets(step, chunk.begin);

  Trace trace;
  for (std::int64_t h = 0; h < step.shape.n_head; ++h) {
    ask_to_stop(step);
    const PassResult& own = intra[static_cast<std::size_t>(h)];
    const std::span<const std::int32_t> memory = storage.memory_set(h);
    const PassResult inter = inter_of_chunk(step, chunk, h, memory);
    const std::vector<float> colsum_intra = rounded_once(own.column_sums);
    const std::vector<float> colsum_inter = rounded_once(inter.column_sums);

    // SCORE-3: once per chunk, never per query.
    for (std::size_t entry = 0; entry < memory.size(); ++entry) {
      const float score = storage.score(h, memory[entry]);
      storage.set_score(h, memory[entry], accumulated_score(type, score, colsum_inter[entry]));
    }
    // SCORE-2
    for (std::int64_t j = chunk.begin; j < chunk.end; ++j) {
      storage.set_score(h, j, initial_score(type, colsum_intra[static_cast<std::size_t>(j - chunk.begin)]));
    }
    // FUSE-2
    for (std::int64_t row = 0; row < chunk_tokens(chunk); ++row) {
      const auto r = static_cast<std::size_t>(row);
      write_output(step, chunk, h, row, fuse(own.rows[r], inter.rows[r]), trace);
    }

    const std::span<const std::int32_t> stored = storage.memory(h);
    trace.memory.insert(trace.memory.end(), stored.begin(), stored.end());
    trace.colsum_inter.insert(trace.colsum_inter.end(), colsum_inter.begin(), colsum_inter.end());
    trace.colsum_inter.resize(trace.memory.size(), 0.0F);  // 0 after the last valid entry
    trace.colsum_intra.insert(trace.colsum_intra.end(), colsum_intra.begin(), colsum_intra.end());
  }
  observe(step, chunk, storage.memory_count, trace);
}

}  // namespace

// INTR-1
void ask_to_stop(const LayerStep& step) {
  if (!step.interrupt || !step.interrupt()) return;
  throw Error(ErrorCode::interrupted, "attend() of layer " + std::to_string(step.layer) +
                                          " was interrupted; allowed: abort() or reset()");
}

void store_rows(LayerStorage& storage, std::int64_t base, std::int64_t n, const Rows& k, const Rows& v) {
  const Shape& shape = storage.shape();
  std::vector<double> key(static_cast<std::size_t>(shape.d_head));
  std::vector<double> value(static_cast<std::size_t>(shape.d_value));
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t g = 0; g < shape.n_head_kv; ++g) {
      read_row(k, t, g, key);
      storage.store_key(base + t, g, key);
      read_row(v, t, g, value);
      storage.store_value(base + t, g, value);
    }
  }
}

void attend_layer_major(LayerStep& step, std::span<const Chunk> chunks) {
  std::vector<IntraState> phase_1;
  for (const Chunk& chunk : chunks) phase_1.push_back(intra_of_chunk(step, chunk));
  for (std::size_t c = 0; c < chunks.size(); ++c) finish_chunk(step, chunks[c], phase_1[c]);
}

void attend_chunk_major(LayerStep& step, std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) finish_chunk(step, chunk, intra_of_chunk(step, chunk));
}

void attend_dense(LayerStep& step, const Chunk& chunk) {
  const LayerStorage& storage = step.storage;
  Trace trace;
  trace.memory.assign(static_cast<std::size_t>(step.shape.n_head * storage.memory_view().width), -1);
  Matrix k;
  Matrix v;
  for (std::int64_t h = 0; h < step.shape.n_head; ++h) {
    ask_to_stop(step);
    if (h == 0 || kv_head(step, h) != kv_head(step, h - 1)) {
      k = read_rows(storage.keys(), 0, chunk.end, kv_head(step, h), step.shape.d_head);
      v = read_rows(storage.values(), 0, chunk.end, kv_head(step, h), step.shape.d_value);
    }
    const std::vector<SoftmaxRow> rows =
        dense_attention(logit_rule(step.options, step.effective, step.layer, h), chunk.begin,
                        chunk_queries(step, chunk, h), k, v);
    for (std::int64_t row = 0; row < chunk_tokens(chunk); ++row) {
      write_output(step, chunk, h, row, rows[static_cast<std::size_t>(row)], trace);
    }
  }
  observe(step, chunk, 0, trace);
}

}  // namespace headwater::reference
