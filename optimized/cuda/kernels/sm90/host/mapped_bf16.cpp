#ifdef HEADWATER_TESTING

#define HEADWATER_CUDA_SIDE on_host
#include "cuda/kernels/sm90/lists/mapped_bf16.hpp"

#endif
