#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "cpu/layer.hpp"
#include "cpu/pass/row_blocks.hpp"

namespace headwater::cpu {

/// Sparse prefill whose memory sets the queries choose (SEL). Neither chunks nor heads depend on each other: where the heads
/// are equal shares for the threads, each computes all chunks of a key/value head, whose rows the cache can keep, before
/// those of its next; else, and for an observer, all heads and query blocks of a chunk in parallel. Both passes of a row
/// together. Units of work are cut by sizes only, and so both schedules and every number of threads give the same bits
/// (SCHED-2, NUM-3).
class BlocksPass {
 public:
  /// Of a session with rule blocks whose options are sparse.
  explicit BlocksPass(SessionData& data);

  /// Of working memory; set_bytes() of the sets and votes of a chunk.
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::int64_t set_bytes() const;
  [[nodiscard]] double selection_seconds() const;

  void forget();
  /// All chunks of the call.
  void run(const LayerCall& call);

 private:
  /// What is voted on in a chunk, for every set.
  struct Votes {
    std::int64_t query_blocks;
    std::int64_t blocks;   ///< candidates
    std::int64_t regions;  ///< whole ones, where they are searched; else 0
    std::int64_t tokens;   ///< of the second stage; 0: there is none
    std::int64_t entries;  ///< of a set
  };
  /// Consecutive query blocks of a key/value head, whose pools fill the lanes of a product: a task.
  struct Unit {
    std::int64_t head_kv;
    std::int64_t first;  ///< query block
    std::int64_t last;
  };
  /// A pool of a query head (SEL-4), one lane of a product.
  struct Pool {
    std::int64_t query_block;
    std::int64_t head;
    std::int64_t begin;  ///< positions of its rows
    std::int64_t end;
  };
  /// Pools that are multiplied together.
  struct Lanes {
    std::int64_t size;   ///< rows of a whole pool
    std::int64_t first;  ///< the number of the first among the pools of the unit
    std::int64_t n;
    Pool pools[kBlockRows];
  };
  /// Consecutive summaries.
  struct Run {
    std::int64_t begin;
    std::int64_t end;
  };
  /// Summaries that are voted on, of blocks or of regions, side by side in the order of the runs.
  struct Ballot {
    const core::LayerRows& summaries;  ///< of blocks or of regions
    std::int64_t keys;                 ///< that each stands for
    std::span<const Run> runs;
    std::int64_t n;  ///< in all runs
  };
  /// Working memory of one thread.
  struct Scratch {
    Scratch(const SessionData& data, std::int64_t unit_blocks, std::int64_t unit_pools);
    [[nodiscard]] std::int64_t bytes() const;

    core::Buffer<float> pooled;    ///< [pools of a unit][summary width], then [kBlockRows][d] of half pools
    core::Buffer<float> products;  ///< [most voted on, whole tiles and one more][kBlockRows]
    core::Buffer<unsigned char> keys;  ///< keys of some blocks, side by side and readable up to a whole tile
    core::Buffer<std::uint32_t> order_keys;  ///< [most voted on, or all candidates]
    core::Buffer<float> region_votes;        ///< [query blocks of a unit][regions]
    core::Buffer<Run> runs;                  ///< candidates that are searched
    core::Buffer<float> searched_votes;      ///< [most searched]
    core::Buffer<std::int32_t> kept;         ///< blocks of the first stage, or regions
    core::Buffer<std::int32_t> positions;    ///< of the voted tokens
    core::Buffer<std::int32_t> chosen;       ///< [H] tokens of the second, by their number among the voted
    double selection_seconds = 0;            ///< StageSeconds, of this thread
  };

  [[nodiscard]] Votes votes_of(const Chunk& chunk) const;
  [[nodiscard]] std::int64_t pools_per_block(std::int64_t size) const;
  [[nodiscard]] std::int64_t blocks_per_unit() const;
  [[nodiscard]] std::int64_t units_of(const Votes& votes) const;
  [[nodiscard]] Unit unit_of(const Votes& votes, std::int64_t head_kv, std::int64_t index) const;
  /// The chunk of the window: one head of it by one thread, or all heads by all.
  void run_head(const LayerCall& call, const Window& window, std::int64_t head_kv, int thread);
  void run_chunk(const LayerCall& call, const Window& window);
  void run_unit(const LayerCall& call, const Window& window, const Chunk& chunk, const Votes& votes,
                const Unit& unit, bool new_set, int thread);

