#pragma once

/// What kernels are written against. A kernel is a function template
///
///     template <class Context>
///     HEADWATER_CUDA_FUNCTION void name(Context& ctx, const NameParams& p);
///
/// that touches its block only through `ctx`, so that the same source runs on a GPU (GpuContext, below) and on the
/// host (emulation::Context, which checks what a GPU leaves undefined). Both have the members listed here:
///
///   thread() lane() warp() threads()     place in the block; threads() is the block's size; blocks are one-dimensional
///   block_x() .. block_z(), grid_x() ..  place in the grid, and its size
///   shared<T>(bytes, count)              `count` elements at that offset of the dynamic shared memory, a Shared<T>
///   barrier()                            all threads of the block
///   barrier(id, threads)                 whole warps, `threads` in all; id 1 .. 15
///   warp_sync()                          all lanes of the warp; orders their shared memory accesses
///   shuffle(v, lane) shuffle_xor(v, m) shuffle_up(v, d) shuffle_down(v, d)   4-byte values; all lanes take part
///   shuffle_masked(mask, v, lane)        the same among the lanes of mask, each of which must call it
///   ballot(bool) reduce_add(uint32)      over all lanes
///   atomic_add(uint32*, uint32)          global memory; returns the value before
///   fence()                              everything written before is seen by whoever sees a later atomic_add
///   load4/8/16, store4/8/16(p, ...)      one access to global or to shared memory, aligned to its size
///   copy_async16(to, from, valid)        cp.async: 16 bytes of global memory to shared memory; zeros where !valid
///                                        (`from` is not read then, but must be a pointer)
///   copy_commit() copy_wait<N>()         closes a group; waits until at most N groups of this thread are under way
///   load_matrix_x4(r, row) ..            ldmatrix: lane i gives the 16-byte row i % 8 of matrix i / 8
///   mma_bf16(c, a, b) mma_f16(c, a, b)   c += a b, m16n8k16, F32 sums, fragments as in the PTX ISA
///   exp2(x) log2(x) fma(a, b, c)         exp2 flushes subnormal results to zero; exp2(-inf) = 0
///
/// Every warp operation and every barrier is called by all lanes of a warp together. Read an element into a variable
/// of its type (`float x = s[i];`, not `auto`): on the host s[i] is a checked reference. Elements of shared memory have
/// 2 bytes or more. No float atomics, no spinning on memory: blocks run in any order.
#include "cuda/kernels/platform/platform.hpp"

#ifndef __CUDACC__

#include "cuda/emulation/context.hpp"

namespace headwater::cuda {
template <class T>
using Shared = emulation::Shared<T>;
}

#else

#include <cuda_runtime.h>

namespace headwater::cuda {

template <class T>
using Shared = T*;

/// Aligned for the 128-byte swizzle of the tensor memory accelerator.
extern __shared__ __align__(1024) unsigned char dynamic_shared[];

struct GpuContext {
  HEADWATER_CUDA_FUNCTION int thread() const { return static_cast<int>(threadIdx.x); }
  HEADWATER_CUDA_FUNCTION int lane() const { return static_cast<int>(threadIdx.x % kWarp); }
  /// The same in all lanes, and known to be so by the compiler: loops and branches by warp need no masks.
  HEADWATER_CUDA_FUNCTION int warp() const { return warp_; }
  HEADWATER_CUDA_FUNCTION int threads() const { return static_cast<int>(blockDim.x); }
  HEADWATER_CUDA_FUNCTION int block_x() const { return static_cast<int>(blockIdx.x); }
  HEADWATER_CUDA_FUNCTION int block_y() const { return static_cast<int>(blockIdx.y); }
  HEADWATER_CUDA_FUNCTION int block_z() const { return static_cast<int>(blockIdx.z); }
  HEADWATER_CUDA_FUNCTION int grid_x() const { return static_cast<int>(gridDim.x); }
  HEADWATER_CUDA_FUNCTION int grid_y() const { return static_cast<int>(gridDim.y); }
  HEADWATER_CUDA_FUNCTION int grid_z() const { return static_cast<int>(gridDim.z); }

  template <class T>
  HEADWATER_CUDA_FUNCTION Shared<T> shared(int byte_offset, int /*count*/) const {
    static_assert(sizeof(T) >= 2);
    return reinterpret_cast<T*>(dynamic_shared + byte_offset);
  }

