#pragma once

#include <cstdint>

#include "core/buffer.hpp"
#include "cpu/kernels/bf16/table.hpp"
#include "cpu/kernels/table.hpp"

namespace headwater::cpu {

/// Query rows that one task works through: many enough to pay for widening or gathering their keys.
inline constexpr std::int64_t kGroupRows = 128;

/// Most tasks that a chunk of one head is cut into; each keeps partial column sums of its own.
inline constexpr std::int64_t kMaxGroups = 8;

/// Query rows (tokens x heads of a group) that are decoded together at most, and parts that a context is cut into.
inline constexpr std::int64_t kDecodeRows = 16;
inline constexpr std::int64_t kMaxSplits = 32;
/// Logits of a row that are kept at a time, for whole parts of a long context: memory streams while all keys of a part
/// are read, then all its values, and each change from one to the other costs a start.
inline constexpr std::int64_t kDecodeLogits = 4096;

/// Rows per task of a chunk of n rows: a function of n only, so that no result depends on the threads.
std::int64_t group_rows(std::int64_t n);

/// Extents that scratch memory is made for.
struct ScratchShape {
  std::int64_t d = 0;
  std::int64_t dv = 0;
  std::int64_t wide_keys = 0;     ///< key and value rows widened or gathered at a time
  std::int64_t block_keys = 0;    ///< keys whose weights are kept at a time
  std::int64_t segment_keys = 1;  ///< of the kernel table
  std::int64_t candidates = 0;    ///< of a memory set
  std::int64_t memory = 0;        ///< entries of a memory set
  bool bf16 = false;              ///< a BF16 table is in use, whose rows are padded:
  std::int64_t d_padded = 0;
  std::int64_t dv_padded = 0;
};

/// Working memory of one thread.
struct Scratch {
  explicit Scratch(const ScratchShape& shape);
  [[nodiscard]] std::int64_t bytes() const;

  core::Buffer<float> rows;           ///< [kBlockRows][d] widened query rows
  core::Buffer<float> packed;         ///< [kGroupRows][d] packed query rows
  core::Buffer<float> keys;           ///< [wide_keys][d]
  core::Buffer<float> values;         ///< [wide_keys][dv]
  core::Buffer<float> block;          ///< [block_keys][kBlockRows] logits, then weights
  core::Buffer<float> out;            ///< [kGroupRows][dv] unnormalised outputs
  core::Buffer<float> decode;         ///< [kDecodeRows][kDecodeLogits] logits, then weights
  core::Buffer<float> intra;          ///< [kBlockRows][dv] outputs of the intra pass
  core::Buffer<float> inter;          ///< [kBlockRows][dv] outputs of the inter pass
  core::Buffer<float> segment_max;    ///< [segments of block_keys][kBlockRows]
  core::Buffer<SoftmaxState> states;  ///< [kGroupRows / kBlockRows]

  // Of the BF16 arithmetic, empty without it.
  core::Buffer<std::uint16_t> packed16;   ///< [kGroupRows][d padded] packed query rows
  core::Buffer<std::uint16_t> keys16;     ///< [memory, whole tiles][d padded]
  core::Buffer<std::uint16_t> values16;   ///< [memory tiles][dv padded][kKeyTile]
  core::Buffer<std::uint16_t> weights16;  ///< [tiles of block_keys][kTileWeights]
  core::Buffer<float> transposed;         ///< [kGroupRows / kBlockRows][dv padded][kBlockRows]
  core::Buffer<Bf16Softmax> softmax16;    ///< [kGroupRows / kBlockRows]

  double selection_seconds = 0;  ///< StageSeconds, of this thread

  core::Buffer<std::uint32_t> order_keys;  ///< [candidates]
  core::Buffer<std::int32_t> chosen;       ///< [memory]
};

}  // namespace headwater::cpu
