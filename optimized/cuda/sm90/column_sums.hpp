#pragma once

#include <cstdint>

#include "cuda/sm90/fragments.hpp"
#include "cuda/sm90/matrix_descriptor.hpp"
#include "cuda/sm90/pipeline.hpp"
#include "cuda/sm90/roles.hpp"
#include "cuda/sm90/schedule.hpp"
#include "cuda/sm90/softmax_rows.hpp"

/// Column sums of the intra pass (INTRA-2), key-stationary: S^T = K Q^T with the keys' fragments in registers. A thread adds
/// up two keys over all queries in order; four lanes are added at the end. No atomics, one fixed order.
namespace headwater::cuda::sm90 {

template <class Map>
struct ColumnSumParams {
  Map q;  ///< boxes of kTile rows
  Map k;
  IntraShape shape;
  float scale;  ///< of a product q . k, to units of ln 2
  const float*
      lse2;     ///< as IntraForward leaves it: +inf behind a chunk's end makes those queries weigh nothing
  float* sums;  ///< [head][token_stride of sums]: F32, chunk after chunk
  std::int64_t head_stride;
};

struct ColumnSums {
  static constexpr int kStages = 3;
  static constexpr int kSteps = kHead / kStepK;
  using Tile = SharedTile<kTile, kHead>;

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
  template <class Element, class Machine>
  class Consumer;

  template <class Element, class Machine>
  static HEADWATER_CUDA_DEVICE void run(Machine& machine,
                                        const ColumnSumParams<typename Machine::Map>& params) {
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
      Consumer<Element, Machine>{machine, params, smem}.run();
    }
  }
};

template <class Machine>
class ColumnSums::Producer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const ColumnSumParams<typename Machine::Map>& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_DEVICE void run() {
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
  HEADWATER_CUDA_DEVICE void load_queries(const WorkItem& item, int tile, const Ring<kStages>& q) {
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

template <class Element, class Machine>
class ColumnSums::Consumer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const ColumnSumParams<typename Machine::Map>& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_DEVICE void run() {
    Ring<1> k;
    Ring<kStages> issued;
    Ring<kStages> summed;
    for (int round = 0;; ++round) {
      const int index = item_of_round(machine.block(), machine.blocks(), round);
      if (index >= params.shape.items()) return;
      const WorkItem item = key_block(params.shape, index);
      std::uint32_t keys[4 * kSteps];
      machine.wait(smem.k_full, k.parity());
      load_keys(keys);
      release(machine, smem.k_empty);
      k.advance();
      float sums[kRowsOfThread] = {};
      add_tiles(keys, params.shape.tiles() - item.tile, issued, summed, sums);
      store(item, sums);
    }
  }

 private:
  using Logits = float[kAccumulators];
  using Keys = std::uint32_t[4 * kSteps];

  /// The warpgroup's 64 keys as A operands. The swizzle keeps these loads free of bank conflicts.
  HEADWATER_CUDA_DEVICE void load_keys(Keys& keys) {
    const int first = consumer_of(machine) * kFragmentRows;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4 * kSteps; ++i) {
      const FragmentPlace place = operand_place(lane_of_warpgroup(machine), i % 4, 0);
      keys[i] = machine.load_word(&smem.k, Tile::offset(first + place.row, i / 4 * kStepK + place.column));
    }
  }

  HEADWATER_CUDA_DEVICE void issue(Logits& logits, const Keys& keys, Ring<kStages>& issued) {
    machine.wait(smem.q_full[issued.stage()], issued.parity());
    const std::uint32_t queries = machine.shared_address(&smem.q[issued.stage()]);
    machine.fence_operands(logits);
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      machine.template multiply<Element>(logits, keys + 4 * step, k_major<Tile>(queries, step), step != 0);
    }
    machine.commit();
    issued.advance();
  }

  /// Adds a tile's weights to the two keys' sums. Diagonal: queries before the key do not see it (MASK-1).
  template <bool Diagonal>
  HEADWATER_CUDA_DEVICE void add(const Logits& logits, Ring<kStages>& summed, float (&sums)[kRowsOfThread]) {
    const float* lse2 = smem.lse2[summed.stage()];
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kAccumulators; ++i) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), i);
      const float weight = machine.exp2(machine.multiply_add(logits[i], params.scale, -lse2[place.column]));
      const bool hidden = Diagonal && place.column < consumer_of(machine) * kFragmentRows + place.row;
      sums[row_of(i)] += hidden ? 0.0f : weight;
    }
    release(machine, smem.q_empty[summed.stage()]);
    summed.advance();
  }

  /// One product is always on its way while the tile before it is added up. Inside the loop products are issued
  /// unconditionally: a condition there makes the compiler serialise them (C7514); so first and last tiles are peeled.
  HEADWATER_CUDA_DEVICE void add_tiles(const Keys& keys, int tiles, Ring<kStages>& issued,
                                       Ring<kStages>& summed, float (&sums)[kRowsOfThread]) {
    Logits even;
    Logits odd;
    issue(even, keys, issued);
    if (tiles == 1) {
      machine.template wait_products<0>(even);
      add<true>(even, summed, sums);
      return;
    }
    issue(odd, keys, issued);
    machine.template wait_products<1>(even);
    add<true>(even, summed, sums);
    int tile = 1;  // on its way in `odd`
    for (; tile + 2 < tiles; tile += 2) {
      issue(even, keys, issued);
      machine.template wait_products<1>(odd);
      add<false>(odd, summed, sums);
      issue(odd, keys, issued);
      machine.template wait_products<1>(even);
      add<false>(even, summed, sums);
    }
    if (tile + 1 < tiles) {
      issue(even, keys, issued);
      machine.template wait_products<1>(odd);
      add<false>(odd, summed, sums);
      machine.template wait_products<0>(even);
      add<false>(even, summed, sums);
    } else {
      machine.template wait_products<0>(odd);
      add<false>(odd, summed, sums);
    }
  }

  HEADWATER_CUDA_DEVICE void store(const WorkItem& item, const float (&sums)[kRowsOfThread]) {
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const FragmentPlace place = accumulator_place(lane_of_warpgroup(machine), 2 * r);
      const int token = item.tile * kTile + consumer_of(machine) * kFragmentRows + place.row;
      const float sum = quad_sum(machine, sums[r]);
      if (machine.thread() % 4 == 0 && token < params.shape.tokens) {
        params.sums[item.head * params.head_stride + item.chunk * params.shape.tokens + token] = sum;
      }
    }
  }
};

}  // namespace headwater::cuda::sm90
