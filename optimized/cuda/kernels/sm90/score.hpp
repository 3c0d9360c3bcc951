#pragma once

#include <cstdint>

#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/kernel_shape.hpp"
#include "cuda/kernels/sm90/logits.hpp"
#include "cuda/kernels/sm90/matrix_descriptor.hpp"
#include "cuda/kernels/sm90/pipeline.hpp"
#include "cuda/kernels/sm90/raw_params.hpp"
#include "cuda/kernels/sm90/roles.hpp"
#include "cuda/kernels/sm90/softmax_rows.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"

/// Column sums of the inter pass (INTER-2) without its output: 64 queries against 512 gathered keys, all logits in the
/// registers of two warpgroups, an exact softmax over them. A block takes a run of query blocks of one head and keeps its
/// keys in shared memory.
namespace headwater::cuda::sm90 {

struct ScoreShape {
  int heads;
  int tokens;  ///< of the chunk
  int run;     ///< query blocks that one thread block takes, one after the other

  static constexpr int kQueries = 64;
  static constexpr int kMemoryKeys = 512;

  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int query_blocks() const {
    return (tokens + kQueries - 1) / kQueries;
  }
  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int runs() const { return (query_blocks() + run - 1) / run; }
  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int blocks() const { return heads * runs(); }
  /// Query blocks of run `index` of a head: the last may have fewer.
  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int blocks_of_run(int index) const {
    const int left = query_blocks() - index * run;
    return left < run ? left : run;
  }
};

/// The run that spreads one chunk's query blocks over `processors` multiprocessors in the fewest steps.
constexpr int score_run(int heads, int tokens, int processors) {
  const ScoreShape single{heads, tokens, 1};
  const int all = heads * single.query_blocks();
  const int even = (all + processors - 1) / processors;
  return even < single.query_blocks() ? even : single.query_blocks();
}

struct ScoreParams {
  TensorMap q;     ///< boxes of kQueries rows, one chunk
  TensorMap keys;  ///< gathered rows of each query head, boxes of 128 rows
  ScoreShape shape;
  LogitRule rule;       ///< without slopes: positions of 512 keys find no registers beside their logits
  int count;            ///< memory keys that hold a token, 0 .. kMemoryKeys
  float* partial_sums;  ///< [head][run][kMemoryKeys], to be added up in the order of the runs
};

template <class Shape>
struct Score {
  static constexpr int kStages = 2;
  static constexpr int kSteps = Shape::kD / kStepK;
  using Element = typename Shape::Element;
  static constexpr int kParts = 2;  ///< of kFragmentColumns keys, for each consumer
  static constexpr int kKeyTiles = kConsumers * kParts;
  static_assert(kKeyTiles * kFragmentColumns == ScoreShape::kMemoryKeys);
  using QueryTile = SharedTile<ScoreShape::kQueries, Shape::kD>;
  using KeyTile = SharedTile<kFragmentColumns, Shape::kD>;
  /// Named barriers; 0 is the whole block's.
  static constexpr int kExchange = 1;
  static constexpr int kFirstIssued = 2;   ///< of consumer 0
  static constexpr int kFirstsIssued = 3;  ///< of both
  static constexpr int kSecondIssued = 4;  ///< of consumer 0

  struct RowState {
    float offset;  ///< units of ln 2
    float sum;
  };

  template <class Barrier>
  struct Smem {
    KeyTile keys[kKeyTiles];
    QueryTile q[kStages];
    RowState rows[2][kConsumers][ScoreShape::kQueries];  ///< by parity of the query block
    float sums[kConsumerWarps][kParts * kFragmentColumns];
    Barrier keys_full[kKeyTiles];
    Barrier q_full[kStages];
    Barrier q_empty[kStages];
    float unread;
  };
  static_assert(sizeof(Smem<std::uint64_t>) + kSwizzleBytes <= kSharedLimitSm90);

  template <class Machine>
  class Producer;
  template <class Machine>
  class Consumer;

