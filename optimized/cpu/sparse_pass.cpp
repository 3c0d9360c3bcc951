// Sparse prefill: the intra pass of all chunks of a window, then chunk by chunk memory set, inter pass, score
// accumulation and fusion (SCHED-1).

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cpu_session.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

std::int64_t length(const Chunk& chunk) { return chunk.end - chunk.begin; }

std::int64_t groups_of(const Chunk& chunk) {
  const std::int64_t rows = group_rows(length(chunk));
  return (length(chunk) + rows - 1) / rows;
}

/// (m, l, o) of the inter pass joined to the intra pass's, per row (FUSE-1). Weights in double: two exponentials a
/// row cost nothing beside the row itself. `unit` is that of the maxima.
struct FusedRow {
  float intra_weight;
  float inter_weight;
  double lse;
};

FusedRow fuse(double unit, double intra_max, double intra_sum, double inter_max, double inter_sum) {
  const double m = std::max(intra_max, inter_max);
  const double a = intra_sum == 0 ? 0 : intra_sum * std::exp(unit * (intra_max - m));
  double b = inter_sum == 0 ? 0 : inter_sum * std::exp(unit * (inter_max - m));
  if (HEADWATER_SABOTAGE("cpu.fuse.no_rescale")) b = inter_sum;
  const double l = a + b;
  if (l == 0) return {0.0f, 0.0f, -std::numeric_limits<double>::infinity()};
  return {static_cast<float>(a / l), static_cast<float>(b / l), unit * m + std::log(l)};
}

}  // namespace

void CpuSession::run_sparse(const Call& call) {
  const std::span<const Chunk> chunks = plan();
  for (std::size_t first = 0; first < chunks.size();) {
    std::size_t last = first + 1;
    while (options().schedule == Schedule::layer_major && last < chunks.size() &&
           chunks[last].end - chunks[first].begin <= window_rows_ &&
           (!call.bf16 ||
            packed_row({chunks.subspan(first), chunks[first].begin}, chunks[last]) + length(chunks[last]) <=
                packed_rows_)) {
      ++last;
    }
    const Window window{chunks.subspan(first, last - first), chunks[first].begin};
    intra_phase(call, window);
    for (const Chunk& chunk : window.chunks) {
      const bool has_memory = chunk.begin > 0;  // MEM-5: tokens before it, hence a set
      if (has_memory) {
        inter_phase(call, window, chunk);
      } else {
        write_chunk(call, window, chunk);
        // What an observer is shown behind memory_count is 0, not the sums of the layer before.
        std::fill_n(colsum_inter_.data(), shape().n_head * memory_.width(), 0.0f);
      }
      report(window, chunk, call.layer, has_memory);
    }
    first = last;
  }
}

void CpuSession::intra_phase(const Call& call, const Window& window) {
  const std::int64_t heads = shape().n_head;
  const auto n_chunks = static_cast<std::int64_t>(window.chunks.size());
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < n_chunks * shape().n_head_kv; ++task) {
      const Chunk& chunk = window.chunks[static_cast<std::size_t>(task / shape().n_head_kv)];
      const std::int64_t head_kv = task % shape().n_head_kv;
      if (call.bf16) {
        pack_rows(call.layer, head_kv, chunk.begin, length(chunk), packed_row(window, chunk));
      } else {
        widen_window(window, call.layer, head_kv, chunk);
      }
    }
    // Late groups of a chunk see more of it; every other head is dealt out in the opposite order, so that the
    // shares of the threads even out.
#pragma omp for schedule(static, 1)
    for (std::int64_t task = 0; task < n_chunks * heads * kMaxGroups; ++task) {
      const Chunk& chunk = window.chunks[static_cast<std::size_t>(task / (heads * kMaxGroups))];
      const std::int64_t head = task / kMaxGroups % heads;
      const std::int64_t slot = task % kMaxGroups;
      const std::int64_t group = head % 2 == 0 ? slot : kMaxGroups - 1 - slot;
      if (group < groups_of(chunk)) intra_group(call, window, chunk, head, group, thread_scratch());
    }
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < n_chunks * heads; ++task) {
      const Chunk& chunk = window.chunks[static_cast<std::size_t>(task / heads)];
      reduce_intra(window, chunk, call.layer, task % heads);
    }
  }
}

