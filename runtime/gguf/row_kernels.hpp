#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/gguf/kernels/table.hpp"
#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime {

/// The kernels of one ISA and what a processor lacks for them: empty where they run here.
struct RowKernelVariant {
  const RowKernels& (*kernels)();
  std::string (*missing)();
};

/// All of them, slowest first.
[[nodiscard]] std::span<const RowKernelVariant> row_kernel_variants();
/// The fastest that run on this processor.
[[nodiscard]] const RowKernels& row_kernels();

/// dequantize_row(), rounded to BF16 (nearest even; NaN stays NaN): a panel of weights for a BF16 product.
void dequantize_row_bf16(TensorType type, const std::byte* row, std::int64_t n, std::uint16_t* out);

/// sum_i w_i x_i over a stored row of n elements, w as dequantize_row() gives them, summed in F32. The row is read
/// once, as stored: the inner loop of decoding one token with quantised weights. The order of the sum is fixed for an
/// ISA: the same on every call, whatever the number of threads. |error| <= (n + 2) * 2^-24 * sum |w_i x_i|.
[[nodiscard]] float dot_row(TensorType type, const std::byte* row, std::int64_t n, const float* x);

/// Whether dot_row_fixed() takes rows of this type.
[[nodiscard]] bool is_quantised(TensorType type);

/// Puts n floats into fixed point; n is a multiple of kFixedRun. codes: n, scales and sums: n / kFixedRun. A run that
/// holds NaN or infinity gets a scale of NaN.
void fix_row(const float* x, std::int64_t n, std::int16_t* codes, float* scales, float* sums);

/// sum_i w_i x_i over a stored row of a quantised type, x in fixed point: the inner loop of decoding one token. Integers
/// are exact inside a run, so that the error is x's own rounding and that of scaling and adding the runs:
/// |error| <= sum_i (|scale code_i| + |minimum|) * X_i * (2^-16 + (r + 8) * 2^-24), X_i the largest |x| in the run of i, r
/// the number of runs of 16. The order of the sum is fixed for an ISA.
[[nodiscard]] float dot_row_fixed(TensorType type, const std::byte* row, std::int64_t n, const FixedRow& x);

}  // namespace headwater::runtime
