#include "cli/commands/bench/read_rate.hpp"

#include <emmintrin.h>

#include <algorithm>
#include <chrono>

namespace headwater::bench {

namespace {

/// Sums whole lines; four chains of additions, so that loads alone decide.
std::int64_t read_lines(const std::byte* from, std::int64_t lines) {
  constexpr std::int64_t kLine = 64;
  __m128i sums[4] = {};
  for (std::int64_t line = 0; line < lines; ++line) {
    const auto* at = reinterpret_cast<const __m128i*>(from + line * kLine);
    for (int i = 0; i < 4; ++i) sums[i] = _mm_add_epi64(sums[i], _mm_load_si128(at + i));
  }
  const __m128i sum = _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  return _mm_cvtsi128_si64(sum) + _mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum));
}

}  // namespace

double read_seconds(const LineBytes& bytes, int threads) {
  constexpr std::int64_t kLine = 64;
  const auto lines = static_cast<std::int64_t>(bytes.size()) / kLine;
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t sum = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : sum)
  for (int thread = 0; thread < threads; ++thread) {
    const std::int64_t first = lines * thread / threads;
    sum += read_lines(bytes.data() + first * kLine, lines * (thread + 1) / threads - first);
  }
  asm volatile("" : : "r"(sum));  // the loop must have happened
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace headwater::bench
