#include <cmath>
#include <limits>

#include "cpu/kernels/portable/elementary.hpp"
#include "cpu/kernels/portable/kernels.hpp"
#include "cpu/kernels/portable/vector4.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu::portable {

namespace {

constexpr int kKeyTile = 4;              // 4 keys x 8 lanes: 8 of the 16 SSE registers accumulate
constexpr int kVectors = kLaneTile / 4;  // of a line of lanes

/// Keys x kLaneTile dot products, each accumulated in the order of the row elements.
template <int Keys>
inline void dot_tile(const float* packed, std::int64_t d, const float* keys, float scale, float* block) {
  Vector4 sums[Keys][kVectors] = {};
  for (std::int64_t e = 0; e < d; ++e) {
    Vector4 q[kVectors];
    for (int v = 0; v < kVectors; ++v) q[v] = load(packed + e * kLaneTile + 4 * v);
    for (int key = 0; key < Keys; ++key) {
      const Vector4 k = broadcast(keys[key * d + e]);
      for (int v = 0; v < kVectors; ++v) sums[key][v] += k * q[v];
    }
  }
  const Vector4 factor = broadcast(scale);
  for (int key = 0; key < Keys; ++key) {
    for (int v = 0; v < kVectors; ++v) store(block + key * kBlockRows + 4 * v, sums[key][v] * factor);
  }
}

template <int Keys>
void dot_keys(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys, float scale,
              float* block) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLaneTile) {
    dot_tile<Keys>(packed + lane * d, d, keys, scale, block + lane);
  }
}

}  // namespace

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

void mask_future(const BlockPositions& positions, std::int64_t lanes, std::int64_t n_keys, float* block) {
  // Key `first_row - first_key + r` is lane r's own position; what stands behind it is hidden.
  std::int64_t diagonal = positions.first_row - positions.first_key;
  if (HEADWATER_SABOTAGE("cpu.mask.one_future_key")) ++diagonal;
  for (std::int64_t key = diagonal < 0 ? 0 : diagonal + 1; key < n_keys; ++key) {
    const std::int64_t hidden = key - diagonal < lanes ? key - diagonal : lanes;
    float* line = block + key * kBlockRows;
    for (std::int64_t lane = 0; lane < hidden; ++lane) line[lane] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace headwater::cpu::portable
