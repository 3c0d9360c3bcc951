#include "cuda/path/sm80.hpp"

#include <algorithm>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

ForwardParams Sm80Path::forward_params(const Window& window, std::int64_t begin, std::int64_t end) const {
  ForwardParams params{};
  params.q = window.q;
  params.keys = data_.keys(window.layer);
  params.values = data_.values(window.layer);
  params.rule = data_.rule;
  params.at.base = window.begin;
  params.at.begin = begin;
  params.at.end = end;
  params.at.chunk = end - begin;
  params.at.heads = static_cast<int>(data_.shape.n_head);
  params.at.group = static_cast<int>(data_.group);
  params.d = static_cast<int>(data_.shape.d_head);
  params.dv = static_cast<int>(data_.shape.d_value);
  params.rows_per_token = 1;
  params.out = window.out;
  params.lse = window.observed() ? data_.lse : nullptr;
  params.lse_stride = data_.window_rows;
  return params;
}

/// Of the queries and keys of a forward pass, by its m and l.
ColumnSumsParams Sm80Path::column_sums_params(const Window& window, const ForwardParams& pass) const {
  ColumnSumsParams params{};
  params.q = pass.q;
  params.keys = pass.keys;
  params.rule = pass.rule;
  params.at = pass.at;
  params.state = pass.state;
  params.d = pass.d;
  params.scores = data_.scores(window.layer);
  params.scores_bf16 = data_.scores_bf16();
  params.capacity = data_.shape.capacity;
  return params;
}

void Sm80Path::launch_forward(const Window& window, WindowLaunches::Place place, const ForwardParams& params,
                              std::int64_t parts, std::int64_t rows) const {
  const Shape& shape = data_.shape;
  const Choice kernel = data_.dispatch.forward(window.unit, shape.d_head, shape.d_value, rows);
  ForwardParams sliced = params;
  sliced.value_slices = static_cast<int>(pieces(shape.d_value, kernel.entry->dv));
  window.launches.launch(place, kernel,
                         grid(shape.n_head / params.rows_per_token, pieces(rows, kernel.entry->rows),
                              parts * sliced.value_slices),
                         sliced);
}

void Sm80Path::launch_column_sums(const Window& window, WindowLaunches::Place place,
                                  const ColumnSumsParams& params, std::int64_t chunks,
                                  std::int64_t keys) const {
  const Choice kernel = data_.dispatch.column_sums(window.unit, data_.shape.d_head, keys);
  window.launches.launch(place, kernel, grid(data_.shape.n_head, pieces(keys, kernel.entry->rows), chunks),
                         params);
}

void Sm80Path::intra(const Window& window, const SparseStores& stores, std::int64_t group, std::int64_t begin,
                     std::int64_t end) {
  intra(window, stores, window.launches.intra(group, 0), begin, end);
}

void Sm80Path::intra(const Window& window, const SparseStores& stores,
                     const WindowLaunches::IntraPlaces& places, std::int64_t begin, std::int64_t end) const {
  const std::int64_t chunk = data_.options.chunk;
  const std::int64_t chunks = pieces(end - begin, chunk);
  const std::int64_t rows = std::min(chunk, end - begin);
  ForwardParams forward = forward_params(window, begin, end);
  forward.at.range = KeyRange::chunk;
  forward.at.chunk = chunk;
  forward.state = stores.intra;
  forward.state.base = window.begin;
  launch_forward(window, places.forward, forward, chunks, rows);

  if (stores.colsum_intra == nullptr) return;
  ColumnSumsParams columns = column_sums_params(window, forward);
  columns.sums = stores.colsum_intra;
  columns.sums_stride = data_.window_rows;
  columns.sums_base = window.begin;
  launch_column_sums(window, places.column_sums, columns, chunks, rows);
}

/// A chunk's rows over its memory set, by query head.
ForwardParams Sm80Path::inter_params(const Window& window, const SparseStores& stores,
                                     const InterChunk& inter) const {
  const SparseStores::Gathered set = stores.gathered(window.launches.slot(inter.index));
  ForwardParams params = forward_params(window, inter.chunk.begin, inter.chunk.end);
  params.at.range = KeyRange::memory;
  params.at.group = 1;
  params.at.memory = static_cast<int>(inter.count);
  params.at.positions = set.positions;
  params.at.positions_stride = data_.set_width;
  params.keys = set.keys;
  params.values = set.values;
  return params;
}

void Sm80Path::inter_scores(const Window& window, const SparseStores& stores, const InterChunk& inter) {
  ForwardParams softmax = inter_params(window, stores, inter);
  softmax.state = stores.inter;
  softmax.state.base = window.begin;
  softmax.value_slices = 1;
  softmax.lse = nullptr;
  const Shape& shape = data_.shape;
  const std::int64_t rows = inter.chunk.end - inter.chunk.begin;
  const Choice kernel = data_.dispatch.softmax(window.unit, shape.d_head, shape.d_value, rows);
  window.launches.launch(window.launches.inter_softmax(inter.index), kernel,
                         grid(shape.n_head, pieces(rows, kernel.entry->rows), 1), softmax);

  ColumnSumsParams columns = column_sums_params(window, softmax);
  columns.sums = stores.colsum_inter;
  columns.sums_stride = data_.set_width;
  launch_column_sums(window, window.launches.inter_column_sums(inter.index), columns, 1, inter.count);
}

void Sm80Path::inter_output(const Window& window, const SparseStores& stores, const InterChunk& inter) {
  ForwardParams forward = inter_params(window, stores, inter);
  forward.fused = stores.intra;
  forward.fused.base = window.begin;
  launch_forward(window, window.launches.inter_output(inter.index), forward, 1,
                 inter.chunk.end - inter.chunk.begin);
}

void Sm80Path::chosen_output(const Window& window, const SparseStores& stores, const QueryBlocks& at,
                             const ChosenSets& sets) {
  const Shape& shape = data_.shape;
  ForwardParams params = forward_params(window, at.begin, at.end);
  params.at.range = KeyRange::memory;
  params.at.positions = sets.positions;
  params.at.positions_stride = sets.stride;
  params.blocks = at;
  params.rows_per_token = static_cast<int>(data_.group);
  params.fused = stores.intra;
  params.fused.base = window.begin;
  if (params.lse != nullptr) params.lse = data_.lse + (at.begin - window.begin);
  const std::int64_t rows = at.rows * data_.group;
  const Choice kernel = data_.dispatch.chosen_forward(window.unit, shape.d_head, shape.d_value, rows);
  params.value_slices = static_cast<int>(pieces(shape.d_value, kernel.entry->dv));
  window.launches.launch(
      window.launches.block_step(WindowLaunches::BlockStep::output), kernel,
      grid(pieces(rows, kernel.entry->rows) * at.count * shape.n_head_kv, 1, params.value_slices), params);
}

void Sm80Path::dense(const Window& window) {
  HEADWATER_MARK("cuda.dense");
  ForwardParams params = forward_params(window, window.begin, window.end);
  params.at.range = KeyRange::all;
  launch_forward(window, WindowLaunches::dense_forward(), params, 1, window.end - window.begin);
}

}  // namespace headwater::cuda
