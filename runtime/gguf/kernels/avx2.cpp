// Row kernels for AVX2 with FMA and F16C.

#include <immintrin.h>

#include "runtime/gguf/kernels/rows.hpp"

namespace headwater::runtime {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int kWidth = 8;

  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Reg r) { _mm256_storeu_ps(p, r); }
  static Reg set(float x) { return _mm256_set1_ps(x); }
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Reg r) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(r), _mm256_extractf128_ps(r, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  static Reg from_codes(const std::int8_t* codes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(codes)));
  }
  static Reg from_f16(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Reg from_bf16(const std::byte* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }
};

struct Avx2Words {
  struct Words {
    __m256i first, last;
  };
  using Sums = __m256;

  static __m128i load16(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static Words from_i8(const std::byte* p) {
    return {_mm256_cvtepi8_epi16(load16(p)), _mm256_cvtepi8_epi16(load16(p + 16))};
  }
  static Words from_u8(const std::byte* p) {
    return {_mm256_cvtepu8_epi16(load16(p)), _mm256_cvtepu8_epi16(load16(p + 16))};
  }
  static Words halves(const std::byte* p) {
    const __m256i bytes = _mm256_cvtepu8_epi16(load16(p));
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(15)), _mm256_srli_epi16(bytes, 4)};
  }
  static Words sixteens(std::uint32_t bits) {
    const __m256i own = _mm256_set_epi16(-0x8000, 0x4000, 0x2000, 0x1000, 0x800, 0x400, 0x200, 0x100, 0x80,
                                         0x40, 0x20, 0x10, 8, 4, 2, 1);
    const auto half = [&](std::uint32_t sixteen) {
      const __m256i all = _mm256_set1_epi16(static_cast<short>(sixteen));
      const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(all, own), own);
      return _mm256_and_si256(set, _mm256_set1_epi16(16));
    };
    return {half(bits & 0xFFFF), half(bits >> 16)};
  }
  static Words both(Words a, Words b) {
    return {_mm256_or_si256(a.first, b.first), _mm256_or_si256(a.last, b.last)};
  }
  static Words mask(Words a, short bits) {
    const __m256i all = _mm256_set1_epi16(bits);
    return {_mm256_and_si256(a.first, all), _mm256_and_si256(a.last, all)};
  }
  static Words all(short value) { return {_mm256_set1_epi16(value), _mm256_set1_epi16(value)}; }
  static Words minus(Words a, short b) {
    const __m256i all = _mm256_set1_epi16(b);
    return {_mm256_sub_epi16(a.first, all), _mm256_sub_epi16(a.last, all)};
  }
  template <int K>
  static Words right(Words a) {
    return {_mm256_srli_epi16(a.first, K), _mm256_srli_epi16(a.last, K)};
  }
  template <int K>
  static Words left(Words a) {
    return {_mm256_slli_epi16(a.first, K), _mm256_slli_epi16(a.last, K)};
  }

  static Sums zero_sums() { return _mm256_setzero_ps(); }
  static __m256i products(__m256i a, const std::int16_t* x) {
    return _mm256_madd_epi16(a, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  static Sums add_run(Sums sums, Words a, const std::int16_t* x, float scale) {
    const __m256i dots = _mm256_add_epi32(products(a.first, x), products(a.last, x + 16));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(scale), sums);
  }
  static Sums add_runs(Sums sums, Words a, const std::int16_t* x, const float* scales) {
    sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products(a.first, x)), _mm256_set1_ps(scales[0]), sums);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(products(a.last, x + 16)), _mm256_set1_ps(scales[1]), sums);
  }
  static float sum_of(Sums a, Sums b) { return Avx2::sum(_mm256_add_ps(a, b)); }

  static __m256 widened(const std::uint8_t* codes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadu_si64(codes)));
  }
  static void runs(const std::uint8_t* codes, float scale, const float* factors, float* out) {
    const __m256 scaled = _mm256_mul_ps(widened(codes), _mm256_set1_ps(scale));
    _mm256_storeu_ps(out, _mm256_mul_ps(scaled, _mm256_loadu_ps(factors)));
  }
  static void signed_runs(const std::byte* codes, float scale, const float* factors, float* out) {
    const __m256 all = _mm256_loadu_ps(factors);
    const __m256 first = _mm256_permutevar8x32_ps(all, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0));
    const __m256 last = _mm256_permutevar8x32_ps(all, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4));
    const __m256 scales = _mm256_set1_ps(scale);
    for (int half = 0; half < 2; ++half) {
      const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(codes + 8 * half)));
      _mm256_storeu_ps(out + 8 * half, _mm256_mul_ps(_mm256_mul_ps(wide, scales), half == 0 ? first : last));
    }
  }
  static float dot_runs(const std::uint8_t* codes, const float* x) {
    return Avx2::sum(_mm256_mul_ps(widened(codes), _mm256_loadu_ps(x)));
  }
};

}  // namespace

constinit const RowKernels avx2_row_kernels = [] {
  RowKernels kernels = make_row_kernels_with_integers<Avx2, Avx2Words>("AVX2");
  kernels.bytes = &avx2_byte_kernels;
  kernels.words = &avx2_word_kernels;
  return kernels;
}();

}  // namespace headwater::runtime
