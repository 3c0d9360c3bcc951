#include <algorithm>
#include <limits>

#include "cpu/kernels/portable/elementary.hpp"
#include "cpu/kernels/portable/kernels.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu::portable {

namespace {

/// Weights that are summed one after the other before they join the row sum: bounds the length of a float sum.
constexpr std::int64_t kSumKeys = 64;

/// One tile of lanes over all keys of the segment.
void softmax_tile(std::int64_t n_keys, float* block, float* max, float* sum, float* rescale) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  float highest[kLaneTile];
  float offset[kLaneTile];
  for (int lane = 0; lane < kLaneTile; ++lane) highest[lane] = max[lane];
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const float* line = block + key * kBlockRows;
    for (int lane = 0; lane < kLaneTile; ++lane) {
      highest[lane] = line[lane] > highest[lane] ? line[lane] : highest[lane];
    }
  }
  for (int lane = 0; lane < kLaneTile; ++lane) {
    // A lane that saw no key yet has m = -inf; any finite offset keeps its weights at zero instead of NaN.
    offset[lane] = highest[lane] == kMinusInfinity ? 0.0f : highest[lane];
    rescale[lane] = exp_nonpositive(max[lane] - offset[lane]);
    max[lane] = highest[lane];
    sum[lane] *= rescale[lane];
  }
  if (HEADWATER_SABOTAGE("cpu.softmax.no_rescale")) std::fill_n(rescale, kLaneTile, 1.0f);
  for (std::int64_t first = 0; first < n_keys; first += kSumKeys) {
    const std::int64_t last = std::min(first + kSumKeys, n_keys);
    float partial[kLaneTile] = {};
    for (std::int64_t key = first; key < last; ++key) {
      float* line = block + key * kBlockRows;
      for (int lane = 0; lane < kLaneTile; ++lane) {
        const float weight = exp_nonpositive(line[lane] - offset[lane]);
        line[lane] = weight;
        partial[lane] += weight;
      }
    }
    for (int lane = 0; lane < kLaneTile; ++lane) sum[lane] += partial[lane];
  }
}

}  // namespace

void softmax(std::int64_t lanes, std::int64_t n_keys, float* block, SoftmaxState& state) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLaneTile) {
    softmax_tile(n_keys, block + lane, state.max + lane, state.sum + lane, state.rescale + lane);
  }
}

void column_sums(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* factor,
                 double* sums) {
  if (HEADWATER_SABOTAGE("cpu.colsum.drop_tail")) --n_keys;
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const float* line = block + key * kBlockRows;
    float partial[kLaneTile] = {};
    for (std::int64_t tile = 0; tile < lanes; tile += kLaneTile) {
      for (int lane = 0; lane < kLaneTile; ++lane) {
        partial[lane] += line[tile + lane] * factor[tile + lane];
      }
    }
    // A fixed tree, the same for every compiler.
    const float even = (partial[0] + partial[4]) + (partial[2] + partial[6]);
    const float odd = (partial[1] + partial[5]) + (partial[3] + partial[7]);
    sums[key] += static_cast<double>(even) + static_cast<double>(odd);
  }
}

}  // namespace headwater::cpu::portable
