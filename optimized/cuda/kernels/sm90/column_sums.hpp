#pragma once

#include <cstdint>

#include "cuda/kernels/platform/numbers.hpp"
#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/kernel_shape.hpp"
#include "cuda/kernels/sm90/logits.hpp"
#include "cuda/kernels/sm90/matrix_descriptor.hpp"
#include "cuda/kernels/sm90/pipeline.hpp"
#include "cuda/kernels/sm90/raw_params.hpp"
#include "cuda/kernels/sm90/roles.hpp"
#include "cuda/kernels/sm90/schedule.hpp"
#include "cuda/kernels/sm90/softmax_rows.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"

/// Column sums of the intra pass (INTRA-2), key-stationary: S^T = K Q^T with the keys' fragments in registers. A thread adds
/// up two keys over all queries in order; four lanes are added at the end. No atomics, one fixed order.
namespace headwater::cuda::sm90 {

struct ColumnSumParams {
  TensorMap q;  ///< boxes of kTile rows
  TensorMap k;
  IntraShape shape;
  LogitRule rule;
  const float*
      lse2;     ///< as CausalForward leaves it: +inf after a chunk's end makes those queries weigh nothing
  float* sums;  ///< [head][sums_stride]
  std::int64_t sums_stride;
  std::int64_t first_row;  ///< of the first chunk, in the sums of a head
  void* scores;            ///< [head][capacity] of the layer: a sum is its token's first score (SCORE-2)
  bool scores_bf16;
  std::int64_t capacity;
  std::int64_t position;  ///< of the first chunk
};

template <class Shape>
struct ColumnSums {
  static constexpr int kStages = Shape::kD <= 192 ? 3 : 2;
  static constexpr int kSteps = Shape::kD / kStepK;
  /// Keys as register operands spare shared memory a third of its reads; wide rows and mapped logits leave no registers
  /// for them.
  static constexpr bool kKeysInRegisters = Shape::kD + (Shape::kMapped ? 64 : 0) <= 128;
  static constexpr int kKeyWords = kKeysInRegisters ? 4 * kSteps : 1;
  using Element = typename Shape::Element;
  using Tile = SharedTile<kTile, Shape::kD>;

  template <class Barrier>
  struct Smem {
    Tile k;
    Tile q[kStages];
    alignas(128) float lse2[kStages][kTile];
    Barrier k_full;
    Barrier k_empty;
    Barrier q_full[kStages];
    Barrier q_empty[kStages];
  };
  static_assert(sizeof(Smem<std::uint64_t>) + kSwizzleBytes <= kSharedLimitSm90);

  template <class Machine>
  class Producer;
  template <class Machine>
  class Consumer;

  template <class Machine>
  static HEADWATER_CUDA_FUNCTION void run(Machine& machine, const ColumnSumParams& params) {
    auto& smem = machine.template shared<Smem<typename Machine::Barrier>>();
    if (machine.thread() == 0) {
      machine.start(smem.k_full, 1);
      machine.start(smem.k_empty, kConsumerWarps);
      for (int stage = 0; stage < kStages; ++stage) {
        machine.start(smem.q_full[stage], 1);
        machine.start(smem.q_empty[stage], kConsumerWarps);
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
class ColumnSums<Shape>::Producer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const ColumnSumParams& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_FUNCTION void run() {
    Ring<1> k;
    Ring<kStages> q;
    for (int round = 0;; ++round) {
      const int index = item_of_round(machine.block(), machine.blocks(), round);
      if (index >= params.shape.items()) return;
      const WorkItem item = key_block(params.shape, index);
      machine.wait(smem.k_empty, k.parity() ^ 1u);
      machine.arrive_expecting(smem.k_full, Tile::kBytes);
      load_tile(machine, smem.k, params.k, smem.k_full, item.tile * kTile, item.chunk,
                params.shape.kv_head(item.head));
      k.advance();
      for (int tile = item.tile; tile < params.shape.tiles(); ++tile) {
        load_queries(item, tile, q);
        q.advance();
      }
    }
  }

 private:
  HEADWATER_CUDA_FUNCTION void load_queries(const WorkItem& item, int tile, const Ring<kStages>& q) {
    const int stage = q.stage();
    Barrier& full = smem.q_full[stage];
    const std::int64_t pair = static_cast<std::int64_t>(item.head) * params.shape.chunks + item.chunk;
    machine.wait(smem.q_empty[stage], q.parity() ^ 1u);
    machine.arrive_expecting(full, Tile::kBytes + sizeof(smem.lse2[stage]));
    load_tile(machine, smem.q[stage], params.q, full, tile * kTile, item.chunk, item.head);
    machine.load_bytes(smem.lse2[stage], params.lse2 + pair * params.shape.padded_tokens() + tile * kTile,
                       sizeof(smem.lse2[stage]), full);
  }
};

template <class Shape>
template <class Machine>
class ColumnSums<Shape>::Consumer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const ColumnSumParams& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_FUNCTION void run() {
    Ring<1> k;
    Ring<kStages> issued;
    Ring<kStages> summed;
    for (int round = 0;; ++round) {
      const int index = item_of_round(machine.block(), machine.blocks(), round);
      if (index >= params.shape.items()) return;
      const WorkItem item = key_block(params.shape, index);
      std::uint32_t keys[kKeyWords];
      machine.wait(smem.k_full, k.parity());
      if constexpr (kKeysInRegisters) {
        load_keys(keys);
        release(machine, smem.k_empty);
      }
      float sums[kRowsOfThread] = {};
      add_tiles(item, keys, issued, summed, sums);
      if constexpr (!kKeysInRegisters) release(machine, smem.k_empty);
      k.advance();
      store(item, sums);
    }
  }

 private:
  using Logits = float[kAccumulators];
  using Keys = std::uint32_t[kKeyWords];

  /// The warpgroup's 64 keys as A operands. The swizzle keeps these loads free of bank conflicts.
  HEADWATER_CUDA_FUNCTION void load_keys(Keys& keys) {
    const int first = consumer_of(machine) * kFragmentRows;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4 * kSteps; ++i) {
      const FragmentPlace place = operand_place(lane_of_warpgroup(machine), i % 4, 0);
      keys[i] = machine.load_word(&smem.k, Tile::offset(first + place.row, i / 4 * kStepK + place.column));
    }
  }

  HEADWATER_CUDA_FUNCTION void issue(Logits& logits, const Keys& keys, Ring<kStages>& issued) {
    machine.wait(smem.q_full[issued.stage()], issued.parity());
    const std::uint32_t queries = machine.shared_address(&smem.q[issued.stage()]);
    machine.fence_operands(logits);
    const std::uint32_t own_keys =
        machine.shared_address(&smem.k) + consumer_of(machine) * kFragmentRows * kLineBytes;
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const MatrixDescriptor b = k_major<Tile>(queries, step);
      if constexpr (kKeysInRegisters) {
        machine.template multiply<Element>(logits, keys + 4 * step, b, step != 0);
      } else {
        machine.template multiply<Element>(logits, k_major<Tile>(own_keys, step), b, step != 0);
      }
    }
    machine.commit();
    issued.advance();
  }

