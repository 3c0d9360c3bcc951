#pragma once

#include "cuda/kernels/sm90/kernel_lists.hpp"

namespace headwater::cuda::HEADWATER_CUDA_SIDE {

HEADWATER_SM90_LIST(sm90_mapped_bf16_entries, HEADWATER_SM90_SIZES, mapped_bf16, Bf16, true)

}  // namespace headwater::cuda::HEADWATER_CUDA_SIDE
