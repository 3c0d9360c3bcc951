// The float kernels in plain C++ for the baseline x86-64-v2.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/numbers.hpp"
#include "cpu/kernels/portable/elementary.hpp"
#include "cpu/kernels/portable/vector4.hpp"
#include "cpu/kernels/sketches.hpp"
#include "cpu/kernels/table.hpp"
#include "headwater/options.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {
namespace portable {

void mask_future(const BlockPositions& positions, std::int64_t lanes, std::int64_t n_keys, float* block) {
  // Key `first_row - first_key + r` is lane r's own position; what stands after it is hidden.
  std::int64_t diagonal = positions.first_row - positions.first_key;
  if (HEADWATER_SABOTAGE("cpu.mask.one_future_key")) ++diagonal;
  for (std::int64_t key = diagonal < 0 ? 0 : diagonal + 1; key < n_keys; ++key) {
    const std::int64_t hidden = key - diagonal < lanes ? key - diagonal : lanes;
    float* line = block + key * kBlockRows;
    for (std::int64_t lane = 0; lane < hidden; ++lane) line[lane] = -std::numeric_limits<float>::infinity();
  }
}

void mask_past(const BlockPositions& positions, std::int64_t window, std::int64_t lanes, std::int64_t n_keys,
               float* block) {
  // Key `first_row - first_key - window` is the last that lane 0 does not see; each lane after it loses one more.
  std::int64_t hidden = positions.first_row - positions.first_key - window;
  if (HEADWATER_SABOTAGE("cpu.mask.one_key_before_the_window")) --hidden;
  for (std::int64_t key = 0; key < n_keys && key < hidden + lanes; ++key) {
    float* line = block + key * kBlockRows;
    for (std::int64_t lane = std::max<std::int64_t>(0, key - hidden); lane < lanes; ++lane) {
      line[lane] = -std::numeric_limits<float>::infinity();
    }
  }
}

namespace {

constexpr int kKeyTile = 4;                  // 4 keys x 8 lanes: 8 of the 16 SSE registers accumulate
constexpr int kLaneVectors = kLaneTile / 4;  // of a line of lanes

/// Keys x kLaneTile dot products, each accumulated in the order of the row elements.
template <int Keys>
inline void dot_tile(const float* packed, std::int64_t d, const float* keys, float scale, float* block) {
  Vector4 sums[Keys][kLaneVectors] = {};
  for (std::int64_t e = 0; e < d; ++e) {
    Vector4 q[kLaneVectors];
    for (int v = 0; v < kLaneVectors; ++v) q[v] = load(packed + e * kLaneTile + 4 * v);
    for (int key = 0; key < Keys; ++key) {
      const Vector4 k = broadcast(keys[key * d + e]);
      for (int v = 0; v < kLaneVectors; ++v) sums[key][v] += k * q[v];
    }
  }
  const Vector4 factor = broadcast(scale);
  for (int key = 0; key < Keys; ++key) {
    for (int v = 0; v < kLaneVectors; ++v) store(block + key * kBlockRows + 4 * v, sums[key][v] * factor);
  }
}

template <int Keys>
void dot_keys(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys, float scale,
              float* block) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLaneTile) {
    dot_tile<Keys>(packed + lane * d, d, keys, scale, block + lane);
  }
}

void pack_queries(const float* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,
                  float* packed) {
  for (std::int64_t tile = 0; tile < n_rows; tile += kLaneTile) {
    for (std::int64_t e = 0; e < d; ++e) {
      for (std::int64_t lane = 0; lane < kLaneTile; ++lane) {
        packed[tile * d + e * kLaneTile + lane] =
            tile + lane < n_rows ? rows[(tile + lane) * stride + e] : 0.0f;
      }
    }
  }
}

void dot_products(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys,
                  std::int64_t n_keys, float scale, float* block, const float* /*next*/) {
  std::int64_t key = 0;
  for (; key + kKeyTile <= n_keys; key += kKeyTile) {
    dot_keys<kKeyTile>(packed, lanes, d, keys + key * d, scale, block + key * kBlockRows);
  }
  for (; key < n_keys; ++key) {
    dot_keys<1>(packed, lanes, d, keys + key * d, scale, block + key * kBlockRows);
  }
}

