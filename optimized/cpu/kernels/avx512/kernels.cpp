// AVX-512 float kernels (F, DQ; every processor that has them has FMA). Kernels and their table only: all code here is
// built for such a processor.

#include "cpu/kernels/avx512/vector.hpp"
#include "cpu/kernels/sketch_table.hpp"
#include "cpu/kernels/wide/row_kernels.hpp"

namespace headwater::cpu {

namespace {

/// core::collect
void collect_compressed(const std::uint32_t* keys, std::int64_t count, std::uint32_t mask,
                        std::uint32_t threshold, std::int64_t ties, std::int64_t /*wanted*/,
                        std::int32_t* chosen) {
  constexpr std::int64_t kKeys = 16;
  const __m512i masks = _mm512_set1_epi32(static_cast<int>(mask));
  const __m512i thresholds = _mm512_set1_epi32(static_cast<int>(threshold));
  __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (std::int64_t first = 0; first < count; first += kKeys) {
    const __mmask16 there = Avx512::first(static_cast<int>(least(kKeys, count - first)));
    const __m512i key = _mm512_and_si512(_mm512_maskz_loadu_epi32(there, keys + first), masks);
    unsigned equal = _mm512_mask_cmpeq_epi32_mask(there, key, thresholds);
    while (__builtin_popcount(equal) > ties) equal &= ~(1u << (31 - __builtin_clz(equal)));
    ties -= __builtin_popcount(equal);
    const unsigned above = _mm512_mask_cmpgt_epu32_mask(there, key, thresholds);
    const auto taken = static_cast<__mmask16>(above | equal);
    const int n = __builtin_popcount(taken);
    _mm512_mask_storeu_epi32(chosen, Avx512::first(n), _mm512_maskz_compress_epi32(taken, index));
    chosen += n;
    index = _mm512_add_epi32(index, _mm512_set1_epi32(kKeys));
  }
}

/// core::collect_scores
std::int64_t collect_scores_compressed(const float* scores, std::int64_t count, float threshold,
                                       std::int32_t* indices, std::uint32_t* keys) {
  constexpr std::int64_t kScores = 16;
  const __m512 limit = Avx512::set(threshold);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::int64_t written = 0;
  for (std::int64_t first = 0; first < count; first += kScores) {
    const __mmask16 there = Avx512::first(static_cast<int>(least(kScores, count - first)));
    const __m512 score = _mm512_maskz_loadu_ps(there, scores + first);
    const __mmask16 taken = _mm512_mask_cmp_ps_mask(there, score, limit, _CMP_GE_OQ);
    if (taken == 0) continue;
    const __m512i bits = _mm512_castps_si512(score);
    const __m512i flipped = _mm512_xor_si512(bits, _mm512_or_si512(_mm512_srai_epi32(bits, 31), sign));
    const __m512i key = _mm512_mask_mov_epi32(flipped, _mm512_cmpeq_epi32_mask(bits, sign), sign);
    const __m512i index = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first)));
    const int n = __builtin_popcount(taken);
    _mm512_mask_storeu_epi32(indices + written, Avx512::first(n), _mm512_maskz_compress_epi32(taken, index));
    _mm512_mask_storeu_epi32(keys + written, Avx512::first(n), _mm512_maskz_compress_epi32(taken, key));
    written += n;
  }
  return written;
}

}  // namespace

// Segments of 256 keys: 32 KiB of weights; a quarter of a second-level cache of 1 MiB with keys and values.
constinit const KernelTable avx512_kernels =
    wide_kernels<Avx512>("AVX-512", 256, {count_at_least, collect_compressed, collect_scores_compressed});

}  // namespace headwater::cpu
