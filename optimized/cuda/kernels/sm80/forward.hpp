#pragma once

#include "cuda/kernels/blocks/place.hpp"
#include "cuda/kernels/sm80/tiles.hpp"

/// Attention of a tile of query rows over a range of keys, flash style: tiles of keys, a running maximum, one pass
/// (Dao, FlashAttention-2, 2023). It serves the intra pass, the inter pass, dense prefill and the splits of decode, which
/// differ in the keys that they see and in what becomes of m, l and o (ForwardParams).
///
/// A row's result depends on its own keys and on the key tiles, never on the rows beside it: all shapes of a head size
/// have one kKeys, so that the same row has the same bits in every one.
namespace headwater::cuda {

/// kD: a query row in shared memory; rows of more elements are contracted in slices of kD, loaded anew for each key tile.
/// kDv: width of a slice of the values; kKeys: keys of a tile; 16 query rows for each of kWarps warps. Where values are not
/// seen only m and l come out, with the bits that they have beside an output. kChosenKeys: rule blocks, the rows of a query
/// block over the keys and values at the positions of its set, read where they are stored.
template <class UnitType, int kDType, int kDvType, int kKeysType, int kWarpsType, bool kValues = true,
          bool kChosenKeys = false>
struct ForwardShape {
  static constexpr bool kSeesValues = kValues;
  static constexpr bool kChosen = kChosenKeys;
  using Unit = UnitType;
  static constexpr int kD = kDType;
  static constexpr int kDv = kDvType;
  static constexpr int kKeys = kKeysType;
  static constexpr int kWarps = kWarpsType;
  static constexpr int kRows = kFragmentRows * kWarps;
  static constexpr int kStages = Unit::kAsync ? 2 : 1;
  static constexpr int kKeyTiles = kKeys / kFragmentColumns;
  static constexpr int kValueTiles = kValues ? kDv / kFragmentColumns : 0;
  static constexpr int kKeyStride = kD + Unit::kPad;
  static constexpr int kValueStride = kDv + Unit::kPad;
  // Shared memory: queries, keys, values; in F32 the weights, which lanes exchange.
  static constexpr int kQueryElements = kRows * kKeyStride;
  static constexpr int kKeyElements = kKeys * kKeyStride;
  static constexpr int kValueElements = kValues ? kKeys * kValueStride : 0;
  static constexpr int kWeightStride = kKeys + 4;
  static constexpr int kWeightElements = Unit::kAsync || !kValues ? 0 : kRows * kWeightStride;
  static constexpr int kShared =
      static_cast<int>(sizeof(typename Unit::Element)) *
      (kQueryElements + kStages * (kKeyElements + kValueElements) + kWeightElements);
};

template <class Unit, int kD, int kDv, int kKeys, int kWarps>
using SoftmaxShape = ForwardShape<Unit, kD, kDv, kKeys, kWarps, false>;
template <class Unit, int kD, int kDv, int kKeys, int kWarps>
using ChosenShape = ForwardShape<Unit, kD, kDv, kKeys, kWarps, true, true>;

/// A block's place in the problem.
struct ForwardPlace {
  std::int64_t chunk_begin;  ///< positions of the rows that the tile is cut from
  std::int64_t chunk_end;
  std::int64_t first_row;  ///< of the tile: tokens * rows_per_token + head in the group
  std::int64_t key_begin;
  std::int64_t key_end;  ///< after the last key that any row of the tile sees
  int head;              ///< of row 0
  int key_head;
  int split;
  int slice;
  std::int64_t set;  ///< of chosen keys: its first position
};

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION ForwardPlace forward_place(Context& ctx, const ForwardParams& p) {
  ForwardPlace place;
  const PassGeometry& at = p.at;
  const int part = ctx.block_z() / p.value_slices;
  place.slice = ctx.block_z() % p.value_slices;
  place.split = p.split_keys > 0 ? part : 0;
  place.chunk_begin = at.begin + (p.split_keys > 0 ? 0 : part * at.chunk);
  place.chunk_end = place.chunk_begin + at.chunk < at.end ? place.chunk_begin + at.chunk : at.end;
  // The last tiles of a causal pass have the most keys: they go first.
  const int tile = at.range == KeyRange::memory ? ctx.block_y() : ctx.grid_y() - 1 - ctx.block_y();
  place.first_row = static_cast<std::int64_t>(tile) * Shape::kRows;
  place.head = ctx.block_x() * p.rows_per_token;
  place.key_head = place.head / at.group;
  if (at.range == KeyRange::memory) {
    place.key_begin = 0;
    place.key_end = at.memory;
  } else {
    place.key_begin = at.range == KeyRange::chunk ? place.chunk_begin : 0;
    const std::int64_t behind =
        place.chunk_begin + (place.first_row + Shape::kRows - 1) / p.rows_per_token + 1;
    place.key_end = behind < place.chunk_end ? behind : place.chunk_end;
  }
  if (p.split_keys > 0) {
    place.key_begin += place.split * p.split_keys;
    const std::int64_t split_end = place.key_begin + p.split_keys;
    if (split_end < place.key_end) place.key_end = split_end;
  }
  return place;
}

/// The same of a query block and its set.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION ForwardPlace chosen_place(Context& ctx, const ForwardParams& p) {
  const int sets = p.at.heads / p.at.group * p.blocks.count;
  const int set = ctx.block_x() % sets;
  const QueryBlock block = query_block(p.blocks, set % p.blocks.count);
  ForwardPlace place{};
  place.slice = ctx.block_z();
  place.chunk_begin = block.begin;
  place.chunk_end = block.end;
  place.first_row = static_cast<std::int64_t>(ctx.block_x() / sets) * Shape::kRows;
  place.key_head = set / p.blocks.count;
  place.head = place.key_head * p.at.group;
  place.key_end = block.entries;
  place.set = set * p.at.positions_stride;
  if (HEADWATER_SABOTAGE("cuda.chosen.set_of_first_block"))
    place.set -= set % p.blocks.count * p.at.positions_stride;
  return place;
}