  /// shape.blocks() blocks of kThreads threads.
  template <class Machine>
  static HEADWATER_CUDA_FUNCTION void run(Machine& machine, const ScoreParams& params) {
    auto& smem = machine.template shared<Smem<typename Machine::Barrier>>();
    if (machine.thread() == 0) {
      for (int tile = 0; tile < kKeyTiles; ++tile) machine.start(smem.keys_full[tile], 1);
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
class Score<Shape>::Producer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const ScoreParams& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_FUNCTION void run() {
    const int head = machine.block() / params.shape.runs();
    const int run_index = machine.block() % params.shape.runs();
    const int blocks = params.shape.blocks_of_run(run_index);
    Ring<kStages> q;
    load_queries(head, run_index * params.shape.run, q);
    q.advance();
    // Each consumer's first tile, then its second.
    for (int part = 0; part < kParts; ++part) {
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        const int tile = consumer * kParts + part;
        machine.arrive_expecting(smem.keys_full[tile], KeyTile::kBytes);
        load_tile(machine, smem.keys[tile], params.keys, smem.keys_full[tile], tile * kFragmentColumns, 0,
                  head);
      }
    }
    for (int block = 1; block < blocks; ++block) {
      load_queries(head, run_index * params.shape.run + block, q);
      q.advance();
    }
  }

 private:
  HEADWATER_CUDA_FUNCTION void load_queries(int head, int block, const Ring<kStages>& q) {
    Barrier& full = smem.q_full[q.stage()];
    machine.wait(smem.q_empty[q.stage()], q.parity() ^ 1u);
    machine.arrive_expecting(full, QueryTile::kBytes);
    load_tile(machine, smem.q[q.stage()], params.q, full, block * ScoreShape::kQueries, 0, head);
  }
};

template <class Shape>
template <class Machine>
class Score<Shape>::Consumer {
 public:
  using Barrier = typename Machine::Barrier;
  Machine& machine;
  const ScoreParams& params;
  Smem<Barrier>& smem;

  HEADWATER_CUDA_FUNCTION void run() {
    const int head = machine.block() / params.shape.runs();
    const int run_index = machine.block() % params.shape.runs();
    const int blocks = params.shape.blocks_of_run(run_index);
    const int count = params.count;
    Ring<kStages> q;
    float sums[kParts * kSumsOfPart] = {};

    for (int part = 0; part < kParts; ++part) {
      machine.wait(smem.keys_full[consumer_of(machine) * kParts + part], 0);
    }
    if (consumer_of(machine) != 0) await(kFirstIssued);
    const int first_row = run_index * params.shape.run * ScoreShape::kQueries;
    // Two loops: a full memory set, the common case, has no masks in it.
    if (count >= ScoreShape::kMemoryKeys) {
      for (int block = 0; block < blocks; ++block) {
        add_block<true>(block, block + 1 < blocks, first_row + block * ScoreShape::kQueries, q, sums);
      }
    } else {
      for (int block = 0; block < blocks; ++block) {
        add_block<false>(block, block + 1 < blocks, first_row + block * ScoreShape::kQueries, q, sums);
      }
    }
    store(head, run_index, sums);
  }

 private:
  using Logits = float[kAccumulators];
  static constexpr int kSumsOfPart = kAccumulators / kRowsOfThread;

  /// What a part's weights, relative to their own largest, are to be multiplied with.
  struct Weights {
    float of_part[kParts][kRowsOfThread];
  };

  HEADWATER_CUDA_FUNCTION void issue(Logits& logits, int part, int stage) {
    const std::uint32_t queries = machine.shared_address(&smem.q[stage]);
    const std::uint32_t keys = machine.shared_address(&smem.keys[consumer_of(machine) * kParts + part]);
    machine.fence_operands(logits);
    HEADWATER_CUDA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      machine.template multiply<Element>(logits, k_major<QueryTile>(queries, step),
                                         k_major<KeyTile>(keys, step), step != 0);
    }
    machine.commit();
  }

  HEADWATER_CUDA_FUNCTION void pass(int id) { machine.arrive(id, kConsumers * kWarpgroup); }
  HEADWATER_CUDA_FUNCTION void await(int id) { machine.sync(id, kConsumers * kWarpgroup); }