void CpuSession::intra_group(const Call& call, const Window& window, const Chunk& chunk, std::int64_t head,
                             std::int64_t group, Scratch& scratch) {
  const std::int64_t dv = kv_.d_value();
  const std::int64_t begin = chunk.begin + group * group_rows(length(chunk));
  const std::int64_t end = std::min(begin + group_rows(length(chunk)), chunk.end);
  double* sums =
      intra_partials_.data() + (head * max_groups_ + group) * window_rows_ + (chunk.begin - window.begin);
  std::fill_n(sums, end - chunk.begin, 0.0);

  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    const std::int64_t n = std::min(kBlockRows, end - row);
    // MASK-1: what the last row sees.
    const PassBlock block{head, row, n, sink(head), nullptr, chunk.begin, row + n - chunk.begin, sums};
    const PassResult result =
        call.bf16
            ? bf16_block(call, block,
                         packed_rows(call.layer, kv_head(head), chunk.begin, packed_row(window, chunk)),
                         scratch)
            : float_block(call, block, window_rows(window, call.layer, kv_head(head), chunk.begin), scratch);
    const std::int64_t at = window_index(window, head, row);
    std::copy_n(result.out, n * dv, row_out_.data() + at * dv);
    std::copy_n(result.max, n, row_max_.data() + at);
    std::copy_n(result.sum, n, row_sum_.data() + at);
  }
}

CpuSession::PassResult CpuSession::float_block(const Call& call, const PassBlock& block, const KeyRows& rows,
                                               Scratch& scratch) {
  const std::int64_t d = kv_.d_head();
  const std::int64_t dv = kv_.d_value();
  const AttentionBlock attention{kernels_,
                                 scale_,
                                 logit_map(block.head),
                                 d,
                                 dv,
                                 block.rows,
                                 block.row,
                                 scratch.packed.data(),
                                 scratch.states.data()[0],
                                 scratch.out.data()};
  load_queries(kernels_, call.q, block.row - call.base, block.rows, block.head, d, scratch.rows.data(),
               scratch.packed.data());
  attention.start(block.sink);
  for (std::int64_t first = 0; first < block.n_keys; first += segment_keys_) {
    const std::int64_t n = std::min(segment_keys_, block.n_keys - first);
    const float* keys = rows.keys + first * d;
    const float* values = rows.values + first * dv;
    float* weights = scratch.block.data() + first * kBlockRows;
    if (block.gathered) {
      attention.add_gathered(keys, values, block.gathered + first, n, weights);
    } else {
      attention.add_keys(keys, values, block.first_key + first, n, weights);
    }
    std::copy_n(attention.state.max, kBlockRows,
                scratch.segment_max.data() + first / segment_keys_ * kBlockRows);
  }
  attention.normalise();
  for (std::int64_t first = 0; first < block.n_keys; first += segment_keys_) {
    attention.add_column_sums(scratch.block.data() + first * kBlockRows,
                              scratch.segment_max.data() + first / segment_keys_ * kBlockRows,
                              std::min(segment_keys_, block.n_keys - first), block.sums + first);
  }
  return {attention.out, attention.state.max, attention.state.sum};
}

void CpuSession::reduce_intra(const Window& window, const Chunk& chunk, std::int64_t layer,
                              std::int64_t head) {
  const std::int64_t rows = group_rows(length(chunk));
  const double* partials = intra_partials_.data() + head * max_groups_ * window_rows_;
  float* sums = colsum_intra_.data() + window_index(window, head, chunk.begin);
  for (std::int64_t j = 0; j < length(chunk); ++j) {
    double total = 0;
    for (std::int64_t group = j / rows; group < groups_of(chunk); ++group) {
      total += partials[group * window_rows_ + (chunk.begin - window.begin) + j];
    }
    sums[j] = static_cast<float>(total);
  }
  scores_.initialise(layer, head, chunk.begin, length(chunk), sums);
}

void CpuSession::write_chunk(const Call& call, const Window& window, const Chunk& chunk) {
  const std::int64_t dv = kv_.d_value();
#pragma omp parallel for schedule(static) num_threads(threads_)
  for (std::int64_t row = chunk.begin; row < chunk.end; ++row) {
    for (std::int64_t head = 0; head < shape().n_head; ++head) {
      const std::int64_t at = window_index(window, head, row);
      const FusedRow fused =
          fuse(call.natural_unit, static_cast<double>(row_max_.data()[at]),
               static_cast<double>(row_sum_.data()[at]), -std::numeric_limits<double>::infinity(), 0);
      lse_.data()[head * window_rows_ + (row - chunk.begin)] = static_cast<float>(fused.lse);
      core::convert_row(row_out_.data() + at * dv, DType::f32, dv,
                        core::row_address(call.out, row - call.base, head), call.out.type);
    }
  }
}

