#include <algorithm>

#include "cpu/kernels/portable/kernels.hpp"
#include "cpu/kernels/portable/vector4.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu::portable {

namespace {

constexpr int kRowTile = 4;  // 4 rows x 8 columns: 8 of the 16 SSE registers accumulate
constexpr int kColumnTile = 8;
/// Keys whose products are summed in registers before they join the output: bounds the length of a float sum,
/// and 128 value rows of 64 floats fit the first-level cache.
constexpr std::int64_t kValueKeys = 128;

/// kRowTile rows x kColumnTile columns of one run of keys, added to out.
inline void value_tile(const float* block, std::int64_t n_keys, const float* values, std::int64_t dv,
                       float* out) {
  constexpr int kVectors = kColumnTile / 4;
  Vector4 sums[kRowTile][kVectors] = {};
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const float* weight = block + key * kBlockRows;
    Vector4 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load(values + key * dv + 4 * v);
    for (int row = 0; row < kRowTile; ++row) {
      const Vector4 w = broadcast(weight[row]);
      for (int v = 0; v < kVectors; ++v) sums[row][v] += w * value[v];
    }
  }
  for (int row = 0; row < kRowTile; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = out + row * dv + 4 * v;
      store(to, load(to) + sums[row][v]);
    }
  }
}

/// One column of kRowTile rows: what a row width that is no multiple of kColumnTile leaves over.
inline void value_column(const float* block, std::int64_t n_keys, const float* values, std::int64_t dv,
                         float* out) {
  float sums[kRowTile] = {};
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (int row = 0; row < kRowTile; ++row) sums[row] += block[key * kBlockRows + row] * values[key * dv];
  }
  for (int row = 0; row < kRowTile; ++row) out[row * dv] += sums[row];
}

}  // namespace

void accumulate_values(const float* block, std::int64_t lanes, std::int64_t n_keys, std::int64_t /*visible*/,
                       const float* values, std::int64_t dv, const float* rescale, float* out) {
  if (!rescale) std::fill_n(out, lanes * dv, 0.0f);
  for (std::int64_t row = 0; rescale && row < lanes; ++row) {
    for (std::int64_t column = 0; column < dv; ++column) out[row * dv + column] *= rescale[row];
  }
  if (HEADWATER_SABOTAGE("cpu.values.drop_last_key")) --n_keys;
  for (std::int64_t first = 0; first < n_keys; first += kValueKeys) {
    const std::int64_t run = std::min(kValueKeys, n_keys - first);
    const float* weights = block + first * kBlockRows;
    const float* rows = values + first * dv;
    std::int64_t column = 0;
    for (; column + kColumnTile <= dv; column += kColumnTile) {
      for (std::int64_t row = 0; row < lanes; row += kRowTile) {
        value_tile(weights + row, run, rows + column, dv, out + row * dv + column);
      }
    }
    for (; column < dv; ++column) {
      for (std::int64_t row = 0; row < lanes; row += kRowTile) {
        value_column(weights + row, run, rows + column, dv, out + row * dv + column);
      }
    }
  }
}

}  // namespace headwater::cpu::portable
