#pragma once

#include <vector>

#include "core/buffer.hpp"
#include "cpu/arithmetic/arithmetic.hpp"

namespace headwater::cpu {

/// Products of floats by the kernels of SessionData::kernels: rows of all types, widened where they are not F32.
class FloatArithmetic final : public Arithmetic {
 public:
  /// `window_rows`: most rows of a window of the sparse pass.
  FloatArithmetic(const SessionData& data, std::int64_t window_rows);

  [[nodiscard]] std::int64_t bytes() const override;
  [[nodiscard]] double unit() const override { return 1; }
  [[nodiscard]] bool divides() const override { return false; }

  [[nodiscard]] bool fits(const Window& window) const override;
  void prepare_chunk(std::int64_t layer, const Window& window, const Chunk& chunk,
                     std::int64_t head_kv) override;
  void gather(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions, std::int64_t n,
              int thread) override;
  BlockResult attend(const LayerCall& call, const Window& window, const Chunk& chunk, const PassBlock& block,
                     int thread) override;

  void load_lanes(const float* rows, std::int64_t lanes, const RowWidth& width, int thread) override;
  void lane_products(std::span<const RowRun> runs, DType type, const RowWidth& width, std::int64_t lanes,
                     float* products, int thread) override;
  [[nodiscard]] std::int64_t least_rows() const override { return 8; }

  void prepare_context(const LayerCall& call, std::int64_t end) override;
  [[nodiscard]] bool heads_share_blocks() const override { return false; }
  void attend_context(const LayerCall& call, std::span<const HeadRows> rows, const LseRows& lse,
                      int thread) override;

  void load_row(const LayerCall& call, std::int64_t head, std::int64_t position, std::int64_t slot,
                int thread) override;
  void row_logits(const LayerCall& call, const void* keys, std::int64_t n, std::int64_t rows, float* logits,
                  std::int64_t stride, int thread) override;

 private:
  struct KeyRows {
    const float* keys;
    const float* values;
  };
  /// Working memory of one thread.
  struct Scratch {
    Scratch(const SessionData& data, std::int64_t wide_keys, std::int64_t segment_keys,
            std::int64_t block_keys);
    [[nodiscard]] std::int64_t bytes() const;

    core::Buffer<float> rows;           ///< [kBlockRows][d] widened query rows
    core::Buffer<float> packed;         ///< [kGroupRows][d] packed query rows, or lanes
    core::Buffer<float> keys;           ///< [wide_keys][d] widened or gathered
    core::Buffer<float> values;         ///< [wide_keys][dv]
    core::Buffer<float> border_keys;    ///< [segment_keys][d] F32 rows of a segment that do not lie together
    core::Buffer<float> border_values;  ///< [segment_keys][dv]
    core::Buffer<const float*> key_rows;    ///< [memory] those of a set where they are read in place
    core::Buffer<const float*> value_rows;  ///< likewise
    core::Buffer<float> block;              ///< [block_keys][kBlockRows] logits, then weights
    core::Buffer<float> out;                ///< [kGroupRows][dv] unnormalised outputs
    core::Buffer<float> segment_max;        ///< [segments of block_keys][kBlockRows]
    core::Buffer<SoftmaxState> states;      ///< [kGroupRows / kBlockRows]
  };

  /// Whether rows of the sets are read where they are stored.
  [[nodiscard]] static bool in_place(const SessionData& data);
  /// Key and value rows that are widened or copied at a time.
  [[nodiscard]] static std::int64_t most_wide_keys(const SessionData& data);
  [[nodiscard]] Scratch& of(int thread) { return scratch_[static_cast<std::size_t>(thread)]; }
  /// Row of a chunk's first token in the widened rows of the window.
  [[nodiscard]] std::int64_t wide_row(const Window& window, const Chunk& chunk, std::int64_t head_kv) const {
    return head_kv * window_rows_ + (chunk.begin - window.begin);
  }
  /// Rows [first, first + n) of a chunk.
  KeyRows chunk_rows(std::int64_t layer, const Window& window, const Chunk& chunk, std::int64_t head_kv,
                     std::int64_t first, std::int64_t n, Scratch& scratch) const;
  /// n consecutive rows from `first`, at most a segment: the stored rows themselves where they are F32 and lie together,
  /// else widened or copied into the scratch.
  KeyRows consecutive_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                           Scratch& scratch) const;
  void widen_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n, float* keys,
                  float* values) const;

  const SessionData& data_;
  const KernelTable& kernels_;
  std::int64_t window_rows_;
  core::Buffer<float> wide_keys_;    // [Hkv][window][d] where the KV type is not F32
  core::Buffer<float> wide_values_;  // [Hkv][window][dv]
  std::vector<Scratch> scratch_;     // one per thread
};

}  // namespace headwater::cpu
