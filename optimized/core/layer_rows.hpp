#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/paged_rows.hpp"

namespace headwater::core {

/// Rows 0, 1, ... of every head of every layer; those of a layer have one size. Layers of the same size share their pages.
class LayerRows {
 public:
  LayerRows() = default;
  /// row_bytes: of each layer. The other arguments are those of PagedRows. Takes no pages.
  LayerRows(std::span<const std::int64_t> row_bytes, std::int64_t heads, std::int64_t rows,
            std::int64_t page_rows, std::int64_t spare_rows);

  /// PagedRows::reserve, of all layers. std::bad_alloc: some have taken pages already, which the next call finds.
  void reserve(std::int64_t begin, std::int64_t end);
  /// PagedRows::make_room, of a layer.
  void make_room(std::int64_t layer, std::int64_t begin, std::int64_t end);
  void clear();
  [[nodiscard]] LayerRows fork(std::int64_t rows);

  /// A reserved row.
  [[nodiscard]] unsigned char* row(std::int64_t layer, std::int64_t head, std::int64_t index) {
    const Place& place = places_[static_cast<std::size_t>(layer)];
    return sizes_[place.size].row(place.first_run + head, index);
  }
  [[nodiscard]] const unsigned char* row(std::int64_t layer, std::int64_t head, std::int64_t index) const {
    const Place& place = places_[static_cast<std::size_t>(layer)];
    return sizes_[place.size].row(place.first_run + head, index);
  }
  /// How many of n reserved rows of any head from `index` follow each other without gaps.
  [[nodiscard]] std::int64_t together(std::int64_t layer, std::int64_t index, std::int64_t n) const {
    return sizes_[places_[static_cast<std::size_t>(layer)].size].together(index, n);
  }
  [[nodiscard]] std::int64_t row_bytes(std::int64_t layer) const {
    return sizes_[places_[static_cast<std::size_t>(layer)].size].row_bytes();
  }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::int64_t bytes_when_full() const;

 private:
  /// Where the rows of a layer are.
  struct Place {
    std::size_t size;        ///< in sizes_
    std::int64_t first_run;  ///< that of its first head
  };

  std::int64_t heads_ = 0;
  std::vector<Place> places_;     // of each layer
  std::vector<PagedRows> sizes_;  // the rows of each size; runs: [layer of this size][head]
};

}  // namespace headwater::core
