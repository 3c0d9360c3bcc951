#include "runtime/model/kernels/interleave.hpp"

#include <emmintrin.h>

namespace headwater::runtime {
namespace {

__m128i load(const std::uint32_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
void store(std::uint32_t* p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }

/// Four rows of four words.
void turn_square(const std::uint32_t* from, std::int64_t from_stride, std::uint32_t* to,
                 std::int64_t to_stride) {
  const __m128i a = load(from);
  const __m128i b = load(from + from_stride);
  const __m128i c = load(from + 2 * from_stride);
  const __m128i d = load(from + 3 * from_stride);
  const __m128i ab = _mm_unpacklo_epi32(a, b);
  const __m128i cd = _mm_unpacklo_epi32(c, d);
  const __m128i ab_last = _mm_unpackhi_epi32(a, b);
  const __m128i cd_last = _mm_unpackhi_epi32(c, d);
  store(to, _mm_unpacklo_epi64(ab, cd));
  store(to + to_stride, _mm_unpackhi_epi64(ab, cd));
  store(to + 2 * to_stride, _mm_unpacklo_epi64(ab_last, cd_last));
  store(to + 3 * to_stride, _mm_unpackhi_epi64(ab_last, cd_last));
}

}  // namespace

void interleave_rows(const std::uint32_t* from, std::int64_t from_stride, std::int64_t rows, std::int64_t n,
                     std::uint32_t* to, std::int64_t to_stride) {
  const std::int64_t whole_rows = rows / 4 * 4;
  const std::int64_t whole_words = n / 4 * 4;
  // All rows of four words before the next four: their stores then fill whole cache lines.
  for (std::int64_t k = 0; k < whole_words; k += 4) {
    for (std::int64_t r = 0; r < whole_rows; r += 4) {
      turn_square(from + r * from_stride + k, from_stride, to + k * to_stride + r, to_stride);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k = r < whole_rows ? whole_words : 0; k < n; ++k) {
      to[k * to_stride + r] = from[r * from_stride + k];
    }
  }
}

}  // namespace headwater::runtime
