#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/sm90/elements.hpp"
#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/matrix_descriptor.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"

/// The multiprocessor as the kernels see it: PTX of sm_90a, an instruction a function. cuda/emulation/sm90.hpp is the
/// same in software.
namespace headwater::cuda::sm90 {

// The accumulators `c` of a product of n64 or n128 columns: their places in the text of the instruction, and its operands.
#define HEADWATER_PLACES_n64                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HEADWATER_PLACES_n128                                                            \
  HEADWATER_PLACES_n64                                                                   \
      ", "                                                                               \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HEADWATER_EIGHT(i)                                                                              \
  "+f"(c[i]), "+f"(c[(i) + 1]), "+f"(c[(i) + 2]), "+f"(c[(i) + 3]), "+f"(c[(i) + 4]), "+f"(c[(i) + 5]), \
      "+f"(c[(i) + 6]), "+f"(c[(i) + 7])
#define HEADWATER_SUMS_n64 HEADWATER_EIGHT(0), HEADWATER_EIGHT(8), HEADWATER_EIGHT(16), HEADWATER_EIGHT(24)
#define HEADWATER_SUMS_n128 \
  HEADWATER_SUMS_n64, HEADWATER_EIGHT(32), HEADWATER_EIGHT(40), HEADWATER_EIGHT(48), HEADWATER_EIGHT(56)
#define HEADWATER_WORDS(a) "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3])
// `operands`: what stands after the accumulators; `accumulate`: the place of the number that says whether they are added to.
#define HEADWATER_WGMMA(type, n, operands, accumulate, ...)                                      \
  asm volatile(                                                                                  \
      "{\n"                                                                                      \
      ".reg .pred p;\n"                                                                          \
      "setp.ne.b32 p, " accumulate                                                               \
      ", 0;\n"                                                                                   \
      "wgmma.mma_async.sync.aligned.m64" #n "k16.f32." #type "." #type " {" HEADWATER_PLACES_##n \
      "}, " operands                                                                             \
      ";\n"                                                                                      \
      "}"                                                                                        \
      : HEADWATER_SUMS_##n                                                                       \
      : __VA_ARGS__)
#define HEADWATER_PRODUCT(n, operands, accumulate, ...)          \
  if constexpr (Element::kBf16) {                                \
    HEADWATER_WGMMA(bf16, n, operands, accumulate, __VA_ARGS__); \
  } else {                                                       \
    HEADWATER_WGMMA(f16, n, operands, accumulate, __VA_ARGS__);  \
  }

class PtxMachine {
 public:
  using Barrier = std::uint64_t;  ///< mbarrier object

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  /// The same in all lanes of a warp, and known to be: branches on it are uniform.
  __device__ __forceinline__ int warpgroup() const { return warpgroup_; }
  __device__ __forceinline__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int blocks() const { return static_cast<int>(gridDim.x); }

  /// Dynamic shared memory, from the first multiple of 1024 bytes on: the swizzle is one of addresses.
  template <class Smem>
  __device__ __forceinline__ Smem& shared() {
    extern __shared__ unsigned char raw[];
    const std::uint32_t start = shared_address(raw);
    return *reinterpret_cast<Smem*>(raw + ((1024u - (start & 1023u)) & 1023u));
  }
  __device__ __forceinline__ std::uint32_t shared_address(const void* at) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  }
  __device__ __forceinline__ std::uint32_t load_word(const void* base, std::uint32_t offset) const {
    return *reinterpret_cast<const std::uint32_t*>(static_cast<const unsigned char*>(base) + offset);
  }

  // ---- barriers ----

