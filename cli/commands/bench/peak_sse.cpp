#include <emmintrin.h>

#include "cli/commands/bench/peak.hpp"

namespace headwater::bench {

namespace {

/// Seven chains; named one by one, because g++ 12 keeps a second array of vectors in memory.
struct Chains {
  __m128 a, b, c, d, e, f, g;
};

Chains filled(float value) {
  const __m128 x = _mm_set1_ps(value);
  return {x, x, x, x, x, x, x};
}

}  // namespace

// Without FMA a multiplication and an addition are two instructions, and processors differ in which units take which:
// some have two of each, some share them. Chains of both kinds that do not wait for each other keep all of them busy;
// seven of each fill the sixteen registers beside the constant.
double sse_flops(std::int64_t turns) {
  Chains x = filled(1.5f);
  Chains y = filled(1.5f);
  __m128 one = _mm_set1_ps(1.0f);
  asm volatile("" : "+x"(one));  // a compiler that knew it would leave the multiplications out
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    x = {_mm_mul_ps(x.a, one), _mm_mul_ps(x.b, one), _mm_mul_ps(x.c, one), _mm_mul_ps(x.d, one),
         _mm_mul_ps(x.e, one), _mm_mul_ps(x.f, one), _mm_mul_ps(x.g, one)};
    y = {_mm_add_ps(y.a, one), _mm_add_ps(y.b, one), _mm_add_ps(y.c, one), _mm_add_ps(y.d, one),
         _mm_add_ps(y.e, one), _mm_add_ps(y.f, one), _mm_add_ps(y.g, one)};
    // The chains are real, none is folded.
    asm volatile("" : "+x"(x.a), "+x"(x.b), "+x"(x.c), "+x"(x.d), "+x"(x.e), "+x"(x.f), "+x"(x.g));
    asm volatile("" : "+x"(y.a), "+x"(y.b), "+x"(y.c), "+x"(y.d), "+x"(y.e), "+x"(y.f), "+x"(y.g));
  }
  return static_cast<double>(turns) * 7.0 * 8.0;
}

}  // namespace headwater::bench
