// Sparse prefill: the intra pass of all chunks of a window, then chunk by chunk memory set, inter pass, score
// accumulation and fusion (SCHED-1).

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cpu_session.hpp"
#include "cpu/gather.hpp"
#include "cpu/stage_clock.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

std::int64_t length(const Chunk& chunk) { return chunk.end - chunk.begin; }

std::int64_t groups_of(const Chunk& chunk) {
  const std::int64_t rows = group_rows(length(chunk));
  return (length(chunk) + rows - 1) / rows;
}

/// totals[i] = the sum of partials[group * stride + i] over groups first, ..., last - 1, added in this order.
void add_up(const double* partials, std::int64_t stride, std::int64_t first, std::int64_t last,
            std::int64_t n, float* totals) {
  constexpr std::int64_t kAtOnce = 8;
  for (std::int64_t i = 0; i < n; i += kAtOnce) {
    const std::int64_t some = std::min(kAtOnce, n - i);
    double sums[kAtOnce] = {};
    for (std::int64_t group = first; group < last; ++group) {
      const double* line = partials + group * stride + i;
      if (some == kAtOnce) {
        for (std::int64_t k = 0; k < kAtOnce; ++k) sums[k] += line[k];
      } else {
        for (std::int64_t k = 0; k < some; ++k) sums[k] += line[k];
      }
    }
    for (std::int64_t k = 0; k < some; ++k) totals[i + k] = static_cast<float>(sums[k]);
  }
}

/// What the outputs of the passes are multiplied with, per row (FUSE-1).
struct FusedRows {
  float intra_weight[kBlockRows];
  float inter_weight[kBlockRows];
  float lse[kBlockRows];
};

/// Joins (m, l, o) of the inter pass to the intra pass's in double, but for the exponentials. `unit` is that of the
/// maxima; `divided`: o has been divided by l. The logarithm of lse costs as much as the rest and is for observers alone.
template <class PassResult>
void fuse(const KernelTable& kernels, double unit, const PassResult& intra, const PassResult& inter,
          std::int64_t n, bool divided, bool with_lse, FusedRows& fused) {
  for (std::int64_t r = 0; r < n; ++r) {
    const double m = std::max(intra.max[r], inter.max[r]);
    const auto relative = [&](float max) {
      return max == m ? 0.0f : static_cast<float>(unit * (static_cast<double>(max) - m));
    };
    fused.intra_weight[r] = relative(intra.max[r]);
    fused.inter_weight[r] = relative(inter.max[r]);
  }
  (void)kernels.row_weights(fused.intra_weight, n, 0.0f);
  (void)kernels.row_weights(fused.inter_weight, n, 0.0f);
  for (std::int64_t r = 0; r < n; ++r) {
    const double intra_sum = intra.sum[r];
    const double inter_sum = inter.sum[r];
    const double a = intra_sum == 0 ? 0 : intra_sum * static_cast<double>(fused.intra_weight[r]);
    double b = inter_sum == 0 ? 0 : inter_sum * static_cast<double>(fused.inter_weight[r]);
    if (HEADWATER_SABOTAGE("cpu.fuse.no_rescale")) b = inter_sum;
    const double l = a + b;
    const auto weight = [&](double share, double sum) {
      return share == 0 ? 0.0f : static_cast<float>(share / (divided ? l : l * sum));
    };
    fused.intra_weight[r] = weight(a, intra_sum);
    fused.inter_weight[r] = weight(b, inter_sum);
    const double m = std::max(intra.max[r], inter.max[r]);
    fused.lse[r] = l == 0     ? -std::numeric_limits<float>::infinity()
                   : with_lse ? static_cast<float>(unit * m + std::log(l))
                              : 0.0f;
  }
}

void ask_for_all(const RowsAhead& rows) {
  for (std::int64_t row = 0; row < rows.left; ++row) ask_for(rows.next + row * rows.stride, rows.bytes);
}

}  // namespace

