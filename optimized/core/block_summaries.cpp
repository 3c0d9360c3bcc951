#include "core/block_summaries.hpp"

#include <algorithm>
#include <cstring>

#include "core/buffer.hpp"
#include "core/numbers.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

BlockSummaries::BlockSummaries(const Shape& shape, std::int64_t key_block)
    : heads_(shape.n_head_kv),
      key_block_(key_block),
      blocks_(shape.capacity / key_block),
      width_((2 * shape.d_head + kWidthMultiple - 1) / kWidthMultiple * kWidthMultiple),
      type_(shape.kv_type == DType::f32 ? DType::f32 : DType::bf16),
      summaries_(checked_product(shape.n_layer, heads_), checked_product(blocks_, row_bytes()),
                 kReadableRows * row_bytes()) {}

void BlockSummaries::make_room(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  summaries_.make_room(layer * heads_, (layer + 1) * heads_, begin / key_block_ * row_bytes(),
                       end / key_block_ * row_bytes());
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
  unsigned char* row = summaries_.data() + ((layer * heads_ + head) * blocks_ + block) * row_bytes();
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

}  // namespace headwater::core