void CpuSession::inter_phase(const Call& call, const Window& window, const Chunk& chunk) {
  const std::int64_t heads = shape().n_head;
  const std::int64_t groups = groups_of(chunk);
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static)
    for (std::int64_t head = 0; head < heads; ++head) {
      Scratch& scratch = thread_scratch();
      memory_.build_head(call.layer, head, chunk.begin, scores_, scratch.order_keys.data(),
                         scratch.chosen.data());
    }
#pragma omp single
    memory_.finish(call.layer, chunk.begin);
    // Consecutive tasks go to one thread, which gathers the rows of a head once.
    std::int64_t gathered = -1;
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < heads * groups; ++task) {
      const std::int64_t head = task / groups;
      if (head != gathered) {
        const std::int32_t* positions = memory_.entries(call.layer, head);
        if (call.bf16) {
          gather_bf16_rows(call.layer, kv_head(head), positions, memory_.count(call.layer), thread_scratch());
        } else {
          gather_rows(call.layer, kv_head(head), positions, memory_.count(call.layer), thread_scratch());
        }
        gathered = head;
      }
      inter_group(call, window, chunk, head, task % groups, thread_scratch());
    }
#pragma omp for schedule(static)
    for (std::int64_t head = 0; head < heads; ++head) reduce_inter(chunk, call.layer, head);
  }
}

void CpuSession::inter_group(const Call& call, const Window& window, const Chunk& chunk, std::int64_t head,
                             std::int64_t group, Scratch& scratch) {
  const std::int64_t dv = kv_.d_value();
  const std::int64_t begin = chunk.begin + group * group_rows(length(chunk));
  const std::int64_t end = std::min(begin + group_rows(length(chunk)), chunk.end);
  const std::int64_t n_memory = memory_.count(call.layer);
  const std::int32_t* positions = memory_.entries(call.layer, head);
  double* sums = inter_partials_.data() + (head * max_groups_ + group) * memory_.width();
  std::fill_n(sums, n_memory, 0.0);

  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    // LOGIT-4: no sink in the inter pass.
    const PassBlock block{
        head,     row, std::min(kBlockRows, end - row), -std::numeric_limits<float>::infinity(), positions, 0,
        n_memory, sums};
    const PassResult inter =
        call.bf16 ? bf16_block(call, block, gathered_rows(scratch), scratch)
                  : float_block(call, block, {scratch.keys.data(), scratch.values.data()}, scratch);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const std::int64_t at = window_index(window, head, row + r);
      const FusedRow fused = fuse(call.natural_unit, static_cast<double>(row_max_.data()[at]),
                                  static_cast<double>(row_sum_.data()[at]), static_cast<double>(inter.max[r]),
                                  static_cast<double>(inter.sum[r]));
      float* o = inter.out + r * dv;
      const float* intra = row_out_.data() + at * dv;
      for (std::int64_t c = 0; c < dv; ++c) o[c] = intra[c] * fused.intra_weight + o[c] * fused.inter_weight;
      lse_.data()[head * window_rows_ + (row + r - chunk.begin)] = static_cast<float>(fused.lse);
      core::convert_row(o, DType::f32, dv, core::row_address(call.out, row + r - call.base, head),
                        call.out.type);
    }
  }
}

void CpuSession::reduce_inter(const Chunk& chunk, std::int64_t layer, std::int64_t head) {
  const std::int64_t n_memory = memory_.count(layer);
  const double* partials = inter_partials_.data() + head * max_groups_ * memory_.width();
  float* sums = colsum_inter_.data() + head * memory_.width();
  for (std::int64_t i = 0; i < n_memory; ++i) {
    double total = 0;
    for (std::int64_t group = 0; group < groups_of(chunk); ++group) {
      total += partials[group * memory_.width() + i];
    }
    sums[i] = static_cast<float>(total);
  }
  std::fill(sums + n_memory, sums + memory_.width(), 0.0f);
  scores_.accumulate(layer, head, memory_.entries(layer, head), n_memory, sums);
}

void CpuSession::report(const Window& window, const Chunk& chunk, std::int64_t layer, bool has_memory) const {
  ChunkRecord record;
  record.layer = layer;
  record.chunk = chunk;
  record.memory_count = has_memory ? memory_.count(layer) : 0;
  record.memory_stride = memory_.width();
  record.memory = memory_.entries(layer, 0);
  record.colsum_inter = colsum_inter_.data();
  record.row_stride = window_rows_;
  record.colsum_intra = colsum_intra_.data() + (chunk.begin - window.begin);
  record.lse = lse_.data();
  observe(record);
}

}  // namespace headwater::cpu
