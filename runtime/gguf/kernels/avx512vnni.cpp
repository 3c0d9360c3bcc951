// Row kernels for AVX-512 with VNNI: the other AVX-512 kernels, and these dot products with rows in fixed point.
//
// Codes stay bytes. An activation of 16 bits is 256 h + l with h signed and l unsigned, and vpdpbusd multiplies unsigned
// bytes with signed ones: codes with h, then l with codes. Four neighbours add up in each lane of 32 bits, exactly; a
// zero point comes off in integers as well. Runs are scaled lane by lane, so that a register takes several.

#include "runtime/gguf/kernels/avx512.hpp"

namespace headwater::runtime {
namespace {

inline constexpr int kRegister = 64;  // bytes

inline __m512i load(const void* p) { return _mm512_loadu_si512(p); }
inline __m512 load_floats(const std::byte* p) { return _mm512_loadu_ps(reinterpret_cast<const float*>(p)); }
/// The same 32 bytes in both halves.
inline __m512i load_twice(const std::byte* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

/// Bits turn left inside each eight bytes, by First in the lower half and by Last in the upper one. Masks after it take
/// what came from a neighbouring byte.
template <int First, int Last>
inline __m512i turn_halves(__m512i x) {
  const __m512i counts = _mm512_set_epi64(Last & 63, Last & 63, Last & 63, Last & 63, First & 63, First & 63,
                                          First & 63, First & 63);
  return _mm512_rolv_epi64(x, counts);
}

/// The lower nibble of each byte of `low`, and of `high` those of its other bits that Mask has.
template <char Mask>
inline __m512i join(__m512i low, __m512i high) {
  constexpr int kSelect = 0xCA;  // first ? second : third
  const __m512i both = _mm512_ternarylogic_epi64(_mm512_set1_epi8(15), low, high, kSelect);
  return _mm512_and_si512(both, _mm512_set1_epi8(Mask));
}

/// 64 codes with 64 activations: h in 64 bytes, then l.
inline __m512i dot_codes(__m512i codes, const std::byte* x) {
  const __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, load(x));
  return _mm512_dpbusd_epi32(_mm512_slli_epi32(high, 8), load(x + kRegister), codes);
}

/// The same, added to `start`.
inline __m512i dot_codes(__m512i codes, const std::byte* x, __m512i start) {
  const __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, load(x));
  return _mm512_add_epi32(_mm512_slli_epi32(high, 8), _mm512_dpbusd_epi32(start, load(x + kRegister), codes));
}

inline __m512 add_scaled(__m512 sums, __m512i dots, __m512 scales) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, sums);
}

// ---- activations as these kernels read them ----------------------------------------------------------------------

inline void split(const std::int16_t* codes, int n, std::byte* high, std::byte* low) {
  for (int i = 0; i < n; ++i) high[i] = static_cast<std::byte>(codes[i] >> 8);
  for (int i = 0; i < n; ++i) low[i] = static_cast<std::byte>(codes[i] & 255);
}

inline void store_float(std::byte* p, int i, float value) {
  __builtin_memcpy(p + 4 * i, &value, sizeof value);
}

/// For `bytes` of stored codes a register of lanes: -zero times the sum of the activations that a lane adds up.
inline void store_lane(std::byte* p, int i, int sum, int zero) {
  const std::int32_t value = -zero * sum;
  __builtin_memcpy(p + 4 * i, &value, sizeof value);
}

inline int sum_of_four(const std::int16_t* codes) { return codes[0] + codes[1] + codes[2] + codes[3]; }

/// Four times 64 activations of a block of 256: what Q4_K, Q5_K and Q6_K begin with.
inline constexpr int kBlockCodes = 8 * kRegister;
inline void arrange_codes(const std::int16_t* codes, std::byte* out) {
  for (int part = 0; part < 4; ++part) {
    split(codes + 64 * part, 64, out + 128 * part, out + 128 * part + kRegister);
  }
}

