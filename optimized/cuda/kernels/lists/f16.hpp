#pragma once

#include "cuda/kernels/tables.hpp"

namespace headwater::cuda::HEADWATER_CUDA_SIDE {

using Unit = TensorUnit<false>;
HEADWATER_CUDA_TENSOR_SIZES(HEADWATER_CUDA_FORWARD, HEADWATER_CUDA_COLUMN_SUMS, f16, Unit)

Entries f16_entries() {
  static const KernelEntry entries[] = {
      HEADWATER_CUDA_TENSOR_SIZES(HEADWATER_CUDA_FORWARD_ENTRY, HEADWATER_CUDA_COLUMN_SUMS_ENTRY, f16, Unit)};
  return entries;
}

}  // namespace headwater::cuda::HEADWATER_CUDA_SIDE
