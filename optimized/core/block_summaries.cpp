#include "core/block_summaries.hpp"

#include <algorithm>
#include <cstring>

#include "core/buffer.hpp"
#include "core/numbers.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

BlockSummaries::BlockSummaries(const Shape& shape, std::int64_t key_block, std::int64_t page)
    : heads_(shape.n_head_kv),
      key_block_(key_block),
      width_((2 * shape.d_head + kWidthMultiple - 1) / kWidthMultiple * kWidthMultiple),
      d_(shape.d_head),
      type_(shape.kv_type == DType::f32 ? DType::f32 : DType::bf16),
      summaries_(checked_product(shape.n_layer, heads_), shape.capacity / key_block, row_bytes(), page,
                 kReadableRows),
      regions_(checked_product(shape.n_layer, heads_), shape.capacity / key_block / kRegionBlocks,
               row_bytes(), page, kReadableRows) {}

void BlockSummaries::reserve(std::int64_t begin, std::int64_t end) {
  const std::int64_t region = key_block_ * kRegionBlocks;
  summaries_.reserve(begin / key_block_, end / key_block_);
  regions_.reserve(begin / region, end / region);
}

void BlockSummaries::make_room(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  const std::int64_t region = key_block_ * kRegionBlocks;
  summaries_.make_room(layer * heads_, (layer + 1) * heads_, begin / key_block_, end / key_block_);
  regions_.make_room(layer * heads_, (layer + 1) * heads_, begin / region, end / region);
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
                           void (*widen)(const void* from, DType type, std::int64_t count, float* to)) {
  constexpr std::int64_t kPiece = 64;  // columns at a time
  constexpr std::int64_t kMostKeys = 256;
  float keys[kMostKeys][kPiece];
  const auto key_element = static_cast<std::int64_t>(dtype_size(kv.type()));
  const auto element = static_cast<std::int64_t>(dtype_size(type_));
  const std::int64_t d = kv.d_head();
  const std::int64_t position = block * key_block_;
  unsigned char* row = summaries_.row(run(layer, head), block);
  const auto count = static_cast<float>(key_block_);
  for (std::int64_t first = 0; first < d; first += kPiece) {
    const std::int64_t n = std::min(kPiece, d - first);
    float mean[kPiece] = {};
    float variance[kPiece] = {};
    for (std::int64_t key = 0; key < key_block_; ++key) {
      const auto* stored = static_cast<const unsigned char*>(kv.key(layer, head, position + key));
      widen(stored + first * key_element, kv.type(), n, keys[key]);
      for (std::int64_t x = 0; x < n; ++x) mean[x] += keys[key][x];
    }
    for (std::int64_t x = 0; x < n; ++x) mean[x] /= count;
    for (std::int64_t key = 0; key < key_block_; ++key) {
      for (std::int64_t x = 0; x < n; ++x) {
        const float difference = keys[key][x] - mean[x];
        variance[x] += difference * difference;
      }
    }
    const float divisor = HEADWATER_SABOTAGE("core.summaries.sample_variance") ? count - 1 : count;
    for (std::int64_t x = 0; x < n; ++x) variance[x] /= divisor;
    narrow(mean, n, type_, row + first * element);
    narrow(variance, n, type_, row + (d + first) * element);
  }
  std::memset(row + 2 * d * element, 0, static_cast<std::size_t>((width_ - 2 * d) * element));
}

void BlockSummaries::write_region(std::int64_t layer, std::int64_t head, std::int64_t region) {
  constexpr std::int64_t kPiece = 64;  // columns at a time
  const auto element = static_cast<std::int64_t>(dtype_size(type_));
  unsigned char* row = regions_.row(run(layer, head), region);
  for (std::int64_t first = 0; first < d_; first += kPiece) {
    const std::int64_t n = std::min(kPiece, d_ - first);
    float means[kRegionBlocks][kPiece];
    float variances[kPiece];
    float mean[kPiece] = {};
    float variance[kPiece] = {};
    for (std::int64_t block = 0; block < kRegionBlocks; ++block) {
      const unsigned char* summary = summaries_.row(run(layer, head), region * kRegionBlocks + block);
      widen(summary + first * element, type_, n, means[block]);
      widen(summary + (d_ + first) * element, type_, n, variances);
      for (std::int64_t x = 0; x < n; ++x) mean[x] += means[block][x];
      for (std::int64_t x = 0; x < n; ++x) variance[x] += variances[x];
    }
    for (std::int64_t x = 0; x < n; ++x) mean[x] /= kRegionBlocks;
    for (std::int64_t block = 0; block < kRegionBlocks; ++block) {
      for (std::int64_t x = 0; x < n; ++x) {
        const float difference = means[block][x] - mean[x];
        variance[x] += difference * difference;
      }
    }
    for (std::int64_t x = 0; x < n; ++x) variance[x] /= kRegionBlocks;
    narrow(mean, n, type_, row + first * element);
    narrow(variance, n, type_, row + (d_ + first) * element);
  }
  std::memset(row + 2 * d_ * element, 0, static_cast<std::size_t>((width_ - 2 * d_) * element));
}

}  // namespace headwater::core
