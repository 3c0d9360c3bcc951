#include "cpu/pass/sparse.hpp"

#include <algorithm>

#include "cpu/pass/stage_clock.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

/// Rows of a layer-major window: the default batch. More rows need more intra state and win no parallelism.
constexpr std::int64_t kWindowRows = 4096;

/// Whole heads are dealt out: enough of them, or equal shares. Else the chunks of a window share the threads, too.
bool heads_fill_threads(const Shape& shape, const EffectiveOptions& options) {
  return options.schedule == Schedule::chunk_major || shape.n_head % options.threads == 0 ||
         shape.n_head >= 4 * std::int64_t{options.threads};
}

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

}  // namespace

std::int64_t group_rows(std::int64_t n) {
  const std::int64_t share = (n + kMaxGroups - 1) / kMaxGroups;
  const std::int64_t blocks = (share + kBlockRows - 1) / kBlockRows;
  return std::max(kGroupRows, blocks * kBlockRows);
}

std::int64_t SparsePass::most_window_rows(const Shape& shape, const EffectiveOptions& options) {
  const std::int64_t chunk = std::min(options.chunk, shape.capacity);
  if (heads_fill_threads(shape, options)) return chunk;
  return std::max(chunk, std::min({options.batch, shape.capacity, kWindowRows}));
}

SparsePass::Scratch::Scratch(const SessionData& data)
    : order_keys(data.shape.capacity), chosen(data.state->memory.width()) {}

std::int64_t SparsePass::Scratch::bytes() const { return order_keys.bytes() + chosen.bytes(); }

SparsePass::SparsePass(SessionData& data)
    : data_(data),
      one_pass_(heads_fill_threads(data.shape, data.options)),
      window_rows_(most_window_rows(data.shape, data.options)),
      max_groups_(std::min(kMaxGroups, (data.most_chunk_rows() + kGroupRows - 1) / kGroupRows)),
      blocks_(data, window_rows_) {
  const std::int64_t heads = data.shape.n_head;
  const std::int64_t width = data.state->memory.width();
  const std::int64_t rows = core::checked_product(heads, window_rows_);
  colsum_inter_ = core::Buffer<float>(core::checked_product(heads, width));
  inter_partials_ = core::Buffer<double>(core::checked_product(heads, max_groups_, width));
  colsum_intra_ = core::Buffer<float>(rows);
  intra_partials_ = core::Buffer<double>(core::checked_product(rows, max_groups_));
  if (!one_pass_) {
    row_max_ = core::Buffer<float>(rows);
    row_sum_ = core::Buffer<float>(rows);
    row_out_ = core::Buffer<float>(core::checked_product(rows, data.widest.d_value));
  }
  colsum_inter_.fill(0.0f);
  scratch_.reserve(static_cast<std::size_t>(data.options.threads));
  for (int t = 0; t < data.options.threads; ++t) scratch_.emplace_back(data);
}

std::int64_t SparsePass::bytes() const {
  std::int64_t bytes = inter_partials_.bytes() + colsum_intra_.bytes() + intra_partials_.bytes() +
                       row_max_.bytes() + row_sum_.bytes() + row_out_.bytes() + blocks_.bytes();
  for (const Scratch& scratch : scratch_) bytes += scratch.bytes();
  return bytes;
}

double SparsePass::selection_seconds() const {
  double all = 0;
  for (const Scratch& scratch : scratch_) all += scratch.selection_seconds;
  return all / static_cast<double>(data_.options.threads);
}

void SparsePass::forget() {
  for (Scratch& scratch : scratch_) scratch.selection_seconds = 0;
  colsum_inter_.fill(0.0f);
}

