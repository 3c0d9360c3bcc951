#define HEADWATER_CUDA_SIDE on_gpu
#include "cuda/kernels/sm90/lists/f16.hpp"
