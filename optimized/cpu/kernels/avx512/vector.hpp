#pragma once

/// The AVX-512 vector type of the float kernels (F, DQ; every processor that has them has FMA). For files that hold
/// nothing but kernels: everything sits in an unnamed namespace.

#include <immintrin.h>

#include <cstdint>

namespace headwater::cpu {

namespace {

/// 16 x 16 matrix of 32-bit elements in registers.
inline void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i fours[16];
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // Quarter q of fours[4 g + c] holds column 4 q + c of rows 4 g .. 4 g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x88);
    const __m512i x = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xDD);
    const __m512i y = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xDD);
    rows[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(a, b, 0xDD);
    rows[4 + c] = _mm512_shuffle_i32x4(x, y, 0x88);
    rows[12 + c] = _mm512_shuffle_i32x4(x, y, 0xDD);
  }
}

struct Avx512 {
  using Reg = __m512;
  using Mask = __mmask16;
  static constexpr int kWidth = 16;
  static constexpr int kAccumulators = 24;  // of 32 registers: 12 keys x 2 vectors, 2 queries, 1 key
  static constexpr int kRows = 8;           // 8 rows x 2 vectors hide the latency of FMA on two ports

  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Reg load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_part(float* p, Reg x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static Reg set(float x) { return _mm512_set1_ps(x); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg ramp() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm512_fnmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg abs(Reg x) { return _mm512_abs_ps(x); }
  static Reg with_sign_of(Reg x, Reg sign) { return _mm512_or_ps(x, _mm512_and_ps(sign, set(-0.0f))); }
  static Reg power_of_two(Reg x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23));
  }
  static Mask not_less(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
  static Mask less(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Reg mul_where(Mask mask, Reg a, Reg b) { return _mm512_maskz_mul_ps(mask, a, b); }
  static Reg select(Mask mask, Reg a, Reg b) { return _mm512_mask_blend_ps(mask, b, a); }

  /// Lanes of the mask side by side, zeros after them.
  static void store_chosen(float* p, Mask mask, Reg x) {
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps(mask, x));
  }

  static Reg load_i8(const void* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  static Reg load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static Reg load_bf16(const void* p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  }
  static void load_bf16_pairs(const void* p, Reg& even, Reg& odd) {
    const __m512i bits = _mm512_loadu_si512(p);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static float one_f16(std::uint16_t bits) { return _cvtsh_ss(bits); }
  static float one_bf16(std::uint16_t bits) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }

  static Reg quiet(Reg x) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x, set(__builtin_nanf("")));
  }
  static void store_f16(void* p, Reg x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(quiet(x), _MM_FROUND_TO_NEAREST_INT));
  }
  // SCORE-4 in integers, as the processor's own conversion flushes subnormals.
  static void store_bf16(void* p, Reg x) {
    const __m512i bits = _mm512_castps_si512(quiet(x));
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(last, _mm512_set1_epi32(0x7FFF));
    const __m512i upper = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(upper));
  }

  static Reg finite_or_zero(Reg x) {
    const __mmask16 bottom = _mm512_cmp_ps_mask(x, set(-__builtin_inff()), _CMP_EQ_OQ);
    return _mm512_mask_blend_ps(bottom, x, zero());
  }

  static void transpose(Reg (&rows)[kWidth]) {
    __m512i bits[kWidth];
    for (int i = 0; i < kWidth; ++i) bits[i] = _mm512_castps_si512(rows[i]);
    cpu::transpose(bits);
    for (int i = 0; i < kWidth; ++i) rows[i] = _mm512_castsi512_ps(bits[i]);
  }

  // sums[i] += total of lines[i]: a transposing tree of adds, then double.
  static void add_line_totals(const Reg (&lines)[16], double* sums) {
    Reg pairs[8];
    for (int i = 0; i < 8; ++i) {
      const Reg a = lines[2 * i];
      const Reg b = lines[2 * i + 1];
      pairs[i] = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));  // a b a b in every quarter
    }
    Reg fours[4];
    for (int i = 0; i < 4; ++i) {
      const __m512d a = _mm512_castps_pd(pairs[2 * i]);
      const __m512d b = _mm512_castps_pd(pairs[2 * i + 1]);
      fours[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    // Every quarter of fours[i] holds partial totals of lines 4i .. 4i + 3; add the quarters up, in line order.
    const Reg low =
        add(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88), _mm512_shuffle_f32x4(fours[0], fours[1], 0xDD));
    const Reg high =
        add(_mm512_shuffle_f32x4(fours[2], fours[3], 0x88), _mm512_shuffle_f32x4(fours[2], fours[3], 0xDD));
    const Reg total = add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(total));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(total, 1));
    _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), first));
    _mm512_storeu_pd(sums + 8, _mm512_add_pd(_mm512_loadu_pd(sums + 8), second));
  }
};

}  // namespace

}  // namespace headwater::cpu
