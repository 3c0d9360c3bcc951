#pragma once

#include <cstdint>

#include "cpu/kernels/table.hpp"

namespace headwater::cpu {

/// Weights of a tile of keys: [kKeyTile / 2][kBlockRows][2] BF16, the two keys of a pair side by side.
inline constexpr std::int64_t kTileWeights = kKeyTile * kBlockRows;

/// Rows of the caller's memory to prefetch, which are soon read or written. It is done row by row while tiles of keys
/// are computed: a processor keeps track of a few dozen misses, and more at a time find no room or hold up the rest.
struct PrefetchRows {
  const unsigned char* next = nullptr;
  std::int64_t stride = 0;  ///< bytes from row to row
  std::int64_t bytes = 0;   ///< of a row
  std::int64_t left = 0;    ///< rows
};

/// Consecutive or gathered keys and what their logits become. Logits are counted in units of ln 2 from the dot
/// product on, so that a weight is a power of two.
struct Bf16Segment {
  const std::uint16_t* queries = nullptr;  ///< [d / 2][kBlockRows][2], from pack_queries
  const std::uint16_t* keys =
      nullptr;  ///< [n_keys][d], rows `key_stride` elements apart, and readable up to a
                ///< whole tile
  const std::uint16_t* const* tiles =
      nullptr;  ///< not null: where each kKeyTile of the keys begins, in place of `keys`
  const std::uint16_t* next =
      nullptr;  ///< what is read after key 0 and may be prefetched; null: nothing is known
  std::int64_t key_stride = 0;
  const std::uint16_t* const* rows =
      nullptr;         ///< not null: [n_keys] keys anywhere in place of `keys` (keys_in_place)
  std::int64_t d = 0;  ///< a multiple of Bf16Table::d_multiple, padded with zeros
  std::int64_t n_keys = 0;
  float factor = 0;                  ///< scale * log2(e)
  LogitMap map;                      ///< both in units of ln 2
  BlockPositions positions;          ///< MASK-1 holds where no keys are gathered
  PrefetchRows* prefetch = nullptr;  ///< a row of each of n_prefetch is prefetched with every tile
  std::int64_t n_prefetch = 0;

  /// Key `first`, a multiple of kKeyTile.
  [[nodiscard]] const std::uint16_t* key_tile(std::int64_t first) const {
    return tiles ? tiles[first / kKeyTile] : keys + first * key_stride;
  }
};

/// Softmax of a block with one offset per row for all its keys.
///
/// The offset is the row's largest logit in the first tile that is computed, an anchor: weights may exceed 1, which
/// neither BF16 nor F32 minds. Whoever calls softmax_weights() has to check the sums (bf16_block.cpp) and to repeat the block
/// with exact maxima for rows that ran out of range. Lanes know nothing of each other.
struct Bf16Softmax {
  alignas(64) float offset[kBlockRows];  ///< m in units of ln 2; before the anchor the sink, or -inf
  alignas(64) float sum[kBlockRows];     ///< l relative to the offset, of the weights before their rounding
  /// The same sum of the rounded weights. It divides outputs, so that their weights add up to 1.
  alignas(64) float rounded[kBlockRows];
  bool anchored;    ///< the offset is final
  bool has_output;  ///< whether any keys have been accumulated; kernels leave it alone
};

/// Kernels that multiply BF16 rows and BF16 weights and add in F32. Logits stand key by key, kBlockRows lanes in a
/// line, so every row-wise operation is vertical and keys need no packing.
struct Bf16Table {
  const char* isa;
  std::int64_t d_multiple;   ///< key rows are padded to a multiple of this many elements
  std::int64_t dv_multiple;  ///< packed values likewise
  bool keys_in_place;        ///< whether Bf16Segment::rows are read
  std::int64_t least_keys;   ///< fewer keys that lie together are better copied side by side for products()

  /// n_rows <= kBlockRows rows of d elements, `stride` bytes apart at any alignment, to packed[d_padded / 2][kBlockRows][2];
  /// zeros where there is none.
  void (*pack_queries)(const void* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,
                       std::int64_t d_padded, std::uint16_t* packed);

  /// n_keys key rows of d elements, at any alignment, to rows of d_padded elements side by side, zeros after the last of each.
  void (*copy_keys)(const void* const* rows, std::int64_t n_keys, std::int64_t d, std::int64_t d_padded,
                    std::uint16_t* to);

  /// n_keys <= kKeyTile value rows of dv elements to packed[dv_padded][kKeyTile]; zeros where there is none.
  void (*pack_values)(const void* const* rows, std::int64_t n_keys, std::int64_t dv, std::int64_t dv_padded,
                      std::uint16_t* packed);

  /// products[key][kBlockRows] = key . query in F32 for the rows of n_runs runs, of d elements, a multiple of d_multiple,
  /// `stride` elements apart and readable up to a whole tile; `products` has room for whole tiles. Lanes from `lanes` on hold
  /// anything.
  void (*products)(const std::uint16_t* queries, std::int64_t lanes, const RowRun* runs, std::int64_t n_runs,
                   std::int64_t d, std::int64_t stride, float* products);

  /// Raises highest[lane] to the row's largest logit of the segment.
  void (*raise_to_highest)(const Bf16Segment& segment, float* highest);

  /// weights[tile][kTileWeights] = bf16(2^(logit - offset)), zero after the last key; adds to the sums. Tiles are
  /// computed from the last to the first, so that the anchor is what stands nearest to the row.
  void (*softmax_weights)(const Bf16Segment& segment, Bf16Softmax& softmax, std::uint16_t* weights);

  /// Adds 2^(sink - offset) to the sums.
  void (*add_sink)(float sink, Bf16Softmax& softmax);

  /// out[dv_padded][kBlockRows] += sum over keys of packed value * weight; `fresh`: out holds nothing yet and is not read.
  void (*accumulate)(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                     std::int64_t dv_padded, bool fresh, float* out);

  /// sums[key] += sum over lanes of weight * factor[lane], the lanes in F32.
  void (*column_sums)(const std::uint16_t* weights, std::int64_t n_keys, const float* factor, double* sums);

  /// rows[lane][dv] = transposed[dv][lane] * factor[lane] for the first `n_rows` lanes. Returns bit r where lane r of
  /// transposed, one of these, holds a NaN or an infinity.
  std::uint32_t (*unpack_rows)(const float* transposed, std::int64_t n_rows, std::int64_t dv,
                               const float* factor, float* rows);

  /// KernelTable::row_logits of rows that are BF16 on both sides, neither arranged nor padded; null where the processor
  /// has no products of BF16 vectors, or slow ones.
  void (*row_logits)(const std::uint16_t* q, std::int64_t rows, std::int64_t d, const std::uint16_t* keys,
                     std::int64_t n_keys, float scale, float* logits, std::int64_t stride) = nullptr;
};

extern const Bf16Table avx512bf16_kernels;
extern const Bf16Table amx_kernels;
#ifdef HEADWATER_TESTING
extern const Bf16Table amx_emulated_kernels;
#endif

}  // namespace headwater::cpu
