#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/layer_rows.hpp"
#include "core/rows_8bit.hpp"
#include "headwater/session.hpp"
#include "headwater/state.hpp"

namespace headwater::core {

/// K and V rows of all layers in host memory: in pages of the store's own, rounded once to the KV type (STATE-6), or, while
/// a layer is attended, where the caller keeps them (ROWS-1).
///
/// With packed rows (STATE-13) the pages hold groups of 8 bits, and key() and value() are rows of the KV type in pages that
/// all layers of the same widths share: those that were restored since another layer was attended.
class KvStore {
 public:
  /// Rows after the last that may be read where a run of own rows ends, so that a kernel can load a whole tile.
  static constexpr std::int64_t kReadableRows = 32;

  KvStore() = default;
  /// Takes no pages.
  KvStore(const Shape& shape, const EffectiveOptions& options);

  /// Positions [begin, end) are about to be stored, those before `begin` are: takes pages. std::bad_alloc: as before.
  void reserve(std::int64_t begin, std::int64_t end);
  /// Rows of all heads of a layer, at reserved positions, are about to be stored. Not from several threads.
  void make_room(std::int64_t layer, std::int64_t begin, std::int64_t end);
  void clear();
  /// The first `tokens` positions again (PagedRows::fork).
  [[nodiscard]] KvStore fork(std::int64_t tokens);

  /// Of packed rows: [begin, end) of a head of a layer are about to be read by key() and value().
  void restore(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t end,
               RestoreGroups restore_groups);
  /// The n packed key rows from a position to `to`, one after the other.
  void restore_keys(std::int64_t layer, std::int64_t head, std::int64_t position, std::int64_t n,
                    RestoreGroups restore_groups, void* to) const {
    restore_rows(keys_, d_head(layer), {layer, head, position, n}, restore_groups, to);
  }
  void restore_values(std::int64_t layer, std::int64_t head, std::int64_t position, std::int64_t n,
                      RestoreGroups restore_groups, void* to) const {
    restore_rows(values_, d_value(layer), {layer, head, position, n}, restore_groups, to);
  }

  /// Until the next call rows of any layer are these, which are checked; null: none can be read.
  void view(const StoredRows* rows) { view_ = rows; }

  /// Stores row `row` of the views (row 0 = first token of the step) at `position`, for one head.
  void write(std::int64_t layer, std::int64_t head, std::int64_t position, const Rows& k, const Rows& v,
             std::int64_t row);

  /// STATE-12: `key` and `value` of one layer, [heads][tokens][d] and [heads][tokens][dv].
  void exchange(StateArchive& archive, std::int64_t layer, std::int64_t tokens);