  /// Adds query block `block` of the run, whose first query is `first_query` of the chunk, to the column sums. Consumer 1
  /// comes in, and with `more` goes out, when consumer 0 has issued the first products of the block.
  template <bool Full>
  HEADWATER_CUDA_FUNCTION void add_block(int block, bool more, int first_query, Ring<kStages>& q,
                                         float (&sums)[kParts * kSumsOfPart]) {
    Logits first;
    Logits second;
    machine.wait(smem.q_full[q.stage()], q.parity());
    // Parts in turns: exponentials of the first begin after a quarter of the products, and what is left behind the last
    // product is one part's. The exchange of row states keeps the consumers in step.
    const bool leads = consumer_of(machine) == 0;
    issue(first, 0, q.stage());
    if (leads) {
      pass(kFirstIssued);
      await(kFirstsIssued);
    } else {
      pass(kFirstsIssued);
      await(kSecondIssued);
    }
    issue(second, 1, q.stage());
    if (leads) pass(kSecondIssued);
    const Weights weights = soften<Full>(first, second, block, more, q);
    // Both parts before the next products: reading one's registers while the other's product is on its way makes the
    // compiler serialise them (C7514).
    const int rows = params.shape.tokens - first_query;
    weigh(first, weights, 0, rows, sums);
    weigh(second, weights, 1, rows, sums);
  }

  HEADWATER_CUDA_FUNCTION void map(Logits& logits) {
    if constexpr (Shape::kMapped) scale_and_cap(machine, params.rule, logits);
  }

  HEADWATER_CUDA_FUNCTION void mask(Logits& logits, int part) {
    const int keys = params.count - (consumer_of(machine) * kParts + part) * kFragmentColumns;
    if (keys >= kFragmentColumns) return;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kAccumulators; ++i) {
      if (accumulator_place(lane_of_warpgroup(machine), i).column >= keys) logits[i] = kMinusInfinity;
    }
  }

  /// One exponential in so many goes over the multiply-add pipe: the special function unit alone would take longer than
  /// the products.
  static constexpr int kPolynomialPeriod = 5;

