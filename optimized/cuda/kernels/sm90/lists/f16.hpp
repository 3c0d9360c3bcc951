#pragma once

#include "cuda/kernels/sm90/kernel_lists.hpp"

namespace headwater::cuda::HEADWATER_CUDA_SIDE {

HEADWATER_SM90_LIST(sm90_f16_entries, HEADWATER_SM90_PLAIN_SIZES, f16, F16, false)

}  // namespace headwater::cuda::HEADWATER_CUDA_SIDE
