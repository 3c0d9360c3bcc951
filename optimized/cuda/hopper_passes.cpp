#include <algorithm>

#include "cuda/cuda_session.hpp"
#include "cuda/kernels/score_sums.hpp"
#include "cuda/sm90/column_sums.hpp"
#include "cuda/sm90/intra_forward.hpp"
#include "cuda/sm90/score.hpp"
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

sm90::ScoreShape score_shape(std::int64_t heads, std::int64_t tokens) {
  const int run = sm90::score_run(static_cast<int>(heads), static_cast<int>(tokens), kHopperMultiprocessors);
  return {static_cast<int>(heads), static_cast<int>(tokens), run};
}

}  // namespace

void CudaSession::choose_paths(const HopperSwitch& hopper, bool slopes) {
  const bool mapped = slopes || options().softcap > 0.0 || !(options().scale > 0.0);
  PathInputs inputs;
  inputs.compute_capability = device_->info().compute_capability;
  inputs.unproven = hopper.unproven;
  inputs.type = shape().kv_type;
  inputs.d = shape().d_head;
  inputs.dv = shape().d_value;
  inputs.mapped = mapped;
  inputs.slopes = slopes;
  inputs.chunk = std::min(options().chunk, shape().capacity);
  inputs.least_chunk = hopper.least_chunk;
  inputs.set_width = set_width_;
  hopper_.intra = path_of(PathStage::intra, inputs);
  hopper_.score = path_of(PathStage::score, inputs);
  const auto choose = [&](Path& path, Stage stage, bool whole_rule, Choice& to) {
    if (!path.sm90) return;
    to = dispatch_.hopper(stage, inputs.type, inputs.d, inputs.dv, whole_rule);
    if (!to.entry) path = {false, "this build has none for these rows"};
  };
  choose(hopper_.intra, Stage::hopper_forward, mapped, hopper_.forward);
  choose(hopper_.intra, Stage::hopper_column_sums, mapped, hopper_.column_sums);
  choose(hopper_.score, Stage::hopper_score, mapped, hopper_.scores);
}

CudaSession::HopperScratch CudaSession::hopper_scratch() const {
  HopperScratch scratch;
  if (set_width_ == 0) return scratch;
  const std::int64_t chunk = std::min(options().chunk, shape().capacity);
  const std::int64_t padded = (chunk + sm90::kTile - 1) / sm90::kTile * sm90::kTile;
  // The launches of groups follow each other on one stream.
  const std::int64_t chunks = std::min((window_rows_ + chunk - 1) / chunk, window_extent().together);
  if (hopper_.intra.sm90) scratch.lse2 = core::checked_product(shape().n_head, chunks, padded);
  if (hopper_.score.sm90) {
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
  hopper_.refused_queries = sm90::refusal(map);
  return hopper_.refused_queries == nullptr && encode(map, to, path);
}

bool CudaSession::hopper_intra(const WindowLaunches::IntraPlaces& places, const Window& window,
                               std::int64_t begin, std::int64_t end, std::int64_t chunk) {
  const auto tokens = static_cast<int>(chunk);
  const auto chunks = static_cast<int>((end - begin) / chunk);
  const auto heads = static_cast<int>(shape().n_head);
  const auto heads_kv = static_cast<int>(shape().n_head_kv);
  const auto d = static_cast<int>(shape().d_head);
  const auto dv = static_cast<int>(shape().d_value);
  const StoredRows keys = stored_keys(HEADWATER_SABOTAGE("cuda.sm90.map_of_first_layer") ? 0 : window.layer);
  const StoredRows values = stored_values(window.layer);
  sm90::TileMap k = sm90::tile_map({row_address(keys.data.raw(), begin, keys.width), d, tokens, chunks,
                                    heads_kv, keys.width, keys.head_stride},
                                   sm90::kTile);
  if (HEADWATER_SABOTAGE("cuda.sm90.chunk_stride_of_a_tile")) {
    k.strides[1] = k.strides[0] * sm90::kTile;
  }
  sm90::IntraForwardParams forward{};
  if (!encode_queries(
          sm90::tile_map({row_address(window.q.data.raw(), begin - window.begin, window.q.row_stride), d,
                          tokens, chunks, heads, window.q.row_stride, window.q.head_stride},
                         sm90::kTile),
          forward.q, hopper_.intra) ||
      !encode(k, forward.k, hopper_.intra) ||
      !encode(sm90::tile_map({row_address(values.data.raw(), begin, values.width), dv, tokens, chunks,
                              heads_kv, values.width, values.head_stride},
                             sm90::kTile),
              forward.v, hopper_.intra)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.intra");
  forward.shape = {heads, heads_kv, chunks, tokens};
  forward.rule = raw(rule_);
  forward.state = {intra_.max.raw(), intra_.sum.raw(), intra_.rounded.raw(), intra_.out.raw(), intra_.stride};
  forward.first_row = begin - window.begin;
  forward.dv = dv;
  forward.lse2 = hopper_.lse2;
  const Grid blocks{static_cast<unsigned>(std::min(forward.shape.items(), device_->info().multiprocessors)),
                    1, 1};
  launches_->launch(places.forward, hopper_.forward, blocks, forward);

  sm90::ColumnSumParams columns{};
  columns.q = forward.q;
  columns.k = forward.k;
  columns.shape = forward.shape;
  columns.rule = forward.rule;
  columns.lse2 = hopper_.lse2;
  columns.sums = colsum_intra_;
  columns.sums_stride = window_rows_;
  columns.first_row = forward.first_row;
  columns.scores = score_row(window.layer);
  columns.scores_bf16 = options().score_type == ScoreType::bf16;
  columns.capacity = shape().capacity;
  columns.position = begin;
  launches_->launch(places.column_sums, hopper_.column_sums, blocks, columns);
  return true;
}

bool CudaSession::hopper_score(const Window& window, const Chunk& chunk, std::int64_t index) {
  const auto d = static_cast<int>(shape().d_head);
  const auto heads = static_cast<int>(shape().n_head);
  const auto count = static_cast<int>(set_states_[static_cast<std::size_t>(window.layer)].count);
  const GatheredRows gathered = gathered_rows(index);
  sm90::ScoreParams score{};
  score.shape = score_shape(heads, chunk.end - chunk.begin);
  if (!encode_queries(
          sm90::tile_map({row_address(window.q.data.raw(), chunk.begin - window.begin, window.q.row_stride),
                          d, score.shape.tokens, 1, heads, window.q.row_stride, window.q.head_stride},
                         sm90::ScoreShape::kQueries),
          score.q, hopper_.score) ||
      !encode(sm90::tile_map({gathered.keys, d, count, 1, heads, key_width_, set_width_ * key_width_},
                             sm90::kFragmentColumns),
              score.keys, hopper_.score)) {
    return false;
  }
  HEADWATER_MARK("cuda.sm90.score");
  score.rule = raw(rule_);
  score.count = count;
  score.partial_sums = hopper_.partial_sums;
  launches_->launch(launches_->inter_softmax(index), hopper_.scores,
                    {static_cast<unsigned>(score.shape.blocks()), 1, 1}, score);

  ScoreSumsParams sums{};
  sums.partial_sums = hopper_.partial_sums;
  sums.partial_stride = sm90::ScoreShape::kMemoryKeys;
  sums.runs = score.shape.runs();
  sums.count = count;
  sums.positions = gathered.positions;
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

}  // namespace headwater::cuda