void SparsePass::run(const LayerCall& call) {
  for (std::size_t first = 0; first < call.chunks.size();) {
    const std::size_t last = one_pass_ ? first + 1 : window_end(call, first);
    const Window window{call.chunks.subspan(first, last - first), call.chunks[first].begin};
    if (!one_pass_) intra_phase(call, window);
    for (const Chunk& chunk : window.chunks) {
      const bool has_memory = chunk.begin > 0;  // MEM-5: tokens before it, hence a set
      // What an observer is shown after memory_count is 0, not the sums of the layer before.
      if (!has_memory) std::fill_n(colsum_inter_.data(), colsum_inter_.size(), 0.0f);
      if (one_pass_) {
        whole_chunk(call, window, chunk, has_memory);
      } else if (has_memory) {
        inter_phase(call, window, chunk);
      } else {
        write_chunk(call, window, chunk);
      }
      report(call, window, chunk, has_memory);
    }
    first = last;
  }
}

std::size_t SparsePass::window_end(const LayerCall& call, std::size_t first) const {
  const std::int64_t begin = call.chunks[first].begin;
  std::size_t last = first + 1;
  while (last < call.chunks.size() && call.chunks[last].end - begin <= window_rows_ &&
         call.arithmetic.fits({call.chunks.subspan(first, last + 1 - first), begin})) {
    ++last;
  }
  return last;
}

SparsePass::Group SparsePass::group_of(const Chunk& chunk, std::int64_t head, std::int64_t index) const {
  const std::int64_t rows = group_rows(length(chunk));
  const std::int64_t begin = chunk.begin + index * rows;
  return {head, index, begin, std::min(begin + rows, chunk.end)};
}

void SparsePass::whole_chunk(const LayerCall& call, const Window& window, const Chunk& chunk,
                             bool has_memory) {
  const std::int64_t heads = data_.shape.n_head;
  const std::int64_t groups = groups_of(chunk);
  Workers& workers = data_.workers;
  workers.each(data_.shape.n_head_kv, [&](const Workers::Task& task) {
    call.arithmetic.prepare_chunk(call.layer, window, chunk, task.index);
  });
  if (has_memory) build_sets(call, chunk);
  // Consecutive tasks go to one thread, which gathers the rows of a head once.
  workers.each(heads * groups, [&](const Workers::Task& task) {
    const std::int64_t head = task.index / groups;
    const std::int64_t index = task.index % groups;
    if (has_memory && (task.first || index == 0)) gather(call, head, task.thread);
    whole_group(call, window, chunk, group_of(chunk, head, index), has_memory, task.thread);
  });
  workers.each(heads, [&](const Workers::Task& task) {
    reduce_intra(call, window, chunk, task.index, task.thread);
    if (has_memory) reduce_inter(call, chunk, task.index, task.thread);
  });
}

/// The arithmetic is that of the two phases, and so are the bits (SCHED-2).
void SparsePass::whole_group(const LayerCall& call, const Window& window, const Chunk& chunk,
                             const Group& group, bool has_memory, int thread) {
  double* intra_sums = clear_intra_sums(window, chunk, group);
  double* inter_sums = has_memory ? clear_inter_sums(call.layer, group) : nullptr;
  const GatheredSet set = set_of(call.layer, group.head);
  for (std::int64_t row = group.begin; row < group.end; row += kBlockRows) {
    const BlockRows rows{group.head, row, std::min(kBlockRows, group.end - row)};
    blocks_.attend_with_sums(call, window, chunk, rows, group.end, has_memory ? &set : nullptr, intra_sums,
                             inter_sums, thread);
  }
}