void dot_rows(const float* packed, std::int64_t lanes, std::int64_t d, const float* const* keys,
              std::int64_t n_keys, float scale, float* block, const float* const* /*values*/,
              std::int64_t /*dv*/) {
  for (std::int64_t key = 0; key < n_keys; ++key) {
    dot_keys<1>(packed, lanes, d, keys[key], scale, block + key * kBlockRows);
  }
}

void cap_and_bias(const LogitMap& map, const BlockPositions& positions, std::int64_t lanes,
                  std::int64_t n_keys, float* block) {
  const bool cap = map.softcap > 0;
  const bool bias = map.slope != 0;
  for (std::int64_t key = 0; key < n_keys; ++key) {
    float* line = block + key * kBlockRows;
    if (cap) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        line[lane] = map.softcap * tanh_any(line[lane] / map.softcap);
      }
    }
    if (bias) {
      const std::int64_t position = positions.gathered ? positions.gathered[key] : positions.first_key + key;
      const std::int64_t distance = positions.first_row - position;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        line[lane] -= map.slope * static_cast<float>(distance + lane);
      }
    }
  }
}

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

constexpr int kRowTile = 4;  // 4 rows x 8 columns: 8 of the 16 SSE registers accumulate
constexpr int kColumnTile = 8;
/// Keys whose products are summed in registers before they join the output: bounds the length of a float sum,
/// and 128 value rows of 64 floats fit the first-level cache.
constexpr std::int64_t kValueKeys = 128;

/// kRowTile rows x kColumnTile columns of one run of keys, added to out. value_row(key): the first of these columns.
template <class Value>
inline void value_tile(const float* block, std::int64_t n_keys, const Value& value_row, std::int64_t dv,
                       float* out) {
  constexpr int kVectors = kColumnTile / 4;
  Vector4 sums[kRowTile][kVectors] = {};
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const float* weight = block + key * kBlockRows;
    Vector4 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load(value_row(key) + 4 * v);
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
template <class Value>
inline void value_column(const float* block, std::int64_t n_keys, const Value& value_row, std::int64_t dv,
                         float* out) {
  float sums[kRowTile] = {};
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (int row = 0; row < kRowTile; ++row) sums[row] += block[key * kBlockRows + row] * *value_row(key);
  }
  for (int row = 0; row < kRowTile; ++row) out[row * dv] += sums[row];
}

/// KernelTable::accumulate_values of the value rows row(key).
template <class Row>
void accumulate(const float* block, std::int64_t lanes, std::int64_t n_keys, const Row& row_of,
                std::int64_t dv, const float* rescale, float* out) {
  if (!rescale) std::fill_n(out, lanes * dv, 0.0f);
  for (std::int64_t row = 0; rescale && row < lanes; ++row) {
    for (std::int64_t column = 0; column < dv; ++column) out[row * dv + column] *= rescale[row];
  }
  if (HEADWATER_SABOTAGE("cpu.values.drop_last_key")) --n_keys;
  for (std::int64_t first = 0; first < n_keys; first += kValueKeys) {
    const std::int64_t run = std::min(kValueKeys, n_keys - first);
    const float* weights = block + first * kBlockRows;
    std::int64_t column = 0;
    const auto value = [&](std::int64_t key) { return row_of(first + key) + column; };
    for (; column + kColumnTile <= dv; column += kColumnTile) {
      for (std::int64_t row = 0; row < lanes; row += kRowTile) {
        value_tile(weights + row, run, value, dv, out + row * dv + column);
      }
    }
    for (; column < dv; ++column) {
      for (std::int64_t row = 0; row < lanes; row += kRowTile) {
        value_column(weights + row, run, value, dv, out + row * dv + column);
      }
    }
  }
}

void accumulate_values(const float* block, std::int64_t lanes, std::int64_t n_keys, std::int64_t /*visible*/,
                       const float* values, std::int64_t dv, const float* rescale, float* out) {
  accumulate(
      block, lanes, n_keys, [=](std::int64_t key) { return values + key * dv; }, dv, rescale, out);
}

