#pragma once

#include <cstdint>

#include "core/kv_store.hpp"
#include "cpu/kernels/bf16/table.hpp"
#include "cpu/layer.hpp"

namespace headwater::cpu {

/// Keys of a segment of the dense pass: their rows stay in the second-level cache for the blocks of a group.
inline constexpr std::int64_t kBf16SegmentKeys = 1024;

/// A block of at most kBlockRows query rows in BF16 arithmetic. All memory belongs to the caller.
struct Bf16Block {
  const Bf16Table& kernels;
  std::int64_t rows;  ///< query rows, 1 .. kBlockRows
  float sink;         ///< in units of ln 2; -inf: none
  Bf16Softmax& softmax;
  float* out;  ///< [dv_padded][kBlockRows], unnormalised

  /// No key yet: offsets and sums before the first attempt.
  void start() const;

  /// No key yet, but final offsets: those that stand, and the exact ones for lanes that failed() with them.
  void restart(std::uint32_t lanes, const float* highest) const;

  /// Adds keys, `tiles` of weights and packed values.
  void accumulate(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                  std::int64_t dv_padded) const;

  /// Adds the sink once all keys are in, writes o to to[rows][dv], and returns the lanes whose anchor was too far from
  /// their maximum: bit r for row r. A row fails by its own weights alone, so that no later key has a say (NUM-2).
  [[nodiscard]] std::uint32_t finish(std::int64_t dv, float* to) const;

  /// factor[lane] = 1 / sums[lane] (of softmax), 0 where a row saw nothing and in padding lanes.
  void factors(const float* sums, float* factor) const;
};

/// Packs `rows` BF16 query rows of a head.
void load_queries(const Bf16Table& kernels, const Rows& q, std::int64_t first, std::int64_t rows,
                  std::int64_t head, std::int64_t d, std::uint16_t* packed);

/// n value rows of dv elements, the i-th at row(i), to blocks of kKeyTile keys, [tile][dv_padded][kKeyTile].
template <class Row>
void pack_values(const Bf16Table& kernels, std::int64_t n, std::int64_t dv, const Row& row,
                 std::uint16_t* packed) {
  const std::int64_t dv_padded = padded(dv, kernels.dv_multiple);
  for (std::int64_t first = 0; first < n; first += kKeyTile) {
    const void* tile[kKeyTile];
    const std::int64_t some = std::min(kKeyTile, n - first);
    for (std::int64_t i = 0; i < some; ++i) tile[i] = row(first + i);
    kernels.pack_values(tile, some, dv, dv_padded, packed + first * dv_padded);
  }
}

/// Copies n key rows of d elements to rows of d padded, with zeros.
void pad_keys(const Bf16Table& kernels, const void* rows, std::int64_t n, std::int64_t d,
              std::uint16_t* padded_rows);

}  // namespace headwater::cpu
