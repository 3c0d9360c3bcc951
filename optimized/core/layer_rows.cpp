#include "core/layer_rows.hpp"

#include <algorithm>
#include <new>

#include "core/buffer.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

LayerRows::LayerRows(std::span<const std::int64_t> row_bytes, std::int64_t heads, std::int64_t rows,
                     std::int64_t page_rows, std::int64_t spare_rows)
    : heads_(heads) {
  std::vector<std::int64_t> sizes(row_bytes.begin(), row_bytes.end());
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<std::int64_t> layers(sizes.size());
  for (const std::int64_t size : row_bytes) {
    const std::ptrdiff_t at = std::lower_bound(sizes.begin(), sizes.end(), size) - sizes.begin();
    std::int64_t& before = layers[static_cast<std::size_t>(at)];
    places_.push_back({static_cast<std::size_t>(at), before * heads});
    if (HEADWATER_SABOTAGE("core.layers.runs_in_8_bits")) places_.back().first_run &= 0xFF;
    if (HEADWATER_SABOTAGE("core.layers.second_of_a_size_in_the_first") && before > 0)
      --places_.back().first_run;
    ++before;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes_.emplace_back(checked_product(layers[i], heads), rows, sizes[i], page_rows, spare_rows);
  }
}

void LayerRows::reserve(std::int64_t begin, std::int64_t end) {
  for (PagedRows& rows : sizes_) rows.reserve(begin, end);
}

void LayerRows::make_room(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  const Place& place = places_[static_cast<std::size_t>(layer)];
  sizes_[place.size].make_room(place.first_run, place.first_run + heads_, begin, end);
}

void LayerRows::clear() {
  for (PagedRows& rows : sizes_) rows.clear();
}

LayerRows LayerRows::fork(std::int64_t rows) {
  LayerRows other;
  other.heads_ = heads_;
  other.places_ = places_;
  for (PagedRows& of_size : sizes_) other.sizes_.push_back(of_size.fork(rows));
  return other;
}

std::int64_t LayerRows::bytes() const {
  std::int64_t bytes = 0;
  for (const PagedRows& rows : sizes_) bytes += rows.bytes();
  return bytes;
}

std::int64_t LayerRows::bytes_when_full() const {
  std::int64_t bytes = 0;
  for (const PagedRows& rows : sizes_) {
    if (__builtin_add_overflow(bytes, rows.bytes_when_full(), &bytes)) throw std::bad_alloc();
  }
  return bytes;
}

}  // namespace headwater::core
