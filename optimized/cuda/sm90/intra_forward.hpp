#pragma once

#include <cstdint>

#include "cuda/sm90/fragments.hpp"
#include "cuda/sm90/kernel_shape.hpp"
#include "cuda/sm90/logits.hpp"
#include "cuda/sm90/matrix_descriptor.hpp"
#include "cuda/sm90/pipeline.hpp"
#include "cuda/sm90/raw_params.hpp"
#include "cuda/sm90/roles.hpp"
#include "cuda/sm90/schedule.hpp"
#include "cuda/sm90/softmax_rows.hpp"
#include "cuda/sm90/tensor_map.hpp"
#include "headwater/testing/sabotage.hpp"

/// Intra forward (INTRA-1) as FlashAttention-3 does it (Shah et al. 2024): one warpgroup copies, two compute 64 query rows
/// each; while one exponentiates, the other's products run.
namespace headwater::cuda::sm90 {

struct IntraForwardParams {
  TensorMap q;  ///< boxes of kTile rows
  TensorMap k;
  TensorMap v;
  IntraShape shape;
  LogitRule rule;
  SoftmaxState state;      ///< written: m, l, divisor and output of every row
  std::int64_t first_row;  ///< of the first chunk, in the rows of a head of the state
  int dv;                  ///< columns of an output row
  float* lse2;             ///< [head][chunk][padded_tokens], units of ln 2, +inf behind a chunk's end
};

template <class Shape>
struct IntraForward {
  static constexpr int kStages = 2;
  static constexpr int kSteps = Shape::kD / kStepK;  ///< k steps of Q K^T
  static constexpr int kKeySteps = kTile / kStepK;
  static constexpr int kOutputs = Shape::kDv / 2;  ///< registers of a thread for an output row's piece
  using Element = typename Shape::Element;
  using Tile = SharedTile<kTile, Shape::kD>;
  using ValueTile = SharedTile<kTile, Shape::kDv>;

  /// Named barriers; 0 is the whole block's.
  static constexpr int kTurn = 1;  ///< kTurn + w: consumer w may issue

  template <class Barrier>
  struct Smem {
    Tile q;
    Tile k[kStages];
    ValueTile v[kStages];
    Barrier q_full;
    Barrier q_empty;
    Barrier k_full[kStages];
    Barrier k_empty[kStages];
    Barrier v_full[kStages];
    Barrier v_empty[kStages];
    float unread;
  };
  static_assert(sizeof(Smem<std::uint64_t>) + kSwizzleBytes <= kSharedLimitSm90);

  template <class Machine>
  class Producer;
  template <class Machine>
  class Consumer;

  /// The whole kernel: kThreads threads, any number of blocks up to shape.items().
  template <class Machine>
  static HEADWATER_CUDA_DEVICE void run(Machine& machine, const IntraForwardParams& params) {
    auto& smem = machine.template shared<Smem<typename Machine::Barrier>>();
    if (machine.thread() == 0) {
      machine.start(smem.q_full, 1);
      machine.start(smem.q_empty, kConsumerWarps);
      for (int stage = 0; stage < kStages; ++stage) {
        machine.start(smem.k_full[stage], 1);
        machine.start(smem.v_full[stage], 1);
        machine.start(smem.k_empty[stage], kConsumerWarps);
        machine.start(smem.v_empty[stage], kConsumerWarps);
      }
    }
    machine.publish_barriers();
    if (machine.warpgroup() == 0) {
      machine.template give_registers<kProducerRegisters>();
      if (machine.thread() == 0) Producer<Machine>{machine, params, smem}.run();
    } else {
      machine.template take_registers<kConsumerRegisters>();
      Consumer<Machine>{machine, params, smem}.run();
    }
  }
};

template <class Shape>
template <class Machine>
class IntraForward<Shape>::Producer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const IntraForwardParams& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_DEVICE void run() {
    Ring<1> q;
    Ring<kStages> k;
    Ring<kStages> v;
    for (int round = 0;; ++round) {
      const int index = item_of_round(machine.block(), machine.blocks(), round);
      if (index >= params.shape.items()) return;
      const WorkItem item = query_block(params.shape, index);
      const int kv_head = params.shape.kv_head(item.head);
      fill(smem.q, params.q, smem.q_full, smem.q_empty, q.parity(), item.tile, item.chunk, item.head);
      q.advance();
      // In the order of use: the keys of a tile, then the values of the tile before.
      for (int tile = item.tile; tile >= 0; --tile) {
        fill(smem.k[k.stage()], params.k, smem.k_full[k.stage()], smem.k_empty[k.stage()], k.parity(), tile,
             item.chunk, kv_head);
        k.advance();
        if (tile != item.tile) {
          fill_values(v, tile + 1, item.chunk, kv_head);
          v.advance();
        }
      }
      fill_values(v, 0, item.chunk, kv_head);
      v.advance();
    }
  }