/// A query row of the tile: where it stands, and whether there is one.
struct QueryRow {
  std::int64_t position;
  int head;
  bool valid;
};

HEADWATER_CUDA_FUNCTION QueryRow query_row(const ForwardParams& p, const ForwardPlace& place, int row) {
  const std::int64_t r = place.first_row + row;
  QueryRow query;
  query.position = place.chunk_begin + r / p.rows_per_token;
  query.head = place.head + static_cast<int>(r % p.rows_per_token);
  query.valid = query.position < place.chunk_end;
  return query;
}

/// m, l and the unnormalised output of the two rows that a lane holds pieces of. l stands in pieces, one for each lane of
/// the quad; `rounded` is the sum of the weights as the output saw them.
template <class Shape>
struct ForwardRows {
  float max[2];
  float sum[2];
  float rounded[4];
  float out[Shape::kSeesValues ? Shape::kValueTiles : 1][4];
};

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void begin_rows(Context& ctx, const ForwardParams& p, const ForwardPlace& place,
                                        const QueryRow (&query)[2], ForwardRows<Shape>& rows) {
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    float sink = kMinusInfinity;
    // LOGIT-4: once, in the intra pass or in the first split.
    const bool takes_part = p.at.range != KeyRange::memory && place.split == 0;
    if (p.rule.sinks != nullptr && takes_part && query[i].valid) sink = p.rule.sinks[query[i].head];
    const bool some = sink > kMinusInfinity;
    rows.max[i] = sink;
    rows.sum[i] = some && ctx.lane() % 4 == 0 ? 1.0f : 0.0f;
    rows.rounded[2 * i] = rows.rounded[2 * i + 1] = some ? 1.0f : 0.0f;
  }
  HEADWATER_CUDA_UNROLL
  for (int t = 0; t < Shape::kValueTiles; ++t) {
    HEADWATER_CUDA_UNROLL
    for (int e = 0; e < 4; ++e) rows.out[t][e] = 0.0f;
  }
}