/// Q4_K and Q5_K. After the codes four scales, four sums, four scales, four sums: the order in which scales and
/// minima of a block unpack.
inline constexpr int kMinimaStep = kBlockCodes + kRegister;
void arrange_minima(const FixedRow& x, std::int64_t n, std::byte* out) {
  for (std::int64_t first = 0; first < n; first += 256, out += kMinimaStep) {
    arrange_codes(x.codes + first, out);
    const float* const scales = x.scales + first / kFixedRun;
    const float* const sums = x.sums + first / kFixedRun;
    for (int i = 0; i < 8; ++i) {
      const int at = i + i / 4 * 4;
      store_float(out + kBlockCodes, at, scales[i]);
      store_float(out + kBlockCodes, at + 4, sums[i]);
    }
  }
}

/// Q6_K. After the codes what the zero point takes off each lane, and a scale for each run of 16.
inline constexpr int kSixZero = 32;
inline constexpr int kSixStep = kBlockCodes + 5 * kRegister;
void arrange_six(const FixedRow& x, std::int64_t n, std::byte* out) {
  for (std::int64_t first = 0; first < n; first += 256, out += kSixStep) {
    arrange_codes(x.codes + first, out);
    for (int i = 0; i < 64; ++i) {
      store_lane(out + kBlockCodes, i, sum_of_four(x.codes + first + 4 * i), kSixZero);
    }
    for (int i = 0; i < 16; ++i) {
      store_float(out + kBlockCodes + 4 * kRegister, i, x.scales[first / kFixedRun + i / 2]);
    }
  }
}

/// Q4_0, four blocks at a time: the first halves of all four, their second halves, what the zero point takes off each
/// lane, and the scales, four lanes each. Blocks after the last are zero.
inline constexpr int kFourZero = 8;
inline constexpr int kFourStep = 6 * kRegister;
void arrange_four(const FixedRow& x, std::int64_t n, std::byte* out) {
  const std::int16_t nothing[kFixedRun] = {};
  for (std::int64_t first = 0; first < n; first += 128, out += kFourStep) {
    for (int block = 0; block < 4; ++block) {
      const std::int64_t at = first + kFixedRun * block;
      const std::int16_t* const codes = at < n ? x.codes + at : nothing;
      const float scale = at < n ? x.scales[at / kFixedRun] : 0.0F;
      split(codes, 16, out + 16 * block, out + kRegister + 16 * block);
      split(codes + 16, 16, out + 2 * kRegister + 16 * block, out + 3 * kRegister + 16 * block);
      for (int i = 0; i < 4; ++i) {
        const int sum = sum_of_four(codes + 4 * i) + sum_of_four(codes + 16 + 4 * i);
        store_lane(out + 4 * kRegister, 4 * block + i, sum, kFourZero);
        store_float(out + 5 * kRegister, 4 * block + i, scale);
      }
    }
  }
}

// ---- Q8_0 ---------------------------------------------------------------------------------------------------------

/// Eight blocks' scales times those of x.
inline __m256 eight_scales(const std::byte* row, const float* x_scales) {
  // Blocks have 17 words of 16 bits, and the first is the scale.
  const __m512i first_words = _mm512_castsi128_si512(_mm_set_epi16(0, 0, 0, 0, 51, 34, 17, 0));
  const auto four = [&](const std::byte* p) {
    return _mm512_castsi512_si128(_mm512_permutex2var_epi16(load(p), first_words, load(p + kRegister)));
  };
  const __m128i all = _mm_unpacklo_epi64(four(row), four(row + 4 * Q8_0::kBytes));
  return _mm256_mul_ps(_mm256_cvtph_ps(all), _mm256_loadu_ps(x_scales));
}

inline __m512 add_q8_0(__m512 sums, const std::byte* block, const std::int16_t* x, float scale) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2));
  return add_scaled(sums, _mm512_madd_epi16(_mm512_cvtepi8_epi16(bytes), load(x)), _mm512_set1_ps(scale));
}

