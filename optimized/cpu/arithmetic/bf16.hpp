#pragma once

#include <vector>

#include "core/buffer.hpp"
#include "core/config.hpp"
#include "cpu/arithmetic/arithmetic.hpp"
#include "cpu/arithmetic/bf16_block.hpp"

namespace headwater::cpu {

/// Products of BF16 by a Bf16Table: calls whose Q, K and V are all BF16. Maxima count in units of ln 2.
class Bf16Arithmetic final : public Arithmetic {
 public:
  /// `floats` decodes where the table has no row_logits, and outlives this.
  Bf16Arithmetic(const SessionData& data, const Bf16Table& kernels, Arithmetic& floats);

  /// The calls that follow are of the layer whose sizes are SessionData::shape.
  void enter_layer();

  [[nodiscard]] std::int64_t bytes() const override;
  [[nodiscard]] double unit() const override;
  [[nodiscard]] bool divides() const override { return true; }

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
  [[nodiscard]] std::int64_t least_rows() const override { return kernels_.least_keys; }

  void prepare_context(const LayerCall& call, std::int64_t end) override;
  /// A slope of ALiBi is the head's own, and counts from the row's position.
  [[nodiscard]] bool heads_share_blocks() const override { return data_.alibi.empty(); }
  void attend_context(const LayerCall& call, std::span<const HeadRows> rows, const LseRows& lse,
                      int thread) override;

  void load_row(const LayerCall& call, std::int64_t head, std::int64_t position, std::int64_t slot,
                int thread) override;
  void row_logits(const LayerCall& call, const void* keys, std::int64_t n, std::int64_t rows, float* logits,
                  std::int64_t stride, int thread) override;

 private:
  /// Keys, rows `key_stride` elements apart, and packed values.
  struct KeyRows {
    const std::uint16_t* keys;
    std::int64_t key_stride;
    const std::uint16_t* values;
    const std::uint16_t* const* rows = nullptr;   ///< Bf16Segment::rows
    const std::uint16_t* const* tiles = nullptr;  ///< Bf16Segment::tiles
  };
  /// Most borders of pages in a segment.
  static constexpr std::int64_t kBorders = kBf16SegmentKeys / core::kPageMultiple + 1;
  class Pass;
  class Context;
  /// Blocks of the rows of a dense task, and one more.
  static constexpr std::int64_t kContextBlocks = kGroupRows / kBlockRows + 1;
  /// Working memory of one thread.
  struct Scratch {
    Scratch(const SessionData& data, std::int64_t d_padded, std::int64_t dv_padded, bool copies);
    [[nodiscard]] std::int64_t bytes() const;

    core::Buffer<std::uint16_t> packed;  ///< [kContextBlocks][kBlockRows][d padded] query rows, or lanes
    core::Buffer<std::uint16_t> keys;    ///< [memory, whole tiles][d padded]
    core::Buffer<const std::uint16_t*> key_rows;  ///< [memory] those of a set where they are read in place
    core::Buffer<const std::uint16_t*>
        tiles;                            ///< [kBf16SegmentKeys / kKeyTile] of a segment in several pages
    core::Buffer<std::uint16_t> border;   ///< [kBorders][kKeyTile][d padded] its tiles that lie in two pages
    core::Buffer<std::uint16_t> values;   ///< [memory tiles][dv padded][kKeyTile]
    core::Buffer<std::uint16_t> lanes;    ///< [kBlockRows][d padded or summary] lanes, or padded rows
    core::Buffer<std::uint16_t> weights;  ///< [tiles of keys][kTileWeights]
    core::Buffer<float> transposed;       ///< [kContextBlocks][dv padded][kBlockRows]
    core::Buffer<float> out;              ///< [kBlockRows][dv] finished outputs
    core::Buffer<Bf16Softmax> softmax;    ///< [kContextBlocks]
  };

  /// Whether the sets' keys, of d elements, are read where they are stored.
  [[nodiscard]] bool in_place(std::int64_t d) const;
  /// Whether key rows of d elements must be padded, or are the caller's.
  [[nodiscard]] bool packs_keys(std::int64_t d) const;
  [[nodiscard]] Scratch& of(int thread) { return scratch_[static_cast<std::size_t>(thread)]; }
  /// Row of the packed store where a chunk of the window begins.
  [[nodiscard]] std::int64_t packed_row(const Window& window, const Chunk& chunk) const;
  /// Packs the values (and pads the keys) of positions [first, first + n) from row `at` of the packed store on.
  void pack_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                 std::int64_t at);
  /// n rows from `first`, at most a segment, whose values are packed from row `at` on.
  KeyRows packed_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                      std::int64_t at, Scratch& scratch) const;
  [[nodiscard]] Bf16Segment segment(const LayerCall& call, std::int64_t head, const KeyRows& rows) const;

  const SessionData& data_;
  const Bf16Table& kernels_;
  Arithmetic& floats_;
  std::int64_t d_padded_;  // of the layer that is attended, as the next
  std::int64_t dv_padded_;
  std::int64_t packed_rows_;                   // of the packed store of one head: whole tiles
  core::Buffer<std::uint16_t> packed_values_;  // [Hkv][packed_rows / kKeyTile][dv padded][kKeyTile]
  // [Hkv][packed_rows][d padded] where packs_keys(), of any layer
  core::Buffer<std::uint16_t> packed_keys_;
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace headwater::cpu