/// Dot products to logits; what a row does not see becomes -inf.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void map_logits(Context& ctx, const ForwardParams& p, const ForwardPlace& place,
                                        const QueryRow (&query)[2], std::int64_t first_key,
                                        float (&logits)[Shape::kKeyTiles][4]) {
  const bool memory = p.at.range == KeyRange::memory;
  const int lane = ctx.lane();
  // The last key that a row sees, counted from the tile's first.
  std::int64_t last[2];
  float slope[2];
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    std::int64_t behind = place.key_end;
    if (!memory && query[i].position + 1 < behind) behind = query[i].position + 1;
    if (HEADWATER_SABOTAGE("cuda.forward.next_key_visible") && !memory && behind < place.key_end) ++behind;
    if (HEADWATER_SABOTAGE("cuda.forward.tail_key_lost") && memory && place.key_end > 1) --behind;
    last[i] = behind - first_key;
    slope[i] = p.rule.slopes != nullptr && query[i].valid ? p.rule.slopes[query[i].head] : 0.0f;
  }
  const bool biased = p.rule.slopes != nullptr;
  HEADWATER_CUDA_UNROLL
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
    HEADWATER_CUDA_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int column = fragment_column(lane, t, e);
      const bool visible = column < last[e / 2];
      std::int64_t distance = 0;
      if (biased && visible) {
        std::int64_t key = first_key + column;
        if (Shape::kChosen) {
          key = p.at.positions[place.set + key];
        } else if (memory) {
          key = p.at.positions[query[e / 2].head * p.at.positions_stride + key];
        }
        distance = query[e / 2].position - key;
      }
      const float logit = map_logit(ctx, p.rule, slope[e / 2], logits[t][e], distance);
      logits[t][e] = visible ? logit : kMinusInfinity;
    }
  }
}

/// Logits to weights relative to the new maximum; what was summed before is brought to it.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void weigh(Context& ctx, float (&logits)[Shape::kKeyTiles][4],
                                   ForwardRows<Shape>& rows) {
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    float max = logits[0][2 * i];
    HEADWATER_CUDA_UNROLL
    for (int t = 0; t < Shape::kKeyTiles; ++t)
      max = larger(larger(logits[t][2 * i], max), logits[t][2 * i + 1]);
    max = larger(rows.max[i], quad_max(ctx, max));
    if (HEADWATER_SABOTAGE("cuda.forward.maximum_of_own_lane")) max = larger(rows.max[i], logits[0][2 * i]);
    const float offset = offset_of(max);
    float rescale = ctx.exp2(rows.max[i] - offset);
    if (HEADWATER_SABOTAGE("cuda.forward.rescale_missed")) rescale = 1.0f;
    rows.max[i] = max;
    rows.sum[i] *= rescale;
    rows.rounded[2 * i] *= rescale;
    rows.rounded[2 * i + 1] *= rescale;
    HEADWATER_CUDA_UNROLL
    for (int t = 0; t < Shape::kValueTiles; ++t) {
      rows.out[t][2 * i] *= rescale;
      rows.out[t][2 * i + 1] *= rescale;
    }
    HEADWATER_CUDA_UNROLL
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
      HEADWATER_CUDA_UNROLL
      for (int e = 2 * i; e < 2 * i + 2; ++e) {
        logits[t][e] = ctx.exp2(logits[t][e] - offset);
        rows.sum[i] += logits[t][e];
      }
    }
  }
}

