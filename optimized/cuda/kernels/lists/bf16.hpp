#pragma once

#include "cuda/kernels/tables.hpp"

namespace headwater::cuda::HEADWATER_CUDA_SIDE {

using Unit = TensorUnit<true>;
HEADWATER_CUDA_TENSOR_SIZES(HEADWATER_CUDA_FORWARD, HEADWATER_CUDA_COLUMN_SUMS, bf16, Unit)

Entries bf16_entries() {
  static const KernelEntry entries[] = {HEADWATER_CUDA_TENSOR_SIZES(
      HEADWATER_CUDA_FORWARD_ENTRY, HEADWATER_CUDA_COLUMN_SUMS_ENTRY, bf16, Unit)};
  return entries;
}

}  // namespace headwater::cuda::HEADWATER_CUDA_SIDE
