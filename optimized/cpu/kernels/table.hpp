#pragma once

#include <cstdint>

#include "core/rows_8bit.hpp"
#include "core/selection.hpp"
#include "headwater/options.hpp"

namespace headwater::cpu {

/// Query rows of a block. Logits and weights of a block are stored key by key, the rows of one key in one line
/// of kBlockRows floats: row-wise maxima, exponentials and sums are then vertical, no result of a row depends on
/// the rows beside it, and an outer-product kernel needs no packed keys.
inline constexpr std::int64_t kBlockRows = 32;

/// Rows are padded to a multiple of this inside a block ("lanes"); padding lanes hold zero queries.
inline constexpr std::int64_t kLaneTile = 8;

/// What becomes of a scaled dot product (LOGIT-2, LOGIT-3).
struct LogitMap {
  float softcap = 0.0f;  ///< 0: none
  float slope = 0.0f;    ///< ALiBi; 0: none
};

/// Where the keys and rows of a block stand, for masks and ALiBi.
struct BlockPositions {
  std::int64_t first_row = 0;              ///< position of lane 0; lane r stands at first_row + r
  std::int64_t first_key = 0;              ///< position of key 0 where keys follow each other ...
  const std::int32_t* gathered = nullptr;  ///< ... else the position of every key
};

/// Rows that lie one after the other.
struct RowRun {
  const void* rows;
  std::int64_t n;
};

/// Keys of a tile: those whose logits BF16 kernels compute at a time, and those whose sketches are packed together.
inline constexpr std::int64_t kKeyTile = 32;

inline std::int64_t key_tiles(std::int64_t n_keys) { return (n_keys + kKeyTile - 1) / kKeyTile; }

/// Integers of a sketch of a row of d elements: a multiple of kSketchLot. Where there are fewer columns (SKE-3), zeros follow.
inline constexpr std::int64_t kSketchLot = 32;
inline constexpr std::int64_t kMostSketchColumns = 256;
constexpr std::int64_t sketch_width(std::int64_t d) {
  const std::int64_t half = (d + 2 * kSketchLot - 1) / (2 * kSketchLot) * kSketchLot;
  return half < kMostSketchColumns ? half : kMostSketchColumns;
}
/// Columns of a sketch, ascending (SKE-3).
struct SketchColumns {
  std::int64_t width;  ///< sketch_width()
  std::int64_t n;
  std::int32_t column[kMostSketchColumns];  ///< ascending
  std::int64_t of;                          ///< elements of a row
};
/// The largest integer of a sketch (SKE-4).
inline constexpr float kSketchInteger = 127.0f;
static_assert(kMostSketchColumns * 127 * 127 < 1 << 24, "their products are exact in F32");

struct SketchTable;

/// Running softmax of a block (INTRA-1), one entry per lane.
struct SoftmaxState {
  float max[kBlockRows];      ///< m, -inf before the first key
  float sum[kBlockRows];      ///< l relative to max
  float rescale[kBlockRows];  ///< exp(m before - m after) of the last update
  bool has_output;            ///< whether any keys have been accumulated; kernels leave it alone
};

/// The kernels of one ISA.
/// `lanes` is a multiple of kLaneTile, at most kBlockRows.
struct KernelTable {
  const char* isa;

  /// Keys between two updates of the running maximum. It shapes the rounding of every result, so all passes of an
  /// engine use it alike.
  std::int64_t segment_keys;

  /// `count` contiguous elements at any alignment to floats, exact.
  void (*widen)(const void* from, DType type, std::int64_t count, float* to);

  /// The same for n_rows rows of n elements each, to[n_rows][n].
  void (*widen_rows)(const void* const* rows, std::int64_t n_rows, DType type, std::int64_t n, float* to);

  /// `count` floats to contiguous elements at any alignment, with the bits of core::narrow.
  void (*narrow)(const float* from, std::int64_t count, DType type, void* to);

  /// STATE-13, with the bits of core::restore_groups.
  core::RestoreGroups restore_groups;

  /// n_rows rows of d floats, `stride` floats apart, to the layout that dot_products of the same table reads; zero rows
  /// up to a multiple of kLaneTile. packed has room for kBlockRows rows.
  void (*pack_queries)(const float* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,
                       float* packed);

  /// LOGIT-1: block[key][lane] = scale * (q . k) for n_keys contiguous key rows of d floats. Lanes from `lanes` on
  /// may be written too, as if their queries were zero. `next`: what is read after the keys and about as large; it may
  /// be prefetched on the way and is never read.
  void (*dot_products)(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys,
                       std::int64_t n_keys, float scale, float* block, const float* next);

  /// The same of key rows anywhere. values[key]: a row of dv floats that is read next; it may be prefetched.
  void (*dot_rows)(const float* packed, std::int64_t lanes, std::int64_t d, const float* const* keys,
                   std::int64_t n_keys, float scale, float* block, const float* const* values,
                   std::int64_t dv);

  /// LOGIT-2, LOGIT-3 in place: cap, then bias.
  void (*cap_and_bias)(const LogitMap& map, const BlockPositions& positions, std::int64_t lanes,
                       std::int64_t n_keys, float* block);

  /// MASK-1 in place: -inf where the key stands after the lane's row. Keys follow each other.
  void (*mask_future)(const BlockPositions& positions, std::int64_t lanes, std::int64_t n_keys, float* block);