 private:
  HEADWATER_CUDA_DEVICE void fill_values(const Ring<kStages>& v, int tile, int chunk, int kv_head) {
    fill(smem.v[v.stage()], params.v, smem.v_full[v.stage()], smem.v_empty[v.stage()], v.parity(), tile,
         chunk, kv_head);
  }

  template <class FilledTile>
  HEADWATER_CUDA_DEVICE void fill(FilledTile& to, const TensorMap& map, Barrier& full, Barrier& empty,
                                  std::uint32_t parity, int tile, int chunk, int head) {
    machine.wait(empty, parity ^ 1u);
    machine.arrive_expecting(full, FilledTile::kBytes);
    load_tile(machine, to, map, full, tile * kTile, chunk, head);
  }
};

template <class Shape>
template <class Machine>
class IntraForward<Shape>::Consumer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const IntraForwardParams& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_DEVICE void run() {
    Ring<1> q;
    Ring<kStages> k;
    Ring<kStages> v;
    if (consumer() != 0) pass_turn();
    for (int round = 0;; ++round) {
      const int index = item_of_round(machine.block(), machine.blocks(), round);
      if (index >= params.shape.items()) break;
      attend(query_block(params.shape, index), q, k, v);
    }
    if (consumer() == 0) await_turn();  // the other's last pass: no arrival is left behind
  }

 private:
  [[nodiscard]] HEADWATER_CUDA_DEVICE int consumer() const { return consumer_of(machine); }

  /// Ping-pong: products are issued in turns, so that the softmax of one consumer runs beside the other's products.
  HEADWATER_CUDA_DEVICE void await_turn() { machine.sync(kTurn + consumer(), kConsumers * kWarpgroup); }
  HEADWATER_CUDA_DEVICE void pass_turn() { machine.arrive(kTurn + 1 - consumer(), kConsumers * kWarpgroup); }

  HEADWATER_CUDA_DEVICE void issue_logits(float (&logits)[kAccumulators], int stage) {
    const std::uint32_t queries = machine.shared_address(&smem.q) + consumer() * kFragmentRows * kLineBytes;
    const std::uint32_t keys = machine.shared_address(&smem.k[stage]);
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      machine.template multiply<Element>(logits, k_major<Tile>(queries, step), k_major<Tile>(keys, step),
                                         step != 0);
    }
    machine.commit();
  }

  HEADWATER_CUDA_DEVICE void issue_output(float (&out)[kOutputs],
                                          const std::uint32_t (&weights)[kAccumulators / 2], int stage) {
    const std::uint32_t values = machine.shared_address(&smem.v[stage]);
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kKeySteps; ++step) {
      machine.template multiply_transposed<Element>(out, weights + 4 * step,
                                                    column_major<ValueTile>(values, step));
    }
    machine.commit();
  }

  /// MASK-1 in the tile whose queries and keys are the same tokens.
  HEADWATER_CUDA_DEVICE void mask_diagonal(float (&logits)[kAccumulators]) {
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kAccumulators; ++i) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), i);
      if (place.column > consumer() * kFragmentRows + place.row) logits[i] = kMinusInfinity;
    }
  }

  /// The whole rule, where the kernel is made for it.
  HEADWATER_CUDA_DEVICE void map(float (&logits)[kAccumulators], const WorkItem& item, int tile) {
    if constexpr (Shape::kMapped) {
      const int first = (item.tile - tile) * kTile + consumer() * kFragmentRows;
      map_logits(machine, params.rule, item.head, logits, [&](int i) {
        const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), i);
        return static_cast<float>(first + place.row - place.column);
      });
    }
  }

  HEADWATER_CUDA_DEVICE void attend(const WorkItem& item, Ring<1>& q, Ring<kStages>& k, Ring<kStages>& v) {
    float logits[kAccumulators];
    float out[kOutputs];
    std::uint32_t weights[kAccumulators / 2];
    SoftmaxRows rows;
    float factor[kRowsOfThread];
    const float scale = scale_of<Shape>(params.rule);

    // The diagonal tile first: it alone is masked, and every row sees a key in it.
    machine.wait(smem.q_full, q.parity());
    if (!HEADWATER_SABOTAGE("cuda.sm90.keys_not_awaited")) machine.wait(smem.k_full[k.stage()], k.parity());
    await_turn();
    machine.fence_operands(logits);
    issue_logits(logits, k.stage());
    pass_turn();
    machine.template wait_products<0>(logits);
    release(machine, smem.k_empty[k.stage()]);
    k.advance();
    map(logits, item, item.tile);
    mask_diagonal(logits);
    rows.template add_tile<true>(machine, logits, scale, factor);
    rows.template pack<Element>(logits, weights);
    HEADWATER_CUDA_UNROLL
    for (float& x : out) x = 0.0f;

    for (int tile = item.tile - 1; tile >= 0; --tile) {
      machine.wait(smem.k_full[k.stage()], k.parity());
      await_turn();
      machine.fence_operands(logits);
      issue_logits(logits, k.stage());
      machine.wait(smem.v_full[v.stage()], v.parity());
      machine.fence_operands(out, weights);
      issue_output(out, weights, v.stage());
      pass_turn();
      machine.template wait_products<1>(logits);
      release(machine, smem.k_empty[k.stage()]);
      k.advance();
      map(logits, item, tile);
      rows.template add_tile<false>(machine, logits, scale, factor);
      machine.pin(rows.sum[0] + rows.sum[1], smem.unread);  // beside the products of the values
      machine.template wait_products<0>(out);
      release(machine, smem.v_empty[v.stage()]);
      v.advance();
      HEADWATER_CUDA_UNROLL
      for (int i = 0; i < kOutputs; ++i) out[i] *= factor[row_of(i)];
      rows.template pack<Element>(logits, weights);
    }
    release(machine, smem.q_empty);
    q.advance();

    machine.wait(smem.v_full[v.stage()], v.parity());
    machine.fence_operands(out, weights);
    issue_output(out, weights, v.stage());
    machine.template wait_products<0>(out);
    release(machine, smem.v_empty[v.stage()]);
    v.advance();
    store(item, rows, out);
  }

  /// Rows behind the chunk's end leave a log-sum-exp of +inf, so that they weigh nothing in the column sums.
  HEADWATER_CUDA_DEVICE void store(const WorkItem& item, const SoftmaxRows& rows,
                                   const float (&out)[kOutputs]) {
    const float sink = params.rule.sinks == nullptr ? kMinusInfinity : params.rule.sinks[item.head];
    const std::int64_t pair = static_cast<std::int64_t>(item.head) * params.shape.chunks + item.chunk;
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), 2 * r);
      const int token = item.tile * kTile + consumer() * kFragmentRows + place.row;
      const bool inside = token < params.shape.tokens;
      const RowEnd end = end_of_row(machine, rows.highest[r] * scale_of<Shape>(params.rule),
                                    quad_sum(machine, rows.sum[r]), quad_sum(machine, rows.rounded[r]), sink);
      const std::int64_t row = item.head * params.state.stride + params.first_row +
                               static_cast<std::int64_t>(item.chunk) * params.shape.tokens + token;
      if (machine.thread() % 4 == 0) {
        params.lse2[pair * params.shape.padded_tokens() + token] =
            inside ? end.max + machine.log2(end.sum) : -kMinusInfinity;
        if (inside) {
          params.state.max[row] = end.max;
          params.state.sum[row] = end.sum;
          params.state.rounded[row] = end.rounded;
        }
      }
      if (!inside) continue;
      store_row(params.state.out + row * params.dv, r, end.keys, out);
    }
  }

  /// Columns of row r that this thread has, each pair with one store where all rows begin at pairs.
  HEADWATER_CUDA_DEVICE void store_row(float* to, int r, float factor, const float (&out)[kOutputs]) {
    const bool pairs = params.dv % 2 == 0;
    HEADWATER_CUDA_UNROLL
    for (int i = 2 * r; i < kOutputs; i += 4) {
      const int column = accumulator_place(lane_of_warpgroup(machine), i).column;
      if (column >= params.dv) continue;
      if (pairs) {
        machine.store_pair(to + column, out[i] * factor, out[i + 1] * factor);
      } else {
        to[column] = out[i] * factor;
        if (column + 1 < params.dv) to[column + 1] = out[i + 1] * factor;
      }
    }
  }
};

}  // namespace headwater::cuda::sm90