void accumulate_rows(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* const* values,
                     std::int64_t dv, const float* rescale, float* out) {
  accumulate(
      block, lanes, n_keys, [=](std::int64_t key) { return values[key]; }, dv, rescale, out);
}

void widen_rows(const void* const* rows, std::int64_t n_rows, DType type, std::int64_t n, float* to) {
  for (std::int64_t row = 0; row < n_rows; ++row) core::widen(rows[row], type, n, to + row * n);
}

constexpr std::int64_t kPiece = 64;  // elements of a row that are widened at a time
constexpr int kChains = 8;           // partial sums of a dot product

/// Calls body(first, n, floats) for every piece of a stored row.
template <class Body>
void for_pieces(const void* row, DType type, std::int64_t count, const Body& body) {
  const auto* bytes = static_cast<const unsigned char*>(row);
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t n = std::min(kPiece, count - first);
    float piece[kPiece] = {};
    core::widen(bytes + first * static_cast<std::int64_t>(dtype_size(type)), type, n, piece);
    body(first, n, piece);
  }
}

const void* row_of(const void* rows, DType type, std::int64_t row, std::int64_t width) {
  return static_cast<const unsigned char*>(rows) + row * width * static_cast<std::int64_t>(dtype_size(type));
}

float dot(const float* a, const float* b, std::int64_t n) {
  float partial[kChains] = {};
  std::int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int c = 0; c < kChains; ++c) partial[c] += a[i + c] * b[i + c];
  }
  for (int c = 0; i < n; ++i, ++c) partial[c] += a[i] * b[i];
  return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
         ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}

void scale(const float* a, float weight, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = a[i] * weight;
}

void blend(const float* a, float a_weight, const float* b, float b_weight, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = a[i] * a_weight + b[i] * b_weight;
}

void arrange_row(const float* row, DType, std::int64_t n, float* arranged) { std::copy_n(row, n, arranged); }

void restore_row(const float* arranged, DType, std::int64_t n, float* row) { std::copy_n(arranged, n, row); }

void row_logits(const float* q, std::int64_t rows, std::int64_t d, const void* keys, DType type,
                std::int64_t n_keys, float scale, float* logits, std::int64_t stride) {
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (std::int64_t row = 0; row < rows; ++row) logits[row * stride + key] = 0;
    for_pieces(row_of(keys, type, key, d), type, d,
               [&](std::int64_t first, std::int64_t n, const float* piece) {
                 for (std::int64_t row = 0; row < rows; ++row) {
                   logits[row * stride + key] += dot(q + row * d + first, piece, n);
                 }
               });
    for (std::int64_t row = 0; row < rows; ++row) logits[row * stride + key] *= scale;
  }
}

float row_weights(float* logits, std::int64_t n, float max) {
  float partial[kChains] = {};
  for (std::int64_t i = 0; i < n; ++i) logits[i] = exp_nonpositive(logits[i] - max);
  std::int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int c = 0; c < kChains; ++c) partial[c] += logits[i + c];
  }
  for (int c = 0; i < n; ++i, ++c) partial[c] += logits[i];
  float total = 0;
  for (const float sum : partial) total += sum;
  return total;
}

void row_values(const float* weights, std::int64_t stride, std::int64_t rows, const void* values, DType type,
                std::int64_t n_keys, std::int64_t dv, float* out) {
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for_pieces(row_of(values, type, key, dv), type, dv,
               [&](std::int64_t first, std::int64_t n, const float* piece) {
                 for (std::int64_t row = 0; row < rows; ++row) {
                   const float weight = weights[row * stride + key];
                   float* to = out + row * dv + first;
                   for (std::int64_t c = 0; c < n; ++c) to[c] += weight * piece[c];
                 }
               });
  }
}

void raise_maxima(const float* block, std::int64_t n_keys, float* top) {
  for (std::int64_t lane = 0; lane < kBlockRows; lane += 4) {
    Vector4 highest = load(top + lane);
    for (std::int64_t key = 0; key < n_keys; ++key) {
      const Vector4 x = load(block + key * kBlockRows + lane);
      highest = x > highest ? x : highest;
    }
    store(top + lane, highest);
  }
}

