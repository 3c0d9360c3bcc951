#include "cuda/sm90/column_sums.hpp"
#include "cuda/sm90/hopper.cuh"
#include "cuda/sm90/intra_forward.hpp"
#include "cuda/sm90/kernels.cuh"
#include "cuda/sm90/score.hpp"

namespace headwater::cuda::sm90 {

// In a pass for another processor the bodies are empty: setmaxnreg and wgmma are sm_90a's alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HEADWATER_SM90_BODY(...) \
  Hopper machine;                \
  __VA_ARGS__
#else
#define HEADWATER_SM90_BODY(...)
#endif

#define HEADWATER_SM90_KERNELS(Element, suffix)                                                     \
  __global__ void __launch_bounds__(kThreads, 1)                                                    \
      sm90_intra_forward_##suffix(const __grid_constant__ IntraForwardParams<CUtensorMap> params) { \
    HEADWATER_SM90_BODY(IntraForward::run<Element>(machine, params);)                               \
  }                                                                                                 \
  __global__ void __launch_bounds__(kThreads, 1)                                                    \
      sm90_column_sums_##suffix(const __grid_constant__ ColumnSumParams<CUtensorMap> params) {      \
    HEADWATER_SM90_BODY(ColumnSums::run<Element>(machine, params);)                                 \
  }                                                                                                 \
  __global__ void __launch_bounds__(kThreads, 1)                                                    \
      sm90_score_##suffix(const __grid_constant__ ScoreParams<CUtensorMap> params) {                \
    HEADWATER_SM90_BODY(Score::run<Element>(machine, params);)                                      \
  }

HEADWATER_SM90_KERNELS(Bf16, bf16)
HEADWATER_SM90_KERNELS(F16, f16)

}  // namespace headwater::cuda::sm90
