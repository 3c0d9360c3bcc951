#include "cpu/arithmetic/float_block.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

void load_queries(const KernelTable& kernels, const Rows& q, std::int64_t first, std::int64_t rows,
                  std::int64_t head, std::int64_t d, float* wide, float* packed) {
  const void* row = core::row_address(q, first, head);
  if (q.type == DType::f32 && reinterpret_cast<std::uintptr_t>(row) % alignof(float) == 0) {
    kernels.pack_queries(static_cast<const float*>(row), q.row_stride, rows, d, packed);
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    kernels.widen(core::row_address(q, first + r, head), q.type, d, wide + r * d);
  }
  kernels.pack_queries(wide, d, rows, d, packed);
}

void FloatBlock::start(float sink) const {
  const bool none = std::isinf(sink);
  std::fill_n(state.max, kBlockRows, none ? -std::numeric_limits<float>::infinity() : sink);
  std::fill_n(state.sum, kBlockRows, none ? 0.0f : 1.0f);
  state.has_output = false;
}

void FloatBlock::finish() const {
  if (!state.has_output) std::fill_n(out, lanes() * dv, 0.0f);
}

void FloatBlock::add(const float* keys, const float* values, const BlockPositions& positions,
                     std::int64_t n_keys, float* weights) const {
  kernels.dot_products(packed, lanes(), d, keys, n_keys, scale, weights, values);
  if (map.softcap > 0 || map.slope != 0) kernels.cap_and_bias(map, positions, lanes(), n_keys, weights);
  if (!positions.gathered && positions.first_key + n_keys > positions.first_row + 1) {
    kernels.mask_future(positions, lanes(), n_keys, weights);
  }
  // MASK-2: the last row sees the fewest of them.
  if (window > 0 && positions.first_key + window < positions.first_row + rows) {
    portable::mask_past(positions, window, lanes(), n_keys, weights);
  }
  kernels.softmax(lanes(), n_keys, weights, state);
  std::int64_t visible = positions.gathered ? n_keys : first_row + 1 - positions.first_key;
  if (HEADWATER_SABOTAGE("cpu.values.last_keys_unseen")) visible -= kLaneTile;
  kernels.accumulate_values(weights, lanes(), n_keys, visible, values, dv,
                            state.has_output ? state.rescale : nullptr, out);
  state.has_output = true;
}

void FloatBlock::add_keys(const float* keys, const float* values, std::int64_t first_key, std::int64_t n_keys,
                          float* weights) const {
  add(keys, values, {first_row, first_key, nullptr}, n_keys, weights);
}

void FloatBlock::add_gathered(const float* keys, const float* values, const std::int32_t* positions,
                              std::int64_t n_keys, float* weights) const {
  add(keys, values, {first_row, 0, positions}, n_keys, weights);
}

void FloatBlock::add_rows(const float* const* keys, const float* const* values, const std::int32_t* positions,
                          std::int64_t n_keys, float* weights) const {
  kernels.dot_rows(packed, lanes(), d, keys, n_keys, scale, weights, values, dv);
  if (map.softcap > 0 || map.slope != 0) {
    kernels.cap_and_bias(map, {first_row, 0, positions}, lanes(), n_keys, weights);
  }
  kernels.softmax(lanes(), n_keys, weights, state);
  kernels.accumulate_rows(weights, lanes(), n_keys, values, dv, state.has_output ? state.rescale : nullptr,
                          out);
  state.has_output = true;
}

void FloatBlock::normalise() const {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (state.sum[r] == 0.0f) continue;
    const auto factor = static_cast<float>(1.0 / static_cast<double>(state.sum[r]));
    kernels.scale(out + r * dv, factor, dv, out + r * dv);
  }
}

void FloatBlock::add_column_sums(const float* weights, const float* segment_max, std::int64_t n_keys,
                                 double* sums) const {
  float factor[kBlockRows] = {};  // padding lanes count nothing
  for (std::int64_t r = 0; r < rows; ++r) {
    factor[r] = state.sum[r] == 0.0f ? 0.0f : segment_max[r] - state.max[r];
  }
  (void)kernels.row_weights(factor, rows, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r) factor[r] = state.sum[r] == 0.0f ? 0.0f : factor[r] / state.sum[r];
  if (HEADWATER_SABOTAGE("cpu.colsum.skip_last_row")) factor[rows - 1] = 0.0f;
  kernels.column_sums(weights, lanes(), n_keys, factor, sums);
}

}  // namespace headwater::cpu
