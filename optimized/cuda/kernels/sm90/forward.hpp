#pragma once

#include <cstdint>

#include "cuda/kernels/sm90/causal_pass.hpp"
#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/kernel_shape.hpp"
#include "cuda/kernels/sm90/logits.hpp"
#include "cuda/kernels/sm90/matrix_descriptor.hpp"
#include "cuda/kernels/sm90/memory_pass.hpp"
#include "cuda/kernels/sm90/pipeline.hpp"
#include "cuda/kernels/sm90/roles.hpp"
#include "cuda/kernels/sm90/schedule.hpp"
#include "cuda/kernels/sm90/softmax_rows.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"
#include "headwater/testing/sabotage.hpp"

/// Attention of tiles of queries as FlashAttention-3 does it (Shah et al. 2024): one warpgroup copies, two compute 64 query
/// rows each; while one exponentiates, the other's products run.
///
/// A pass says which keys a query sees and what becomes of a row: CausalPass (chunks, dense windows), MemoryPass (memory
/// sets). Its key tiles are taken from the last one down; that one alone is masked, and every row sees a key in it. A row's
/// bits depend on its own keys and the cut of the key tiles, never on the rows beside it.
namespace headwater::cuda::sm90 {

template <class Shape, class Pass>
struct Forward {
  using Params = typename Pass::Params;
  static constexpr int kStages = 2;
  static constexpr int kSteps = Shape::kD / kStepK;  ///< k steps of Q K^T
  static constexpr int kKeys = Shape::kKeys;
  static constexpr int kKeySteps = kKeys / kStepK;
  static constexpr int kLogits = kKeys / 2;        ///< registers of a thread
  static constexpr int kOutputs = Shape::kDv / 2;  ///< registers of a thread for an output row's piece
  using Element = typename Shape::Element;
  /// Products of values have up to 128 columns.
  static constexpr int kPieceColumns = Shape::kDv < kFragmentColumns ? Shape::kDv : kFragmentColumns;
  static constexpr int kPieces = Shape::kDv / kPieceColumns;
  static constexpr int kMaskedTiles = Pass::template kMaskedTiles<kKeys>;
  /// Of more masked tiles than one the last ones are after the rows of the first consumer.
  static constexpr bool kMayBeEmpty = kMaskedTiles > 1;
  using QueryTile = SharedTile<kTile, Shape::kD>;
  using Tile = SharedTile<kKeys, Shape::kD>;
  using ValueTile = SharedTile<kKeys, Shape::kDv>;

  /// Named barriers; 0 is the whole block's.
  static constexpr int kTurn = 1;  ///< kTurn + w: consumer w may issue

  template <class Barrier>
  struct Smem {
    QueryTile q;
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

  /// The whole kernel: kThreads threads, any number of blocks up to Pass::items().
  template <class Machine>
  static HEADWATER_CUDA_FUNCTION void run(Machine& machine, const Params& params) {
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

template <class Shape, class Pass>
template <class Machine>
class Forward<Shape, Pass>::Producer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const Params& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_FUNCTION void run() {
    Ring<1> q;
    Ring<kStages> k;
    Ring<kStages> v;
    for (int round = 0;; ++round) {
      const int index = item_of_round(machine.block(), machine.blocks(), round);
      if (index >= Pass::items(params)) return;
      const WorkItem item = Pass::item(params, index);
      const int last = Pass::template last_tile<kKeys>(params, item);
      const int kv_head = Pass::kv_head(params, item);
      fill(smem.q, params.q, smem.q_full, smem.q_empty, q.parity(), Pass::query_row(params, item), item.chunk,
           item.head);
      q.advance();
      // In the order of use: the keys of a tile, then the values of the tile before.
      for (int tile = last; tile >= 0; --tile) {
        fill(smem.k[k.stage()], params.k, smem.k_full[k.stage()], smem.k_empty[k.stage()], k.parity(),
             tile * kKeys, item.chunk, kv_head);
        k.advance();
        if (tile != last) {
          fill_values(v, tile + 1, item.chunk, kv_head);
          v.advance();
        }
      }
      fill_values(v, 0, item.chunk, kv_head);
      v.advance();
    }
  }

 private:
  HEADWATER_CUDA_FUNCTION void fill_values(const Ring<kStages>& v, int tile, int chunk, int kv_head) {
    fill(smem.v[v.stage()], params.v, smem.v_full[v.stage()], smem.v_empty[v.stage()], v.parity(),
         tile * kKeys, chunk, kv_head);
  }

  template <class FilledTile>
  HEADWATER_CUDA_FUNCTION void fill(FilledTile& to, const TensorMap& map, Barrier& full, Barrier& empty,
                                    std::uint32_t parity, int row, int chunk, int head) {
    machine.wait(empty, parity ^ 1u);
    machine.arrive_expecting(full, FilledTile::kBytes);
    load_tile(machine, to, map, full, row, chunk, head);
  }
};

template <class Shape, class Pass>
template <class Machine>
class Forward<Shape, Pass>::Consumer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const Params& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_FUNCTION void run() {
    Ring<1> q;
    Ring<kStages> k;
    Ring<kStages> v;
    if (consumer() != 0) pass_turn();
    for (int round = 0;; ++round) {
      const int index = item_of_round(machine.block(), machine.blocks(), round);
      if (index >= Pass::items(params)) break;
      attend(Pass::item(params, index), q, k, v);
    }
    if (consumer() == 0) await_turn();  // the other's last pass: no arrival is left behind
  }

