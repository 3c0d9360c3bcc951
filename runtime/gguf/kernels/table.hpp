#pragma once

#include <cstddef>
#include <cstdint>

namespace headwater::runtime {

inline constexpr int kTensorTypes = 8;  ///< values of TensorType; the tables are indexed by it

/// What one ISA does with stored rows of n elements. Contracts: row_kernels.hpp.
struct RowKernels {
  const char* isa;
  void (*widen[kTensorTypes])(const std::byte* row, std::int64_t n, float* out);
  void (*widen_bf16[kTensorTypes])(const std::byte* row, std::int64_t n, std::uint16_t* out);
  float (*dot[kTensorTypes])(const std::byte* row, std::int64_t n, const float* x);
};

const RowKernels& portable_row_kernels();
const RowKernels& avx2_row_kernels();
const RowKernels& avx512_row_kernels();

}  // namespace headwater::runtime
