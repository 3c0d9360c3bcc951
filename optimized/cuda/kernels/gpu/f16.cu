#define HEADWATER_CUDA_SIDE on_gpu
#include "cuda/kernels/lists/f16.hpp"
