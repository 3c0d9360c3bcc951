#include <immintrin.h>

#include "cli/commands/bench/peak.hpp"

namespace headwater::bench {

// vdpbf16ps: 16 sums of two products each, 64 flops an instruction. Twice the latency of an FMA on some processors,
// hence the many chains.
double avx512_bf16_flops(std::int64_t turns) {
  constexpr int kChains = 24;
  constexpr int kTinyPair = 0x2f802f80;  // 2^-32 twice: sums stay finite and normal for any number of turns
  __m512 x[kChains];
  for (__m512& value : x) value = _mm512_set1_ps(1.0f);
  const auto pairs = (__m512bh)_mm512_set1_epi32(kTinyPair);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 32
    for (__m512& value : x) value = _mm512_dpbf16_ps(value, pairs, pairs);
#pragma GCC unroll 32
    for (__m512& value : x) asm volatile("" : "+v"(value));  // the chains are real, none is folded
  }
  return static_cast<double>(turns) * kChains * 64.0;
}

}  // namespace headwater::bench
