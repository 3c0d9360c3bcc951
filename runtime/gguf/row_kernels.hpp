#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "headwater/detail/processor.hpp"
#include "runtime/gguf/kernels/table.hpp"
#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime {

/// The kernels of one ISA and what a processor needs for them.
struct RowKernelVariant {
  const RowKernels* kernels;
  std::span<const detail::Feature> needs;
  /// Empty where they run here.
  [[nodiscard]] std::string missing() const { return detail::missing_feature(needs); }
};

/// All of them, slowest first.
[[nodiscard]] std::span<const RowKernelVariant> row_kernel_variants();
/// The fastest that run on this processor.
[[nodiscard]] const RowKernels& row_kernels();

/// dequantize_row(), rounded to BF16 (nearest even; NaN stays NaN): a panel of weights for a BF16 product.
void dequantize_row_bf16(TensorType type, const std::byte* row, std::int64_t n, std::uint16_t* out);

/// For each of `count` stored rows of n elements, one after the other: sum_i w_i x_i, w as dequantize_row() gives
/// them, summed in F32. The rows are read once, as stored: the inner loop of decoding one token. The order of the sum
/// is fixed for an ISA, whatever the number of threads. |error| <= (n + 2) * 2^-24 * sum |w_i x_i|.
void dot_rows(TensorType type, const std::byte* rows, std::int64_t count, std::int64_t n, const float* x,
              float* out);

/// Whether dot_rows_fixed() takes rows of this type.
[[nodiscard]] bool is_quantised(TensorType type);

/// Bytes of memory that fix_row() and arrange_row() write, whole cache lines.
[[nodiscard]] std::size_t fixed_row_bytes(std::int64_t n);
[[nodiscard]] std::size_t arranged_row_bytes(std::int64_t n);

/// Puts n floats into fixed point, in `memory` (aligned to 64); n is a multiple of kFixedRun. A run that holds NaN or
/// infinity gets a scale of NaN.
[[nodiscard]] FixedRow fix_row(const float* x, std::int64_t n, std::byte* memory);

/// The row as dot_rows_fixed() wants it for rows of `type`: as it is, or once more in `memory`.
[[nodiscard]] FixedRow arrange_row(TensorType type, const FixedRow& x, std::int64_t n, std::byte* memory);

/// dot_rows() for a quantised type and each row x, in fixed point and arranged for that type: out[i * stride + r] is that of
/// x[i] and stored row r. The stored rows are read from memory once where they fit into a cache. Integers are exact inside a run, so that the error is x's own rounding and that of scaling and adding the runs:
/// |error| <= sum_i (|scale code_i| + |minimum|) * X_i * (2^-16 + (r + 8) * 2^-24), X_i the largest |x| in the run of i, r
/// the number of runs of 16. The order of the sum is fixed for an ISA.
void dot_rows_fixed(TensorType type, const std::byte* rows, std::int64_t count, std::int64_t n,
                    std::span<const FixedRow> x, float* out, std::int64_t stride);

}  // namespace headwater::runtime
