#ifdef HEADWATER_TESTING

#define HEADWATER_CUDA_SIDE on_host
#include "cuda/sm90/lists/bf16.hpp"

#endif