void SparsePass::intra_phase(const LayerCall& call, const Window& window) {
  HEADWATER_MARK("cpu.sparse.two_phases");
  const std::int64_t heads = data_.shape.n_head;
  const std::int64_t heads_kv = data_.shape.n_head_kv;
  const auto n_chunks = static_cast<std::int64_t>(window.chunks.size());
  Workers& workers = data_.workers;
  workers.each(n_chunks * heads_kv, [&](const Workers::Task& task) {
    const Chunk& chunk = window.chunks[static_cast<std::size_t>(task.index / heads_kv)];
    call.arithmetic.prepare_chunk(call.layer, window, chunk, task.index % heads_kv);
  });
  // Late groups of a chunk see more of it; every other head is dealt out in the opposite order, so that the
  // shares of the threads even out.
  workers.each_in_turn(n_chunks * heads * kMaxGroups, [&](const Workers::Task& task) {
    const Chunk& chunk = window.chunks[static_cast<std::size_t>(task.index / (heads * kMaxGroups))];
    const std::int64_t head = task.index / kMaxGroups % heads;
    const std::int64_t slot = task.index % kMaxGroups;
    const std::int64_t index = head % 2 == 0 ? slot : kMaxGroups - 1 - slot;
    if (index >= groups_of(chunk)) return;
    intra_group(call, window, chunk, group_of(chunk, head, index), task.thread);
  });
  workers.each(n_chunks * heads, [&](const Workers::Task& task) {
    const Chunk& chunk = window.chunks[static_cast<std::size_t>(task.index / heads)];
    reduce_intra(call, window, chunk, task.index % heads, task.thread);
  });
}

void SparsePass::intra_group(const LayerCall& call, const Window& window, const Chunk& chunk,
                             const Group& group, int thread) {
  const std::int64_t dv = data_.shape.d_value;
  double* sums = clear_intra_sums(window, chunk, group);
  for (std::int64_t row = group.begin; row < group.end; row += kBlockRows) {
    const BlockRows rows{group.head, row, std::min(kBlockRows, group.end - row)};
    const std::int64_t at = window_index(window, group.head, row);
    float* out = blocks_.intra_out(thread);
    const BlockResult result = blocks_.intra(call, window, chunk, rows, {}, sums, out, thread);
    std::copy_n(result.max, rows.n, row_max_.data() + at);
    std::copy_n(result.sum, rows.n, row_sum_.data() + at);
    std::copy_n(out, rows.n * dv, row_out_.data() + at * dv);
  }
}

void SparsePass::inter_phase(const LayerCall& call, const Window& window, const Chunk& chunk) {
  const std::int64_t heads = data_.shape.n_head;
  const std::int64_t groups = groups_of(chunk);
  Workers& workers = data_.workers;
  build_sets(call, chunk);
  // Consecutive tasks go to one thread, which gathers the rows of a head once.
  workers.each(heads * groups, [&](const Workers::Task& task) {
    const std::int64_t head = task.index / groups;
    const std::int64_t index = task.index % groups;
    if (task.first || index == 0) gather(call, head, task.thread);
    inter_group(call, window, chunk, group_of(chunk, head, index), task.thread);
  });
  workers.each(heads, [&](const Workers::Task& task) { reduce_inter(call, chunk, task.index, task.thread); });
}

void SparsePass::inter_group(const LayerCall& call, const Window& window, const Chunk& chunk,
                             const Group& group, int thread) {
  const std::int64_t dv = data_.shape.d_value;
  double* sums = clear_inter_sums(call.layer, group);
  for (std::int64_t row = group.begin; row < group.end; row += kBlockRows) {
    const BlockRows rows{group.head, row, std::min(kBlockRows, group.end - row)};
    const std::int64_t at = window_index(window, group.head, row);
    const BlockResult inter =
        blocks_.inter(call, window, chunk, rows, set_of(call.layer, group.head), false, sums, thread);
    blocks_.join(call, chunk, rows, window_result(at), row_out_.data() + at * dv, inter, thread);
  }
}

void SparsePass::write_chunk(const LayerCall& call, const Window& window, const Chunk& chunk) {
  data_.workers.each(
      length(chunk),
      [&](const Workers::Task& task) {
        const std::int64_t row = chunk.begin + task.index;
        for (std::int64_t head = 0; head < data_.shape.n_head; ++head) {
          const std::int64_t at = window_index(window, head, row);
          blocks_.write(call, chunk, {head, row, 1}, window_result(at),
                        row_out_.data() + at * data_.shape.d_value);
        }
      },
      Workers::Asks::at_start);
}

