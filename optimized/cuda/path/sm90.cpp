#include "cuda/path/sm90.hpp"

#include <algorithm>

#include "cuda/kernels/score_sums.hpp"
#include "cuda/kernels/sm90/column_sums.hpp"
#include "cuda/kernels/sm90/forward.hpp"
#include "cuda/kernels/sm90/score.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

namespace {

constexpr int kElementBytes = 2;
/// Launches of a group: a session's first chunk, chunks of full length, and a shorter one.
constexpr std::int64_t kIntraParts = 3;

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

Sm90Path::Sm90Path(SessionData& data, Sm80Path& sm80, const Sm90Switch& sm90_switch, bool slopes)
    : data_(data), sm80_(sm80) {
  const bool mapped = slopes || data.options.softcap > 0.0 || !(data.options.scale > 0.0);
  PathInputs inputs;
  inputs.compute_capability = data.device->info().compute_capability;
  inputs.on = sm90_switch.on;
  inputs.type = data.shape.kv_type;
  inputs.d = data.shape.d_head;
  inputs.dv = data.shape.d_value;
  inputs.mapped = mapped;
  inputs.slopes = slopes;
  inputs.chunk = data.longest_chunk();
  inputs.least_chunk = sm90_switch.least_chunk;
  inputs.set_width = data.set_width;
  const auto choose = [&](PathStage of, Stage kernels, Choice& to) {
    if (!takes(of)) return;
    to = data.dispatch.sm90(kernels, inputs.type, inputs.d, inputs.dv, mapped);
    if (!to.entry) stage(of) = {false, "this build has none for these rows"};
  };
  for (const PathStage of : {PathStage::intra, PathStage::score, PathStage::output, PathStage::dense}) {
    stage(of) = choice_of(of, inputs);
  }
  for (const PathStage of : {PathStage::intra, PathStage::dense}) {
    choose(of, Stage::sm90_causal, causal_);
    choose(of, Stage::sm90_column_sums, column_sums_);
  }
  choose(PathStage::score, Stage::sm90_score, scores_);
  choose(PathStage::output, Stage::sm90_memory, memory_);
}

void Sm90Path::take_memory() {
  if (data_.set_width == 0) return;
  const std::int64_t heads = data_.shape.n_head;
  const std::int64_t chunk = data_.longest_chunk();
  if (takes(PathStage::intra) || takes(PathStage::dense)) {
    // The launches of groups follow each other on one stream.
    const std::int64_t chunks = std::min(pieces(data_.window_rows, chunk), data_.extent().together);
    const std::int64_t padded = pieces(chunk, sm90::kTile) * sm90::kTile;
    lse2_ = data_.take<float>(core::checked_product(heads, chunks, padded), "log-sum-exps");
  }
  if (takes(PathStage::score) && data_.options.select == Select::h2o) {
    // No length has more runs than its query blocks, nor more than the longest chunk's and one.
    const std::int64_t blocks = pieces(chunk, sm90::ScoreShape::kQueries);
    std::int64_t runs = 0;
    for (std::int64_t some = 1; some <= blocks; ++some) {
      const std::int64_t tokens = std::min(chunk, some * sm90::ScoreShape::kQueries);
      runs = std::max<std::int64_t>(runs, score_shape(heads, tokens).runs());
    }
    partial_sums_ = data_.take<float>(core::checked_product(heads, runs, sm90::ScoreShape::kMemoryKeys),
                                      "partial column sums");
  }
}

bool Sm90Path::taken() const {
  return std::any_of(stages_.begin(), stages_.end(), [](const StageChoice& stage) { return stage.sm90; });
}

std::int64_t Sm90Path::intra_parts() const {
  return takes(PathStage::intra) || takes(PathStage::dense) ? kIntraParts : 1;
}

bool Sm90Path::encode(const sm90::TileMap& map, sm90::TensorMap& to, StageChoice& stage) {
  const char* reason = data_.device->encode(map, to);
  if (reason != nullptr) stage = {false, reason};
  return reason == nullptr;
}

/// Queries are the caller's, whose next ones may stand elsewhere.
bool Sm90Path::encode_queries(const sm90::TileMap& map, sm90::TensorMap& to, StageChoice& stage) {
  refused_queries_ = sm90::refusal(map);
  return refused_queries_ == nullptr && encode(map, to, stage);
}

sm90::RowOutputs Sm90Path::outputs(const Window& window) const {
  const OutputRows& out = window.out;
  const auto pair = 2 * static_cast<std::uintptr_t>(dtype_size(out.type));
  const bool pairs = data_.shape.d_value % 2 == 0 && out.row_stride % 2 == 0 && out.head_stride % 2 == 0 &&
                     reinterpret_cast<std::uintptr_t>(out.data.raw()) % pair == 0;
  return {out.data.raw(),   out.row_stride, out.head_stride,
          out.type,         pairs,          window.observed() ? data_.lse : nullptr,
          data_.window_rows};
}

/// Queries from position `begin` on, in boxes of `rows`.
sm90::TileMap Sm90Path::query_map(const Window& window, std::int64_t begin, std::int64_t tokens,
                                  std::int64_t chunks, int rows) const {
  const InputRows& q = window.q;
  return sm90::tile_map(
      {row_address(q.data.raw(), begin - window.begin, q.row_stride), static_cast<int>(data_.shape.d_head),
       static_cast<int>(tokens), static_cast<int>(chunks), static_cast<int>(data_.shape.n_head), q.row_stride,
       q.head_stride},
      rows);
}

Grid Sm90Path::persistent(int items) const {
  return {static_cast<unsigned>(std::min(items, data_.device->info().multiprocessors)), 1, 1};
}

void Sm90Path::intra(const Window& window, const SparseStores& stores, std::int64_t group, std::int64_t begin,
                     std::int64_t end) {
  const std::int64_t chunk = data_.options.chunk;
  std::int64_t part = 0;
  const auto places = [&] { return window.launches.intra(group, part); };
  if (begin == 0 && (takes(PathStage::dense) || takes(PathStage::intra))) {
    // A prompt of one chunk has the bits of dense attention: both go the same way.
    const std::int64_t first = std::min(chunk, end);
    if (!takes(PathStage::dense) || !try_intra(PathStage::dense, places(), window, stores, 0, first, first)) {
      sm80_.intra(window, stores, places(), 0, first);
    }
    begin = first;
    ++part;
  }
  if (takes(PathStage::intra)) {
    const std::int64_t full = begin + (end - begin) / chunk * chunk;
    if (begin < full && try_intra(PathStage::intra, places(), window, stores, begin, full, chunk)) {
      begin = full;
      ++part;
    }
    if (begin == full && full < end &&
        try_intra(PathStage::intra, places(), window, stores, full, end, end - full)) {
      begin = end;
    }
  }
  if (begin < end) sm80_.intra(window, stores, places(), begin, end);
}

bool Sm90Path::try_intra(PathStage of, const WindowLaunches::IntraPlaces& places, const Window& window,
                         const SparseStores& stores, std::int64_t begin, std::int64_t end,
                         std::int64_t chunk) {
  const Shape& shape = data_.shape;
  const std::int64_t chunks = (end - begin) / chunk;
  const std::int64_t layer = HEADWATER_SABOTAGE("cuda.sm90.map_of_first_layer") ? 0 : window.layer;
  const int box = causal_.entry->keys;
  sm90::TileMap k = map_of(data_.keys(layer), shape.d_head, begin, chunk, chunks, shape.n_head_kv, box);
  if (HEADWATER_SABOTAGE("cuda.sm90.chunk_stride_of_a_tile")) k.strides[1] = k.strides[0] * sm90::kTile;
  sm90::CausalForwardParams forward{};
  sm90::ColumnSumParams columns{};
  if (!encode_queries(query_map(window, begin, chunk, chunks, sm90::kTile), forward.q, stage(of)) ||
      !encode(k, forward.k, stage(of)) ||
      !encode(map_of(data_.values(window.layer), shape.d_value, begin, chunk, chunks, shape.n_head_kv, box),
              forward.v, stage(of))) {
    return false;
  }
  // Its tiles of keys are 128, whatever the forward's.
  k.box[1] = sm90::kTile;
  if (!encode(k, columns.k, stage(of))) return false;
  HEADWATER_MARK("cuda.sm90.intra");
  forward.shape = {static_cast<int>(shape.n_head), static_cast<int>(shape.n_head_kv),
                   static_cast<int>(chunks), static_cast<int>(chunk)};
  forward.rule = raw(data_.rule);
  forward.state = raw(stores.intra);
  forward.first_row = begin - window.begin;
  forward.position = begin;
  forward.out = outputs(window);
  forward.dv = static_cast<int>(shape.d_value);
  forward.lse2 = lse2_;
  const Grid blocks = persistent(forward.shape.items());
  window.launches.launch(places.forward, causal_, blocks, forward);

  if (stores.colsum_intra == nullptr) return true;
  columns.q = forward.q;
  columns.shape = forward.shape;
  columns.rule = forward.rule;
  columns.lse2 = lse2_;
  columns.sums = stores.colsum_intra;
  columns.sums_stride = data_.window_rows;
  columns.first_row = forward.first_row;
  columns.scores = data_.scores(window.layer);
  columns.scores_bf16 = data_.scores_bf16();
  columns.capacity = shape.capacity;
  columns.position = begin;
  window.launches.launch(places.column_sums, column_sums_, blocks, columns);
  return true;
}

void Sm90Path::inter_scores(const Window& window, const SparseStores& stores, const InterChunk& inter) {
  if (takes(PathStage::score) && try_scores(window, stores, inter)) return;
  sm80_.inter_scores(window, stores, inter);
}

bool Sm90Path::try_scores(const Window& window, const SparseStores& stores, const InterChunk& inter) {
  const auto heads = static_cast<int>(data_.shape.n_head);
  const auto count = static_cast<int>(inter.count);
  const SparseStores::Gathered set = stores.gathered(window.launches.slot(inter.index));
  sm90::ScoreParams score{};
  score.shape = score_shape(heads, inter.chunk.end - inter.chunk.begin);
  StageChoice& own = stage(PathStage::score);
  if (!encode_queries(query_map(window, inter.chunk.begin, score.shape.tokens, 1, sm90::ScoreShape::kQueries),
                      score.q, own) ||
      !encode(map_of(set.keys, data_.shape.d_head, 0, count, 1, heads, sm90::kFragmentColumns), score.keys,
              own)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.score");
  score.rule = raw(data_.rule);
  score.count = count;
  score.partial_sums = partial_sums_;
  window.launches.launch(window.launches.inter_softmax(inter.index), scores_,
                         {static_cast<unsigned>(score.shape.blocks()), 1, 1}, score);

  ScoreSumsParams sums{};
  sums.partial_sums = partial_sums_;
  sums.partial_stride = sm90::ScoreShape::kMemoryKeys;
  sums.runs = score.shape.runs();
  sums.count = count;
  sums.positions = set.positions;
  sums.positions_stride = data_.set_width;
  sums.sums = stores.colsum_inter;
  sums.sums_stride = data_.set_width;
  sums.scores = data_.scores(window.layer);
  sums.scores_bf16 = data_.scores_bf16();
  sums.capacity = data_.shape.capacity;
  window.launches.launch(window.launches.inter_column_sums(inter.index),
                         data_.dispatch.only(Stage::score_sums),
                         grid(heads, pieces(count, kScoreSumsThreads), 1), sums);
  return true;
}

void Sm90Path::inter_output(const Window& window, const SparseStores& stores, const InterChunk& inter) {
  if (takes(PathStage::output) && try_output(window, stores, inter)) return;
  sm80_.inter_output(window, stores, inter);
}

bool Sm90Path::try_output(const Window& window, const SparseStores& stores, const InterChunk& inter) {
  const Shape& shape = data_.shape;
  const std::int64_t tokens = inter.chunk.end - inter.chunk.begin;
  const std::int64_t index = HEADWATER_SABOTAGE("cuda.sm90.values_of_first_slot") ? 0 : inter.index;
  const StoredRows keys = stores.gathered(window.launches.slot(inter.index)).keys;
  const StoredRows values = stores.gathered(window.launches.slot(index)).values;
  const int box = memory_.entry->keys;
  sm90::MemoryForwardParams memory{};
  StageChoice& own = stage(PathStage::output);
  if (!encode_queries(query_map(window, inter.chunk.begin, tokens, 1, sm90::kTile), memory.q, own) ||
      !encode(map_of(keys, shape.d_head, 0, inter.count, 1, shape.n_head, box), memory.k, own) ||
      !encode(map_of(values, shape.d_value, 0, inter.count, 1, shape.n_head, box), memory.v, own)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.output");
  memory.rule = raw(data_.rule);
  memory.heads = static_cast<int>(shape.n_head);
  memory.tokens = static_cast<int>(tokens);
  memory.count = static_cast<int>(inter.count);
  memory.intra = raw(stores.intra);
  memory.first_row = inter.chunk.begin - window.begin;
  memory.out = outputs(window);
  memory.dv = static_cast<int>(shape.d_value);
  window.launches.launch(window.launches.inter_output(inter.index), memory_,
                         persistent(sm90::MemoryPass::items(memory)), memory);
  return true;
}

void Sm90Path::dense(const Window& window) {
  if (takes(PathStage::dense) && try_dense(window)) return;
  sm80_.dense(window);
}

bool Sm90Path::try_dense(const Window& window) {
  const Shape& shape = data_.shape;
  const int box = causal_.entry->keys;
  sm90::CausalForwardParams forward{};
  StageChoice& own = stage(PathStage::dense);
  if (!encode_queries(query_map(window, window.begin, window.end - window.begin, 1, sm90::kTile), forward.q,
                      own) ||
      !encode(map_of(data_.keys(window.layer), shape.d_head, 0, window.end, 1, shape.n_head_kv, box),
              forward.k, own) ||
      !encode(map_of(data_.values(window.layer), shape.d_value, 0, window.end, 1, shape.n_head_kv, box),
              forward.v, own)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.dense");
  const std::int64_t first = HEADWATER_SABOTAGE("cuda.sm90.window_at_zero") ? 0 : window.begin;
  forward.shape = {static_cast<int>(shape.n_head), static_cast<int>(shape.n_head_kv), 1,
                   static_cast<int>(window.end - window.begin + first), static_cast<int>(first)};
  forward.rule = raw(data_.rule);
  forward.out = outputs(window);
  forward.dv = static_cast<int>(shape.d_value);
  window.launches.launch(WindowLaunches::dense_forward(), causal_, persistent(forward.shape.items()),
                         forward);
  return true;
}

}  // namespace headwater::cuda
