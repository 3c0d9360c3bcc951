#include <algorithm>

#include "cuda/cuda_session.hpp"
#include "cuda/kernels/gather.hpp"
#include "cuda/kernels/store_rows.hpp"
#include "cuda/tuning.hpp"
#include "headwater/testing/sabotage.hpp"

/// The launches of a layer, in the order of the spec.
namespace headwater::cuda {

namespace {

std::int64_t pieces(std::int64_t total, std::int64_t size) { return (total + size - 1) / size; }

Grid grid(std::int64_t x, std::int64_t y, std::int64_t z) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

}  // namespace

StoredRows CudaSession::stored_keys(std::int64_t layer) const {
  return {keys_ + layer * shape().n_head_kv * shape().capacity * key_width_ * element_bytes_,
          shape().capacity * key_width_, shape().kv_type, static_cast<int>(key_width_)};
}

StoredRows CudaSession::stored_values(std::int64_t layer) const {
  return {values_ + layer * shape().n_head_kv * shape().capacity * value_width_ * element_bytes_,
          shape().capacity * value_width_, shape().kv_type, static_cast<int>(value_width_)};
}

std::int32_t* CudaSession::sets(std::int64_t layer) const {
  return sets_ + layer * shape().n_head * set_width_;
}

void CudaSession::store_rows(const Window& window, const InputRows& k, const InputRows& v) {
  const std::int64_t n = window.end - window.begin;
  StoreRowsParams params{};
  params.k = k;
  params.v = v;
  params.keys = const_cast<void*>(stored_keys(window.layer).data.raw());
  params.values = const_cast<void*>(stored_values(window.layer).data.raw());
  params.scores = score_row(window.layer);
  params.score_bytes = static_cast<int>(score_bytes_);
  params.type = shape().kv_type;
  params.d = static_cast<int>(shape().d_head);
  params.dv = static_cast<int>(shape().d_value);
  params.key_width = static_cast<int>(key_width_);
  params.value_width = static_cast<int>(value_width_);
  params.heads = static_cast<int>(shape().n_head);
  params.heads_kv = static_cast<int>(shape().n_head_kv);
  params.capacity = shape().capacity;
  params.position = window.begin;
  params.n = static_cast<int>(n);
  const Choice kernel = dispatch_.only(Stage::store_rows);
  launches_->launch(WindowLaunches::store(), kernel,
                    grid(2 * shape().n_head_kv + shape().n_head, pieces(n, kStoreTokens), 1), params);
}

PassGeometry CudaSession::geometry(const Window& window, std::int64_t begin, std::int64_t end) const {
  PassGeometry at{};
  at.base = window.begin;
  at.begin = begin;
  at.end = end;
  at.chunk = end - begin;
  at.heads = static_cast<int>(shape().n_head);
  at.group = static_cast<int>(group_);
  return at;
}

ForwardParams CudaSession::forward_params(const Window& window, std::int64_t begin, std::int64_t end) const {
  ForwardParams params{};
  params.q = window.q;
  params.keys = stored_keys(window.layer);
  params.values = stored_values(window.layer);
  params.rule = rule_;
  params.at = geometry(window, begin, end);
  params.d = static_cast<int>(shape().d_head);
  params.dv = static_cast<int>(shape().d_value);
  params.rows_per_token = 1;
  params.out = window.out;
  params.lse = window.observed ? lse_ : nullptr;
  params.lse_stride = window_rows_;
  return params;
}

ColumnSumsParams CudaSession::column_sums_params(const Window& window, std::int64_t begin,
                                                 std::int64_t end) const {
  ColumnSumsParams params{};
  params.q = window.q;
  params.keys = stored_keys(window.layer);
  params.rule = rule_;
  params.at = geometry(window, begin, end);
  params.d = static_cast<int>(shape().d_head);
  params.scores = score_row(window.layer);
  params.scores_bf16 = options().score_type == ScoreType::bf16;
  params.capacity = shape().capacity;
  return params;
}

void CudaSession::launch_forward(WindowLaunches::Place place, const ForwardParams& params, std::int64_t parts,
                                 std::int64_t rows, DType unit) {
  const Choice kernel = dispatch_.forward(unit, shape().d_head, shape().d_value, rows);
  ForwardParams sliced = params;
  sliced.value_slices = static_cast<int>(pieces(shape().d_value, kernel.entry->dv));
  launches_->launch(place, kernel,
                    grid(shape().n_head / params.rows_per_token, pieces(rows, kernel.entry->rows),
                         parts * sliced.value_slices),
                    sliced);
}

void CudaSession::launch_column_sums(WindowLaunches::Place place, const ColumnSumsParams& params,
                                     std::int64_t chunks, std::int64_t keys, DType unit) {
  const Choice kernel = dispatch_.column_sums(unit, shape().d_head, keys);
  launches_->launch(place, kernel, grid(shape().n_head, pieces(keys, kernel.entry->rows), chunks), params);
}

void CudaSession::run_dense(const Window& window) {
  HEADWATER_MARK("cuda.dense");
  ForwardParams params = forward_params(window, window.begin, window.end);
  params.at.range = KeyRange::all;
  launch_forward(WindowLaunches::dense_forward(), params, 1, window.end - window.begin, window.unit);
}

bool CudaSession::splits_decode(std::int64_t n) const { return n <= decode_tokens_; }

void CudaSession::run_decode(const Window& window) {
  const std::int64_t n = window.end - window.begin;
  ForwardParams params = forward_params(window, window.begin, window.end);
  params.at.range = KeyRange::all;
  params.rows_per_token = static_cast<int>(group_);
  // Equal splits of whole tiles: a function of the context alone.
  const std::int64_t split_keys =
      pieces(std::max(pieces(window.end, kMaxSplits), kSplitKeys), kSliceWidth) * kSliceWidth;
  const std::int64_t splits = pieces(window.end, split_keys);
  if (splits == 1) {
    launch_forward(WindowLaunches::dense_forward(), params, 1, n * group_, window.unit);
    return;
  }
  HEADWATER_MARK("cuda.decode.split");
  params.split_keys = split_keys;
  params.state = parts_;
  params.state.base = window.begin;
  params.lse = nullptr;
  launch_forward(WindowLaunches::dense_forward(), params, splits, n * group_, window.unit);

  CombineParams combine{};
  combine.parts = params.state;
  combine.splits = static_cast<int>(splits);
  combine.heads = static_cast<int>(shape().n_head);
  combine.dv = static_cast<int>(shape().d_value);
  combine.base = window.begin;
  combine.begin = window.begin;
  combine.end = window.end;
  combine.out = window.out;
  combine.lse = window.observed ? lse_ : nullptr;
  combine.lse_stride = window_rows_;
  const Choice kernel = dispatch_.only(Stage::combine);
  launches_->launch(WindowLaunches::combine(), kernel, grid(shape().n_head, n, 1), combine);
}

void CudaSession::run_sparse(const Window& window, std::span<const Chunk> chunks) {
  launches_->after_store();
  const auto count = static_cast<std::int64_t>(chunks.size());
  for (std::int64_t group = 0; group < launches_->groups(count); ++group) {
    intra_phase(window, group);
    launches_->after_group(group);
  }
  for (std::int64_t index = 0; index < count; ++index) {
    const Chunk& chunk = chunks[static_cast<std::size_t>(index)];
    launches_->before_select(index);
    if (chunk.begin > 0) build_memory(window, chunk, index);
    launches_->after_gather();
    if (chunk.begin > 0) inter_scores(window, chunk, index);
    launches_->before_output(index);
    if (chunk.begin > 0) inter_output(window, chunk, index);
    launches_->after_output(index);
    if (!window.observed) continue;
    launches_->join(index);
    report_sparse(window, chunk);
  }
  launches_->join(count - 1);
}

void CudaSession::intra_phase(const Window& window, std::int64_t group) {
  const std::int64_t chunk = options().chunk;
  const std::int64_t group_rows = launches_->together() * chunk;
  std::int64_t begin = window.begin + group * group_rows;
  const std::int64_t end = std::min(window.end, begin + group_rows);
  std::int64_t part = 0;
  const auto places = [&] { return launches_->intra(group, part); };
  if (begin == 0 && (on_sm90(PathStage::dense, window) || on_sm90(PathStage::intra, window))) {
    // A prompt of one chunk has the bits of dense attention: both go the same way.
    const std::int64_t first = std::min(chunk, end);
    if (!on_sm90(PathStage::dense) || !sm90_intra(PathStage::dense, places(), window, 0, first, first)) {
      portable_intra(places(), window, 0, first);
    }
    begin = first;
    ++part;
  }
  if (on_sm90(PathStage::intra, window)) {
    const std::int64_t full = begin + (end - begin) / chunk * chunk;
    if (begin < full && sm90_intra(PathStage::intra, places(), window, begin, full, chunk)) {
      begin = full;
      ++part;
    }
    if (begin == full && full < end &&
        sm90_intra(PathStage::intra, places(), window, full, end, end - full)) {
      begin = end;
    }
  }
  if (begin < end) portable_intra(places(), window, begin, end);
}

void CudaSession::portable_intra(const WindowLaunches::IntraPlaces& places, const Window& window,
                                 std::int64_t begin, std::int64_t end) {
  const std::int64_t chunk = options().chunk;
  const std::int64_t chunks = pieces(end - begin, chunk);
  const std::int64_t rows = std::min(chunk, end - begin);
  ForwardParams forward = forward_params(window, begin, end);
  forward.at.range = KeyRange::chunk;
  forward.at.chunk = chunk;
  forward.state = intra_;
  forward.state.base = window.begin;
  launch_forward(places.forward, forward, chunks, rows, window.unit);

  ColumnSumsParams columns = column_sums_params(window, begin, end);
  columns.at = forward.at;
  columns.state = forward.state;
  columns.sums = colsum_intra_;
  columns.sums_stride = window_rows_;
  columns.sums_base = window.begin;
  launch_column_sums(places.column_sums, columns, chunks, rows, window.unit);
}

void CudaSession::build_memory(const Window& window, const Chunk& chunk, std::int64_t index) {
  SetState& state = set_states_[static_cast<std::size_t>(window.layer)];
  const std::int64_t end = chunk.begin;
  const std::int64_t local_begin = std::max<std::int64_t>(0, end - options().local);  // MEM-1
  // MEM-2: what the previous set holds before Local (its own Local ended at built_at), then the tokens since.
  const std::int64_t kept = state.count - std::max<std::int64_t>(0, state.built_at - local_begin);
  const std::int64_t since = std::min(state.built_at, local_begin);
  const std::int64_t candidates = kept + local_begin - since;
  const std::int64_t heavy = std::min(options().heavy, candidates);

  SelectParams select{};
  select.sets = sets(window.layer);
  select.scratch = set_scratch_;
  select.scores = score_row(window.layer);
  select.scores_bf16 = options().score_type == ScoreType::bf16;
  select.capacity = shape().capacity;
  select.width = static_cast<int>(set_width_);
  select.kept = static_cast<int>(kept);
  select.since = static_cast<int>(since);
  select.candidates = static_cast<int>(candidates);
  select.heavy = static_cast<int>(heavy);
  select.local_begin = static_cast<int>(local_begin);
  select.end = static_cast<int>(end);
  if (HEADWATER_SABOTAGE("cuda.memory.local_one_late") && local_begin > 0) {
    --select.local_begin;
    --select.end;
  }
  const Choice selection = dispatch_.select(candidates);
  launches_->launch(launches_->select(index), selection, grid(shape().n_head, 1, 1), select);
  state = {heavy + end - local_begin, end};

  launches_->before_gather(index);
  if (HEADWATER_SABOTAGE("cuda.gather.stale") && chunk.begin > options().chunk) return;
  GatherParams gather{};
  gather.keys = stored_keys(window.layer);
  gather.values = stored_values(window.layer);
  const GatheredRows to = gathered_rows(index);
  gather.gathered_keys = to.keys;
  gather.gathered_values = to.values;
  gather.gathered_positions = to.positions;
  gather.positions = sets(window.layer);
  gather.positions_stride = set_width_;
  gather.entries = set_width_;
  gather.count = static_cast<int>(state.count);
  gather.group = static_cast<int>(group_);
  gather.element_bytes = static_cast<int>(element_bytes_);
  const Choice copying = dispatch_.only(Stage::gather);
  launches_->launch(launches_->gather(index), copying,
                    grid(shape().n_head, std::min(pieces(state.count, kGatherEntries), kMaxGrid), 1), gather);
}

CudaSession::GatheredRows CudaSession::gathered_rows(std::int64_t index) const {
  const std::int64_t entries = launches_->slot(index) * shape().n_head * set_width_;
  return {gathered_keys_ + entries * key_width_ * element_bytes_,
          gathered_values_ + entries * value_width_ * element_bytes_, gathered_positions_ + entries};
}

StoredRows CudaSession::gathered_keys(std::int64_t index) const {
  return {gathered_rows(index).keys, set_width_ * key_width_, shape().kv_type, static_cast<int>(key_width_)};
}

StoredRows CudaSession::gathered_values(std::int64_t index) const {
  return {gathered_rows(index).values, set_width_ * value_width_, shape().kv_type,
          static_cast<int>(value_width_)};
}

/// A chunk's rows over its memory set, by query head.
ForwardParams CudaSession::inter_params(const Window& window, const Chunk& chunk, std::int64_t index) const {
  ForwardParams params = forward_params(window, chunk.begin, chunk.end);
  params.at.range = KeyRange::memory;
  params.at.group = 1;
  params.at.memory = static_cast<int>(set_states_[static_cast<std::size_t>(window.layer)].count);
  params.at.positions = gathered_rows(index).positions;
  params.at.positions_stride = set_width_;
  params.keys = gathered_keys(index);
  params.values = gathered_values(index);
  return params;
}

void CudaSession::inter_scores(const Window& window, const Chunk& chunk, std::int64_t index) {
  if (on_sm90(PathStage::score, window) && sm90_score(window, chunk, index)) return;
  ForwardParams softmax = inter_params(window, chunk, index);
  softmax.state = inter_;
  softmax.state.base = window.begin;
  softmax.value_slices = 1;
  softmax.lse = nullptr;
  const std::int64_t rows = chunk.end - chunk.begin;
  const Choice kernel = dispatch_.softmax(window.unit, shape().d_head, shape().d_value, rows);
  launches_->launch(launches_->inter_softmax(index), kernel,
                    grid(shape().n_head, pieces(rows, kernel.entry->rows), 1), softmax);

  ColumnSumsParams columns = column_sums_params(window, chunk.begin, chunk.end);
  columns.at = softmax.at;
  columns.keys = softmax.keys;
  columns.state = softmax.state;
  columns.sums = colsum_inter_;
  columns.sums_stride = set_width_;
  launch_column_sums(launches_->inter_column_sums(index), columns, 1, softmax.at.memory, window.unit);
}

void CudaSession::inter_output(const Window& window, const Chunk& chunk, std::int64_t index) {
  if (on_sm90(PathStage::output, window) && sm90_output(window, chunk, index)) return;
  ForwardParams forward = inter_params(window, chunk, index);
  forward.fused = intra_;
  forward.fused.base = window.begin;
  launch_forward(launches_->inter_output(index), forward, 1, chunk.end - chunk.begin, window.unit);
}

}  // namespace headwater::cuda
