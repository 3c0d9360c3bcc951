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

}  // namespace headwater::runtime
