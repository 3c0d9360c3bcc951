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

/// The queries of one chunk over the memory sets of their heads, and the join with the intra pass.
struct MemoryForwardParams {
  TensorMap q;  ///< boxes of kTile rows, one chunk
  TensorMap k;  ///< gathered rows of each query head
  TensorMap v;
  LogitRule rule;  ///< without slopes: positions of the entries find no registers beside logits and outputs
  int heads;
  int tokens;              ///< of the chunk
  int count;               ///< entries of a memory set, at least 1
  SoftmaxState intra;      ///< read: what the intra pass left of these rows
  std::int64_t first_row;  ///< of the first query, in the rows of a head of `intra` and `out`
  RowOutputs out;
  int dv;
};

/// INTER-1 and FUSE-1: every query sees every entry; the last tile of keys is masked after the last one.
struct MemoryPass {
  using Params = MemoryForwardParams;
  static constexpr bool kSlopes = false;

  static HEADWATER_CUDA_BOTH int items(const Params& params) {
    return params.heads * tiles_of(params.tokens);
  }
  static HEADWATER_CUDA_FUNCTION WorkItem item(const Params& params, int index) {
    return {index % params.heads, 0, index / params.heads};
  }
  template <int kKeys>
  static constexpr int kMaskedTiles = 1;
  template <int kKeys>
  static HEADWATER_CUDA_FUNCTION int last_tile(const Params& params, const WorkItem&) {
    return (params.count - 1) / kKeys;
  }
  static HEADWATER_CUDA_FUNCTION int kv_head(const Params&, const WorkItem& item) { return item.head; }
  static HEADWATER_CUDA_FUNCTION int query_row(const Params&, const WorkItem& item) {
    return item.tile * kTile;
  }

  template <int kKeys, class Machine>
  static HEADWATER_CUDA_FUNCTION void mask(Machine& machine, const Params& params, const WorkItem&, int tile,
                                           float (&logits)[kKeys / 2]) {
    int entries = params.count - tile * kKeys;
    if (HEADWATER_SABOTAGE("cuda.sm90.memory_tail_visible")) entries = (entries + 7) / 8 * 8;
    if (entries >= kKeys) return;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kKeys / 2; ++i) {
      if (accumulator_place(lane_of_warpgroup(machine), i).column >= entries) logits[i] = kMinusInfinity;
    }
  }

  /// What the intra pass left of a thread's rows.
  template <int kOutputs>
  struct IntraRows {
    /// Outputs of 256 columns leave no registers for as many more.
    static constexpr bool kAhead = kOutputs <= kAccumulators;
    float max[kRowsOfThread] = {};
    float sum[kRowsOfThread] = {};
    float rounded[kRowsOfThread] = {};
    float out[kAhead ? kOutputs : 1] = {};
  };
  template <class Machine>
  static HEADWATER_CUDA_FUNCTION int token_of(const Machine& machine, const WorkItem& item, int r) {
    const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), 2 * r);
    return item.tile * kTile + consumer_of(machine) * kFragmentRows + place.row;
  }

  static HEADWATER_CUDA_FUNCTION const float* intra_row(const Params& params, const WorkItem& item,
                                                        int token) {
    return params.intra.out + (item.head * params.intra.stride + params.first_row + token) * params.dv;
  }

  template <int kOutputs, class Machine>
  static HEADWATER_CUDA_FUNCTION IntraRows<kOutputs> fetch(Machine& machine, const Params& params,
                                                           const WorkItem& item) {
    IntraRows<kOutputs> intra;
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const int token = token_of(machine, item, r);
      if (token >= params.tokens) continue;
      const std::int64_t row = item.head * params.intra.stride + params.first_row + token;
      intra.max[r] = params.intra.max[row];
      intra.sum[r] = params.intra.sum[row];
      intra.rounded[r] = params.intra.rounded[row];
      if constexpr (IntraRows<kOutputs>::kAhead) {
        read_row(machine, intra_row(params, item, token), params.dv, r, intra.out);
      }
    }
    return intra;
  }

  template <class Shape, class Machine, int kOutputs>
  static HEADWATER_CUDA_FUNCTION void store(Machine& machine, const Params& params, const WorkItem& item,
                                            const SoftmaxRows& rows, float (&out)[kOutputs],
                                            const IntraRows<kOutputs>& intra) {
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const int token = token_of(machine, item, r);
      const float own_sum = quad_sum(machine, rows.sum[r]);
      const float own_rounded = quad_sum(machine, rows.rounded[r]);
      if (token >= params.tokens) continue;
      const float own_max = rows.highest[r] * scale_of<Shape>(params.rule);
      const float max = machine.maximum(own_max, intra.max[r]);
      const float own = machine.exp2(own_max - max);
      float other = machine.exp2(intra.max[r] - max);
      if (HEADWATER_SABOTAGE("cuda.sm90.intra_not_joined")) other = 0.0f;
      if constexpr (IntraRows<kOutputs>::kAhead) {
        join_row(r, own, other, intra.out, out);
      } else {
        join_kept_row(machine, intra_row(params, item, token), params.dv, r, own, other, out);
      }
      const float inverse = machine.quotient(1.0f, own_rounded * own + intra.rounded[r] * other);
      write_row(machine, params.out, item.head, params.first_row + token, params.dv, r, inverse, out);
      write_lse(machine, params.out, item.head, token, max, own_sum * own + intra.sum[r] * other);
    }
  }
};

}  // namespace headwater::cuda::sm90