  /// First byte of the key row at a position, or of the value row.
  [[nodiscard]] const void* key(std::int64_t layer, std::int64_t head, std::int64_t position) const {
    if (packed_) return restored_keys_.row(restored_as(layer), head, position);
    if (owner_ == KvOwner::session) return keys_.row(layer, head, position);
    return viewed(view_->keys, head * view_->key_head_stride, position, view_->key_row_stride,
                  view_->key_page_stride);
  }
  [[nodiscard]] const void* value(std::int64_t layer, std::int64_t head, std::int64_t position) const {
    if (packed_) return restored_values_.row(restored_as(layer), head, position);
    if (owner_ == KvOwner::session) return values_.row(layer, head, position);
    return viewed(view_->values, head * view_->value_head_stride, position, view_->value_row_stride,
                  view_->value_page_stride);
  }
  /// How many of the n key rows from a position follow each other without gaps, or value rows: 1 .. n.
  [[nodiscard]] std::int64_t keys_together(std::int64_t layer, std::int64_t position, std::int64_t n) const {
    if (packed_) return restored_keys_.together(restored_as(layer), position, n);
    if (owner_ == KvOwner::session) return keys_.together(layer, position, n);
    return view_->key_row_stride == d_head(layer) ? in_page(position, n) : 1;
  }
  [[nodiscard]] std::int64_t values_together(std::int64_t layer, std::int64_t position,
                                             std::int64_t n) const {
    if (packed_) return restored_values_.together(restored_as(layer), position, n);
    if (owner_ == KvOwner::session) return values_.together(layer, position, n);
    return view_->value_row_stride == d_value(layer) ? in_page(position, n) : 1;
  }
  /// Calls body(first byte, index of the first, number) for runs of the n key rows from a position that lie together.
  template <class Body>
  void for_keys(std::int64_t layer, std::int64_t head, std::int64_t position, std::int64_t n,
                const Body& body) const {
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t some = keys_together(layer, position + done, n - done);
      body(key(layer, head, position + done), done, some);
      done += some;
    }
  }
  template <class Body>
  void for_values(std::int64_t layer, std::int64_t head, std::int64_t position, std::int64_t n,
                  const Body& body) const {
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t some = values_together(layer, position + done, n - done);
      body(value(layer, head, position + done), done, some);
      done += some;
    }
  }

  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] bool packed() const { return packed_; }
  [[nodiscard]] KvOwner owner() const { return owner_; }
  /// Widths of a layer's rows.
  [[nodiscard]] std::int64_t d_head(std::int64_t layer) const {
    return widths_[static_cast<std::size_t>(layer)].key;
  }
  [[nodiscard]] std::int64_t d_value(std::int64_t layer) const {
    return widths_[static_cast<std::size_t>(layer)].value;
  }
  /// Of the pages.
  [[nodiscard]] std::int64_t bytes() const { return keys_.bytes() + values_.bytes(); }
  /// Once all positions are stored (PagedRows::bytes_when_full).
  [[nodiscard]] std::int64_t bytes_when_full() const {
    return keys_.bytes_when_full() + values_.bytes_when_full();
  }
  /// The same of the restored rows.
  [[nodiscard]] std::int64_t restored_bytes() const {
    return restored_keys_.bytes() + restored_values_.bytes();
  }
  [[nodiscard]] std::int64_t restored_bytes_when_full() const {
    return restored_keys_.bytes_when_full() + restored_values_.bytes_when_full();
  }

 private:
  /// Rows of a head of a layer.
  struct Some {
    std::int64_t layer;
    std::int64_t head;
    std::int64_t position;
    std::int64_t n;
  };
  void restore_rows(const LayerRows& packed, std::int64_t width, const Some& some,
                    RestoreGroups restore_groups, void* to) const;
  /// The layer of the restored rows in which rows of this layer are.
  [[nodiscard]] std::int64_t restored_as(std::int64_t layer) const {
    return widths_[static_cast<std::size_t>(layer)].restored_as;
  }
  [[nodiscard]] const void* viewed(const void* data, std::int64_t head, std::int64_t position,
                                   std::int64_t row_stride, std::int64_t page_stride) const {
    std::int64_t at = head;
    if (view_->table) {
      at += view_->table[position / view_->page_rows] * page_stride;
      position %= view_->page_rows;
    }
    return static_cast<const unsigned char*>(data) +
           (at + position * row_stride) * static_cast<std::int64_t>(dtype_size(type_));
  }
  [[nodiscard]] std::int64_t in_page(std::int64_t position, std::int64_t n) const {
    return view_->table ? std::min(n, view_->page_rows - position % view_->page_rows) : n;
  }

  struct Widths {
    std::int64_t key;
    std::int64_t value;
    std::int64_t restored_as;  // a number of its own for each pair of widths
  };

  KvOwner owner_ = KvOwner::session;
  std::int64_t heads_ = 0;
  DType type_ = DType::f32;
  std::vector<Widths> widths_;  // of each layer
  LayerRows keys_;
  LayerRows values_;
  bool packed_ = false;  // STATE-13
  LayerRows restored_keys_;
  LayerRows restored_values_;
  std::int64_t restorable_ = 0;  // rows for which there are pages
  const StoredRows* view_ = nullptr;
};

/// First byte of row `row` of head `head` of a view.
const void* row_address(const Rows& rows, std::int64_t row, std::int64_t head);
void* row_address(const MutableRows& rows, std::int64_t row, std::int64_t head);

/// Copies one row of `count` elements between types; each element is rounded at most once.
void convert_row(const void* from, DType from_type, std::int64_t count, void* to, DType to_type);

}  // namespace headwater::core
