#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "core/kv_store.hpp"
#include "core/memory_sets.hpp"
#include "core/score_store.hpp"
#include "core/session_base.hpp"
#include "cpu/attention_block.hpp"
#include "cpu/bf16_block.hpp"
#include "cpu/scratch.hpp"

namespace headwater::cpu {

/// A session of the CPU engine: the schedule of the passes around one table of kernels.
///
/// Where whole heads fill the threads, and in the chunk-major schedule, a sparse step works chunk by chunk, both passes
/// of a block of rows one after the other. Else it works in windows of chunks, up to a batch: phase 1 computes the intra
/// pass of all chunks of the window in parallel, phase 2 walks them in order (SCHED-1). Both run the same arithmetic on
/// the same blocks, so they give the same bits (SCHED-2), and blocks are cut by sizes only (NUM-3).
class CpuSession final : public core::SessionBase {
 public:
  /// `effective` is resolve(shape, options); takes all memory (std::bad_alloc) and warms the OpenMP threads. Calls
  /// whose Q, K and V are all BF16 use `bf16`, unless it is null, others `kernels`.
  CpuSession(const KernelTable& kernels, const Bf16Table* bf16, const Shape& shape, const Options& options,
             const EffectiveOptions& effective);

  [[nodiscard]] MemoryBytes memory_bytes() const override;
  [[nodiscard]] StageSeconds stage_seconds() const override;
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override;
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override;

 private:
  /// A layer's call: what every pass needs. Row 0 of q and out stands at position `base`.
  struct Call {
    std::int64_t layer;
    const Rows& q;
    const MutableRows& out;
    std::int64_t base;
    bool bf16;            ///< arithmetic of the call
    double natural_unit;  ///< of logits and maxima: 1, or ln 2
  };
  /// Chunks [first, last) of the plan that are worked on together, and where their rows begin.
  struct Window {
    std::span<const Chunk> chunks;
    std::int64_t begin;
  };
  struct KeyRows {
    const float* keys;
    const float* values;
  };
  /// The same in BF16: rows `key_stride` elements apart, values packed.
  struct Bf16Rows {
    const std::uint16_t* keys;
    std::int64_t key_stride;
    const std::uint16_t* values;
  };
  /// Query rows of a block of one head, all of whose keys belong to one pass.
  struct PassBlock {
    std::int64_t head;
    std::int64_t row;              ///< position of the first
    std::int64_t rows;             ///< 1 .. kBlockRows
    float sink;                    ///< natural units; -inf: none
    const std::int32_t* gathered;  ///< positions of the keys, or null: they follow each other ...
    std::int64_t first_key;        ///< ... from here
    std::int64_t n_keys;
    double* sums;  ///< [n_keys] column sums are added here
    /// [kBlockRows][d_value] outputs go here: of floats, to be divided by PassResult::sum; of BF16, finished.
    float* out;
    bool loaded;                      ///< the scratch holds the packed queries of these rows already
    std::span<RowsAhead> ahead = {};  ///< asked for on the way, of BF16
  };
  struct BlockRows {
    std::int64_t head;
    std::int64_t row;  ///< position of the first
    std::int64_t n;    ///< 1 .. kBlockRows
    std::span<RowsAhead> ahead = {};
  };
  /// m and l per row, m in units of Call::natural_unit.
  struct PassResult {
    const float* max;
    const float* sum;
  };

  void run_layer(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                 const MutableRows& out) override;
  void forget() override;

  void store_rows(std::int64_t layer, const Rows& k, const Rows& v, std::int64_t base, std::int64_t n);

  // dense_pass.cpp
  void run_dense(const Call& call, const Chunk& chunk);
  void run_dense_blocks(const Call& call, const Chunk& chunk);
  void dense_group(const Call& call, std::int64_t head, std::int64_t begin, std::int64_t end,
                   Scratch& scratch);

