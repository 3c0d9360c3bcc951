#pragma once

#include "cuda/kernels/tables.hpp"

namespace headwater::cuda::HEADWATER_CUDA_SIDE {

HEADWATER_CUDA_FLOAT_SIZES(HEADWATER_CUDA_FORWARD, HEADWATER_CUDA_COLUMN_SUMS)

Entries f32_entries() {
  static const KernelEntry entries[] = {
      HEADWATER_CUDA_FLOAT_SIZES(HEADWATER_CUDA_FORWARD_ENTRY, HEADWATER_CUDA_COLUMN_SUMS_ENTRY)};
  return entries;
}

}  // namespace headwater::cuda::HEADWATER_CUDA_SIDE
