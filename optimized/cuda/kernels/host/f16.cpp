#ifdef HEADWATER_TESTING

#define HEADWATER_CUDA_SIDE on_host
#include "cuda/kernels/lists/f16.hpp"

#endif
