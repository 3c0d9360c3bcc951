#pragma once

#include <cstdint>

#include "cuda/sm90/fragments.hpp"
#include "cuda/sm90/matrix_descriptor.hpp"
#include "cuda/sm90/pipeline.hpp"
#include "cuda/sm90/roles.hpp"
#include "cuda/sm90/schedule.hpp"
#include "cuda/sm90/softmax_rows.hpp"

/// Intra forward (INTRA-1) as FlashAttention-3 does it (Shah et al. 2024): one warpgroup copies, two compute 64 query rows
/// each; while one exponentiates, the other's products run.
namespace headwater::cuda::sm90 {

template <class Map>
struct IntraForwardParams {
  Map q;  ///< boxes of kTile rows
  Map k;
  Map v;
  IntraShape shape;
  float scale;                ///< of a product q . k, to units of ln 2; positive
  const float* sinks;         ///< one a query head, natural units; or null
  float* out;                 ///< normalised output rows, F32, 8-byte aligned
  std::int64_t token_stride;  ///< of out, elements, even
  std::int64_t head_stride;
  float* lse2;  ///< [head][chunk][padded_tokens], units of ln 2, +inf behind a chunk's end
  float* lse;   ///< [head][chunk * tokens], natural, sink included; or null
};

struct IntraForward {
  static constexpr int kStages = 2;
  static constexpr int kSteps = kHead / kStepK;  ///< k steps of Q K^T
  static constexpr int kKeySteps = kTile / kStepK;
  using Tile = SharedTile<kTile, kHead>;

  /// Named barriers; 0 is the whole block's.
  static constexpr int kTurn = 1;  ///< kTurn + w: consumer w may issue

  template <class Barrier>
  struct Smem {
    Tile q;
    Tile k[kStages];
    Tile v[kStages];
    Barrier q_full;
    Barrier q_empty;
    Barrier k_full[kStages];
    Barrier k_empty[kStages];
    Barrier v_full[kStages];
    Barrier v_empty[kStages];
    float unread;
  };
  static_assert(sizeof(Smem<std::uint64_t>) + kSwizzleBytes <= kSharedLimitSm90);

  template <class Element, class Machine>
  class Producer;
  template <class Element, class Machine>
  class Consumer;

  /// The whole kernel: kThreads threads, any number of blocks up to shape.items().
  template <class Element, class Machine>
  static HEADWATER_CUDA_DEVICE void run(Machine& machine,
                                        const IntraForwardParams<typename Machine::Map>& params) {
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
      if (machine.thread() == 0) Producer<Element, Machine>{machine, params, smem}.run();
    } else {
      machine.template take_registers<kConsumerRegisters>();
      Consumer<Element, Machine>{machine, params, smem}.run();
    }
  }
};

template <class Element, class Machine>
class IntraForward::Producer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const IntraForwardParams<typename Machine::Map>& params;
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

  HEADWATER_CUDA_DEVICE void fill(Tile& to, const typename Machine::Map& map, Barrier& full, Barrier& empty,
                                  std::uint32_t parity, int tile, int chunk, int head) {
    machine.wait(empty, parity ^ 1u);
    machine.arrive_expecting(full, Tile::kBytes);
    load_tile(machine, to, map, full, tile * kTile, chunk, head);
  }
};

template <class Element, class Machine>
class IntraForward::Consumer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const IntraForwardParams<typename Machine::Map>& params;
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

  HEADWATER_CUDA_DEVICE void issue_output(float (&out)[kAccumulators],
                                          const std::uint32_t (&weights)[kAccumulators / 2], int stage) {
    const std::uint32_t values = machine.shared_address(&smem.v[stage]);
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kKeySteps; ++step) {
      machine.template multiply_transposed<Element>(out, weights + 4 * step,
                                                    column_major<Tile>(values, step));
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

  HEADWATER_CUDA_DEVICE void attend(const WorkItem& item, Ring<1>& q, Ring<kStages>& k, Ring<kStages>& v) {
    float logits[kAccumulators];
    float out[kAccumulators];
    std::uint32_t weights[kAccumulators / 2];
    SoftmaxRows rows;
    float factor[kRowsOfThread];

    // The diagonal tile first: it alone is masked, and every row sees a key in it.
    machine.wait(smem.q_full, q.parity());
    machine.wait(smem.k_full[k.stage()], k.parity());
    await_turn();
    machine.fence_operands(logits);
    issue_logits(logits, k.stage());
    pass_turn();
    machine.template wait_products<0>(logits);
    release(machine, smem.k_empty[k.stage()]);
    k.advance();
    mask_diagonal(logits);
    rows.template add_tile<true>(machine, logits, params.scale, factor);
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
      rows.template add_tile<false>(machine, logits, params.scale, factor);
      machine.pin(rows.sum[0] + rows.sum[1], smem.unread);  // beside the products of the values
      machine.template wait_products<0>(out);
      release(machine, smem.v_empty[v.stage()]);
      v.advance();
      HEADWATER_CUDA_UNROLL
      for (int i = 0; i < kAccumulators; ++i) out[i] *= factor[row_of(i)];
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

  HEADWATER_CUDA_DEVICE void store(const WorkItem& item, const SoftmaxRows& rows,
                                   const float (&out)[kAccumulators]) {
    const float sink2 = params.sinks == nullptr ? kMinusInfinity : params.sinks[item.head] / kLn2;
    const std::int64_t pair = static_cast<std::int64_t>(item.head) * params.shape.chunks + item.chunk;
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), 2 * r);
      const int token = item.tile * kTile + consumer() * kFragmentRows + place.row;
      const bool inside = token < params.shape.tokens;
      const RowEnd end = end_of_row(machine, rows.highest[r], params.scale, quad_sum(machine, rows.sum[r]),
                                    quad_sum(machine, rows.rounded[r]), sink2);
      if (machine.thread() % 4 == 0) {
        params.lse2[pair * params.shape.padded_tokens() + token] = inside ? end.lse2 : -kMinusInfinity;
        if (inside && params.lse != nullptr) params.lse[pair * params.shape.tokens + token] = end.lse2 * kLn2;
      }
      if (!inside) continue;
      const std::int64_t row = static_cast<std::int64_t>(item.chunk) * params.shape.tokens + token;
      float* to = params.out + row * params.token_stride + item.head * params.head_stride + place.column;
      HEADWATER_CUDA_UNROLL
      for (int i = 2 * r; i < kAccumulators; i += 4) {
        machine.store_pair(to + 2 * (i - 2 * r), out[i] * end.output_factor, out[i + 1] * end.output_factor);
      }
    }
  }
};

}  // namespace headwater::cuda::sm90
