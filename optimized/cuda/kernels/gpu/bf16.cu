#define HEADWATER_CUDA_SIDE on_gpu
#include "cuda/kernels/lists/bf16.hpp"
