#include <immintrin.h>

#include "cli/commands/bench/peak.hpp"

namespace headwater::bench {

double avx512_flops(std::int64_t turns) {
  constexpr int kChains = 20;
  __m512 x[kChains];
  for (__m512& value : x) value = _mm512_set1_ps(1.0f);
  const __m512 half = _mm512_set1_ps(0.5f);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 32
    for (__m512& value : x) value = _mm512_fmadd_ps(value, half, half);
#pragma GCC unroll 32
    for (__m512& value : x) asm volatile("" : "+v"(value));  // the chains are real, none is folded
  }
  return static_cast<double>(turns) * kChains * 32.0;
}

}  // namespace headwater::bench