/// Rows follow each other in memory, and this kernel is faster than the prefetcher: with a prefetch distance of 4 KiB
/// Q8_0 reads 24 GB/s instead of 20 (Zen 4, huge pages). The other types are bound by arithmetic.
inline void prefetch_eight(const std::byte* row) {
  constexpr int kAhead = 4096;
  for (int at = 0; at < 8 * Q8_0::kBytes; at += kRegister) {
    _mm_prefetch(reinterpret_cast<const char*>(row) + kAhead + at, _MM_HINT_T0);
  }
}

float dot_q8_0(const std::byte* row, std::int64_t n, const FixedRow& x) {
  __m512 even = _mm512_setzero_ps();
  __m512 odd = _mm512_setzero_ps();
  const std::int64_t blocks = n / kFixedRun;
  std::int64_t b = 0;
  for (; b + 8 <= blocks; b += 8, row += 8 * Q8_0::kBytes) {
    prefetch_eight(row);
    alignas(32) float scales[8];
    _mm256_store_ps(scales, eight_scales(row, x.scales + b));
    const std::int16_t* const codes = x.codes + kFixedRun * b;
    for (int i = 0; i < 8; i += 2) {
      even = add_q8_0(even, row + Q8_0::kBytes * i, codes + kFixedRun * i, scales[i]);
      odd = add_q8_0(odd, row + Q8_0::kBytes * (i + 1), codes + kFixedRun * (i + 1), scales[i + 1]);
    }
  }
  for (; b < blocks; ++b, row += Q8_0::kBytes) {
    even = add_q8_0(even, row, x.codes + kFixedRun * b, float_of_half(load_u16(row)) * x.scales[b]);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
}

// ---- Q4_0 ---------------------------------------------------------------------------------------------------------

/// Four blocks of nine words of 16 bits, scale first: words 0 .. 31 of them in `head`, 4 .. 35 in `tail`.
inline __m512 add_q4_0(__m512 sums, __m512i head, __m512i tail, const std::byte* x) {
  const __m512i code_words = _mm512_set_epi16(63, 62, 61, 60, 31, 30, 29, 28, 26, 25, 24, 23, 22, 21, 20, 19,
                                              17, 16, 15, 14, 13, 12, 11, 10, 8, 7, 6, 5, 4, 3, 2, 1);
  const __m512i scale_words =
      _mm512_castsi256_si512(_mm256_set_epi16(27, 27, 27, 27, 18, 18, 18, 18, 9, 9, 9, 9, 0, 0, 0, 0));
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i packed = _mm512_permutex2var_epi16(head, code_words, tail);
  const __m512i first = _mm512_and_si512(packed, nibble);
  const __m512i second = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
  __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, load(x));
  __m512i low = _mm512_dpbusd_epi32(load(x + 4 * kRegister), load(x + kRegister), first);
  high = _mm512_dpbusd_epi32(high, second, load(x + 2 * kRegister));
  low = _mm512_dpbusd_epi32(low, load(x + 3 * kRegister), second);
  const __m512i halves = _mm512_permutexvar_epi16(scale_words, head);
  const __m512 scales = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  return add_scaled(sums, _mm512_add_epi32(_mm512_slli_epi32(high, 8), low),
                    _mm512_mul_ps(scales, load_floats(x + 5 * kRegister)));
}

float dot_q4_0(const std::byte* row, std::int64_t n, const FixedRow& x) {
  __m512 sums = _mm512_setzero_ps();
  const std::byte* at = x.arranged;
  std::int64_t blocks = n / kFixedRun;
  for (; blocks >= 4; blocks -= 4, row += 4 * Q4_0::kBytes, at += kFourStep) {
    sums = add_q4_0(sums, load(row), load(row + 8), at);
  }
  if (blocks > 0) {
    const auto present = static_cast<__mmask64>((std::uint64_t{1} << (Q4_0::kBytes * blocks)) - 1);
    sums = add_q4_0(sums, _mm512_maskz_loadu_epi8(present, row), _mm512_setzero_si512(), at);
  }
  return _mm512_reduce_add_ps(sums);
}