  // decode_pass.cpp
  /// A query head at a position, one of the rows that share a key/value head.
  struct DecodeRow {
    std::int64_t head;
    std::int64_t position;
  };
  [[nodiscard]] bool decodes_by_rows(const Chunk& chunk) const;
  void run_decode(const Call& call, const Chunk& chunk);
  [[nodiscard]] DecodeRow decode_row(const Chunk& chunk, std::int64_t head_kv, std::int64_t row) const;
  void decode_split(const Call& call, const Chunk& chunk, std::int64_t head_kv, std::int64_t split,
                    std::int64_t begin, std::int64_t end, Scratch& scratch);
  void map_row(const DecodeRow& row, std::int64_t first, std::int64_t n, float* logits) const;
  void join_splits(const Call& call, const Chunk& chunk, std::int64_t head_kv, std::int64_t row,
                   std::int64_t splits, Scratch& scratch);
  /// m, l and the unnormalised output of a row over one part of the context.
  [[nodiscard]] float* split_state(std::int64_t head_kv, std::int64_t split, std::int64_t row);

  // sparse_pass.cpp
  void run_sparse(const Call& call);
  [[nodiscard]] std::size_t window_end(const Call& call, std::span<const Chunk> chunks,
                                       std::size_t first) const;
  void prepare_rows(const Call& call, const Window& window, const Chunk& chunk, std::int64_t head_kv);
  void gather(const Call& call, std::int64_t head, Scratch& scratch);
  void whole_chunk(const Call& call, const Window& window, const Chunk& chunk, bool has_memory);
  void whole_group(const Call& call, const Window& window, const Chunk& chunk, std::int64_t head,
                   std::int64_t group, bool has_memory, Scratch& scratch);
  double* clear_intra_sums(const Window& window, const Chunk& chunk, std::int64_t head, std::int64_t group,
                           std::int64_t end);
  double* clear_inter_sums(std::int64_t layer, std::int64_t head, std::int64_t group);
  PassResult intra_block(const Call& call, const Window& window, const Chunk& chunk, const BlockRows& rows,
                         double* sums, float* out, Scratch& scratch);
  PassResult inter_block(const Call& call, const BlockRows& rows, bool loaded, double* sums,
                         Scratch& scratch);
  /// FUSE-1 of rows whose passes are done; overwrites inter_out.
  void join(const Call& call, const Chunk& chunk, const BlockRows& rows, const PassResult& intra,
            const float* intra_out, const PassResult& inter, float* inter_out);
  /// Rows of a chunk without a memory set.
  void write_rows(const Call& call, const Chunk& chunk, const BlockRows& rows, const PassResult& intra,
                  float* out);
  void keep_lse(const Chunk& chunk, const BlockRows& rows, const float* lse);
  void intra_phase(const Call& call, const Window& window);
  void intra_group(const Call& call, const Window& window, const Chunk& chunk, std::int64_t head,
                   std::int64_t group, Scratch& scratch);
  void reduce_intra(const Window& window, const Chunk& chunk, std::int64_t layer, std::int64_t head);
  void write_chunk(const Call& call, const Window& window, const Chunk& chunk);
  PassResult float_block(const Call& call, const PassBlock& block, const KeyRows& rows, Scratch& scratch);
  PassResult bf16_block(const Call& call, const PassBlock& block, const Bf16Rows& rows, Scratch& scratch);
  /// Ask for what a block reads next and writes at its end, while it computes.
  [[nodiscard]] RowsAhead queries_ahead(const Call& call, std::int64_t head, std::int64_t begin,
                                        std::int64_t end) const;
  [[nodiscard]] RowsAhead outputs_ahead(const Call& call, const BlockRows& rows) const;
  /// Of the intra pass, kept since phase 1 at this index of the window.
  [[nodiscard]] PassResult window_result(std::int64_t at) const;
  /// The caller's row where it is one of aligned floats, else null.
  [[nodiscard]] float* float_row(const Call& call, std::int64_t position, std::int64_t head) const;
  /// A finished row of a head to the caller, in his type.
  void store_row(const Call& call, std::int64_t position, std::int64_t head, const float* row) const;
  void inter_phase(const Call& call, const Window& window, const Chunk& chunk);
  void inter_group(const Call& call, const Window& window, const Chunk& chunk, std::int64_t head,
                   std::int64_t group, Scratch& scratch);
  void reduce_inter(const Chunk& chunk, std::int64_t layer, std::int64_t head);
  void report(const Window& window, const Chunk& chunk, std::int64_t layer, bool has_memory) const;

