#pragma once

#include <cstdint>

#include "core/kv_store.hpp"
#include "core/run_buffer.hpp"
#include "headwater/options.hpp"

namespace headwater::core {

/// Mean and variance of every whole key block of all layers (SEL-3): summary[layer][head][block][width()], the d means,
/// then the d variances, then zeros. Floats, or BF16 where the KV type has 16 bits.
class BlockSummaries {
 public:
  /// Rows after the last of a head that may be read, too, so that a kernel can load a whole tile; they hold anything.
  static constexpr std::int64_t kReadableRows = 32;
  /// Elements of a row are a multiple of this.
  static constexpr std::int64_t kWidthMultiple = 32;

  BlockSummaries() = default;
  BlockSummaries(const Shape& shape, std::int64_t key_block);

  /// Tokens [begin, end) of a layer are about to be summarised. Not from several threads.
  void make_room(std::int64_t layer, std::int64_t begin, std::int64_t end);

  /// Summarises one block, whose keys are stored. `widen`: KernelTable::widen or core::widen.
  void write(std::int64_t layer, std::int64_t head, std::int64_t block, const KvStore& kv,
             void (*widen)(const void* from, DType type, std::int64_t count, float* to));

  /// First byte of the summary of block 0; the others follow without gaps.
  [[nodiscard]] const void* rows(std::int64_t layer, std::int64_t head) const {
    return summaries_.data() + (layer * heads_ + head) * blocks_ * row_bytes();
  }
  /// Elements of a row; 0 where there are no summaries.
  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] std::int64_t key_block() const { return key_block_; }
  [[nodiscard]] std::int64_t bytes() const { return summaries_.bytes() + kReadableRows * row_bytes(); }

 private:
  [[nodiscard]] std::int64_t row_bytes() const {
    return width_ * static_cast<std::int64_t>(dtype_size(type_));
  }

  std::int64_t heads_ = 0;
  std::int64_t key_block_ = 1;
  std::int64_t blocks_ = 0;  // of a head
  std::int64_t width_ = 0;
  DType type_ = DType::f32;
  RunBuffer summaries_;
};

}  // namespace headwater::core
