#pragma once

#include "cuda/kernels/sm80/tiles.hpp"

/// INTRA-2, INTER-2: sum over the queries i of exp(s(i, j) - m_i) / l_i for every key j, key-stationary: a block keeps its
/// keys and walks over the queries, S^T = K Q^T. Every key's sum has one owner and one order: the same bits in every run.
/// The sums become scores at once (SCORE-2, SCORE-3): one rounding for each chunk.
namespace headwater::cuda {

template <class UnitType, int kDType, int kQueriesType, int kWarpsType>
struct ColumnSumsShape {
  using Unit = UnitType;
  static constexpr int kD = kDType;
  static constexpr int kQueries = kQueriesType;
  static constexpr int kWarps = kWarpsType;
  static constexpr int kKeys = kFragmentRows * kWarps;
  static constexpr int kQueryTiles = kQueries / kFragmentColumns;
  static constexpr int kStages = Unit::kAsync ? 2 : 1;
  static constexpr int kStride = kD + Unit::kPad;
  static constexpr int kKeyElements = kKeys * kStride;
  static constexpr int kQueryElements = kQueries * kStride;
  static constexpr int kElementBytes = static_cast<int>(sizeof(typename Unit::Element));
  static constexpr int kStateAt = kElementBytes * (kKeyElements + kStages * kQueryElements);
  static constexpr int kShared = kStateAt + kStages * 2 * kQueries * 4;
};

/// A block's place: keys from `first_key` (entries of the memory set, or positions), queries [query_begin, query_end).
struct ColumnPlace {
  std::int64_t chunk_begin;
  std::int64_t chunk_end;
  std::int64_t first_key;
  std::int64_t key_end;
  int head;
};

/// Adds the weights of a tile of queries to the two sums of a lane.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void add_weights(Context& ctx, const ColumnSumsParams& p, const ColumnPlace& place,
                                         std::int64_t first_query, const std::int64_t (&key)[2],
                                         const std::int64_t (&key_position)[2], float slope,
                                         const float (&dots)[Shape::kQueryTiles][4], Shared<float> state,
                                         float (&sums)[2]) {
  const bool memory = p.at.range == KeyRange::memory;
  // A key sees itself.
  const std::int64_t least = !memory && HEADWATER_SABOTAGE("cuda.columns.diagonal_left_out") ? 1 : 0;
  const bool backwards = HEADWATER_SABOTAGE("cuda.columns.order_of_arrival") && arrival() % 3 == 0;
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < Shape::kQueryTiles; ++i) {
    const int t = backwards ? Shape::kQueryTiles - 1 - i : i;
    HEADWATER_CUDA_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int column = fragment_column(ctx.lane(), t, e);
      const std::int64_t query = first_query + column;
      bool visible = query < place.chunk_end && key[e / 2] < place.key_end;
      if (!memory) visible = visible && key[e / 2] + least <= query;
      const float max = state[column];
      const float inverse = state[Shape::kQueries + column];
      const float logit = map_logit(ctx, p.rule, slope, dots[t][e], query - key_position[e / 2]);
      const float weight = ctx.exp2(logit - max);
      if (visible) sums[e / 2] = ctx.fma(weight, inverse, sums[e / 2]);
    }
  }
}

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void column_sums(Context& ctx, const ColumnSumsParams& p) {
  using Unit = typename Shape::Unit;
  using Element = typename Unit::Element;
  const PassGeometry& at = p.at;
  const bool memory = at.range == KeyRange::memory;
  ColumnPlace place;
  place.chunk_begin = at.begin + ctx.block_z() * at.chunk;
  place.chunk_end = place.chunk_begin + at.chunk < at.end ? place.chunk_begin + at.chunk : at.end;
  place.head = ctx.block_x();
  place.first_key =
      static_cast<std::int64_t>(ctx.block_y()) * Shape::kKeys + (memory ? 0 : place.chunk_begin);
  place.key_end = memory ? at.memory : place.chunk_end;
  if (place.first_key >= place.key_end) return;  // the last chunk is shorter

  const Shared<Element> keys = ctx.template shared<Element>(0, Shape::kKeyElements);
  const Shared<Element> queries = ctx.template shared<Element>(Shape::kElementBytes * Shape::kKeyElements,
                                                               Shape::kStages * Shape::kQueryElements);
  const Shared<float> states =
      ctx.template shared<float>(Shape::kStateAt, Shape::kStages * 2 * Shape::kQueries);

  const int d_slices = (p.d + Shape::kD - 1) / Shape::kD;
  const auto load_keys = [&](int slice) {
    load_stored_rows<Unit, Shape::kKeys, Shape::kD>(ctx, keys, p.keys, place.head / at.group, place.first_key,
                                                    place.key_end, slice * Shape::kD);
  };
  const auto load_queries = [&](std::int64_t first_query, int stage, int slice) {
    load_input_rows<Unit, Shape::kQueries, Shape::kD>(ctx, queries + stage * Shape::kQueryElements, p.q, p.d,
                                                      slice * Shape::kD, [&](int row) -> std::int64_t {
                                                        const std::int64_t query = first_query + row;
                                                        if (query >= place.chunk_end) return -1;
                                                        return (query - at.base) * p.q.row_stride +
                                                               place.head * p.q.head_stride;
                                                      });
  };
  const auto load_state = [&](std::int64_t first_query, int stage) {
    for (int i = ctx.thread(); i < Shape::kQueries; i += ctx.threads()) {
      const std::int64_t query = first_query + i;
      const bool valid = query < place.chunk_end;
      const std::int64_t index = place.head * p.state.stride + query - p.state.base;
      states[(2 * stage) * Shape::kQueries + i] = valid ? offset_of(p.state.max[index]) : 0.0f;
      states[(2 * stage + 1) * Shape::kQueries + i] = valid ? inverse_of(p.state.sum[index]) : 0.0f;
    }
  };

  std::int64_t key[2];
  std::int64_t key_position[2];
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    key[i] = place.first_key + ctx.warp() * kFragmentRows + fragment_row(ctx.lane(), 2 * i);
    key_position[i] = key[i];
    if (memory && key[i] < place.key_end) {
      key_position[i] = at.positions[place.head * at.positions_stride + key[i]];
    }
  }
  const float slope = p.rule.slopes != nullptr ? p.rule.slopes[place.head] : 0.0f;
  const Shared<Element> own_keys = keys + ctx.warp() * kFragmentRows * Shape::kStride;
  float sums[2] = {0.0f, 0.0f};

  // Queries before the first key of a chunk do not see it; tiles stand at multiples of kQueries in the chunk.
  std::int64_t query = place.chunk_begin;
  if (!memory) query += (place.first_key - place.chunk_begin) / Shape::kQueries * Shape::kQueries;
  const bool ahead = Unit::kAsync && d_slices == 1;
  if (d_slices == 1) load_keys(0);
  if (ahead) {
    load_queries(query, 0, 0);
    load_state(query, 0);
    ctx.copy_commit();
  }
  int stage = 0;
  for (; query < place.chunk_end; query += Shape::kQueries) {
    float dots[Shape::kQueryTiles][4] = {};
    if (ahead) {
      if (query + Shape::kQueries < place.chunk_end) {
        load_queries(query + Shape::kQueries, 1 - stage, 0);
        load_state(query + Shape::kQueries, 1 - stage);
      }
      ctx.copy_commit();
      arrive<1, Unit>(ctx);
      Unit::template dot_rows<Shape::kQueryTiles>(ctx, dots, own_keys, Shape::kStride,
                                                  queries + stage * Shape::kQueryElements, Shape::kStride,
                                                  Shape::kD / Unit::kStep);
    } else {
      for (int slice = 0; slice < d_slices; ++slice) {
        if (d_slices > 1) load_keys(slice);
        load_queries(query, 0, slice);
        if (slice == 0) load_state(query, 0);
        if constexpr (Unit::kAsync) ctx.copy_commit();
        arrive<0, Unit>(ctx);
        Unit::template dot_rows<Shape::kQueryTiles>(ctx, dots, own_keys, Shape::kStride, queries,
                                                    Shape::kStride, Shape::kD / Unit::kStep);
        if (slice + 1 < d_slices) ctx.barrier();
      }
    }
    add_weights<Shape>(ctx, p, place, query, key, key_position, slope, dots,
                       states + 2 * stage * Shape::kQueries, sums);
    ctx.barrier();
    if (ahead) stage = 1 - stage;
  }

  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    float total = quad_sum(ctx, sums[i]);
    if (HEADWATER_SABOTAGE("cuda.columns.half_a_quad")) total = sums[i] + ctx.shuffle_xor(sums[i], 1);
    const bool owner =
        ctx.lane() % 4 == 0 || (HEADWATER_SABOTAGE("cuda.scores.two_owners") && ctx.lane() % 4 == 1);
    if (!owner || key[i] >= place.key_end) continue;
    const std::int64_t head = place.head;
    const std::int64_t score = head * p.capacity + key_position[i];
    if (memory) {
      p.sums[head * p.sums_stride + key[i]] = total;
      float before = read_score(p.scores, p.scores_bf16, score);
      if (HEADWATER_SABOTAGE("cuda.scores.overwritten")) before = 0.0f;
      write_score(p.scores, p.scores_bf16, score, before + total);  // SCORE-3
    } else {
      p.sums[head * p.sums_stride + key[i] - p.sums_base] = total;
      write_score(p.scores, p.scores_bf16, score, total);  // SCORE-2
    }
  }
}

}  // namespace headwater::cuda
