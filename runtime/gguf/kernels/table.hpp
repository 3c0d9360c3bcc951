#pragma once

#include <cstddef>
#include <cstdint>

namespace headwater::runtime {

inline constexpr int kTensorTypes = 16;  ///< values of TensorType; the tables are indexed by it

inline constexpr int kFixedRun = 32;  ///< elements that share a scale in a FixedRow

/// A row of n activations in fixed point, n a multiple of kFixedRun: x[i] is about codes[i] * scales[i / kFixedRun], to
/// half a unit of a code; |codes[i]| <= 32639, so that 256 times a signed byte and another signed byte make it. sums: of a run's values, scale * (its codes added up). arranged: the same
/// once more in the order in which the kernel of one type reads it, where that kernel wants it (arrange).
struct FixedRow {
  const std::int16_t* codes = nullptr;
  const float* scales = nullptr;
  const float* sums = nullptr;
  const std::byte* arranged = nullptr;
};

/// Most bytes of FixedRow::arranged, for each 256 elements or fewer.
inline constexpr int kArrangedBytes = 832;

/// Rows x that a stored row is multiplied with while its codes are in registers.
inline constexpr int kFixedRowsAtOnce = 4;

/// Rows x that a group of stored rows is multiplied with while its codes are in registers.
inline constexpr int kGroupRowsAtOnce = 4;

/// What one ISA does with rows that lie side by side in groups of sixteen. Contracts: row_groups.hpp.
struct GroupKernels {
  void (*arrange[kTensorTypes])(const FixedRow& x, std::int64_t n, std::byte* out);
  /// 1 to kGroupRowsAtOnce rows x; out[i * stride + r] is that of x[i] and row r.
  void (*dot[kTensorTypes])(const std::byte* group, std::int64_t n, const std::byte* const* x, int rows,
                            float* out, std::int64_t stride);
  void (*widen[kTensorTypes])(const std::byte* group, std::int64_t n, std::uint32_t* to, std::int64_t stride);
  void (*widen_bf16[kTensorTypes])(const std::byte* group, std::int64_t n, std::uint32_t* to,
                                   std::int64_t stride);
};

/// What one ISA does with many rows and sixteen stored ones, in integers. Contracts: byte_product.hpp.
struct ByteKernels {
  int run_bytes;      ///< of a run of kFixedRun in a row: its codes, its scale, and what else belongs to it
  int code_bytes;     ///< of a code in a row: one or two
  int code_zero;      ///< the code of zero in a row
  bool unpacks_rows;  ///< stored rows as a file has them, instead of packed groups
  void (*round)(const float* x, std::int64_t n, std::byte* out);
  void (*round_bf16)(const std::uint16_t* x, std::int64_t n, std::byte* out);  ///< null: no rows of BF16
  std::int64_t (*unpacked_bytes[kTensorTypes])(std::int64_t n);
  void (*unpack[kTensorTypes])(const std::byte* from, std::int64_t count, std::int64_t n,
                               std::byte* out);  ///< null, as those around it: not this type
  void (*multiply[kTensorTypes])(const std::byte* unpacked, std::int64_t groups, std::int64_t n,
                                 const std::byte* x, std::int64_t x_stride, std::int64_t rows, float* out,
                                 std::int64_t stride);
};

/// What one ISA does with stored rows of n elements. Contracts: row_kernels.hpp.
struct RowKernels {
  const char* isa;
  void (*widen[kTensorTypes])(const std::byte* row, std::int64_t n, float* out);
  void (*widen_bf16[kTensorTypes])(const std::byte* row, std::int64_t n, std::uint16_t* out);
  float (*dot[kTensorTypes])(const std::byte* row, std::int64_t n, const float* x);
  void (*fix)(const float* x, std::int64_t n, std::int16_t* codes, float* scales, float* sums);
  void (*arrange[kTensorTypes])(const FixedRow& x, std::int64_t n, std::byte* out);  ///< null: not wanted
  float (*dot_fixed[kTensorTypes])(const std::byte* row, std::int64_t n,
                                   const FixedRow& x);  ///< quantised types
  /// kFixedRowsAtOnce rows x, none of them arranged, with one stored row; each has the bits of dot_fixed. null: none.
  void (*dot_fixed_few[kTensorTypes])(const std::byte* row, std::int64_t n, const FixedRow* x, float* out);
  const GroupKernels* groups = nullptr;  ///< null: none
  const ByteKernels* bytes = nullptr;    ///< null: none; else there are groups, or they unpack rows
  const ByteKernels* words = nullptr;    ///< for what `bytes` do not take, rows in 16 bits; null: none
};

extern const RowKernels portable_row_kernels;
extern const RowKernels avx2_row_kernels;
extern const RowKernels avx512_row_kernels;
extern const RowKernels avx512vnni_row_kernels;
extern const GroupKernels avx512vnni_group_kernels;
extern const ByteKernels avx2_byte_kernels;
extern const ByteKernels avx2_word_kernels;
extern const ByteKernels avx512vnni_byte_kernels;

}  // namespace headwater::runtime