void CpuSession::run_sparse(const Call& call) {
  const std::span<const Chunk> chunks = plan();
  for (std::size_t first = 0; first < chunks.size();) {
    const std::size_t last = one_pass_ ? first + 1 : window_end(call, chunks, first);
    const Window window{chunks.subspan(first, last - first), chunks[first].begin};
    if (!one_pass_) intra_phase(call, window);
    for (const Chunk& chunk : window.chunks) {
      const bool has_memory = chunk.begin > 0;  // MEM-5: tokens before it, hence a set
      // What an observer is shown behind memory_count is 0, not the sums of the layer before.
      if (!has_memory) std::fill_n(colsum_inter_.data(), shape().n_head * memory_.width(), 0.0f);
      if (one_pass_) {
        whole_chunk(call, window, chunk, has_memory);
      } else if (has_memory) {
        inter_phase(call, window, chunk);
      } else {
        write_chunk(call, window, chunk);
      }
      report(window, chunk, call.layer, has_memory);
    }
    first = last;
  }
}

std::size_t CpuSession::window_end(const Call& call, std::span<const Chunk> chunks, std::size_t first) const {
  std::size_t last = first + 1;
  while (last < chunks.size() && chunks[last].end - chunks[first].begin <= window_rows_ &&
         (!call.bf16 ||
          packed_row({chunks.subspan(first), chunks[first].begin}, chunks[last]) + length(chunks[last]) <=
              packed_rows_)) {
    ++last;
  }
  return last;
}

void CpuSession::prepare_rows(const Call& call, const Window& window, const Chunk& chunk,
                              std::int64_t head_kv) {
  if (call.bf16) {
    pack_rows(call.layer, head_kv, chunk.begin, length(chunk), packed_row(window, chunk));
  } else {
    widen_window(window, call.layer, head_kv, chunk);
  }
}

void CpuSession::gather(const Call& call, std::int64_t head, Scratch& scratch) {
  const std::int32_t* positions = memory_.entries(call.layer, head);
  if (call.bf16) {
    gather_bf16_rows(call.layer, kv_head(head), positions, memory_.count(call.layer), scratch);
  } else {
    gather_rows(call.layer, kv_head(head), positions, memory_.count(call.layer), scratch);
  }
}

void CpuSession::whole_chunk(const Call& call, const Window& window, const Chunk& chunk, bool has_memory) {
  const std::int64_t heads = shape().n_head;
  const std::int64_t groups = groups_of(chunk);
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t head_kv = 0; head_kv < shape().n_head_kv; ++head_kv) {
      prepare_rows(call, window, chunk, head_kv);
    }
#pragma omp for schedule(static)
    for (std::int64_t head = 0; head < (has_memory ? heads : 0); ++head) {
      Scratch& scratch = thread_scratch();
      const StageClock clock(scratch.selection_seconds);
      memory_.build_head(call.layer, head, chunk.begin, scores_, scratch.order_keys.data(),
                         scratch.chosen.data());
    }
#pragma omp single
    if (has_memory) memory_.finish(call.layer, chunk.begin);
    // Consecutive tasks go to one thread, which gathers the rows of a head once.
    std::int64_t gathered = -1;
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < heads * groups; ++task) {
      const std::int64_t head = task / groups;
      if (has_memory && head != gathered) gather(call, head, thread_scratch());
      gathered = head;
      whole_group(call, window, chunk, head, task % groups, has_memory, thread_scratch());
    }
#pragma omp for schedule(static)
    for (std::int64_t head = 0; head < heads; ++head) {
      reduce_intra(window, chunk, call.layer, head);
      if (has_memory) reduce_inter(chunk, call.layer, head);
    }
  }
}

double* CpuSession::clear_intra_sums(const Window& window, const Chunk& chunk, std::int64_t head,
                                     std::int64_t group, std::int64_t end) {
  double* sums =
      intra_partials_.data() + (head * max_groups_ + group) * window_rows_ + (chunk.begin - window.begin);
  std::fill_n(sums, end - chunk.begin, 0.0);
  return sums;
}

