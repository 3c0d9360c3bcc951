#define HEADWATER_CUDA_SIDE on_gpu
#include "cuda/sm90/lists/bf16.hpp"