  /// Floats of n consecutive rows from `first`: the stored rows themselves where they are F32, else widened.
  KeyRows consecutive_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                           Scratch& scratch) const;
  /// The same for rows of the window, which are widened once for all query heads and groups (widen_window).
  KeyRows window_rows(const Window& window, std::int64_t layer, std::int64_t head_kv,
                      std::int64_t first) const;
  void widen_window(const Window& window, std::int64_t layer, std::int64_t head_kv, const Chunk& chunk);
  void gather_rows(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions, std::int64_t n,
                   Scratch& scratch) const;

  // bf16_rows.cpp: keys and values as the BF16 kernels read them.
  /// Packs the values (and pads the keys) of positions [first, first + n) behind row `at` of the packed store.
  void pack_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                 std::int64_t at);
  [[nodiscard]] Bf16Rows packed_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first,
                                     std::int64_t at) const;
  void gather_bf16_rows(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions,
                        std::int64_t n, Scratch& scratch) const;
  [[nodiscard]] Bf16Rows gathered_rows(const Scratch& scratch) const;
  /// Row of the packed store where a chunk of the window begins.
  [[nodiscard]] std::int64_t packed_row(const Window& window, const Chunk& chunk) const;
  [[nodiscard]] Bf16Segment bf16_segment(std::int64_t head, const Bf16Rows& rows) const;
  void dense_bf16_group(const Call& call, std::int64_t head, std::int64_t begin, std::int64_t end,
                        Scratch& scratch);

  [[nodiscard]] std::int64_t kv_head(std::int64_t head) const;
  [[nodiscard]] LogitMap logit_map(std::int64_t head) const;
  [[nodiscard]] float sink(std::int64_t head) const;
  [[nodiscard]] Scratch& thread_scratch();

  // Row state of the window: index (head * window_rows_ + row) (* d_value).
  [[nodiscard]] std::int64_t window_index(const Window& window, std::int64_t head,
                                          std::int64_t position) const {
    return head * window_rows_ + (position - window.begin);
  }

  const KernelTable& kernels_;
  const Bf16Table* bf16_;  // null: no call is computed in BF16
  std::vector<float> sinks_;
  std::vector<float> alibi_;
  std::int64_t segment_keys_;
  float scale_;
  int threads_;
  bool one_pass_;                 // both passes of a chunk run together; else in the two phases
  std::int64_t window_rows_ = 0;  // most rows of a window
  std::int64_t max_groups_ = 0;   // most groups that any chunk is cut into

  core::KvStore kv_;
  core::ScoreStore scores_;
  core::MemorySets memory_;
  core::Buffer<float> wide_keys_;              // [Hkv][window][d] where the KV type is not F32
  core::Buffer<float> wide_values_;            // [Hkv][window][dv]
  std::int64_t packed_rows_ = 0;               // rows of the packed store of one head: whole tiles
  core::Buffer<std::uint16_t> packed_keys_;    // [Hkv][packed_rows][d padded] where rows must be padded
  core::Buffer<std::uint16_t> packed_values_;  // [Hkv][packed_rows / kKeyTile][dv padded][kKeyTile]
  core::Buffer<float> splits_;                 // [Hkv][kMaxSplits][kDecodeRows][2 + dv]
  core::Buffer<float> colsum_inter_;           // [Hq][memory width]
  core::Buffer<double> inter_partials_;        // [Hq][groups][memory width]
  core::Buffer<float> colsum_intra_;           // [Hq][window]
  core::Buffer<double> intra_partials_;        // [Hq][groups][window]
  core::Buffer<float> row_max_;                // [Hq][window] m of the intra pass
  core::Buffer<float> row_sum_;                // [Hq][window] l of the intra pass
  core::Buffer<float> row_out_;                // [Hq][window][dv] o of the intra pass
  core::Buffer<float> lse_;       // of the chunk: [Hq][window], or [Hq][capacity] where it is dense
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace headwater::cpu
