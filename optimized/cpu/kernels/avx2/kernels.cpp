// AVX2 and FMA float kernels. Kernels and their table only: all code here is built for such a processor.

#include <immintrin.h>

#include "cpu/kernels/sketch_table.hpp"
#include "cpu/kernels/wide/row_kernels.hpp"

namespace headwater::cpu {

namespace {

struct Avx2 {
  using Reg = __m256;
  using Mask = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kAccumulators = 12;  // of 16 registers: 6 keys x 2 vectors, 2 queries, 1 key
  static constexpr int kRows = 4;           // 4 rows x 2 vectors hide the latency of FMA on two ports

  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Reg load_part(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_part(float* p, Reg x, int n) { _mm256_maskstore_ps(p, first(n), x); }
  static Reg set(float x) { return _mm256_set1_ps(x); }
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg ramp() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm256_fnmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg abs(Reg x) { return _mm256_andnot_ps(set(-0.0f), x); }
  static Reg with_sign_of(Reg x, Reg sign) { return _mm256_or_ps(x, _mm256_and_ps(sign, set(-0.0f))); }
  static Reg power_of_two(Reg x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
  }
  static Mask not_less(Reg a, Reg b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
  static Mask less(Reg a, Reg b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Reg mul_where(Mask mask, Reg a, Reg b) { return _mm256_and_ps(mul(a, b), mask); }
  static Reg select(Mask mask, Reg a, Reg b) { return _mm256_blendv_ps(b, a, mask); }

  static Reg load_i8(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
  }
  static Reg load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static Reg load_bf16(const void* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }
  static void load_bf16_pairs(const void* p, Reg& even, Reg& odd) {
    const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static float one_f16(std::uint16_t bits) { return _cvtsh_ss(bits); }
  static float one_bf16(std::uint16_t bits) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }

  static Reg quiet(Reg x) {
    return _mm256_blendv_ps(x, set(__builtin_nanf("")), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  static void store_f16(void* p, Reg x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(quiet(x), _MM_FROUND_TO_NEAREST_INT));
  }
  // SCORE-4 in integers, as the processor's own conversion flushes subnormals.
  static void store_bf16(void* p, Reg x) {
    const __m256i bits = _mm256_castps_si256(quiet(x));
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(last, _mm256_set1_epi32(0x7FFF));
    const __m256i upper = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    _mm_storeu_si128(static_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)));
  }

  static Reg finite_or_zero(Reg x) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, set(-__builtin_inff()), _CMP_EQ_OQ), x);
  }

  static void transpose(Reg (&rows)[kWidth]) {
    Reg fours[kWidth];  // fours[4 g + c]: column c of rows 4 g .. 4 g + 3, beside column 4 + c
    for (int i = 0; i < kWidth; i += 4) {
      const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(rows[i], rows[i + 1]));
      const __m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(rows[i + 2], rows[i + 3]));
      const __m256d x = _mm256_castps_pd(_mm256_unpackhi_ps(rows[i], rows[i + 1]));
      const __m256d y = _mm256_castps_pd(_mm256_unpackhi_ps(rows[i + 2], rows[i + 3]));
      fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
      fours[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
      fours[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
      fours[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
    }
    for (int c = 0; c < 4; ++c) {
      rows[c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20);
      rows[4 + c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31);
    }
  }

  // sums[i] += total of lines[i]: horizontal adds that transpose, then double.
  static void add_line_totals(const Reg (&lines)[8], double* sums) {
    const Reg low = _mm256_hadd_ps(_mm256_hadd_ps(lines[0], lines[1]), _mm256_hadd_ps(lines[2], lines[3]));
    const Reg high = _mm256_hadd_ps(_mm256_hadd_ps(lines[4], lines[5]), _mm256_hadd_ps(lines[6], lines[7]));
    // Each half of `low` holds one half of the totals of lines 0 .. 3.
    const __m128 a = _mm_add_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(high), _mm256_extractf128_ps(high, 1));
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_cvtps_pd(a)));
    _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), _mm256_cvtps_pd(b)));
  }
};

}  // namespace

constinit const KernelTable avx2_kernels =
    wide_kernels<Avx2>("AVX2+FMA", 1024, {count_at_least, core::collect, core::collect_scores});

}  // namespace headwater::cpu