  __device__ __forceinline__ void start(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals));
  }
  /// Barriers started by one thread become visible to the others and to the copy engine.
  __device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
  }
  __device__ __forceinline__ void arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
  }
  __device__ __forceinline__ void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
                 "r"(bytes)
                 : "memory");
  }
  /// Until the phase of this parity is complete.
  __device__ __forceinline__ void wait(Barrier& barrier, std::uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}" ::"r"(shared_address(&barrier)),
        "r"(parity)
        : "memory");
  }
  __device__ __forceinline__ void sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
  }
  __device__ __forceinline__ void arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
  }
  __device__ __forceinline__ void warp_sync() { __syncwarp(); }

  // ---- registers of a role ----

  template <int Count>
  __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
  }
  template <int Count>
  __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
  }

  // ---- copies ----

  __device__ __forceinline__ void load_box(void* to, const TensorMap& map, Barrier& full, int column,
                                           int token, int chunk, int head) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&full)), "r"(column), "r"(token),
        "r"(chunk), "r"(head)
        : "memory");
  }
  /// A multiple of 16 bytes, both ends aligned to 16.
  __device__ __forceinline__ void load_bytes(void* to, const void* from, std::uint32_t bytes, Barrier& full) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(&full))
        : "memory");
  }
  __device__ __forceinline__ void store_pair(float* to, float first, float second) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
  }
  __device__ __forceinline__ void load_pair(const float* from, float& first, float& second) {
    const float2 pair = *reinterpret_cast<const float2*>(from);
    first = pair.x;
    second = pair.y;
  }
  /// Two 16-bit elements, the first in the low half.
  __device__ __forceinline__ void store_word(std::uint16_t* to, std::uint32_t pair) {
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  }

  // ---- arithmetic ----

  __device__ __forceinline__ float shuffle_xor(float x, int mask) const {
    return __shfl_xor_sync(0xFFFFFFFFu, x, mask);
  }
  __device__ __forceinline__ float maximum(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ float multiply_add(float a, float b, float c) const { return fmaf(a, b, c); }
  __device__ __forceinline__ float exp2(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ __forceinline__ float log2(float x) const {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  /// Of numbers whose quotient is one: two units in the last place.
  __device__ __forceinline__ float quotient(float a, float b) const { return __fdividef(a, b); }

  /// A sum of weights, and so every weight in it, is computed before what follows. The compiler would move exponentials
  /// after the next wait for products, beside which they should run; it keeps the order of that wait and of a store, so
  /// here is one that infinite sums would do, to a word that nobody reads.
  __device__ __forceinline__ void pin(float sum, float& unread) {
    asm volatile(
        "{\n"
        ".reg .pred infinite;\n"
        "setp.eq.f32 infinite, %0, 0f7F800000;\n"
        "@infinite st.shared.f32 [%1], %0;\n"
        "}" ::"f"(sum),
        "r"(shared_address(&unread))
        : "memory");
  }

  // ---- products, m64n128k16 and, of 64 keys or columns of values, m64n64k16 ----

  /// Registers of products that follow have been written or read by other instructions before.
  template <int Count>
  __device__ __forceinline__ void fence_operands(float (&accumulators)[Count]) {
    settle(accumulators);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  }
  template <int Count, int Words>
  __device__ __forceinline__ void fence_operands(float (&accumulators)[Count],
                                                 std::uint32_t (&words)[Words]) {
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < Words; ++i) asm volatile("" : "+r"(words[i])::"memory");
    fence_operands(accumulators);
  }
  __device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  /// Until at most Pending groups of products are on their way; `accumulators` are then done.
  template <int Pending, int Count>
  __device__ __forceinline__ void wait_products(float (&accumulators)[Count]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
    settle(accumulators);
  }

  /// c (+)= a b^T, both in shared memory and k-major.
  template <class Element>
  __device__ __forceinline__ void multiply(float (&c)[kAccumulators], MatrixDescriptor a, MatrixDescriptor b,
                                           bool accumulate) {
    HEADWATER_PRODUCT(n128, "%64, %65, p, 1, 1, 0, 0", "%66", "l"(a.bits), "l"(b.bits),
                      "r"(static_cast<int>(accumulate)));
  }
  template <class Element>
  __device__ __forceinline__ void multiply(float (&c)[kAccumulators / 2], MatrixDescriptor a,
                                           MatrixDescriptor b, bool accumulate) {
    HEADWATER_PRODUCT(n64, "%32, %33, p, 1, 1, 0, 0", "%34", "l"(a.bits), "l"(b.bits),
                      "r"(static_cast<int>(accumulate)));
  }
  /// The same with a in registers (operand_place).
  template <class Element>
  __device__ __forceinline__ void multiply(float (&c)[kAccumulators], const std::uint32_t* a,
                                           MatrixDescriptor b, bool accumulate) {
    HEADWATER_PRODUCT(n128, "{%64, %65, %66, %67}, %68, p, 1, 1, 0", "%69", HEADWATER_WORDS(a), "l"(b.bits),
                      "r"(static_cast<int>(accumulate)));
  }
  /// c += a b, a in registers, the columns of b contiguous.
  template <class Element>
  __device__ __forceinline__ void multiply_transposed(float (&c)[kAccumulators], const std::uint32_t* a,
                                                      MatrixDescriptor b) {
    HEADWATER_PRODUCT(n128, "{%64, %65, %66, %67}, %68, p, 1, 1, 1", "%69", HEADWATER_WORDS(a), "l"(b.bits),
                      "r"(1));
  }
  template <class Element>
  __device__ __forceinline__ void multiply_transposed(float (&c)[kAccumulators / 2], const std::uint32_t* a,
                                                      MatrixDescriptor b) {
    HEADWATER_PRODUCT(n64, "{%32, %33, %34, %35}, %36, p, 1, 1, 1", "%37", HEADWATER_WORDS(a), "l"(b.bits),
                      "r"(1));
  }

 private:
  int warpgroup_ = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);

  /// Keeps the compiler from moving uses of the registers across.
  template <int Count>
  __device__ __forceinline__ void settle(float (&accumulators)[Count]) {
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
  }
};

#undef HEADWATER_PRODUCT
#undef HEADWATER_WGMMA
#undef HEADWATER_WORDS
#undef HEADWATER_SUMS_n128
#undef HEADWATER_SUMS_n64
#undef HEADWATER_EIGHT
#undef HEADWATER_PLACES_n128
#undef HEADWATER_PLACES_n64

}  // namespace headwater::cuda::sm90