  /// Logits to weights exp(s - m) in place; updates the running maximum and sum.
  void (*softmax)(std::int64_t lanes, std::int64_t n_keys, float* block, SoftmaxState& state);

  /// out[lane][dv] = out * rescale[lane] + sum_key block[key][lane] * values[key][dv], over n_keys > 0 keys; without
  /// rescale, out holds nothing yet and is not read. Lane r sees the first visible + r keys; the weights of the others
  /// are zero and need not be read.
  void (*accumulate_values)(const float* block, std::int64_t lanes, std::int64_t n_keys, std::int64_t visible,
                            const float* values, std::int64_t dv, const float* rescale, float* out);

  /// The same of value rows anywhere, which every lane sees.
  void (*accumulate_rows)(const float* block, std::int64_t lanes, std::int64_t n_keys,
                          const float* const* values, std::int64_t dv, const float* rescale, float* out);

  /// sums[key] += sum_lane block[key][lane] * factor[lane]; factor is 0 in padding lanes.
  void (*column_sums)(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* factor,
                      double* sums);

  /// top[lane] = the largest of top[lane] and block[key][lane] over n_keys keys and all kBlockRows lanes; a NaN is never
  /// larger.
  void (*raise_maxima)(const float* block, std::int64_t n_keys, float* top);

  /// SEL-6, SEL-7: votes[key] = the largest of votes[key] and block[key][lane] * factor[lane] - offset[lane] over all
  /// kBlockRows lanes; a NaN is never larger.
  void (*raise_votes)(const float* block, std::int64_t n_keys, const float* factor, const float* offset,
                      float* votes);

  /// SEL-4: to[n] = the sum of n_rows rows of n elements, `stride` bytes apart at any alignment, in F32 and in their order,
  /// times `factor`.
  void (*row_sum)(const void* rows, std::int64_t stride, std::int64_t n_rows, DType type, std::int64_t n,
                  float factor, float* to);

  /// SEL-3: of each column of n_rows rows of n elements, at any alignment, mean[n] and squares[n], the sum of the squared
  /// differences from it; in F32 and in the order of the rows.
  void (*spread)(const void* const* rows, std::int64_t n_rows, DType type, std::int64_t n, float* mean,
                 float* squares);

  /// SKE-4 of n_rows rows, `stride` bytes apart at any alignment: integers[row][columns.width], and the units; NaN and zeros
  /// for a row that has no sketch.
  void (*sketch_rows)(const void* rows, std::int64_t stride, std::int64_t n_rows, DType type,
                      const SketchColumns& columns, float* integers, float* units);

  /// block[row][lane] *= factor[row] * unit[lane], all kBlockRows lanes.
  void (*scale_lanes)(float* block, std::int64_t n_rows, const float* factor, const float* unit);

  /// SKE-6: votes[lane] = the largest of votes[lane] and block[row][lane] - offset[row] over n_rows rows; a NaN is never
  /// larger. With factors each is block[row][lane] * (factor[row] * unit[lane]) - offset[row], rounded once where the
  /// processor can; null: neither is read.
  void (*raise_lane_votes)(const float* block, std::int64_t n_rows, const float* factor, const float* unit,
                           const float* offset, float* votes);

  /// For votes (SEL-6, SEL-7, SKE-7).
  core::SelectionLoops selection;

  /// FUSE-1: to[i] = a[i] * a_weight + b[i] * b_weight; `to` may be a.
  void (*blend)(const float* a, float a_weight, const float* b, float b_weight, std::int64_t n, float* to);

  /// to[i] = a[i] * weight; `to` may be a.
  void (*scale)(const float* a, float weight, std::int64_t n, float* to);

  // Decode: few query rows, their keys and values read once as they are stored, whatever their type.

  /// A row of n floats to the order in which row_logits and row_values widen stored rows of that type and width, and back.
  void (*arrange_row)(const float* row, DType type, std::int64_t n, float* arranged);
  void (*restore_row)(const float* arranged, DType type, std::int64_t n, float* row);

  /// LOGIT-1: logits[row * stride + key] = scale * (q[row] . key) for arranged rows of q[rows][d] and n_keys contiguous keys.
  void (*row_logits)(const float* q, std::int64_t rows, std::int64_t d, const void* keys, DType type,
                     std::int64_t n_keys, float scale, float* logits, std::int64_t stride);

  /// logits[n] to exp(s - max) in place, max at least the largest of them; returns their sum.
  float (*row_weights)(float* logits, std::int64_t n, float max);

  /// out[rows][dv], arranged, += sum_key weights[row * stride + key] * values[key].
  void (*row_values)(const float* weights, std::int64_t stride, std::int64_t rows, const void* values,
                     DType type, std::int64_t n_keys, std::int64_t dv, float* out);
};

/// A table is data: its file is built for its ISA, and reading it needs no processor but the baseline.
extern const KernelTable portable_kernels;
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;

namespace portable {
/// KernelTable::mask_future of every table.
void mask_future(const BlockPositions& positions, std::int64_t lanes, std::int64_t n_keys, float* block);
/// MASK-2 in place: -inf where the key stands `window` positions before the lane's row, or more. Keys follow each other.
void mask_past(const BlockPositions& positions, std::int64_t window, std::int64_t lanes, std::int64_t n_keys,
               float* block);
}  // namespace portable

}  // namespace headwater::cpu