void SparsePass::build_sets(const LayerCall& call, const Chunk& chunk) {
  data_.workers.each(data_.shape.n_head, [&](const Workers::Task& task) {
    Scratch& scratch = of(task.thread);
    const StageClock clock(scratch.selection_seconds);
    data_.state->undo->keep_set(call.layer, task.index, chunk.begin);
    data_.state->memory.build_head(call.layer, task.index, chunk.begin, data_.state->scores,
                                   scratch.order_keys.data(), scratch.chosen.data());
    data_.state->undo->keep_scores(call.layer, task.index, chunk.begin);
  });
  data_.state->memory.finish(call.layer, chunk.begin);
}

void SparsePass::gather(const LayerCall& call, std::int64_t head, int thread) {
  call.arithmetic.gather(call.layer, data_.kv_head(head), data_.state->memory.entries(call.layer, head),
                         data_.state->memory.count(call.layer), thread);
}

double* SparsePass::clear_intra_sums(const Window& window, const Chunk& chunk, const Group& group) {
  double* sums = intra_partials_.data() + (group.head * max_groups_ + group.index) * window_rows_ +
                 (chunk.begin - window.begin);
  std::fill_n(sums, group.end - chunk.begin, 0.0);
  return sums;
}

double* SparsePass::clear_inter_sums(std::int64_t layer, const Group& group) {
  const std::int64_t index =
      HEADWATER_SABOTAGE("cpu.colsum.shared_between_groups") ? group.index / 2 : group.index;
  double* sums = inter_partials_.data() + (group.head * max_groups_ + index) * data_.state->memory.width();
  std::fill_n(sums, data_.state->memory.count(layer), 0.0);
  return sums;
}

void SparsePass::reduce_intra(const LayerCall& call, const Window& window, const Chunk& chunk,
                              std::int64_t head, int thread) {
  const StageClock clock(of(thread).selection_seconds);
  const std::int64_t rows = group_rows(length(chunk));
  const double* partials = intra_partials_.data() + head * max_groups_ * window_rows_;
  float* sums = colsum_intra_.data() + window_index(window, head, chunk.begin);
  std::int64_t groups = groups_of(chunk);
  if (HEADWATER_SABOTAGE("cpu.colsum.groups_beyond_6")) groups = std::min<std::int64_t>(groups, 6);
  for (std::int64_t first = 0; first < length(chunk); first += rows) {  // keys that the same groups saw
    add_up(partials + (chunk.begin - window.begin) + first, window_rows_, first / rows, groups,
           std::min(rows, length(chunk) - first), sums + first);
  }
  data_.state->scores.initialise(call.layer, head, chunk.begin, length(chunk), sums);
}

void SparsePass::reduce_inter(const LayerCall& call, const Chunk& chunk, std::int64_t head, int thread) {
  const StageClock clock(of(thread).selection_seconds);
  const core::MemorySets& memory = data_.state->memory;
  const std::int64_t n_memory = memory.count(call.layer);
  const double* partials = inter_partials_.data() + head * max_groups_ * memory.width();
  float* sums = colsum_inter_.data() + head * memory.width();
  add_up(partials, memory.width(), 0, groups_of(chunk), n_memory, sums);
  std::fill(sums + n_memory, sums + memory.width(), 0.0f);
  data_.state->scores.accumulate(call.layer, head, memory.entries(call.layer, head), n_memory, sums);
}

void SparsePass::report(const LayerCall& call, const Window& window, const Chunk& chunk,
                        bool has_memory) const {
  if (!call.observer) return;
  ChunkRecord record;
  record.layer = call.layer;
  record.chunk = chunk;
  record.memory_count = has_memory ? data_.state->memory.count(call.layer) : 0;
  record.memory_stride = data_.state->memory.width();
  record.memory = data_.state->memory.entries(call.layer, 0);
  record.colsum_inter = colsum_inter_.data();
  record.row_stride = window_rows_;
  record.colsum_intra = colsum_intra_.data() + (chunk.begin - window.begin);
  record.lse = blocks_.lse();
  call.observer(record);
}

}  // namespace headwater::cpu
