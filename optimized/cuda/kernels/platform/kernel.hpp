#pragma once

#include <string>
#include <type_traits>

#include "cuda/kernels/platform/context.hpp"

namespace headwater::cuda {

namespace emulation {
class Context;
}

/// One row of a table of kernels; a Device launches by its index. Each row is written once, in a header that both
/// the table for the GPU and the one for the emulation include:
///
///     struct ScaleParams { float* x; int count; float factor; };   // trivially copyable, at most 4 KB
///
///     template <class Context>
///     HEADWATER_CUDA_FUNCTION void scale(Context& ctx, const ScaleParams& p) {
///       const int i = ctx.block_x() * ctx.threads() + ctx.thread();
///       if (i < p.count) p.x[i] *= p.factor;
///     }
///
///     HEADWATER_CUDA_KERNEL(scale_kernel, ScaleParams, 256, 2, scale)    // threads, blocks that fit on one SM
///     // of a template <int HeadSize, class Context>, the context deduced:
///     HEADWATER_CUDA_KERNEL(column_sums_64, SumsParams, 128, 1, column_sums<64>)
///
///     inline const Kernel kKernels[] = {HEADWATER_CUDA_ROW(scale_kernel), ...};
struct Kernel {
  const char* name;
  int threads;       ///< block size, a multiple of 32
  int params_bytes;  ///< size of the parameters
  /// GPU: the address of the __global__ function. Emulation: null.
  const void* gpu;
  /// Emulation: one thread of it. GPU: null.
  void (*emulated)(emulation::Context& context, const void* params) = nullptr;
  /// Emulation of kernels for the multiprocessor of sm_90a (sm90/): a block of a grid of one axis, its threads in one of two
  /// orders; returns the fault that ended it, or an empty text. Other kernels and GPU: null.
  std::string (*emulated_block)(int block, int blocks, bool ascending, const void* params) = nullptr;
};

#ifdef __CUDACC__
#define HEADWATER_CUDA_KERNEL(kernel, Params, threads, blocks_per_sm, ...)                      \
  static __global__ void __launch_bounds__(threads, blocks_per_sm)                              \
      kernel(const __grid_constant__ Params p) {                                                \
    static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 4096);              \
    ::headwater::cuda::GpuContext ctx;                                                          \
    __VA_ARGS__(ctx, p);                                                                        \
  }                                                                                             \
  inline ::headwater::cuda::Kernel row_of_##kernel() {                                          \
    return {#kernel, threads, sizeof(Params), reinterpret_cast<const void*>(&kernel), nullptr}; \
  }
#else
/// The emulation spends its time in fused products, which are calls of the C library for a processor without the
/// instruction: optimised builds compile each kernel whole for processors that have it, and the emulated device is open on
/// those alone. Same bits.
#if defined(__OPTIMIZE__) && defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define HEADWATER_CUDA_FUSED [[gnu::flatten, gnu::target("arch=x86-64-v3")]]
#define HEADWATER_CUDA_RUNS_HERE (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
#else
#define HEADWATER_CUDA_FUSED
#define HEADWATER_CUDA_RUNS_HERE true
#endif
#define HEADWATER_CUDA_KERNEL(kernel, Params, threads, blocks_per_sm, ...)                                  \
  HEADWATER_CUDA_FUSED inline void kernel(::headwater::cuda::emulation::Context& ctx, const void* params) { \
    static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 4096);                          \
    __VA_ARGS__(ctx, *static_cast<const Params*>(params));                                                  \
  }                                                                                                         \
  inline ::headwater::cuda::Kernel row_of_##kernel() {                                                      \
    static_assert((threads) > 0 && (threads) % 32 == 0 && (threads) <= 1024 && (blocks_per_sm) > 0);        \
    return {#kernel, threads, sizeof(Params), nullptr, &kernel};                                            \
  }
#endif
#define HEADWATER_CUDA_ROW(kernel) row_of_##kernel()

}  // namespace headwater::cuda