double* CpuSession::clear_inter_sums(std::int64_t layer, std::int64_t head, std::int64_t group) {
  if (HEADWATER_SABOTAGE("cpu.colsum.shared_between_groups")) group /= 2;
  double* sums = inter_partials_.data() + (head * max_groups_ + group) * memory_.width();
  std::fill_n(sums, memory_.count(layer), 0.0);
  return sums;
}

CpuSession::PassResult CpuSession::intra_block(const Call& call, const Window& window, const Chunk& chunk,
                                               const BlockRows& rows, double* sums, float* out,
                                               Scratch& scratch) {
  // MASK-1: what the last row sees.
  const PassBlock block{
      rows.head, rows.row, rows.n, sink(rows.head), nullptr, chunk.begin, rows.row + rows.n - chunk.begin,
      sums,      out,      false,  rows.ahead};
  const std::int64_t head_kv = kv_head(rows.head);
  if (call.bf16) {
    return bf16_block(call, block, packed_rows(call.layer, head_kv, chunk.begin, packed_row(window, chunk)),
                      scratch);
  }
  return float_block(call, block, window_rows(window, call.layer, head_kv, chunk.begin), scratch);
}

CpuSession::PassResult CpuSession::inter_block(const Call& call, const BlockRows& rows, bool loaded,
                                               double* sums, Scratch& scratch) {
  // LOGIT-4: no sink in the inter pass.
  const PassBlock block{rows.head,
                        rows.row,
                        rows.n,
                        -std::numeric_limits<float>::infinity(),
                        memory_.entries(call.layer, rows.head),
                        0,
                        memory_.count(call.layer),
                        sums,
                        scratch.inter.data(),
                        loaded,
                        rows.ahead};
  if (call.bf16) return bf16_block(call, block, gathered_rows(scratch), scratch);
  return float_block(call, block, {scratch.keys.data(), scratch.values.data()}, scratch);
}

/// Both passes of the rows of a group, one after the other while their queries and outputs are in the cache. The
/// arithmetic is that of the two phases, and so are the bits (SCHED-2).
void CpuSession::whole_group(const Call& call, const Window& window, const Chunk& chunk, std::int64_t head,
                             std::int64_t group, bool has_memory, Scratch& scratch) {
  const std::int64_t begin = chunk.begin + group * group_rows(length(chunk));
  const std::int64_t end = std::min(begin + group_rows(length(chunk)), chunk.end);
  double* intra_sums = clear_intra_sums(window, chunk, head, group, end);
  double* inter_sums = has_memory ? clear_inter_sums(call.layer, head, group) : nullptr;
  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    BlockRows rows{head, row, std::min(kBlockRows, end - row)};
    RowsAhead ahead[] = {outputs_ahead(call, rows),
                         queries_ahead(call, head, row + rows.n, std::min(row + rows.n + kBlockRows, end))};
    if (call.bf16) rows.ahead = ahead;
    float max[kBlockRows];
    float sum[kBlockRows];
    float* out = scratch.intra.data();
    const PassResult intra = intra_block(call, window, chunk, rows, intra_sums, out, scratch);
    std::copy_n(intra.max, kBlockRows, max);
    std::copy_n(intra.sum, kBlockRows, sum);
    const PassResult kept{max, sum};
    // Floats, twice the bytes at half the rate, at once and behind the intra pass, or its keys push them out.
    if (!call.bf16) {
      for (const RowsAhead& all : ahead) ask_for_all(all);
    }
    if (has_memory) {
      const PassResult inter = inter_block(call, rows, true, inter_sums, scratch);
      join(call, chunk, rows, kept, out, inter, scratch.inter.data());
    } else {
      write_rows(call, chunk, rows, kept, out);
    }
  }
}