  /// Calls body(lanes) for all pools, of `size` rows, of the unit's query blocks [first, last).
  template <class Body>
  void for_lanes(const Chunk& chunk, const Unit& unit, std::int64_t first, std::int64_t last,
                 std::int64_t size, const Body& body) const;
  /// SEL-4: the scaled query of one of the lanes, [d].
  void pool_query(const LayerCall& call, const Lanes& lanes, std::int64_t lane, float* query) const;
  /// The scaled queries of the unit's pools, half the sums of their squares over column groups after them.
  void pool_queries(const LayerCall& call, const Chunk& chunk, const Unit& unit, int thread);
  /// LOGIT-2, LOGIT-3 of n products; position(i) is that of key i.
  template <class Position>
  void map(const LayerCall& call, const Lanes& lanes, std::int64_t n, float* products,
           const Position& position) const;

  /// SEL-5, SEL-6: the votes of the unit's query blocks [first, last); to(b)[n] holds those of query block b.
  template <class To>
  void vote(const LayerCall& call, const Chunk& chunk, const Unit& unit, std::int64_t first,
            std::int64_t last, const Ballot& ballot, const To& to, int thread);
  /// MEM-3 on the first n of the thread's order keys.
  std::int64_t select(const Scratch& scratch, std::int64_t n, std::int64_t budget,
                      std::int32_t* chosen) const;
  void vote_on_regions(const LayerCall& call, const Chunk& chunk, const Votes& votes, const Unit& unit,
                       int thread);
  /// SEL-12: the votes on the blocks of the best regions; keeps the best of these in Scratch::kept.
  std::int64_t search_regions(const LayerCall& call, const Chunk& chunk, const Votes& votes, const Unit& unit,
                              std::int64_t query_block, int thread);
  void choose_set(const LayerCall& call, const Chunk& chunk, const Votes& votes, const Unit& unit,
                  std::int64_t query_block, int thread);
  void vote_on_tokens(const LayerCall& call, const Chunk& chunk, const Votes& votes, const Unit& unit,
                      std::int64_t query_block, int thread);
  void report(const LayerCall& call, const Chunk& chunk, const Votes& votes);

  /// What a head has of an array over all heads: at the same place in every chunk, as threads are at different ones.
  template <class T>
  [[nodiscard]] T* part(core::Buffer<T>& all, std::int64_t head_kv) const {
    return all.data() + head_kv * (all.size() / data_.shape.n_head_kv);
  }
  [[nodiscard]] float* block_votes(const Votes& votes, std::int64_t head_kv, std::int64_t query_block) {
    return part(block_votes_, head_kv) + query_block * votes.blocks;
  }
  [[nodiscard]] float* token_votes(const Votes& votes, std::int64_t head_kv, std::int64_t query_block) {
    return part(token_votes_, head_kv) + query_block * votes.tokens;
  }
  [[nodiscard]] std::int32_t* set(std::int64_t head_kv, std::int64_t query_block) {
    return part(sets_, head_kv) + query_block * data_.set_width();
  }
  /// For the observer: the first n elements of every head's part, side by side.
  template <class T>
  const T* pack(core::Buffer<T>& all, std::int64_t n) const {
    for (std::int64_t head = 1; head < data_.shape.n_head_kv; ++head) {
      std::memmove(all.data() + head * n, part(all, head), static_cast<std::size_t>(n) * sizeof(T));
    }
    return all.data();
  }
  [[nodiscard]] Scratch& of(int thread) { return scratch_[static_cast<std::size_t>(thread)]; }

  SessionData& data_;
  std::int64_t group_;  // query heads of a key/value head
  RowBlocks rows_;
  // Parts of the heads, with room for the longest chunk and history.
  core::Buffer<std::int32_t> sets_;  // [Hkv][query blocks][set width] of the chunk
  core::Buffer<float> block_votes_;  // [Hkv][query blocks][candidates]
  core::Buffer<float> token_votes_;  // [Hkv][query blocks][tokens of the second stage]
  std::vector<Scratch> scratch_;     // one per thread
};

}  // namespace headwater::cpu
