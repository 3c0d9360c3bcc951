#pragma once

#include "cuda/kernels/entries.hpp"
#include "cuda/kernels/sm90/column_sums.hpp"
#include "cuda/kernels/sm90/elements.hpp"
#include "cuda/kernels/sm90/forward.hpp"
#include "cuda/kernels/sm90/score.hpp"
#ifdef __CUDACC__
#include "cuda/kernels/sm90/machine.cuh"
#else
#include "cuda/emulation/sm90.hpp"
#endif

/// The kernels of sm_90a for both compilers. Included by a unit of kernels/list.in with HEADWATER_CUDA_SIDE set.

#ifdef __CUDACC__
// In a pass for another processor the bodies are empty: setmaxnreg and wgmma are sm_90a's alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HEADWATER_SM90_BODY(...)               \
  ::headwater::cuda::sm90::PtxMachine machine; \
  __VA_ARGS__::run(machine, params);
#else
#define HEADWATER_SM90_BODY(...)
#endif
#define HEADWATER_SM90_KERNEL(kernel, Params, ...)                                               \
  static __global__ void __launch_bounds__(::headwater::cuda::sm90::kThreads, 1)                 \
      kernel(const __grid_constant__ ::headwater::cuda::sm90::Params params) {                   \
    HEADWATER_SM90_BODY(__VA_ARGS__)                                                             \
  }                                                                                              \
  inline ::headwater::cuda::Kernel row_of_##kernel() {                                           \
    return {#kernel, ::headwater::cuda::sm90::kThreads, sizeof(::headwater::cuda::sm90::Params), \
            reinterpret_cast<const void*>(&kernel)};                                             \
  }
#else
#define HEADWATER_SM90_KERNEL(kernel, Params, ...)                                                   \
  inline std::string kernel(int block, int blocks, bool ascending, const void* params) {             \
    const auto& own = *static_cast<const ::headwater::cuda::sm90::Params*>(params);                  \
    return ::headwater::cuda::sm90::run_block(                                                       \
        block, blocks, ascending,                                                                    \
        [&](::headwater::cuda::sm90::SoftwareMachine& machine) { __VA_ARGS__::run(machine, own); }); \
  }                                                                                                  \
  inline ::headwater::cuda::Kernel row_of_##kernel() {                                               \
    return {#kernel,                                                                                 \
            ::headwater::cuda::sm90::kThreads,                                                       \
            sizeof(::headwater::cuda::sm90::Params),                                                 \
            nullptr,                                                                                 \
            nullptr,                                                                                 \
            &(kernel)};                                                                              \
  }
#endif

namespace headwater::cuda::sm90 {

/// Dynamic shared memory of a kernel: what it holds, on a boundary of the swizzle's pattern.
template <class Kernel>
inline constexpr int kSharedBytes = static_cast<int>(sizeof(typename Kernel::template Smem<std::uint64_t>) +
                                                     kSwizzleBytes);

}  // namespace headwater::cuda::sm90

