#pragma once

#include <cuda.h>

#include "cuda/sm90/column_sums.hpp"
#include "cuda/sm90/intra_forward.hpp"
#include "cuda/sm90/score.hpp"

namespace headwater::cuda::sm90 {

__global__ void sm90_intra_forward_bf16(const __grid_constant__ IntraForwardParams<CUtensorMap> params);
__global__ void sm90_intra_forward_f16(const __grid_constant__ IntraForwardParams<CUtensorMap> params);
__global__ void sm90_column_sums_bf16(const __grid_constant__ ColumnSumParams<CUtensorMap> params);
__global__ void sm90_column_sums_f16(const __grid_constant__ ColumnSumParams<CUtensorMap> params);
__global__ void sm90_score_bf16(const __grid_constant__ ScoreParams<CUtensorMap> params);
__global__ void sm90_score_f16(const __grid_constant__ ScoreParams<CUtensorMap> params);

}  // namespace headwater::cuda::sm90