/// out += weights times values, F32: lanes exchange weights through their warp's rows of shared memory.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void add_values_f32(Context& ctx, const float (&weights)[Shape::kKeyTiles][4],
                                            Shared<float> exchange, Shared<float> values,
                                            ForwardRows<Shape>& rows) {
  const int lane = ctx.lane();
  HEADWATER_CUDA_UNROLL
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
    HEADWATER_CUDA_UNROLL
    for (int e = 0; e < 4; ++e) {
      exchange[fragment_row(lane, e) * Shape::kWeightStride + fragment_column(lane, t, e)] = weights[t][e];
    }
  }
  if (!HEADWATER_SABOTAGE("cuda.forward.weights_not_awaited")) ctx.warp_sync();
  const Shared<float> upper_row = exchange + fragment_row(lane, 0) * Shape::kWeightStride;
  const Shared<float> lower_row = upper_row + 8 * Shape::kWeightStride;
  const Shared<float> value_column = values + fragment_column(lane, 0, 0);
  for (int key = 0; key < Shape::kKeys; key += 4) {
    const Words4 upper = ctx.load16(upper_row + key);
    const Words4 lower = ctx.load16(lower_row + key);
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float a = float_of(upper.word[i]);
      const float b = float_of(lower.word[i]);
      HEADWATER_CUDA_UNROLL
      for (int t = 0; t < Shape::kValueTiles; ++t) {
        const Words2 v = ctx.load8(value_column + (key + i) * Shape::kValueStride + t * kFragmentColumns);
        rows.out[t][0] = ctx.fma(a, float_of(v.word[0]), rows.out[t][0]);
        rows.out[t][1] = ctx.fma(a, float_of(v.word[1]), rows.out[t][1]);
        rows.out[t][2] = ctx.fma(b, float_of(v.word[0]), rows.out[t][2]);
        rows.out[t][3] = ctx.fma(b, float_of(v.word[1]), rows.out[t][3]);
      }
    }
  }
  ctx.warp_sync();
}

/// The same on tensor cores: an accumulator of logits is, two n-tiles at a time, a left operand.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void add_values(Context& ctx, const float (&weights)[Shape::kKeyTiles][4],
                                        Shared<typename Shape::Unit::Element> values,
                                        ForwardRows<Shape>& rows) {
  using Unit = typename Shape::Unit;
  const int lane = ctx.lane();
  const std::uint32_t one = Unit::pack(1.0f, 1.0f);
  const Shared<typename Unit::Element> row = values + (lane % 16) * Shape::kValueStride + lane / 16 * 8;
  HEADWATER_CUDA_UNROLL
  for (int t = 0; t < Shape::kKeyTiles; t += 2) {
    std::uint32_t left[4] = {
        Unit::pack(weights[t][0], weights[t][1]), Unit::pack(weights[t][2], weights[t][3]),
        Unit::pack(weights[t + 1][0], weights[t + 1][1]), Unit::pack(weights[t + 1][2], weights[t + 1][3])};
    if (HEADWATER_SABOTAGE("cuda.forward.fragments_swapped")) {
      const std::uint32_t kept = left[1];
      left[1] = left[2];
      left[2] = kept;
    }
    // Outputs are divided by the sum of the rounded weights, so that the weights of a row add up to 1.
    Unit::multiply(ctx, rows.rounded, left, {one, one});
    HEADWATER_CUDA_UNROLL
    for (int v = 0; v < Shape::kValueTiles; v += 2) {
      std::uint32_t right[4];
      ctx.load_matrix_x4_transposed(right,
                                    row + t * kFragmentColumns * Shape::kValueStride + v * kFragmentColumns);
      Unit::multiply(ctx, rows.out[v], left, {right[0], right[1]});
      Unit::multiply(ctx, rows.out[v + 1], left, {right[2], right[3]});
    }
  }
}