void raise_votes(const float* block, std::int64_t n_keys, const float* factor, const float* offset,
                 float* votes) {
  for (std::int64_t key = 0; key < n_keys; ++key) {
    Vector4 best = broadcast(votes[key]);
    for (std::int64_t lane = 0; lane < kBlockRows; lane += 4) {
      const Vector4 x = load(block + key * kBlockRows + lane) * load(factor + lane) - load(offset + lane);
      best = x > best ? x : best;
    }
    votes[key] = std::max(std::max(best[0], best[1]), std::max(best[2], best[3]));
  }
}

void row_sum(const void* rows, std::int64_t stride, std::int64_t n_rows, DType type, std::int64_t n,
             float factor, float* to) {
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t some = std::min(kPiece, n - first);
    const auto* from =
        static_cast<const unsigned char*>(rows) + first * static_cast<std::int64_t>(dtype_size(type));
    float sum[kPiece] = {};
    float row[kPiece] = {};
    for (std::int64_t r = 0; r < n_rows; ++r) {
      core::widen(from + r * stride, type, some, row);
      for (std::int64_t x = 0; x < kPiece; ++x) sum[x] += row[x];
    }
    for (std::int64_t x = 0; x < some; ++x) to[first + x] = sum[x] * factor;
  }
}

struct One {
  static float one_f16(std::uint16_t bits) { return core::float_from_f16(bits); }
  static float one_bf16(std::uint16_t bits) { return core::float_from_bf16(bits); }
};

void spread(const void* const* rows, std::int64_t n_rows, DType type, std::int64_t n, float* mean,
            float* squares) {
  const auto element = static_cast<std::int64_t>(dtype_size(type));
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t some = std::min(kPiece, n - first);
    float row[kPiece] = {};
    float sum[kPiece] = {};
    float total[kPiece] = {};
    const auto read = [&](std::int64_t r) {
      core::widen(static_cast<const unsigned char*>(rows[r]) + first * element, type, some, row);
    };
    for (std::int64_t r = 0; r < n_rows; ++r) {
      read(r);
      for (std::int64_t x = 0; x < kPiece; ++x) sum[x] += row[x];
    }
    for (float& x : sum) x /= static_cast<float>(n_rows);
    for (std::int64_t r = 0; r < n_rows; ++r) {
      read(r);
      for (std::int64_t x = 0; x < kPiece; ++x) total[x] += (row[x] - sum[x]) * (row[x] - sum[x]);
    }
    std::copy_n(sum, some, mean + first);
    std::copy_n(total, some, squares + first);
  }
}

}  // namespace
}  // namespace portable

constinit const KernelTable portable_kernels = {
    .isa = "x86-64-v2",
    .segment_keys = 1024,
    .widen = core::widen,
    .widen_rows = portable::widen_rows,
    .narrow = core::narrow,
    .restore_groups = core::restore_groups,
    .pack_queries = portable::pack_queries,
    .dot_products = portable::dot_products,
    .dot_rows = portable::dot_rows,
    .cap_and_bias = portable::cap_and_bias,
    .mask_future = portable::mask_future,
    .softmax = portable::softmax,
    .accumulate_values = portable::accumulate_values,
    .accumulate_rows = portable::accumulate_rows,
    .column_sums = portable::column_sums,
    .raise_maxima = portable::raise_maxima,
    .raise_votes = portable::raise_votes,
    .row_sum = portable::row_sum,
    .spread = portable::spread,
    .sketch_rows = sketch_rows<portable::One>,
    .scale_lanes = scale_lanes,
    .raise_lane_votes = raise_lane_votes,
    .selection = {core::count_at_least, core::collect, core::collect_scores},
    .blend = portable::blend,
    .scale = portable::scale,
    .arrange_row = portable::arrange_row,
    .restore_row = portable::restore_row,
    .row_logits = portable::row_logits,
    .row_weights = portable::row_weights,
    .row_values = portable::row_values,
};

}  // namespace headwater::cpu