/// X(name, Element, mapped, d, dv) of the forwards, Y(name, Element, mapped, d) of the column sums, Z(the same) of the score
/// kernel. Memory keys of 192 columns do not fit into shared memory.
#define HEADWATER_SM90_MAPPED_SIZES(X, Y, Z, name, Element, mapped) \
  X(name##_64, Element, mapped, 64, 64)                             \
  X(name##_128, Element, mapped, 128, 128)                          \
  Y(name##_64, Element, mapped, 64)                                 \
  Y(name##_128, Element, mapped, 128)                               \
  Z(name##_64, Element, mapped, 64)                                 \
  Z(name##_128, Element, mapped, 128)
/// Wide keys, for which the whole rule finds no registers.
#define HEADWATER_SM90_PLAIN_SIZES(X, Y, Z, name, Element, mapped) \
  HEADWATER_SM90_MAPPED_SIZES(X, Y, Z, name, Element, mapped)      \
  X(name##_192, Element, mapped, 192, 128)                         \
  Y(name##_192, Element, mapped, 192)                              \
  X(name##_256, Element, mapped, 256, 256)                         \
  Y(name##_256, Element, mapped, 256)

#define HEADWATER_SM90_SHAPE(Element, mapped, d, dv) \
  ::headwater::cuda::sm90::KernelShape<::headwater::cuda::sm90::Element, d, dv, mapped>

#define HEADWATER_SM90_FORWARD(name, Element, mapped, d, dv)                                \
  HEADWATER_SM90_KERNEL(                                                                    \
      sm90_causal_forward_##name, CausalForwardParams,                                      \
      ::headwater::cuda::sm90::CausalForward<HEADWATER_SM90_SHAPE(Element, mapped, d, dv)>) \
  HEADWATER_SM90_KERNEL(                                                                    \
      sm90_memory_forward_##name, MemoryForwardParams,                                      \
      ::headwater::cuda::sm90::MemoryForward<HEADWATER_SM90_SHAPE(Element, mapped, d, dv)>)
#define HEADWATER_SM90_COLUMN_SUMS(name, Element, mapped, d)      \
  HEADWATER_SM90_KERNEL(sm90_column_sums_##name, ColumnSumParams, \
                        ::headwater::cuda::sm90::ColumnSums<HEADWATER_SM90_SHAPE(Element, mapped, d, 64)>)
#define HEADWATER_SM90_SCORE(name, Element, mapped, d)  \
  HEADWATER_SM90_KERNEL(sm90_score_##name, ScoreParams, \
                        ::headwater::cuda::sm90::Score<HEADWATER_SM90_SHAPE(Element, mapped, d, 64)>)

#define HEADWATER_SM90_ENTRY(kernel, Kernels, stage, Element, mapped, d, dv, rows, keys)                   \
  {HEADWATER_CUDA_ROW(kernel),                                                                             \
   Stage::stage,                                                                                           \
   ::headwater::cuda::sm90::Element::kBf16 ? DType::bf16 : DType::f16,                                     \
   d,                                                                                                      \
   dv,                                                                                                     \
   rows,                                                                                                   \
   keys,                                                                                                   \
   ::headwater::cuda::sm90::kSharedBytes<                                                                  \
       ::headwater::cuda::sm90::Kernels<HEADWATER_SM90_SHAPE(Element, mapped, d, (dv) == 0 ? 64 : (dv))>>, \
   0,                                                                                                      \
   mapped},
#define HEADWATER_SM90_FORWARD_ENTRY(name, Element, mapped, d, dv)                                     \
  HEADWATER_SM90_ENTRY(sm90_causal_forward_##name, CausalForward, sm90_causal, Element, mapped, d, dv, \
                       ::headwater::cuda::sm90::kTile,                                                 \
                       (HEADWATER_SM90_SHAPE(Element, mapped, d, dv)::kKeys))                          \
  HEADWATER_SM90_ENTRY(sm90_memory_forward_##name, MemoryForward, sm90_memory, Element, mapped, d, dv, \
                       ::headwater::cuda::sm90::kTile,                                                 \
                       (HEADWATER_SM90_SHAPE(Element, mapped, d, dv)::kKeys))
#define HEADWATER_SM90_COLUMN_SUMS_ENTRY(name, Element, mapped, d)                                   \
  HEADWATER_SM90_ENTRY(sm90_column_sums_##name, ColumnSums, sm90_column_sums, Element, mapped, d, 0, \
                       ::headwater::cuda::sm90::kTile, ::headwater::cuda::sm90::kTile)
#define HEADWATER_SM90_SCORE_ENTRY(name, Element, mapped, d)                        \
  HEADWATER_SM90_ENTRY(sm90_score_##name, Score, sm90_score, Element, mapped, d, 0, \
                       ::headwater::cuda::sm90::ScoreShape::kQueries,               \
                       ::headwater::cuda::sm90::ScoreShape::kMemoryKeys)

/// Kernels and entries of one type and rule; SIZES: PLAIN or MAPPED.
#define HEADWATER_SM90_LIST(name, SIZES, Element, mapped)                                                  \
  HEADWATER_SM90_##SIZES##_SIZES(HEADWATER_SM90_FORWARD, HEADWATER_SM90_COLUMN_SUMS, HEADWATER_SM90_SCORE, \
                                 name, Element, mapped) Entries sm90_##name##_entries() {                  \
    static const KernelEntry entries[] = {                                                                 \
        HEADWATER_SM90_##SIZES##_SIZES(HEADWATER_SM90_FORWARD_ENTRY, HEADWATER_SM90_COLUMN_SUMS_ENTRY,     \
                                       HEADWATER_SM90_SCORE_ENTRY, name, Element, mapped)};                \
    return entries;                                                                                        \
  }
