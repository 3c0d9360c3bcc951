#pragma once

#include <cstdint>

#include "core/kv_store.hpp"
#include "cpu/kernels/table.hpp"

namespace headwater::cpu {

/// A block of at most kBlockRows query rows and its running softmax over any number of key segments.
/// All memory belongs to the caller.
struct FloatBlock {
  const KernelTable& kernels;
  float scale;
  LogitMap map;
  std::int64_t window;  ///< MASK-2; 0: none
  std::int64_t d;
  std::int64_t dv;
  std::int64_t rows;       ///< query rows, 1 .. kBlockRows
  std::int64_t first_row;  ///< position of the first of them
  const float* packed;     ///< from load_queries
  SoftmaxState& state;
  float* out;  ///< [lanes()][dv], unnormalised

  [[nodiscard]] std::int64_t lanes() const { return (rows + kLaneTile - 1) / kLaneTile * kLaneTile; }

  /// Empty key set, or the sink alone (LOGIT-4: a column whose value row is zero). Leaves out as it is: the first keys
  /// overwrite it.
  void start(float sink) const;

  /// After the last keys: a block that was given none has zero outputs.
  void finish() const;

  /// Adds keys at the consecutive positions first_key, first_key + 1, ..., masked by MASK-1. `weights`:
  /// [n_keys][kBlockRows], afterwards exp(s - state.max).
  void add_keys(const float* keys, const float* values, std::int64_t first_key, std::int64_t n_keys,
                float* weights) const;

  /// Adds gathered keys; every row sees each of them (INTER-1).
  void add_gathered(const float* keys, const float* values, const std::int32_t* positions,
                    std::int64_t n_keys, float* weights) const;
  /// The same, of rows anywhere.
  void add_rows(const float* const* keys, const float* const* values, const std::int32_t* positions,
                std::int64_t n_keys, float* weights) const;

  /// Divides by the row sums: state.max and state.sum are (m, l) and out is o of INTRA-1. A row that saw
  /// nothing keeps o = 0 (INTER-3).
  void normalise() const;

  /// INTRA-2, INTER-2: adds the column sums of one segment whose weights are relative to segment_max.
  void add_column_sums(const float* weights, const float* segment_max, std::int64_t n_keys,
                       double* sums) const;

 private:
  void add(const float* keys, const float* values, const BlockPositions& positions, std::int64_t n_keys,
           float* weights) const;
};

/// Widens `rows` query rows of a head and packs them with zero rows up to a multiple of kLaneTile.
/// `wide` is scratch for kBlockRows rows.
void load_queries(const KernelTable& kernels, const Rows& q, std::int64_t first, std::int64_t rows,
                  std::int64_t head, std::int64_t d, float* wide, float* packed);

}  // namespace headwater::cpu
