#pragma once

/// The vector types of rows.hpp in AVX-512 (F and BW; every processor that has them has FMA and F16C). For files that
/// hold nothing but kernels: everything sits in an unnamed namespace.

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

struct Avx512Words {
  using Words = __m512i;
  using Sums = __m512;

  static __m256i load32(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Words from_i8(const std::byte* p) { return _mm512_cvtepi8_epi16(load32(p)); }
  static Words from_u8(const std::byte* p) { return _mm512_cvtepu8_epi16(load32(p)); }
  static Words halves(const std::byte* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i low = _mm_and_si128(bytes, nibble);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
    return _mm512_cvtepu8_epi16(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
  }
  static Words sixteens(std::uint32_t bits) { return _mm512_maskz_set1_epi16(bits, 16); }
  static Words both(Words a, Words b) { return _mm512_or_si512(a, b); }
  static Words mask(Words a, short bits) { return _mm512_and_si512(a, _mm512_set1_epi16(bits)); }
  static Words all(short value) { return _mm512_set1_epi16(value); }
  static Words minus(Words a, short b) { return _mm512_sub_epi16(a, _mm512_set1_epi16(b)); }
  template <int K>
  static Words right(Words a) {
    return _mm512_srli_epi16(a, K);
  }
  template <int K>
  static Words left(Words a) {
    return _mm512_slli_epi16(a, K);
  }

  static Sums zero_sums() { return _mm512_setzero_ps(); }
  static __m512 products(Words a, const std::int16_t* x) {
    return _mm512_cvtepi32_ps(_mm512_madd_epi16(a, _mm512_loadu_si512(x)));
  }
  static Sums add_run(Sums sums, Words a, const std::int16_t* x, float scale) {
    return _mm512_fmadd_ps(products(a, x), _mm512_set1_ps(scale), sums);
  }
  static Sums add_runs(Sums sums, Words a, const std::int16_t* x, const float* scales) {
    const __m512 both = _mm512_mask_blend_ps(0xFF00, _mm512_set1_ps(scales[0]), _mm512_set1_ps(scales[1]));
    return _mm512_fmadd_ps(products(a, x), both, sums);
  }
  static float sum_of(Sums a, Sums b) { return _mm512_reduce_add_ps(_mm512_add_ps(a, b)); }

  static __m256 widened(const std::uint8_t* codes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadu_si64(codes)));
  }
  static void runs(const std::uint8_t* codes, float scale, const float* factors, float* out) {
    const __m256 scaled = _mm256_mul_ps(widened(codes), _mm256_set1_ps(scale));
    _mm256_storeu_ps(out, _mm256_mul_ps(scaled, _mm256_loadu_ps(factors)));
  }
  static void signed_runs(const std::byte* codes, float scale, const float* factors, float* out) {
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512 all = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(factors)));
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_mul_ps(wide, _mm512_set1_ps(scale)), all));
  }
  static float dot_runs(const std::uint8_t* codes, const float* x) {
    const __m256 products = _mm256_mul_ps(widened(codes), _mm256_loadu_ps(x));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(products), _mm256_extractf128_ps(products, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace
}  // namespace headwater::runtime
