#define HEADWATER_CUDA_SIDE on_gpu
#include "cuda/sm90/lists/mapped_bf16.hpp"
