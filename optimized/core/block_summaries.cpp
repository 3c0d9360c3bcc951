#include "core/block_summaries.hpp"

#include <algorithm>
#include <cstring>

#include "core/buffer.hpp"
#include "core/numbers.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

constexpr std::int64_t kColumns = 64;  // columns that are summarised at a time: whole groups
static_assert(kColumns % BlockSummaries::kGroupColumns == 0);

/// The mean of each column group of n <= kColumns numbers.
void group_means(const float (&columns)[kColumns], std::int64_t n, float (&means)[kColumns]) {
  for (std::int64_t first = 0; first < n; first += BlockSummaries::kGroupColumns) {
    const std::int64_t some = std::min(BlockSummaries::kGroupColumns, n - first);
    float sum = 0.0f;
    for (std::int64_t x = first; x < first + some; ++x) sum += columns[x];
    const bool whole = HEADWATER_SABOTAGE("core.summaries.short_group_counted_whole");
    means[first / BlockSummaries::kGroupColumns] =
        sum / static_cast<float>(whole ? BlockSummaries::kGroupColumns : some);
  }
}

}  // namespace

BlockSummaries::BlockSummaries(const Shape& shape, const EffectiveOptions& options)
    : key_block_(options.key_block), type_(shape.kv_type == DType::f32 ? DType::f32 : DType::bf16) {
  std::vector<std::int64_t> row_bytes;
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    d_.push_back(options.shape_of(shape, layer).d_head);
    row_bytes.push_back(width(layer) * static_cast<std::int64_t>(dtype_size(type_)));
  }
  const std::int64_t blocks = shape.capacity / key_block_;
  summaries_ = LayerRows(row_bytes, shape.n_head_kv, blocks, options.page, kReadableRows);
  regions_ = LayerRows(row_bytes, shape.n_head_kv, blocks / kRegionBlocks, options.page, kReadableRows);
}

std::int64_t BlockSummaries::most_width() const {
  std::int64_t most = 0;
  for (std::size_t layer = 0; layer < d_.size(); ++layer) {
    most = std::max(most, width(static_cast<std::int64_t>(layer)));
  }
  return most;
}

void BlockSummaries::reserve(std::int64_t begin, std::int64_t end) {
  const std::int64_t region = key_block_ * kRegionBlocks;
  summaries_.reserve(begin / key_block_, end / key_block_);
  regions_.reserve(begin / region, end / region);
}

void BlockSummaries::make_room(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  const std::int64_t region = key_block_ * kRegionBlocks;
  summaries_.make_room(layer, begin / key_block_, end / key_block_);
  regions_.make_room(layer, begin / region, end / region);
}

void BlockSummaries::clear() {
  summaries_.clear();
  regions_.clear();
}

BlockSummaries BlockSummaries::fork(std::int64_t tokens) {
  BlockSummaries other = *this;
  other.summaries_ = summaries_.fork(tokens / key_block_);
  other.regions_ = regions_.fork(tokens / key_block_ / kRegionBlocks);
  return other;
}

void BlockSummaries::write(std::int64_t layer, std::int64_t head, std::int64_t block, const KvStore& kv,
                           Spread spread) {
  constexpr std::int64_t kMostKeys = 256;
  const void* keys[kMostKeys];
  const auto key_element = static_cast<std::int64_t>(dtype_size(kv.type()));
  const auto element = static_cast<std::int64_t>(dtype_size(type_));
  const std::int64_t d = kv.d_head(layer);
  unsigned char* row = summaries_.row(layer, head, block);
  for (std::int64_t first = 0; first < d; first += kColumns) {
    const std::int64_t n = std::min(kColumns, d - first);
    for (std::int64_t key = 0; key < key_block_; ++key) {
      const void* stored = kv.key(layer, head, block * key_block_ + key);
      keys[key] = static_cast<const unsigned char*>(stored) + first * key_element;
    }
    float mean[kColumns];
    float squares[kColumns];
    spread(keys, key_block_, kv.type(), n, mean, squares);
    const auto divisor = static_cast<float>(
        HEADWATER_SABOTAGE("core.summaries.sample_variance") ? key_block_ - 1 : key_block_);
    float of_groups[kColumns];
    group_means(squares, n, of_groups);
    const std::int64_t group =
        HEADWATER_SABOTAGE("core.summaries.groups_of_64_columns") ? 0 : first / kGroupColumns;
    for (std::int64_t g = 0; g < groups(n); ++g) of_groups[g] /= divisor;
    narrow(mean, n, type_, row + first * element);
    narrow(of_groups, groups(n), type_, row + (d + group) * element);
  }
  clear_rest(layer, row);
}

void BlockSummaries::write_region(std::int64_t layer, std::int64_t head, std::int64_t region) {
  const auto element = static_cast<std::int64_t>(dtype_size(type_));
  const std::int64_t d = d_[static_cast<std::size_t>(layer)];
  unsigned char* row = regions_.row(layer, head, region);
  for (std::int64_t first = 0; first < d; first += kColumns) {
    const std::int64_t n = std::min(kColumns, d - first);
    const std::int64_t first_group = d + first / kGroupColumns;
    float means[kRegionBlocks][kColumns];
    float of_groups[kColumns];
    float mean[kColumns] = {};
    float between[kColumns] = {};
    float variance[kColumns] = {};
    for (std::int64_t block = 0; block < kRegionBlocks; ++block) {
      const unsigned char* summary = summaries_.row(layer, head, region * kRegionBlocks + block);
      widen(summary + first * element, type_, n, means[block]);
      widen(summary + first_group * element, type_, groups(n), of_groups);
      for (std::int64_t x = 0; x < n; ++x) mean[x] += means[block][x];
      for (std::int64_t g = 0; g < groups(n); ++g) variance[g] += of_groups[g];
    }
    for (std::int64_t x = 0; x < n; ++x) mean[x] /= kRegionBlocks;
    for (std::int64_t block = 0; block < kRegionBlocks; ++block) {
      for (std::int64_t x = 0; x < n; ++x) {
        const float difference = means[block][x] - mean[x];
        between[x] += difference * difference;
      }
    }
    group_means(between, n, of_groups);
    if (first > 0 && HEADWATER_SABOTAGE("core.summaries.regions_beyond_64_columns")) {
      std::fill_n(of_groups, groups(n), 0.0f);
    }
    for (std::int64_t g = 0; g < groups(n); ++g) variance[g] = (variance[g] + of_groups[g]) / kRegionBlocks;
    narrow(mean, n, type_, row + first * element);
    narrow(variance, groups(n), type_, row + first_group * element);
  }
  clear_rest(layer, row);
}

void BlockSummaries::clear_rest(std::int64_t layer, unsigned char* row) const {
  const auto element = static_cast<std::int64_t>(dtype_size(type_));
  const std::int64_t used = columns(layer);
  std::memset(row + used * element, 0, static_cast<std::size_t>((width(layer) - used) * element));
}

}  // namespace headwater::core