  // -- order ---------------------------------------------------------------------------------------------------
  HEADWATER_CUDA_FUNCTION void barrier() const { __syncthreads(); }
  HEADWATER_CUDA_FUNCTION void barrier(int id, int threads) const {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
  }
  HEADWATER_CUDA_FUNCTION void warp_sync() const { __syncwarp(); }
  HEADWATER_CUDA_FUNCTION void fence() const { __threadfence(); }
  HEADWATER_CUDA_FUNCTION std::uint32_t atomic_add(std::uint32_t* global, std::uint32_t value) const {
    return atomicAdd(global, value);
  }

  // -- warp ----------------------------------------------------------------------------------------------------
  template <class T>
  HEADWATER_CUDA_FUNCTION T shuffle(T value, int lane) const {
    static_assert(sizeof(T) == 4);
    return __shfl_sync(0xFFFFFFFFu, value, lane);
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION T shuffle_xor(T value, int mask) const {
    static_assert(sizeof(T) == 4);
    return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION T shuffle_up(T value, int delta) const {
    static_assert(sizeof(T) == 4);
    return __shfl_up_sync(0xFFFFFFFFu, value, static_cast<unsigned>(delta));
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION T shuffle_down(T value, int delta) const {
    static_assert(sizeof(T) == 4);
    return __shfl_down_sync(0xFFFFFFFFu, value, static_cast<unsigned>(delta));
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION T shuffle_masked(std::uint32_t mask, T value, int lane) const {
    static_assert(sizeof(T) == 4);
    return __shfl_sync(mask, value, lane);
  }
  HEADWATER_CUDA_FUNCTION std::uint32_t ballot(bool vote) const { return __ballot_sync(0xFFFFFFFFu, vote); }
  HEADWATER_CUDA_FUNCTION std::uint32_t reduce_add(std::uint32_t value) const {
    return __reduce_add_sync(0xFFFFFFFFu, value);
  }

  // -- memory --------------------------------------------------------------------------------------------------
  template <class T>
  HEADWATER_CUDA_FUNCTION std::uint32_t load4(const T* from) const {
    return *reinterpret_cast<const std::uint32_t*>(from);
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION Words2 load8(const T* from) const {
    return *reinterpret_cast<const Words2*>(from);
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION Words4 load16(const T* from) const {
    return *reinterpret_cast<const Words4*>(from);
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION void store4(T* to, std::uint32_t value) const {
    *reinterpret_cast<std::uint32_t*>(to) = value;
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION void store8(T* to, const Words2& value) const {
    *reinterpret_cast<Words2*>(to) = value;
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION void store16(T* to, const Words4& value) const {
    *reinterpret_cast<Words4*>(to) = value;
  }
  template <class T>
  HEADWATER_CUDA_FUNCTION void copy_async16(Shared<T> to, const T* from, bool valid) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
  }
  HEADWATER_CUDA_FUNCTION void copy_commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int N>
  HEADWATER_CUDA_FUNCTION void copy_wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }

  // -- matrices ------------------------------------------------------------------------------------------------
  HEADWATER_CUDA_FUNCTION void load_matrix_x4(std::uint32_t (&r)[4], Shared<std::uint16_t> row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(row))
                 : "memory");
  }
  HEADWATER_CUDA_FUNCTION void load_matrix_x4_transposed(std::uint32_t (&r)[4],
                                                         Shared<std::uint16_t> row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(row))
                 : "memory");
  }
  HEADWATER_CUDA_FUNCTION void load_matrix_x2(std::uint32_t (&r)[2], Shared<std::uint16_t> row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address(row))
                 : "memory");
  }
  HEADWATER_CUDA_FUNCTION void load_matrix_x2_transposed(std::uint32_t (&r)[2],
                                                         Shared<std::uint16_t> row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address(row))
                 : "memory");
  }
  HEADWATER_CUDA_FUNCTION void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                        const std::uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  HEADWATER_CUDA_FUNCTION void mma_f16(float (&c)[4], const std::uint32_t (&a)[4],
                                       const std::uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

  // -- arithmetic ----------------------------------------------------------------------------------------------
  /// Relative error 2^-22 (PTX ISA, ex2.approx).
  HEADWATER_CUDA_FUNCTION float exp2(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  HEADWATER_CUDA_FUNCTION float log2(float x) const { return log2f(x); }
  HEADWATER_CUDA_FUNCTION float fma(float a, float b, float c) const { return __fmaf_rn(a, b, c); }

 private:
  template <class T>
  HEADWATER_CUDA_FUNCTION static std::uint32_t address(const T* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }

  /// A shuffle, which all lanes have to take part in: when the kernel begins, not where warp() is asked.
  int warp_ = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / kWarp), 0);
};

}  // namespace headwater::cuda

#endif