// ---- Q4_K and Q5_K ------------------------------------------------------------------------------------------------

/// Four scales, four minima, and both again, times what stands beside the activations: factors of the eight runs, and
/// what their minima take off.
inline __m512 scales_and_minima(const std::byte* block, const std::byte* x) {
  constexpr std::uint64_t kSix = 0x3F3F3F3F3F3F3F3F;
  constexpr std::uint64_t kTwo = 0x3030303030303030;
  std::uint64_t first;
  std::uint32_t last;
  __builtin_memcpy(&first, block + 4, sizeof first);
  __builtin_memcpy(&last, block + 12, sizeof last);
  const std::uint64_t four = (last & 0x0F0F0F0F) | static_cast<std::uint64_t>((last >> 4) & 0x0F0F0F0F) << 32;
  const __m128i codes = _mm_set_epi64x(static_cast<long long>(four | ((first >> 2) & kTwo)),
                                       static_cast<long long>(first & kSix));
  const __m512i four_each = _mm512_set_epi32(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0);
  const __m128 both = _mm_cvtph_ps(_mm_loadu_si32(block));
  const __m512 scales = _mm512_permutexvar_ps(four_each, _mm512_castps128_ps512(both));
  const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
  return _mm512_mul_ps(_mm512_mul_ps(wide, scales), load_floats(x));
}

/// The factors of two neighbouring runs, eight lanes each, out of scales_and_minima().
template <int Pair>
inline __m512 pair_of(__m512 factors) {
  constexpr int kAt = 2 * Pair + (Pair >= 2 ? 4 : 0);
  const __m256i first = _mm256_set1_epi32(kAt);
  const __m512i index = _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_set1_epi32(kAt + 1), 1);
  return _mm512_permutexvar_ps(index, factors);
}

struct Four {
  using Block = Q4K;
  static constexpr int kCodes = 16;  // bytes in front of the nibbles
  template <int Pair>
  static __m512i codes(const std::byte* block) {
    const __m512i bytes = turn_halves<0, -4>(load_twice(block + kCodes + 32 * Pair));
    return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
  }
};

struct Five {
  using Block = Q5K;
  static constexpr int kFifth = 16;
  static constexpr int kCodes = 48;
  template <int Pair>
  static __m512i codes(const std::byte* block) {
    const __m512i bytes = turn_halves<0, -4>(load_twice(block + kCodes + 32 * Pair));
    const __m512i fifth = turn_halves<4 - 2 * Pair, 3 - 2 * Pair>(load_twice(block + kFifth));
    return join<31>(bytes, fifth);
  }
};

template <class Format>
float dot_minima(const std::byte* row, std::int64_t n, const FixedRow& x) {
  constexpr __mmask16 kMinima = 0xF0F0;
  __m512 even = _mm512_setzero_ps();
  __m512 odd = _mm512_setzero_ps();
  __m512 minima = _mm512_setzero_ps();
  const std::byte* at = x.arranged;
  for (std::int64_t first = 0; first < n; first += 256, row += Format::Block::kBytes, at += kMinimaStep) {
    const __m512 factors = scales_and_minima(row, at + kBlockCodes);
    minima = _mm512_mask_add_ps(minima, kMinima, minima, factors);
    even = add_scaled(even, dot_codes(Format::template codes<0>(row), at), pair_of<0>(factors));
    odd = add_scaled(odd, dot_codes(Format::template codes<1>(row), at + 128), pair_of<1>(factors));
    even = add_scaled(even, dot_codes(Format::template codes<2>(row), at + 256), pair_of<2>(factors));
    odd = add_scaled(odd, dot_codes(Format::template codes<3>(row), at + 384), pair_of<3>(factors));
  }
  return _mm512_reduce_add_ps(_mm512_sub_ps(_mm512_add_ps(even, odd), minima));
}

