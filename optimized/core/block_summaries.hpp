#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_store.hpp"
#include "core/layer_rows.hpp"
#include "headwater/options.hpp"

namespace headwater::core {

/// Means and variances of every whole key block of all layers (SEL-3): summary[layer][head][block][width(layer)], the d
/// means, then the variances of the column groups, then zeros up to whole cache lines; and the same of every whole region
/// of kRegionBlocks blocks. Floats, or BF16 where the KV type has 16 bits.
class BlockSummaries {
 public:
  /// Rows after the last of a head that may be read, too, so that a kernel can load a whole tile; they hold anything.
  static constexpr std::int64_t kReadableRows = 32;
  /// Key blocks of a region.
  static constexpr std::int64_t kRegionBlocks = 32;
  /// Columns of a group, which share a variance.
  static constexpr std::int64_t kGroupColumns = 8;
  /// Bytes of a row are a multiple of this.
  static constexpr std::int64_t kRowMultiple = 64;

  BlockSummaries() = default;
  /// Takes no pages, of which each has as many rows as one of the session's.
  BlockSummaries(const Shape& shape, const EffectiveOptions& options);

  /// Tokens [begin, end) are about to be summarised, those before `begin` are: takes pages. std::bad_alloc: as before.
  void reserve(std::int64_t begin, std::int64_t end);
  /// The same for a layer, once they are reserved. Not from several threads.
  void make_room(std::int64_t layer, std::int64_t begin, std::int64_t end);
  void clear();
  /// Those of the first `tokens` tokens again (PagedRows::fork).
  [[nodiscard]] BlockSummaries fork(std::int64_t tokens);

  /// KernelTable::spread
  using Spread = void (*)(const void* const* rows, std::int64_t n_rows, DType type, std::int64_t n,
                          float* mean, float* squares);
  /// Summarises one block, whose keys are stored.
  void write(std::int64_t layer, std::int64_t head, std::int64_t block, const KvStore& kv, Spread spread);

  /// Summarises one region, whose blocks are summarised, from their stored summaries.
  void write_region(std::int64_t layer, std::int64_t head, std::int64_t region);

  [[nodiscard]] const LayerRows& blocks() const { return summaries_; }
  [[nodiscard]] const LayerRows& regions() const { return regions_; }
  [[nodiscard]] bool empty() const { return d_.empty(); }
  /// Column groups of d columns.
  [[nodiscard]] static std::int64_t groups(std::int64_t d) { return (d + kGroupColumns - 1) / kGroupColumns; }
  /// Means and variances of a layer's row.
  [[nodiscard]] std::int64_t columns(std::int64_t layer) const {
    const std::int64_t d = d_[static_cast<std::size_t>(layer)];
    return d + groups(d);
  }
  /// Elements of it.
  [[nodiscard]] std::int64_t width(std::int64_t layer) const {
    const std::int64_t multiple = kRowMultiple / static_cast<std::int64_t>(dtype_size(type_));
    return (columns(layer) + multiple - 1) / multiple * multiple;
  }
  /// Of the widest layer; 0 where there are no summaries.
  [[nodiscard]] std::int64_t most_width() const;
  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] std::int64_t key_block() const { return key_block_; }
  [[nodiscard]] std::int64_t bytes() const { return summaries_.bytes() + regions_.bytes(); }
  /// Once all tokens are summarised (PagedRows::bytes_when_full).
  [[nodiscard]] std::int64_t bytes_when_full() const {
    return summaries_.bytes_when_full() + regions_.bytes_when_full();
  }

 private:
  /// The zeros at the end of a layer's row.
  void clear_rest(std::int64_t layer, unsigned char* row) const;

  std::int64_t key_block_ = 1;
  std::vector<std::int64_t> d_;  // of each layer
  DType type_ = DType::f32;
  LayerRows summaries_;
  LayerRows regions_;
};

}  // namespace headwater::core