RowsAhead CpuSession::queries_ahead(const Call& call, std::int64_t head, std::int64_t begin,
                                    std::int64_t end) const {
  const auto element = static_cast<std::int64_t>(dtype_size(call.q.type));
  if (begin >= end) return {};
  return {static_cast<const unsigned char*>(core::row_address(call.q, begin - call.base, head)),
          call.q.row_stride * element, kv_.d_head() * element, end - begin};
}

RowsAhead CpuSession::outputs_ahead(const Call& call, const BlockRows& rows) const {
  const auto element = static_cast<std::int64_t>(dtype_size(call.out.type));
  return {static_cast<const unsigned char*>(core::row_address(call.out, rows.row - call.base, rows.head)),
          call.out.row_stride * element, kv_.d_value() * element, rows.n};
}

void CpuSession::join(const Call& call, const Chunk& chunk, const BlockRows& rows, const PassResult& intra,
                      const float* intra_out, const PassResult& inter, float* inter_out) {
  const std::int64_t dv = kv_.d_value();
  FusedRows fused;
  fuse(kernels_, call.natural_unit, intra, inter, rows.n, call.bf16, observed(), fused);
  keep_lse(chunk, rows, fused.lse);
  for (std::int64_t r = 0; r < rows.n; ++r) {
    // Straight to the caller where his rows are floats.
    float* o = inter_out + r * dv;
    float* direct = float_row(call, rows.row + r, rows.head);
    kernels_.blend(intra_out + r * dv, fused.intra_weight[r], o, fused.inter_weight[r], dv,
                   direct ? direct : o);
    if (!direct) store_row(call, rows.row + r, rows.head, o);
  }
}

void CpuSession::write_rows(const Call& call, const Chunk& chunk, const BlockRows& rows,
                            const PassResult& intra, float* out) {
  const std::int64_t dv = kv_.d_value();
  float nothing[kBlockRows];
  std::fill_n(nothing, kBlockRows, -std::numeric_limits<float>::infinity());
  const float no_sum[kBlockRows] = {};
  FusedRows fused;
  fuse(kernels_, call.natural_unit, intra, {nothing, no_sum}, rows.n, call.bf16, observed(), fused);
  keep_lse(chunk, rows, fused.lse);
  for (std::int64_t r = 0; r < rows.n; ++r) {
    float* o = out + r * dv;
    if (!call.bf16) {
      for (std::int64_t c = 0; c < dv; ++c) o[c] *= fused.intra_weight[r];
    }
    store_row(call, rows.row + r, rows.head, o);
  }
}

void CpuSession::keep_lse(const Chunk& chunk, const BlockRows& rows, const float* lse) {
  std::copy_n(lse, rows.n, lse_.data() + rows.head * window_rows_ + (rows.row - chunk.begin));
}

void CpuSession::intra_phase(const Call& call, const Window& window) {
  HEADWATER_MARK("cpu.sparse.two_phases");
  const std::int64_t heads = shape().n_head;
  const auto n_chunks = static_cast<std::int64_t>(window.chunks.size());
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < n_chunks * shape().n_head_kv; ++task) {
      const Chunk& chunk = window.chunks[static_cast<std::size_t>(task / shape().n_head_kv)];
      prepare_rows(call, window, chunk, task % shape().n_head_kv);
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
  double* sums = clear_intra_sums(window, chunk, head, group, end);
  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    const BlockRows rows{head, row, std::min(kBlockRows, end - row)};
    const std::int64_t at = window_index(window, head, row);
    const PassResult result = intra_block(call, window, chunk, rows, sums, scratch.intra.data(), scratch);
    std::copy_n(result.max, rows.n, row_max_.data() + at);
    std::copy_n(result.sum, rows.n, row_sum_.data() + at);
    std::copy_n(scratch.intra.data(), rows.n * dv, row_out_.data() + at * dv);
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
                                 block.out};
  if (!block.loaded) {
    load_queries(kernels_, call.q, block.row - call.base, block.rows, block.head, d, scratch.rows.data(),
                 scratch.packed.data());
  }
  attention.start(block.sink);
  for (std::int64_t first = 0; first < block.n_keys; first += segment_keys_) {
    const std::int64_t n = std::min(segment_keys_, block.n_keys - first);
    const std::int64_t narrow = HEADWATER_SABOTAGE("cpu.keys.offset_in_16_bits") ? 0xFFFF : -1;
    const float* keys = rows.keys + (first * d & narrow);
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
  attention.finish();
  for (std::int64_t first = 0; first < block.n_keys; first += segment_keys_) {
    const std::int64_t kept = HEADWATER_SABOTAGE("cpu.colsum.maximum_of_four_segments") ? 3 : -1;
    attention.add_column_sums(scratch.block.data() + first * kBlockRows,
                              scratch.segment_max.data() + (first / segment_keys_ & kept) * kBlockRows,
                              std::min(segment_keys_, block.n_keys - first), block.sums + first);
  }
  return {attention.state.max, attention.state.sum};
}

