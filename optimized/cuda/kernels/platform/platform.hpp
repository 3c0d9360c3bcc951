#pragma once

#include <cstdint>

/// One source, two compilers: nvcc makes the GPU's code, g++ the emulation's. A function of a kernel begins with
/// HEADWATER_CUDA_FUNCTION; loops over registers are unrolled by HEADWATER_CUDA_UNROLL (an array that is indexed by a
/// variable would go to local memory).
#ifdef __CUDACC__
#define HEADWATER_CUDA_FUNCTION __device__ __forceinline__
#define HEADWATER_CUDA_UNROLL _Pragma("unroll")
#else
#define HEADWATER_CUDA_FUNCTION inline
#define HEADWATER_CUDA_UNROLL
#endif

namespace headwater::cuda {

inline constexpr int kWarp = 32;
/// Dynamic shared memory of one block: 227 KB on sm_90, 163 KB on sm_80.
inline constexpr int kSharedLimitSm90 = 232448;
inline constexpr int kSharedLimitSm80 = 166912;

/// Largest grid.
inline constexpr unsigned kMostBlocksX = 0x7FFFFFFFu;
inline constexpr unsigned kMostBlocksYZ = 0xFFFFu;

/// What one load or store moves: 8 or 16 bytes in 32-bit words, the first one at the lowest address.
struct alignas(8) Words2 {
  std::uint32_t word[2];
};
struct alignas(16) Words4 {
  std::uint32_t word[4];
};

struct Grid {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

}  // namespace headwater::cuda
