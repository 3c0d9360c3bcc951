#include <emmintrin.h>

#include "peak.hpp"

namespace headwater::bench {

double sse_flops(std::int64_t turns) {
  constexpr int kChains = 12;
  __m128 x[kChains];
  for (__m128& value : x) value = _mm_set1_ps(1.0f);
  const __m128 half = _mm_set1_ps(0.5f);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (__m128& value : x) value = _mm_add_ps(_mm_mul_ps(value, half), half);
    for (__m128& value : x) asm volatile("" : "+x"(value));  // the chains are real, none is folded
  }
  return static_cast<double>(turns) * kChains * 8.0;
}

}  // namespace headwater::bench
