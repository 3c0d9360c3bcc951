#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "cpu/layer.hpp"
#include "cpu/pass/row_blocks.hpp"

namespace headwater::cpu {

/// Most tasks that a chunk of one head is cut into; each keeps partial column sums of its own.
inline constexpr std::int64_t kMaxGroups = 8;

/// Rows per task of a chunk of n rows: a function of n only, so that no result depends on the threads.
std::int64_t group_rows(std::int64_t n);

/// Sparse prefill: the intra pass of all chunks of a window, then chunk by chunk memory set, inter pass, score
/// accumulation and fusion.
///
/// Where whole heads fill the threads, and in the chunk-major schedule, a step is computed chunk by chunk, both passes
/// of a block of rows one after the other. Else it is computed in windows of chunks, up to a batch: phase 1 computes the
/// intra pass of all chunks of the window in parallel, phase 2 walks them in order (SCHED-1). Both run the same
/// arithmetic on the same blocks, so they give the same bits (SCHED-2), and blocks are cut by sizes only (NUM-3).
class SparsePass {
 public:
  /// Of a session whose options are sparse.
  SparsePass(SessionData& data);

  /// Most rows of a window of such a session.
  static std::int64_t most_window_rows(const Shape& shape, const EffectiveOptions& options);

  /// Of working memory; set_bytes() of the column sums that belong to the memory sets.
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::int64_t set_bytes() const { return colsum_inter_.bytes(); }
  [[nodiscard]] double selection_seconds() const;

  void forget();
  /// All chunks of the call.
  void run(const LayerCall& call);

 private:
  /// Rows [begin, end) of a chunk of one head: a task.
  struct Group {
    std::int64_t head;
    std::int64_t index;
    std::int64_t begin;
    std::int64_t end;
  };
  /// Working memory of one thread.
  struct Scratch {
    explicit Scratch(const SessionData& data);
    [[nodiscard]] std::int64_t bytes() const;

    core::Buffer<std::uint32_t> order_keys;  ///< [capacity]
    core::Buffer<std::int32_t> chosen;       ///< [memory width]
    double selection_seconds = 0;            ///< StageSeconds, of this thread
  };

  [[nodiscard]] std::size_t window_end(const LayerCall& call, std::size_t first) const;
  [[nodiscard]] Group group_of(const Chunk& chunk, std::int64_t head, std::int64_t index) const;

  // Both passes of a chunk together.
  void whole_chunk(const LayerCall& call, const Window& window, const Chunk& chunk, bool has_memory);
  void whole_group(const LayerCall& call, const Window& window, const Chunk& chunk, const Group& group,
                   bool has_memory, int thread);

  // The two phases.
  void intra_phase(const LayerCall& call, const Window& window);
  void intra_group(const LayerCall& call, const Window& window, const Chunk& chunk, const Group& group,
                   int thread);
  void inter_phase(const LayerCall& call, const Window& window, const Chunk& chunk);
  void inter_group(const LayerCall& call, const Window& window, const Chunk& chunk, const Group& group,
                   int thread);
  void write_chunk(const LayerCall& call, const Window& window, const Chunk& chunk);

  // Their steps.
  void build_sets(const LayerCall& call, const Chunk& chunk);
  void gather(const LayerCall& call, std::int64_t head, int thread);
  double* clear_intra_sums(const Window& window, const Chunk& chunk, const Group& group);
  double* clear_inter_sums(std::int64_t layer, const Group& group);
  [[nodiscard]] GatheredSet set_of(std::int64_t layer, std::int64_t head) const {
    return {data_.state->memory.entries(layer, head), data_.state->memory.count(layer)};
  }
  void reduce_intra(const LayerCall& call, const Window& window, const Chunk& chunk, std::int64_t head,
                    int thread);
  void reduce_inter(const LayerCall& call, const Chunk& chunk, std::int64_t head, int thread);
  void report(const LayerCall& call, const Window& window, const Chunk& chunk, bool has_memory) const;

  [[nodiscard]] Scratch& of(int thread) { return scratch_[static_cast<std::size_t>(thread)]; }
  /// Row state of the window: index (head * window_rows_ + row) (* d_value).
  [[nodiscard]] std::int64_t window_index(const Window& window, std::int64_t head,
                                          std::int64_t position) const {
    return head * window_rows_ + (position - window.begin);
  }
  /// Of the intra pass, kept since phase 1 at this index of the window.
  [[nodiscard]] BlockResult window_result(std::int64_t at) const {
    return {row_max_.data() + at, row_sum_.data() + at};
  }

  SessionData& data_;
  bool one_pass_;             // both passes of a chunk run together; else in the two phases
  std::int64_t window_rows_;  // most rows of a window
  std::int64_t max_groups_;   // most groups that any chunk is cut into

  core::Buffer<float> colsum_inter_;     // [Hq][memory width]
  core::Buffer<double> inter_partials_;  // [Hq][groups][memory width]
  core::Buffer<float> colsum_intra_;     // [Hq][window]
  core::Buffer<double> intra_partials_;  // [Hq][groups][window]
  core::Buffer<float> row_max_;          // [Hq][window] m of the intra pass, where there are two phases
  core::Buffer<float> row_sum_;          // [Hq][window] l of the intra pass
  core::Buffer<float> row_out_;          // [Hq][window][dv] o of the intra pass
  RowBlocks blocks_;
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace headwater::cpu
