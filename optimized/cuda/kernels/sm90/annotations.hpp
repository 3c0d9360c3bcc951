#pragma once

#include "cuda/kernels/platform/platform.hpp"

/// Index maps are wanted on both sides: in kernels, and where the host plans a launch.
#ifdef __CUDACC__
#define HEADWATER_CUDA_BOTH __host__ __device__ __forceinline__
#else
#define HEADWATER_CUDA_BOTH inline
#endif
