#include "cpu/arithmetic/bf16_block.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// A row keeps its anchor if its sum is at most this: its maximum is then at most 40 ln 2 above the anchor, and the
/// exponents are wrong by no more than 40 units in the last place of 1.
constexpr float kLargestSum = 0x1p40f;

}  // namespace

void Bf16Block::start() const {
  std::fill_n(softmax.offset, kBlockRows, sink);
  std::fill_n(softmax.sum, kBlockRows, 0.0f);
  std::fill_n(softmax.rounded, kBlockRows, 0.0f);
  softmax.anchored = false;
  softmax.has_output = false;
}

void Bf16Block::restart(std::uint32_t lanes, const float* highest) const {
  HEADWATER_MARK("cpu.bf16.exact_offset");
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    const bool failed = (lanes >> lane & 1u) != 0 || HEADWATER_SABOTAGE("cpu.bf16.offsets_of_all_rows");
    if (!failed) continue;
    const float top = std::max(highest[lane], sink);
    softmax.offset[lane] = top == kNothing ? 0.0f : top;
  }
  std::fill_n(softmax.sum, kBlockRows, 0.0f);
  std::fill_n(softmax.rounded, kBlockRows, 0.0f);
  softmax.has_output = false;
}

void Bf16Block::accumulate(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                           std::int64_t dv_padded) const {
  kernels.accumulate(weights, tiles, values, dv_padded, !softmax.has_output, out);
  softmax.has_output = true;
}

std::uint32_t Bf16Block::finish(std::int64_t dv, float* to) const {
  if (!softmax.has_output) std::fill_n(out, dv * kBlockRows, 0.0f);
  if (sink != kNothing) kernels.add_sink(sink, softmax);
  alignas(64) float factor[kBlockRows];
  factors(softmax.rounded, factor);
  // Large weights times large values may overflow where their quotient does not.
  std::uint32_t failed = kernels.unpack_rows(out, rows, dv, factor, to);
  // Padding lanes as well: an infinite weight would not vanish from column sums by its factor of 0.
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    const float sum = softmax.sum[lane];
    const bool fits = sum >= 0.5f && sum <= kLargestSum;
    if (!fits) failed |= 1u << lane;
  }
  return HEADWATER_SABOTAGE("cpu.bf16.no_guard") ? 0 : failed;
}

void Bf16Block::factors(const float* sums, float* factor) const {
  std::fill_n(factor, kBlockRows, 0.0f);
  for (std::int64_t lane = 0; lane < rows; ++lane) {
    if (sums[lane] != 0.0f) factor[lane] = 1.0f / sums[lane];
  }
}

void load_queries(const Bf16Table& kernels, const Rows& q, std::int64_t first, std::int64_t rows,
                  std::int64_t head, std::int64_t d, std::uint16_t* packed) {
  kernels.pack_queries(core::row_address(q, first, head), q.row_stride * std::int64_t{sizeof(std::uint16_t)},
                       rows, d, padded(d, kernels.d_multiple), packed);
}

void pad_keys(const Bf16Table& kernels, const void* rows, std::int64_t n, std::int64_t d,
              std::uint16_t* padded_rows) {
  const std::int64_t d_padded = padded(d, kernels.d_multiple);
  const auto* from = static_cast<const std::uint16_t*>(rows);
  for (std::int64_t row = 0; row < n; ++row) {
    std::copy_n(from + row * d, d, padded_rows + row * d_padded);
    std::fill(padded_rows + row * d_padded + d, padded_rows + (row + 1) * d_padded, std::uint16_t{0});
  }
}

}  // namespace headwater::cpu
