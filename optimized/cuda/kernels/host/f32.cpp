#ifdef HEADWATER_TESTING

#define HEADWATER_CUDA_SIDE on_host
#include "cuda/kernels/lists/f32.hpp"

#endif