  /// Exponentials of one part, from `floor` on or its own largest logit of the row; so no part is rescaled later.
  HEADWATER_CUDA_FUNCTION void exponentiate(Logits& logits, RowState (&rows)[kRowsOfThread],
                                            const float (&floor)[kRowsOfThread],
                                            float (&highest)[kRowsOfThread]) {
    const float scale = scale_of<Shape>(params.rule);
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      highest[r] = row_maximum(machine, logits, r, floor[r]);
      rows[r] = {highest[r] * scale, 0.0f};
    }
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kAccumulators; ++i) {
      const float logit = machine.multiply_add(logits[i], scale, -rows[row_of(i)].offset);
      logits[i] = i % kPolynomialPeriod == 0 ? exp2_by_polynomial(machine, logit) : machine.exp2(logit);
      rows[row_of(i)].sum += logits[i];
    }
  }

  /// Both parts to exponentials; the row's log-sum-exp over all keys, the other consumer's among them.
  template <bool Full>
  HEADWATER_CUDA_FUNCTION Weights soften(Logits& first, Logits& second, int block, bool more,
                                         Ring<kStages>& q) {
    RowState parts[kParts][kRowsOfThread];
    // A part after the last valid key has no largest logit; any finite offset gives weights 0.
    const float lowest[kRowsOfThread] = {kLowestOffset, kLowestOffset};
    float highest[kRowsOfThread];
    machine.template wait_products<1>(first);
    map(first);
    if constexpr (!Full) mask(first, 0);
    exponentiate(first, parts[0], lowest, highest);
    machine.pin(parts[0][0].sum + parts[0][1].sum, smem.unread);  // beside the second part's products
    machine.template wait_products<0>(second);
    release(machine, smem.q_empty[q.stage()]);
    q.advance();
    map(second);
    if constexpr (!Full) mask(second, 1);
    exponentiate(second, parts[1], highest, highest);

    auto& exchange = smem.rows[block % 2];
    const int thread = lane_of_warpgroup(machine);
    float first_factor[kRowsOfThread];
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      // The second part's offset is at least the first's.
      first_factor[r] = machine.exp2(parts[0][r].offset - parts[1][r].offset);
      const float sum = quad_sum(machine, parts[0][r].sum * first_factor[r] + parts[1][r].sum);
      if (thread % 4 == 0) {
        exchange[consumer_of(machine)][accumulator_place(thread, 2 * r).row] = {parts[1][r].offset, sum};
      }
    }
    machine.sync(kExchange, kConsumers * kWarpgroup);
    // The leader's sums first: its next products then run beside the other's sums. Before the loads, which the compiler
    // does not move across a barrier.
    if (consumer_of(machine) != 0 && more) await(kFirstIssued);
    Weights weights;
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const int row = accumulator_place(thread, 2 * r).row;
      const RowState all = joined(exchange[0][row], exchange[1][row]);  // the same order in both consumers
      // INTER-3: an empty memory set weighs nothing.
      const float lse2 = all.sum == 0.0f ? -kMinusInfinity : all.offset + machine.log2(all.sum);
      weights.of_part[1][r] = machine.exp2(parts[1][r].offset - lse2);
      weights.of_part[0][r] = weights.of_part[1][r] * first_factor[r];
    }
    return weights;
  }

  HEADWATER_CUDA_FUNCTION RowState joined(const RowState& a, const RowState& b) {
    const bool a_is_higher = a.offset >= b.offset;
    const RowState high = a_is_higher ? a : b;
    const RowState low = a_is_higher ? b : a;
    return {high.offset, high.sum + low.sum * machine.exp2(low.offset - high.offset)};
  }

  /// Adds a part to the sums of its columns. Rows from `rows` on are after the chunk's end.
  HEADWATER_CUDA_FUNCTION void weigh(const Logits& exponentials, const Weights& weights, int part, int rows,
                                     float (&sums)[kParts * kSumsOfPart]) {
    float weight[kRowsOfThread];
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const bool inside = accumulator_place(lane_of_warpgroup(machine), 2 * r).row < rows;
      weight[r] = inside ? weights.of_part[part][r] : 0.0f;
    }
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kAccumulators; ++i) {
      // Columns of accumulator i: two of every eight, for each of two rows.
      float& sum = sums[part * kSumsOfPart + i / 4 * 2 + i % 2];
      sum = machine.multiply_add(exponentials[i], weight[row_of(i)], sum);
    }
  }

  /// Adds the eight lanes that share columns, halving the columns of a lane each time, then the four warps in order.
  HEADWATER_CUDA_FUNCTION void store(int head, int run_index, float (&sums)[kParts * kSumsOfPart]) {
    const int lane = machine.thread() % 32;
    int first = 0;
    halve<kParts * kSumsOfPart / 2, 16>(lane, sums, first);
    halve<kParts * kSumsOfPart / 4, 8>(lane, sums, first);
    halve<kParts * kSumsOfPart / 8, 4>(lane, sums, first);
    const int warp = machine.thread() / 32 - kWarpgroup / 32;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < kKeptSums; ++i) smem.sums[warp][column_of(first + i, lane)] = sums[i];
    machine.sync(kExchange, kConsumers * kWarpgroup);
    constexpr int kColumns = kParts * kFragmentColumns;
    const std::int64_t run_of_head = static_cast<std::int64_t>(head) * params.shape.runs() + run_index;
    float* to = params.partial_sums + run_of_head * ScoreShape::kMemoryKeys + consumer_of(machine) * kColumns;
    const int warp_of_consumer = consumer_of(machine) * (kWarpgroup / 32);
    for (int column = lane_of_warpgroup(machine); column < kColumns; column += kWarpgroup) {
      float sum = 0.0f;
      for (int i = 0; i < kWarpgroup / 32; ++i) sum += smem.sums[warp_of_consumer + i][column];
      to[column] = sum;
    }
  }

  /// Lanes with bit Mask keep the upper Kept sums, those without it the lower ones; each gets the other's part of its own.
  template <int Kept, int Mask>
  HEADWATER_CUDA_FUNCTION void halve(int lane, float (&sums)[kParts * kSumsOfPart], int& first) {
    const bool upper = (lane & Mask) != 0;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < Kept; ++i) {
      const float sent = upper ? sums[i] : sums[i + Kept];
      sums[i] = (upper ? sums[i + Kept] : sums[i]) + machine.shuffle_xor(sent, Mask);
    }
    first += upper ? Kept : 0;
  }

  static constexpr int kKeptSums = kParts * kSumsOfPart / 8;
  static constexpr float kLowestOffset = -1e30f;

  /// Column, of the consumer's, whose sum is a lane's `index`-th.
  static HEADWATER_CUDA_FUNCTION constexpr int column_of(int index, int lane) {
    const int part = index / kSumsOfPart;
    const int within = index % kSumsOfPart;
    return part * kFragmentColumns + within / 2 * 8 + 2 * (lane % 4) + within % 2;
  }
};

}  // namespace headwater::cuda::sm90
