#pragma once

#include <cstdint>

#include "core/kv_store.hpp"
#include "core/paged_rows.hpp"
#include "headwater/options.hpp"

namespace headwater::core {

/// Mean and variance of every whole key block of all layers (SEL-3): summary[layer][head][block][width()], the d means,
/// then the d variances, then zeros; and the same of every whole region of kRegionBlocks blocks. Floats, or BF16 where the
/// KV type has 16 bits.
class BlockSummaries {
 public:
  /// Rows after the last of a head that may be read, too, so that a kernel can load a whole tile; they hold anything.
  static constexpr std::int64_t kReadableRows = 32;
  /// Key blocks of a region.
  static constexpr std::int64_t kRegionBlocks = 32;
  /// Elements of a row are a multiple of this.
  static constexpr std::int64_t kWidthMultiple = 32;

  BlockSummaries() = default;
  /// Takes no pages. `page`: rows of a page.
  BlockSummaries(const Shape& shape, std::int64_t key_block, std::int64_t page);

  /// Tokens [begin, end) are about to be summarised, those before `begin` are: takes pages. std::bad_alloc: as before.
  void reserve(std::int64_t begin, std::int64_t end);
  /// The same for a layer, once they are reserved. Not from several threads.
  void make_room(std::int64_t layer, std::int64_t begin, std::int64_t end);
  void clear();
  /// Those of the first `tokens` tokens again (PagedRows::fork).
  [[nodiscard]] BlockSummaries fork(std::int64_t tokens);

  /// Summarises one block, whose keys are stored. `widen`: KernelTable::widen or core::widen.
  void write(std::int64_t layer, std::int64_t head, std::int64_t block, const KvStore& kv,
             void (*widen)(const void* from, DType type, std::int64_t count, float* to));

  /// Summarises one region, whose blocks are summarised, from their stored summaries.
  void write_region(std::int64_t layer, std::int64_t head, std::int64_t region);

  /// Summaries of blocks and of regions, in the run of a layer and head.
  [[nodiscard]] const PagedRows& blocks() const { return summaries_; }
  [[nodiscard]] const PagedRows& regions() const { return regions_; }
  [[nodiscard]] std::int64_t run(std::int64_t layer, std::int64_t head) const {
    return layer * heads_ + head;
  }
  /// Elements of a row; 0 where there are no summaries.
  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] std::int64_t key_block() const { return key_block_; }
  [[nodiscard]] std::int64_t bytes() const { return summaries_.bytes() + regions_.bytes(); }
  /// Once all tokens are summarised (PagedRows::bytes_when_full).
  [[nodiscard]] std::int64_t bytes_when_full() const {
    return summaries_.bytes_when_full() + regions_.bytes_when_full();
  }

 private:
  [[nodiscard]] std::int64_t row_bytes() const {
    return width_ * static_cast<std::int64_t>(dtype_size(type_));
  }

  std::int64_t heads_ = 0;
  std::int64_t key_block_ = 1;
  std::int64_t width_ = 0;
  std::int64_t d_ = 0;
  DType type_ = DType::f32;
  PagedRows summaries_;  // runs: [layer][head]
  PagedRows regions_;
};

}  // namespace headwater::core
