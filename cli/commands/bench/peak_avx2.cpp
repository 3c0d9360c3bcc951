#include <immintrin.h>

#include "cli/commands/bench/peak.hpp"

namespace headwater::bench {

double avx2_flops(std::int64_t turns) {
  constexpr int kChains = 12;
  __m256 x[kChains];
  for (__m256& value : x) value = _mm256_set1_ps(1.0f);
  const __m256 half = _mm256_set1_ps(0.5f);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 32
    for (__m256& value : x) value = _mm256_fmadd_ps(value, half, half);
#pragma GCC unroll 32
    for (__m256& value : x) asm volatile("" : "+x"(value));  // the chains are real, none is folded
  }
  return static_cast<double>(turns) * kChains * 16.0;
}

}  // namespace headwater::bench
