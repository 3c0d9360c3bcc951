#include <algorithm>

#include "cpu/kernels/portable/kernels.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu::portable {

namespace {

constexpr int kRowTile = 4;      // 4 rows x 8 columns: 8 of the 16 SSE registers accumulate
constexpr int kColumnTile = 8;
/// Keys whose products are summed in registers before they join the output: bounds the length of a float sum,
/// and 128 value rows of 64 floats fit the first-level cache.
constexpr std::int64_t kValueKeys = 128;

/// kRowTile rows x Columns columns of one run of keys, added to out.
template <int Columns>
inline void value_tile(const float* block, std::int64_t n_keys, const float* values, std::int64_t dv, float* out) {
  float sums[kRowTile][Columns] = {};
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const float* weight = block + key * kBlockRows;
    const float* value = values + key * dv;
    for (int row = 0; row < kRowTile; ++row) {
      const float w = weight[row];
      for (int column = 0; column < Columns; ++column) sums[row][column] += w * value[column];
    }
  }
  for (int row = 0; row < kRowTile; ++row) {
    for (int column = 0; column < Columns; ++column) out[row * dv + column] += sums[row][column];
  }
}

template <int Columns>
void value_strip(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* values,
                 std::int64_t dv, float* out) {
  for (std::int64_t row = 0; row < lanes; row += kRowTile) {
    value_tile<Columns>(block + row, n_keys, values, dv, out + row * dv);
  }
}

}  // namespace

void accumulate_values(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* values,
                       std::int64_t dv, const float* rescale, float* out) {
  for (std::int64_t row = 0; row < lanes; ++row) {
    for (std::int64_t column = 0; column < dv; ++column) out[row * dv + column] *= rescale[row];
  }
  if (HEADWATER_SABOTAGE("cpu.values.drop_last_key")) --n_keys;
  for (std::int64_t first = 0; first < n_keys; first += kValueKeys) {
    const std::int64_t run = std::min(kValueKeys, n_keys - first);
    const float* weights = block + first * kBlockRows;
    const float* rows = values + first * dv;
    std::int64_t column = 0;
    for (; column + kColumnTile <= dv; column += kColumnTile) {
      value_strip<kColumnTile>(weights, lanes, run, rows + column, dv, out + column);
    }
    for (; column < dv; ++column) value_strip<1>(weights, lanes, run, rows + column, dv, out + column);
  }
}

}  // namespace headwater::cpu::portable