// ---- Q6_K ---------------------------------------------------------------------------------------------------------

/// 64 codes with their four factors, of sixteen.
template <int Part>
inline __m512 add_q6_part(__m512 sums, __m512i codes, const std::byte* x, __m512 factors) {
  const __m512i lanes = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  const __m512i index = _mm512_add_epi32(lanes, _mm512_set1_epi32(4 * Part));
  const __m512i start = load(x + kBlockCodes + kRegister * Part);
  return add_scaled(sums, dot_codes(codes, x + 128 * Part, start), _mm512_permutexvar_ps(index, factors));
}

float dot_q6_k(const std::byte* row, std::int64_t n, const FixedRow& x) {
  __m512 even = _mm512_setzero_ps();
  __m512 odd = _mm512_setzero_ps();
  const std::byte* at = x.arranged;
  for (std::int64_t first = 0; first < n; first += 256, row += Q6K::kBytes, at += kSixStep) {
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 192));
    const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(stored));
    const __m512 scaled = _mm512_mul_ps(wide, _mm512_set1_ps(float_of_half(load_u16(row + 208))));
    const __m512 factors = _mm512_mul_ps(scaled, load_floats(at + kBlockCodes + 4 * kRegister));
    const __m512i low[2] = {load(row), load(row + 64)};
    const __m512i high[2] = {load_twice(row + 128), load_twice(row + 160)};
    even = add_q6_part<0>(even, join<63>(low[0], turn_halves<4, 2>(high[0])), at, factors);
    odd =
        add_q6_part<1>(odd, join<63>(_mm512_srli_epi16(low[0], 4), turn_halves<0, -2>(high[0])), at, factors);
    even = add_q6_part<2>(even, join<63>(low[1], turn_halves<4, 2>(high[1])), at, factors);
    odd =
        add_q6_part<3>(odd, join<63>(_mm512_srli_epi16(low[1], 4), turn_halves<0, -2>(high[1])), at, factors);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
}

constexpr RowKernels make_kernels() {
  RowKernels kernels = make_row_kernels<Avx512>("AVX-512 VNNI");
  kernels.dot_fixed[3] = dot_q8_0;
  kernels.dot_fixed[4] = dot_q4_0;
  // Rows that are not packed in groups are few (row_groups.hpp): AVX-512's own kernels do for these.
  kernels.dot_fixed[5] = dot_one<dot_fixed_blocks<Avx512Words, Q4_1, 1>>;
  kernels.dot_fixed[6] = dot_one<dot_fixed_blocks<Avx512Words, Q5_0, 1>>;
  kernels.dot_fixed[7] = dot_one<dot_fixed_blocks<Avx512Words, Q5_1, 1>>;
  kernels.dot_fixed[13] = dot_one<dot_fixed_q2_k<Avx512Words, 1>>;
  kernels.dot_fixed[14] = dot_one<dot_fixed_q3_k<Avx512Words, 1>>;
  kernels.dot_fixed[15] = dot_one<dot_fixed_iq4_xs<Avx512Words, 1>>;
  kernels.dot_fixed[8] = dot_minima<Four>;
  kernels.dot_fixed[9] = dot_minima<Five>;
  kernels.dot_fixed[10] = dot_q6_k;
  kernels.arrange[4] = arrange_four;
  kernels.arrange[8] = arrange_minima;
  kernels.arrange[9] = arrange_minima;
  kernels.arrange[10] = arrange_six;
  kernels.groups = &avx512vnni_group_kernels;
  kernels.bytes = &avx512vnni_byte_kernels;
  static_assert(kSixStep == kArrangedBytes && kMinimaStep <= kArrangedBytes &&
                2 * kFourStep <= kArrangedBytes);
  return kernels;
}

}  // namespace

constinit const RowKernels avx512vnni_row_kernels = make_kernels();

}  // namespace headwater::runtime