void CpuSession::reduce_intra(const Window& window, const Chunk& chunk, std::int64_t layer,
                              std::int64_t head) {
  const StageClock clock(thread_scratch().selection_seconds);
  const std::int64_t rows = group_rows(length(chunk));
  const double* partials = intra_partials_.data() + head * max_groups_ * window_rows_;
  float* sums = colsum_intra_.data() + window_index(window, head, chunk.begin);
  std::int64_t groups = groups_of(chunk);
  if (HEADWATER_SABOTAGE("cpu.colsum.groups_beyond_6")) groups = std::min<std::int64_t>(groups, 6);
  for (std::int64_t first = 0; first < length(chunk); first += rows) {  // keys that the same groups saw
    add_up(partials + (chunk.begin - window.begin) + first, window_rows_, first / rows, groups,
           std::min(rows, length(chunk) - first), sums + first);
  }
  scores_.initialise(layer, head, chunk.begin, length(chunk), sums);
}

void CpuSession::write_chunk(const Call& call, const Window& window, const Chunk& chunk) {
#pragma omp parallel for schedule(static) num_threads(threads_)
  for (std::int64_t row = chunk.begin; row < chunk.end; ++row) {
    for (std::int64_t head = 0; head < shape().n_head; ++head) {
      const std::int64_t at = window_index(window, head, row);
      write_rows(call, chunk, {head, row, 1}, window_result(at), row_out_.data() + at * kv_.d_value());
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
      const StageClock clock(scratch.selection_seconds);
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
      if (head != gathered) gather(call, head, thread_scratch());
      gathered = head;
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
  double* sums = clear_inter_sums(call.layer, head, group);
  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    const BlockRows rows{head, row, std::min(kBlockRows, end - row)};
    const std::int64_t at = window_index(window, head, row);
    const PassResult inter = inter_block(call, rows, false, sums, scratch);
    join(call, chunk, rows, window_result(at), row_out_.data() + at * dv, inter, scratch.inter.data());
  }
}

CpuSession::PassResult CpuSession::window_result(std::int64_t at) const {
  return {row_max_.data() + at, row_sum_.data() + at};
}

float* CpuSession::float_row(const Call& call, std::int64_t position, std::int64_t head) const {
  void* row = core::row_address(call.out, position - call.base, head);
  if (call.out.type != DType::f32 || reinterpret_cast<std::uintptr_t>(row) % alignof(float) != 0)
    return nullptr;
  return static_cast<float*>(row);
}

void CpuSession::reduce_inter(const Chunk& chunk, std::int64_t layer, std::int64_t head) {
  const StageClock clock(thread_scratch().selection_seconds);
  const std::int64_t n_memory = memory_.count(layer);
  const double* partials = inter_partials_.data() + head * max_groups_ * memory_.width();
  float* sums = colsum_inter_.data() + head * memory_.width();
  add_up(partials, memory_.width(), 0, groups_of(chunk), n_memory, sums);
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
