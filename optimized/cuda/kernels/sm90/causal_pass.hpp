#pragma once

#include <cstdint>

#include "cuda/kernels/sm90/finish_rows.hpp"
#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/logits.hpp"
#include "cuda/kernels/sm90/raw_params.hpp"
#include "cuda/kernels/sm90/schedule.hpp"
#include "cuda/kernels/sm90/softmax_rows.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda::sm90 {

/// Chunks of an intra pass, or the window of a dense prefill: then one chunk that begins at position 0, of whose tokens the
/// last ones are queries.
struct CausalForwardParams {
  TensorMap q;  ///< boxes of kTile rows, from the first query on
  TensorMap k;
  TensorMap v;
  IntraShape shape;
  LogitRule rule;
  SoftmaxState
      state;  ///< written: m, l, divisor and output of rows that wait for the inter pass; out null: none do
  std::int64_t first_row;  ///< of the first query, in the rows of a head of `state` and `out`
  std::int64_t position;   ///< of the first chunk: one at 0 has no memory, its rows are finished here
  RowOutputs out;
  int dv;       ///< columns of an output row
  float* lse2;  ///< [head][chunk][padded_tokens], units of ln 2, +inf after a chunk's end; or null
};

/// MASK-1, DEC-1: a query sees the keys of its chunk up to itself. Tiles of queries and of keys are cut alike, from the chunk's
/// begin, so that the last tile of keys is the one of the same tokens: a row has the same bits in every window, and in a
/// chunk of its own.
struct CausalPass {
  using Params = CausalForwardParams;
  static constexpr bool kSlopes = true;

  static HEADWATER_CUDA_FUNCTION int items(const Params& params) { return params.shape.items(); }
  static HEADWATER_CUDA_FUNCTION WorkItem item(const Params& params, int index) {
    return query_block(params.shape, index);
  }
  /// The last tiles, so many of them, are those of the queries' own tokens.
  template <int kKeys>
  static constexpr int kMaskedTiles = kTile / kKeys;
  template <int kKeys>
  static HEADWATER_CUDA_FUNCTION int last_tile(const Params&, const WorkItem& item) {
    return (item.tile + 1) * (kTile / kKeys) - 1;
  }
  static HEADWATER_CUDA_FUNCTION int kv_head(const Params& params, const WorkItem& item) {
    return params.shape.kv_head(item.head);
  }
  /// Of the queries' map, negative where the first tile begins before the first query: zeros.
  static HEADWATER_CUDA_FUNCTION int query_row(const Params& params, const WorkItem& item) {
    return item.tile * kTile - params.shape.first_query;
  }
  static HEADWATER_CUDA_FUNCTION float distance(const WorkItem& item, int first_key, int row, int column) {
    return static_cast<float>(item.tile * kTile - first_key + row - column);
  }

  template <int kKeys, class Machine>
  static HEADWATER_CUDA_FUNCTION void mask(Machine& machine, const Params&, const WorkItem& item, int tile,
                                           float (&logits)[kKeys / 2]) {
    // The first row's column in this tile; the loop knows it where a tile of keys is one of queries.
    const int own =
        (kKeys == kTile ? 0 : item.tile * kTile - tile * kKeys) + consumer_of(machine) * kFragmentRows;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kKeys / 2; ++i) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), i);
      if (place.column > own + place.row) logits[i] = kMinusInfinity;
    }
  }

  struct Nothing {};
  template <int kOutputs, class Machine>
  static HEADWATER_CUDA_FUNCTION Nothing fetch(Machine&, const Params&, const WorkItem&) {
    return {};
  }

  /// Rows after the chunk's end leave a log-sum-exp of +inf, so that they weigh nothing in the column sums.
  template <class Shape, class Machine, int kOutputs>
  static HEADWATER_CUDA_FUNCTION void store(Machine& machine, const Params& params, const WorkItem& item,
                                            const SoftmaxRows& rows, const float (&out)[kOutputs], Nothing) {
    const float sink = params.rule.sinks == nullptr ? kMinusInfinity : params.rule.sinks[item.head];
    const std::int64_t pair = static_cast<std::int64_t>(item.head) * params.shape.chunks + item.chunk;
    const std::int64_t chunk = static_cast<std::int64_t>(item.chunk) * params.shape.tokens;
    const bool finished = params.state.out == nullptr || params.position + chunk == 0;
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), 2 * r);
      const int token = item.tile * kTile + consumer_of(machine) * kFragmentRows + place.row;
      const bool inside = token < params.shape.tokens;
      const RowEnd end = end_of_row(machine, rows.highest[r] * scale_of<Shape>(params.rule),
                                    quad_sum(machine, rows.sum[r]), quad_sum(machine, rows.rounded[r]), sink);
      if (params.lse2 != nullptr && machine.thread() % 4 == 0) {
        params.lse2[pair * params.shape.padded_tokens() + token] =
            inside ? end.max + machine.log2(end.sum) : -kMinusInfinity;
      }
      if (!inside || token < params.shape.first_query) continue;
      const std::int64_t query = chunk + token - params.shape.first_query;
      if (finished) {
        const float inverse = machine.quotient(1.0f, end.rounded);
        write_row(machine, params.out, item.head, params.first_row + query, params.dv, r, end.keys * inverse,
                  out);
        write_lse(machine, params.out, item.head, query, end.max, end.sum);
        continue;
      }
      const std::int64_t row = item.head * params.state.stride + params.first_row + query;
      if (machine.thread() % 4 == 0) {
        params.state.max[row] = end.max;
        params.state.sum[row] = end.sum;
        params.state.rounded[row] = end.rounded;
      }
      keep_row(machine, params.state.out + row * params.dv, params.dv, r, end.keys, out);
    }
  }
};

}  // namespace headwater::cuda::sm90
