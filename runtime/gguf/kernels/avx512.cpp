// Row kernels for AVX-512 (F and BW; every processor that has them has FMA and F16C).

#include <immintrin.h>

#include "runtime/gguf/kernels/rows.hpp"

namespace headwater::runtime {
namespace {

struct Avx512 {
  using Reg = __m512;
  static constexpr int kWidth = 16;

  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg r) { _mm512_storeu_ps(p, r); }
  static Reg set(float x) { return _mm512_set1_ps(x); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Reg r) { return _mm512_reduce_add_ps(r); }

  static Reg from_codes(const std::int8_t* codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
  }
  static Reg from_f16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Reg from_bf16(const std::byte* p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  }
};

constexpr RowKernels kKernels = make_row_kernels<Avx512>("AVX-512");

}  // namespace

const RowKernels& avx512_row_kernels() { return kKernels; }

}  // namespace headwater::runtime
