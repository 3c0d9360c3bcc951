#include <algorithm>

#include "cuda/cuda_session.hpp"
#include "cuda/kernels/score_sums.hpp"
#include "cuda/kernels/sm90/column_sums.hpp"
#include "cuda/kernels/sm90/forward.hpp"
#include "cuda/kernels/sm90/score.hpp"
#include "headwater/testing/sabotage.hpp"

/// The launches of the kernels of sm_90a (adr/0015).
namespace headwater::cuda {

namespace {

constexpr int kElementBytes = 2;

const void* row_address(const void* rows, std::int64_t row, std::int64_t stride) {
  return static_cast<const unsigned char*>(rows) + row * stride * kElementBytes;
}

sm90::LogitRule raw(const LogitRule& rule) {
  return {rule.factor, rule.cap, rule.slopes.raw(), rule.sinks.raw()};
}

/// Rows [first, first + chunks * tokens) of stored or gathered rows of `heads` heads, in boxes of `box`.
sm90::TileMap map_of(const StoredRows& rows, std::int64_t columns, std::int64_t first, std::int64_t tokens,
                     std::int64_t chunks, std::int64_t heads, int box) {
  return sm90::tile_map(
      {row_address(rows.data.raw(), first, rows.width), static_cast<int>(columns), static_cast<int>(tokens),
       static_cast<int>(chunks), static_cast<int>(heads), rows.width, rows.head_stride},
      box);
}

sm90::SoftmaxState raw(const SoftmaxState& state) {
  return {state.max.raw(), state.sum.raw(), state.rounded.raw(), state.out.raw(), state.stride};
}

sm90::ScoreShape score_shape(std::int64_t heads, std::int64_t tokens) {
  const int run = sm90::score_run(static_cast<int>(heads), static_cast<int>(tokens), kSm90Multiprocessors);
  return {static_cast<int>(heads), static_cast<int>(tokens), run};
}

}  // namespace

void CudaSession::choose_paths(const Sm90Switch& sm90_switch, bool slopes) {
  const bool mapped = slopes || options().softcap > 0.0 || !(options().scale > 0.0);
  PathInputs inputs;
  inputs.compute_capability = device_->info().compute_capability;
  inputs.unproven = sm90_switch.unproven;
  inputs.type = shape().kv_type;
  inputs.d = shape().d_head;
  inputs.dv = shape().d_value;
  inputs.mapped = mapped;
  inputs.slopes = slopes;
  inputs.chunk = std::min(options().chunk, shape().capacity);
  inputs.least_chunk = sm90_switch.least_chunk;
  inputs.set_width = set_width_;
  const auto choose = [&](PathStage of, Stage stage, Choice& to) {
    if (!on_sm90(of)) return;
    to = dispatch_.sm90(stage, inputs.type, inputs.d, inputs.dv, mapped);
    if (!to.entry) path(of) = {false, "this build has none for these rows"};
  };
  for (const PathStage of : {PathStage::intra, PathStage::score, PathStage::output, PathStage::dense}) {
    path(of) = path_of(of, inputs);
  }
  for (const PathStage of : {PathStage::intra, PathStage::dense}) {
    choose(of, Stage::sm90_causal, sm90_.causal);
    choose(of, Stage::sm90_column_sums, sm90_.column_sums);
  }
  choose(PathStage::score, Stage::sm90_score, sm90_.scores);
  choose(PathStage::output, Stage::sm90_memory, sm90_.memory);
}

CudaSession::Sm90Scratch CudaSession::sm90_scratch() const {
  Sm90Scratch scratch;
  if (set_width_ == 0) return scratch;
  const std::int64_t chunk = std::min(options().chunk, shape().capacity);
  const std::int64_t padded = (chunk + sm90::kTile - 1) / sm90::kTile * sm90::kTile;
  // The launches of groups follow each other on one stream.
  const std::int64_t chunks = std::min((window_rows_ + chunk - 1) / chunk, window_extent().together);
  if (on_sm90(PathStage::intra) || on_sm90(PathStage::dense)) {
    scratch.lse2 = core::checked_product(shape().n_head, chunks, padded);
  }
  if (on_sm90(PathStage::score)) {
    // No length has more runs than its query blocks, nor more than the longest chunk's and one.
    const std::int64_t blocks = (chunk + sm90::ScoreShape::kQueries - 1) / sm90::ScoreShape::kQueries;
    std::int64_t runs = 0;
    for (std::int64_t some = 1; some <= blocks; ++some) {
      const std::int64_t tokens = std::min(chunk, some * sm90::ScoreShape::kQueries);
      runs = std::max<std::int64_t>(runs, score_shape(shape().n_head, tokens).runs());
    }
    scratch.partial_sums = core::checked_product(shape().n_head, runs, sm90::ScoreShape::kMemoryKeys);
  }
  return scratch;
}

bool CudaSession::encode(const sm90::TileMap& map, sm90::TensorMap& to, Path& path) {
  const char* reason = device_->encode(map, to);
  if (reason != nullptr) path = {false, reason};
  return reason == nullptr;
}

/// Queries are the caller's, whose next ones may stand elsewhere.
bool CudaSession::encode_queries(const sm90::TileMap& map, sm90::TensorMap& to, Path& path) {
  sm90_.refused_queries = sm90::refusal(map);
  return sm90_.refused_queries == nullptr && encode(map, to, path);
}

sm90::RowOutputs CudaSession::sm90_outputs(const Window& window) const {
  const OutputRows& out = window.out;
  const auto pair = 2 * static_cast<std::uintptr_t>(dtype_size(out.type));
  const bool pairs = shape().d_value % 2 == 0 && out.row_stride % 2 == 0 && out.head_stride % 2 == 0 &&
                     reinterpret_cast<std::uintptr_t>(out.data.raw()) % pair == 0;
  return {out.data.raw(), out.row_stride, out.head_stride, out.type, pairs, window.observed ? lse_ : nullptr,
          window_rows_};
}

/// Queries from position `begin` on, in boxes of `rows`.
sm90::TileMap CudaSession::query_map(const Window& window, std::int64_t begin, std::int64_t tokens,
                                     std::int64_t chunks, int rows) const {
  const InputRows& q = window.q;
  return sm90::tile_map({row_address(q.data.raw(), begin - window.begin, q.row_stride),
                         static_cast<int>(shape().d_head), static_cast<int>(tokens), static_cast<int>(chunks),
                         static_cast<int>(shape().n_head), q.row_stride, q.head_stride},
                        rows);
}

Grid CudaSession::persistent(int items) const {
  return {static_cast<unsigned>(std::min(items, device_->info().multiprocessors)), 1, 1};
}

bool CudaSession::sm90_intra(PathStage stage, const WindowLaunches::IntraPlaces& places, const Window& window,
                             std::int64_t begin, std::int64_t end, std::int64_t chunk) {
  const std::int64_t chunks = (end - begin) / chunk;
  const std::int64_t layer = HEADWATER_SABOTAGE("cuda.sm90.map_of_first_layer") ? 0 : window.layer;
  const int box = sm90_.causal.entry->keys;
  sm90::TileMap k = map_of(stored_keys(layer), shape().d_head, begin, chunk, chunks, shape().n_head_kv, box);
  if (HEADWATER_SABOTAGE("cuda.sm90.chunk_stride_of_a_tile")) k.strides[1] = k.strides[0] * sm90::kTile;
  sm90::CausalForwardParams forward{};
  sm90::ColumnSumParams columns{};
  if (!encode_queries(query_map(window, begin, chunk, chunks, sm90::kTile), forward.q, path(stage)) ||
      !encode(k, forward.k, path(stage)) ||
      !encode(
          map_of(stored_values(window.layer), shape().d_value, begin, chunk, chunks, shape().n_head_kv, box),
          forward.v, path(stage))) {
    return false;
  }
  // Its tiles of keys are 128, whatever the forward's.
  k.box[1] = sm90::kTile;
  if (!encode(k, columns.k, path(stage))) return false;
  HEADWATER_MARK("cuda.sm90.intra");
  forward.shape = {static_cast<int>(shape().n_head), static_cast<int>(shape().n_head_kv),
                   static_cast<int>(chunks), static_cast<int>(chunk)};
  forward.rule = raw(rule_);
  forward.state = raw(intra_);
  forward.first_row = begin - window.begin;
  forward.position = begin;
  forward.out = sm90_outputs(window);
  forward.dv = static_cast<int>(shape().d_value);
  forward.lse2 = sm90_.lse2;
  const Grid blocks = persistent(forward.shape.items());
  launches_->launch(places.forward, sm90_.causal, blocks, forward);

  columns.q = forward.q;
  columns.shape = forward.shape;
  columns.rule = forward.rule;
  columns.lse2 = sm90_.lse2;
  columns.sums = colsum_intra_;
  columns.sums_stride = window_rows_;
  columns.first_row = forward.first_row;
  columns.scores = score_row(window.layer);
  columns.scores_bf16 = options().score_type == ScoreType::bf16;
  columns.capacity = shape().capacity;
  columns.position = begin;
  launches_->launch(places.column_sums, sm90_.column_sums, blocks, columns);
  return true;
}

bool CudaSession::sm90_score(const Window& window, const Chunk& chunk, std::int64_t index) {
  const auto heads = static_cast<int>(shape().n_head);
  const auto count = static_cast<int>(set_states_[static_cast<std::size_t>(window.layer)].count);
  sm90::ScoreParams score{};
  score.shape = score_shape(heads, chunk.end - chunk.begin);
  Path& own = path(PathStage::score);
  if (!encode_queries(query_map(window, chunk.begin, score.shape.tokens, 1, sm90::ScoreShape::kQueries),
                      score.q, own) ||
      !encode(map_of(gathered_keys(index), shape().d_head, 0, count, 1, heads, sm90::kFragmentColumns),
              score.keys, own)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.score");
  score.rule = raw(rule_);
  score.count = count;
  score.partial_sums = sm90_.partial_sums;
  launches_->launch(launches_->inter_softmax(index), sm90_.scores,
                    {static_cast<unsigned>(score.shape.blocks()), 1, 1}, score);

  ScoreSumsParams sums{};
  sums.partial_sums = sm90_.partial_sums;
  sums.partial_stride = sm90::ScoreShape::kMemoryKeys;
  sums.runs = score.shape.runs();
  sums.count = count;
  sums.positions = gathered_rows(index).positions;
  sums.positions_stride = set_width_;
  sums.sums = colsum_inter_;
  sums.sums_stride = set_width_;
  sums.scores = score_row(window.layer);
  sums.scores_bf16 = options().score_type == ScoreType::bf16;
  sums.capacity = shape().capacity;
  launches_->launch(launches_->inter_column_sums(index), dispatch_.only(Stage::score_sums),
                    {static_cast<unsigned>(heads),
                     static_cast<unsigned>((count + kScoreSumsThreads - 1) / kScoreSumsThreads), 1},
                    sums);
  return true;
}

bool CudaSession::sm90_output(const Window& window, const Chunk& chunk, std::int64_t index) {
  const std::int64_t tokens = chunk.end - chunk.begin;
  const std::int64_t count = set_states_[static_cast<std::size_t>(window.layer)].count;
  const std::int64_t slot = HEADWATER_SABOTAGE("cuda.sm90.values_of_first_slot") ? 0 : index;
  const int box = sm90_.memory.entry->keys;
  sm90::MemoryForwardParams memory{};
  Path& own = path(PathStage::output);
  if (!encode_queries(query_map(window, chunk.begin, tokens, 1, sm90::kTile), memory.q, own) ||
      !encode(map_of(gathered_keys(index), shape().d_head, 0, count, 1, shape().n_head, box), memory.k,
              own) ||
      !encode(map_of(gathered_values(slot), shape().d_value, 0, count, 1, shape().n_head, box), memory.v,
              own)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.output");
  memory.rule = raw(rule_);
  memory.heads = static_cast<int>(shape().n_head);
  memory.tokens = static_cast<int>(tokens);
  memory.count = static_cast<int>(count);
  memory.intra = raw(intra_);
  memory.first_row = chunk.begin - window.begin;
  memory.out = sm90_outputs(window);
  memory.dv = static_cast<int>(shape().d_value);
  launches_->launch(launches_->inter_output(index), sm90_.memory, persistent(sm90::MemoryPass::items(memory)),
                    memory);
  return true;
}

bool CudaSession::sm90_dense(const Window& window) {
  const int box = sm90_.causal.entry->keys;
  sm90::CausalForwardParams forward{};
  Path& own = path(PathStage::dense);
  if (!encode_queries(query_map(window, window.begin, window.end - window.begin, 1, sm90::kTile), forward.q,
                      own) ||
      !encode(map_of(stored_keys(window.layer), shape().d_head, 0, window.end, 1, shape().n_head_kv, box),
              forward.k, own) ||
      !encode(map_of(stored_values(window.layer), shape().d_value, 0, window.end, 1, shape().n_head_kv, box),
              forward.v, own)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.dense");
  const std::int64_t first = HEADWATER_SABOTAGE("cuda.sm90.window_at_zero") ? 0 : window.begin;
  forward.shape = {static_cast<int>(shape().n_head), static_cast<int>(shape().n_head_kv), 1,
                   static_cast<int>(window.end - window.begin + first), static_cast<int>(first)};
  forward.rule = raw(rule_);
  forward.out = sm90_outputs(window);
  forward.dv = static_cast<int>(shape().d_value);
  launches_->launch(WindowLaunches::dense_forward(), sm90_.causal, persistent(forward.shape.items()),
                    forward);
  return true;
}

}  // namespace headwater::cuda
