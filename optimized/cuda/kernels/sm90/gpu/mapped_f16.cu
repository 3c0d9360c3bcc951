#define HEADWATER_CUDA_SIDE on_gpu
#include "cuda/kernels/sm90/lists/mapped_f16.hpp"