  /// Adds a tile's weights to the two keys' sums. Diagonal: queries before the key do not see it (MASK-1).
  template <bool Diagonal>
  HEADWATER_CUDA_FUNCTION void add(const WorkItem& item, int tile, Logits& logits, Ring<kStages>& summed,
                                   float (&sums)[kRowsOfThread]) {
    if constexpr (Shape::kMapped) {
      const int first = (tile - item.tile) * kTile - consumer_of(machine) * kFragmentRows;
      map_logits(machine, params.rule, item.head, logits, [&](int i) {
        const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), i);
        return static_cast<float>(first + place.column - place.row);
      });
    }
    const float scale = scale_of<Shape>(params.rule);
    const float* lse2 = smem.lse2[summed.stage()];
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kAccumulators; ++i) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), i);
      const float weight = machine.exp2(machine.multiply_add(logits[i], scale, -lse2[place.column]));
      const bool hidden = Diagonal && place.column < consumer_of(machine) * kFragmentRows + place.row;
      sums[row_of(i)] += hidden ? 0.0f : weight;
    }
    release(machine, smem.q_empty[summed.stage()]);
    summed.advance();
  }

  /// One product is always on its way while the tile before it is added up. Inside the loop products are issued
  /// unconditionally: a condition there makes the compiler serialise them (C7514); so first and last tiles are peeled.
  HEADWATER_CUDA_FUNCTION void add_tiles(const WorkItem& item, const Keys& keys, Ring<kStages>& issued,
                                         Ring<kStages>& summed, float (&sums)[kRowsOfThread]) {
    const int tiles = params.shape.tiles();
    Logits even;
    Logits odd;
    issue(even, keys, issued);
    if (item.tile + 1 == tiles) {
      machine.template wait_products<0>(even);
      add<true>(item, item.tile, even, summed, sums);
      return;
    }
    issue(odd, keys, issued);
    machine.template wait_products<1>(even);
    add<true>(item, item.tile, even, summed, sums);
    int tile = item.tile + 1;  // on its way in `odd`
    for (; tile + 2 < tiles; tile += 2) {
      issue(even, keys, issued);
      machine.template wait_products<1>(odd);
      add<false>(item, tile, odd, summed, sums);
      issue(odd, keys, issued);
      machine.template wait_products<1>(even);
      add<false>(item, tile + 1, even, summed, sums);
    }
    if (tile + 1 < tiles) {
      issue(even, keys, issued);
      machine.template wait_products<1>(odd);
      add<false>(item, tile, odd, summed, sums);
      machine.template wait_products<0>(even);
      add<false>(item, tile + 1, even, summed, sums);
    } else {
      machine.template wait_products<0>(odd);
      add<false>(item, tile, odd, summed, sums);
    }
  }

  HEADWATER_CUDA_FUNCTION void store(const WorkItem& item, const float (&sums)[kRowsOfThread]) {
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), 2 * r);
      const int token = item.tile * kTile + consumer_of(machine) * kFragmentRows + place.row;
      const float sum = quad_sum(machine, sums[r]);
      if (machine.thread() % 4 != 0 || token >= params.shape.tokens) continue;
      const std::int64_t row = static_cast<std::int64_t>(item.chunk) * params.shape.tokens + token;
      params.sums[item.head * params.sums_stride + params.first_row + row] = sum;
      const std::int64_t score = item.head * params.capacity + params.position + row;
      if (params.scores_bf16) {
        static_cast<std::uint16_t*>(params.scores)[score] = bf16_from_float(sum);  // SCORE-4
      } else {
        static_cast<float*>(params.scores)[score] = sum;
      }
    }
  }
};

}  // namespace headwater::cuda::sm90