/// What becomes of a finished row: m, l and o kept, or joined with another pass's (FUSE-1), or written out.
template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void finish_rows(Context& ctx, const ForwardParams& p, const ForwardPlace& place,
                                         const QueryRow (&query)[2], ForwardRows<Shape>& rows) {
  const int lane = ctx.lane();
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float sum = quad_sum(ctx, rows.sum[i]);
    if (!query[i].valid) continue;
    const float max = rows.max[i];
    const float rounded = Shape::Unit::kAsync ? rows.rounded[2 * i] : sum;
    const std::int64_t position = query[i].position;
    const bool first = lane % 4 == 0 && place.slice == 0;
    const std::int64_t state =
        (static_cast<std::int64_t>(place.split) * p.at.heads + query[i].head) * p.state.stride + position -
        p.state.base;
    // A chunk at position 0 has no memory: its rows are done. Other rows of the intra pass wait for the inter pass.
    const bool kept = p.state.out != nullptr && (p.split_keys > 0 || place.chunk_begin > 0);
    if (p.state.max != nullptr && first) {
      p.state.max[state] = max;
      p.state.sum[state] = sum;
      if (kept) p.state.rounded[state] = rounded;
    }
    float own_scale = 1.0f;
    float other_scale = 0.0f;
    float final_max = max;
    float final_sum = sum;
    float divisor = rounded;
    std::int64_t fused = 0;
    const bool fuses = p.fused.max != nullptr;
    if (fuses) {
      fused = static_cast<std::int64_t>(query[i].head) * p.fused.stride + position - p.fused.base;
      final_max = larger(max, p.fused.max[fused]);
      const float offset = offset_of(final_max);
      own_scale = ctx.exp2(max - offset);
      other_scale = ctx.exp2(p.fused.max[fused] - offset);
      if (HEADWATER_SABOTAGE("cuda.fusion.not_scaled")) other_scale = 1.0f;
      final_sum = sum * own_scale + p.fused.sum[fused] * other_scale;
      divisor = rounded * own_scale + p.fused.rounded[fused] * other_scale;
    }
    const float inverse = inverse_of(divisor);
    HEADWATER_CUDA_UNROLL
    for (int t = 0; t < Shape::kValueTiles; ++t) {
      HEADWATER_CUDA_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = place.slice * Shape::kDv + fragment_column(lane, t, e);
        if (column >= p.dv) continue;
        float value = rows.out[t][2 * i + e];
        if (kept) {
          p.state.out[state * p.dv + column] = value;
          continue;
        }
        if (fuses) value = value * own_scale + p.fused.out[fused * p.dv + column] * other_scale;
        store_element(p.out.data, p.out.type,
                      (position - p.at.base) * p.out.row_stride + query[i].head * p.out.head_stride + column,
                      value * inverse);
      }
    }
    if (p.lse != nullptr && !kept && first) {
      p.lse[query[i].head * p.lse_stride + position - p.at.begin] = kLn2 * (final_max + ctx.log2(final_sum));
    }
  }
}

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void forward(Context& ctx, const ForwardParams& p) {
  using Unit = typename Shape::Unit;
  using Element = typename Unit::Element;
  constexpr int kBytes = static_cast<int>(sizeof(Element));
  const Shared<Element> queries = ctx.template shared<Element>(0, Shape::kQueryElements);
  const Shared<Element> keys =
      ctx.template shared<Element>(kBytes * Shape::kQueryElements, Shape::kStages * Shape::kKeyElements);
  const Shared<Element> values =
      ctx.template shared<Element>(kBytes * (Shape::kQueryElements + Shape::kStages * Shape::kKeyElements),
                                   Shape::kStages * Shape::kValueElements);
  ForwardPlace place;
  if constexpr (Shape::kChosen) {
    place = chosen_place<Shape>(ctx, p);
  } else {
    place = forward_place<Shape>(ctx, p);
  }
  if (place.chunk_begin + place.first_row / p.rows_per_token >= place.chunk_end)
    return;  // the last chunk is shorter

  const int warp_row = ctx.warp() * kFragmentRows;
  QueryRow query[2];
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < 2; ++i) query[i] = query_row(p, place, warp_row + fragment_row(ctx.lane(), 2 * i));
  ForwardRows<Shape> rows;
  begin_rows(ctx, p, place, query, rows);

  const auto query_begin = [&](int row) -> std::int64_t {
    const QueryRow source = query_row(p, place, row);
    if (!source.valid) return -1;
    return (source.position - p.at.base) * p.q.row_stride + source.head * p.q.head_stride;
  };
  const int d_slices = (p.d + Shape::kD - 1) / Shape::kD;
  const int dv_begin = place.slice * Shape::kDv;
  const auto load_queries = [&](int slice) {
    load_input_rows<Unit, Shape::kRows, Shape::kD>(ctx, queries, p.q, p.d, slice * Shape::kD, query_begin);
  };
  // The stored row of a tile's row, or -1.
  const auto stored_row = [&](std::int64_t key) -> std::int64_t {
    if (key >= place.key_end) return -1;
    if constexpr (Shape::kChosen) key = p.at.positions[place.set + key];
    return key;
  };
  const auto load_keys = [&](std::int64_t first_key, int stage, int slice) {
    load_rows<Unit, Shape::kKeys, Shape::kD>(ctx, keys + stage * Shape::kKeyElements, p.keys, place.key_head,
                                             slice * Shape::kD,
                                             [&](int row) { return stored_row(first_key + row); });
  };
  const auto load_values = [&](std::int64_t first_key, int stage) {
    if constexpr (Shape::kSeesValues) {
      load_rows<Unit, Shape::kKeys, Shape::kDv>(ctx, values + stage * Shape::kValueElements, p.values,
                                                place.key_head, dv_begin,
                                                [&](int row) { return stored_row(first_key + row); });
    }
  };

  // Whole rows in shared memory on tensor units: the next tile is copied while this one is computed.
  const bool ahead = Unit::kAsync && d_slices == 1;
  if (ahead) {
    load_queries(0);
    load_keys(place.key_begin, 0, 0);
    load_values(place.key_begin, 0);
    ctx.copy_commit();
  } else if (d_slices == 1) {
    load_queries(0);
  }
  int stage = 0;
  for (std::int64_t first_key = place.key_begin; first_key < place.key_end; first_key += Shape::kKeys) {
    float logits[Shape::kKeyTiles][4] = {};
    const Shared<Element> own_queries = queries + warp_row * Shape::kKeyStride;
    if (ahead) {
      if (first_key + Shape::kKeys < place.key_end) {
        load_keys(first_key + Shape::kKeys, 1 - stage, 0);
        load_values(first_key + Shape::kKeys, 1 - stage);
      }
      ctx.copy_commit();
      if (HEADWATER_SABOTAGE("cuda.forward.copy_not_awaited")) {
        ctx.barrier();
      } else {
        arrive<1, Unit>(ctx);
      }
      Unit::template dot_rows<Shape::kKeyTiles>(ctx, logits, own_queries, Shape::kKeyStride,
                                                keys + stage * Shape::kKeyElements, Shape::kKeyStride,
                                                Shape::kD / Unit::kStep);
    } else {
      for (int slice = 0; slice < d_slices; ++slice) {
        if (d_slices > 1) load_queries(slice);
        load_keys(first_key, 0, slice);
        if (slice == 0) load_values(first_key, 0);
        if constexpr (Unit::kAsync) ctx.copy_commit();
        arrive<0, Unit>(ctx);
        Unit::template dot_rows<Shape::kKeyTiles>(ctx, logits, own_queries, Shape::kKeyStride, keys,
                                                  Shape::kKeyStride, Shape::kD / Unit::kStep);
        if (slice + 1 < d_slices) ctx.barrier();
      }
    }
    map_logits<Shape>(ctx, p, place, query, first_key, logits);
    weigh<Shape>(ctx, logits, rows);
    if constexpr (!Shape::kSeesValues) {
      // m and l alone.
    } else if constexpr (Unit::kAsync) {
      add_values<Shape>(ctx, logits, values + stage * Shape::kValueElements, rows);
    } else {
      const Shared<float> exchange = ctx.template shared<float>(
          kBytes * (Shape::kQueryElements + Shape::kKeyElements + Shape::kValueElements),
          Shape::kWeightElements);
      add_values_f32<Shape>(ctx, logits, exchange + warp_row * Shape::kWeightStride, values, rows);
    }
    // The next round writes what this one read.
    if (!HEADWATER_SABOTAGE("cuda.forward.barrier_left_out")) ctx.barrier();
    if (ahead) stage = 1 - stage;
  }
  finish_rows<Shape>(ctx, p, place, query, rows);
}

}  // namespace headwater::cuda