 private:
  [[nodiscard]] HEADWATER_CUDA_FUNCTION int consumer() const { return consumer_of(machine); }

  /// Ping-pong: products are issued in turns, so that the softmax of one consumer runs beside the other's products.
  HEADWATER_CUDA_FUNCTION void await_turn() { machine.sync(kTurn + consumer(), kConsumers * kWarpgroup); }
  HEADWATER_CUDA_FUNCTION void pass_turn() {
    machine.arrive(kTurn + 1 - consumer(), kConsumers * kWarpgroup);
  }

  HEADWATER_CUDA_FUNCTION void issue_logits(float (&logits)[kLogits], int stage) {
    const std::uint32_t queries = machine.shared_address(&smem.q) + consumer() * kFragmentRows * kLineBytes;
    const std::uint32_t keys = machine.shared_address(&smem.k[stage]);
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      machine.template multiply<Element>(logits, k_major<QueryTile>(queries, step), k_major<Tile>(keys, step),
                                         step != 0);
    }
    machine.commit();
  }

  HEADWATER_CUDA_FUNCTION void issue_output(float (&out)[kOutputs],
                                            const std::uint32_t (&weights)[kLogits / 2], int stage) {
    const std::uint32_t values = machine.shared_address(&smem.v[stage]);
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kKeySteps; ++step) {
      HEADWATER_CUDA_UNROLL
      for (int piece = 0; piece < kPieces; ++piece) {
        constexpr std::uint32_t kPieceBytes = kPieceColumns / kLineElements * ValueTile::kBoxBytes;
        // Accumulators of a piece stand together.
        auto& sums = *reinterpret_cast<float(*)[kPieceColumns / 2]>(out + piece * (kPieceColumns / 2));
        machine.template multiply_transposed<Element>(
            sums, weights + 4 * step, column_major<ValueTile>(values, step).advanced(piece * kPieceBytes));
      }
    }
    machine.commit();
  }

  /// The whole rule, where the kernel is made for it.
  HEADWATER_CUDA_FUNCTION void map(float (&logits)[kLogits], const WorkItem& item, int tile) {
    if constexpr (Shape::kMapped && Pass::kSlopes) {
      map_logits(machine, params.rule, item.head, logits, [&](int i) {
        const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), i);
        return Pass::distance(item, tile * kKeys, consumer() * kFragmentRows + place.row, place.column);
      });
    } else if constexpr (Shape::kMapped) {
      scale_and_cap(machine, params.rule, logits);
    }
  }

  HEADWATER_CUDA_FUNCTION void attend(const WorkItem& item, Ring<1>& q, Ring<kStages>& k, Ring<kStages>& v) {
    float logits[kLogits];
    float out[kOutputs];
    std::uint32_t weights[kLogits / 2];
    SoftmaxRows rows;
    float factor[kRowsOfThread];
    const float scale = scale_of<Shape>(params.rule);

    const int last = Pass::template last_tile<kKeys>(params, item);
    machine.wait(smem.q_full, q.parity());
    if (!HEADWATER_SABOTAGE("cuda.sm90.keys_not_awaited")) machine.wait(smem.k_full[k.stage()], k.parity());
    await_turn();
    machine.fence_operands(logits);
    issue_logits(logits, k.stage());
    pass_turn();
    machine.template wait_products<0>(logits);
    release(machine, smem.k_empty[k.stage()]);
    k.advance();
    map(logits, item, last);
    Pass::template mask<kKeys>(machine, params, item, last, logits);
    rows.template add_tile<true, kMayBeEmpty>(machine, logits, scale, factor);
    rows.template pack<Element>(logits, weights);
    HEADWATER_CUDA_UNROLL
    for (float& x : out) x = 0.0f;

    for (int tile = last - 1; tile >= 0; --tile) {
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
      if (kMaskedTiles > 1 && tile > last - kMaskedTiles) {
        Pass::template mask<kKeys>(machine, params, item, tile, logits);
      }
      rows.template add_tile<false, kMayBeEmpty>(machine, logits, scale, factor);
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
    // Beside the last product; logits leave the registers for it.
    const auto fetched = Pass::template fetch<kOutputs>(machine, params, item);
    machine.template wait_products<0>(out);
    release(machine, smem.v_empty[v.stage()]);
    v.advance();
    Pass::template store<Shape>(machine, params, item, rows, out, fetched);
  }
};

template <class Shape>
using CausalForward = Forward<Shape, CausalPass>;
template <class Shape>
using MemoryForward = Forward<Shape, MemoryPass>;

}  // namespace headwater::cuda::sm90
