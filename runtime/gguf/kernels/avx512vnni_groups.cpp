// Rows in groups of sixteen (groups.hpp) for AVX-512 with VNNI. A lane is a row: four activations are broadcast to all
// of them, and vpdpbusd adds four products to each, exactly. An activation is 256 h + l, both signed bytes.

#include "runtime/gguf/kernels/avx512vnni_units.hpp"
#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime {
namespace {

// ---- activations --------------------------------------------------------------------------------------------------

inline void store_float(std::byte* p, float value) { __builtin_memcpy(p, &value, sizeof value); }
inline void store_int(std::byte* p, int value) { __builtin_memcpy(p, &value, sizeof value); }

template <class Unit>
void arrange(const FixedRow& x, std::int64_t n, std::byte* out) {
  constexpr int kZero = Unit::Layout::kZero;
  static_assert(!kHalfMinima<Unit> || kZero == 0);
  for (std::int64_t run = 0; run < n / kFixedRun; ++run, out += GroupRun::kBytes) {
    const int factor = run % 2 == 0 ? 1 : 1 << Unit::Layout::kHighShift;
    const __m512i codes = _mm512_loadu_si512(x.codes + run * kFixedRun);
    // The lower byte as a signed one: what it lacks of the code is a multiple of 256.
    const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(codes, _mm512_set1_epi16(128)), 8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi16_epi8(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + GroupRun::kLow), _mm512_cvtepi16_epi8(codes));
    store_float(out + GroupRun::kScale, x.scales[run] / static_cast<float>(factor));
    const __m512i pairs = _mm512_madd_epi16(codes, _mm512_set1_epi16(1));
    const int first = _mm512_mask_reduce_add_epi32(0x00FF, pairs);
    const int second = _mm512_mask_reduce_add_epi32(0xFF00, pairs);
    if constexpr (kHalfMinima<Unit>) {
      store_float(out + GroupRun::kSum, static_cast<float>(factor * first));
      store_float(out + GroupRun::kSum + 4, static_cast<float>(factor * second));
    } else {
      store_float(out + GroupRun::kSum, x.sums[run]);
      store_int(out + GroupRun::kStart, -kZero * factor * (Unit::kParts == 1 ? first + second : first));
      store_int(out + GroupRun::kStart + 4, -kZero * factor * second);
    }
  }
}

// ---- dot products -------------------------------------------------------------------------------------------------

template <class Unit>
inline __m512i start(const std::byte* x, int part) {
  if constexpr (Unit::Layout::kZero == 0) return _mm512_setzero_si512();
  return four_bytes_each(x + GroupRun::kStart + 4 * part);
}

inline __m512 total(__m512i high, __m512i low) {
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

/// Adds a pair of runs to the sums of R rows x, whose unit is at `at`. A line of codes is loaded and unpacked once for all
/// of them; the order of a row's sum is the same for every R.
template <class Unit, int Pair, int R>
inline void add_pair(__m512 (&sums)[R], const Unit& unit, const std::byte* const (&x)[R], std::int64_t at) {
  constexpr int kLines = kRunLines / Unit::kParts;
  at += GroupRun::kBytes * 2 * Pair;
  for (int part = 0; part < Unit::kParts; ++part) {
    __m512i high[R][2], low[R][2];
    for (int r = 0; r < R; ++r) {
      for (int run = 0; run < 2; ++run) {
        high[r][run] = _mm512_setzero_si512();
        low[r][run] = start<Unit>(x[r] + at + GroupRun::kBytes * run, part);
      }
    }
    for (int line = part * kLines; line < (part + 1) * kLines; ++line) {
      const Codes codes = unit.template codes<Pair>(line);
      for (int r = 0; r < R; ++r) {
        for (int run = 0; run < 2; ++run) {
          const __m512i code = run == 0 ? codes.first : codes.second;
          const std::byte* const from = x[r] + at + GroupRun::kBytes * run + 4 * line;
          high[r][run] = _mm512_dpbusd_epi32(high[r][run], code, four_bytes_each(from));
          low[r][run] = _mm512_dpbusd_epi32(low[r][run], code, four_bytes_each(from + GroupRun::kLow));
        }
      }
    }
    for (int run = 0; run < 2; ++run) {
      const __m512 scale = unit.scale(2 * Pair + run, part);
      for (int r = 0; r < R; ++r) {
        const std::byte* const from = x[r] + at + GroupRun::kBytes * run;
        const __m512 own = float_each(from + GroupRun::kScale);
        const __m512 product = total(high[r][run], low[r][run]);
        if constexpr (kHalfMinima<Unit>) {
          const __m512 taken_off =
              _mm512_mul_ps(unit.minimum(2 * Pair + run, part), float_each(from + GroupRun::kSum + 4 * part));
          sums[r] = _mm512_fmadd_ps(_mm512_fmsub_ps(product, scale, taken_off), own, sums[r]);
        } else {
          sums[r] = _mm512_fmadd_ps(product, _mm512_mul_ps(scale, own), sums[r]);
        }
      }
    }
  }
  if constexpr (Unit::kMinima && !kHalfMinima<Unit>) {
    for (int run = 0; run < 2; ++run) {
      const __m512 minimum = unit.minimum(2 * Pair + run, 0);
      for (int r = 0; r < R; ++r) {
        const __m512 own = float_each(x[r] + at + GroupRun::kBytes * run + GroupRun::kSum);
        sums[r] = _mm512_fnmadd_ps(minimum, own, sums[r]);
      }
    }
  }
}

/// A unit of the next group, into the second-level cache: while later rows multiply a group once more the processor's own
/// prefetcher has nothing to follow, and memory would wait (eight rows of Q8_0: 1.6 times as long, Zen 4). Behind the
/// last group it does no harm.
inline void prefetch_unit(const std::byte* unit, int bytes) {
  for (int at = 0; at < bytes; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(unit + at), _MM_HINT_T1);
  }
}

template <class Unit, int R>
void dot_rows(const std::byte* group, std::int64_t n, const std::byte* const* rows, float* out,
              std::int64_t stride) {
  constexpr int kElements = Unit::Layout::kElements;
  constexpr int kStep = GroupRun::kBytes * (kElements / kFixedRun);
  const std::byte* x[R];
  __m512 sums[R];
  for (int r = 0; r < R; ++r) {
    x[r] = rows[r];
    sums[r] = _mm512_setzero_ps();
  }
  const std::int64_t units = n / kElements;
  const std::byte* next = group + front_bytes<typename Unit::Layout>(n) + units * Unit::Layout::kBytes;
  for (std::int64_t i = 0; i < units; ++i, next += Unit::Layout::kBytes) {
    if constexpr (R == kGroupRowsAtOnce) prefetch_unit(next, Unit::Layout::kBytes);
    const Unit unit(group, n, i);
    add_pair<Unit, 0>(sums, unit, x, kStep * i);
    if constexpr (kElements == kPairs * kPairCodes) {
      add_pair<Unit, 1>(sums, unit, x, kStep * i);
      add_pair<Unit, 2>(sums, unit, x, kStep * i);
      add_pair<Unit, 3>(sums, unit, x, kStep * i);
    }
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out + r * stride, sums[r]);
}

template <class Unit>
void dot(const std::byte* group, std::int64_t n, const std::byte* const* x, int rows, float* out,
         std::int64_t stride) {
  static_assert(kGroupRowsAtOnce == 4);
  switch (rows) {
    case 1: return dot_rows<Unit, 1>(group, n, x, out, stride);
    case 2: return dot_rows<Unit, 2>(group, n, x, out, stride);
    case 3: return dot_rows<Unit, 3>(group, n, x, out, stride);
    default: return dot_rows<Unit, 4>(group, n, x, out, stride);
  }
}

// ---- widening -----------------------------------------------------------------------------------------------------

/// What is stored for four elements of each row: F32, or BF16 in pairs.
struct Wide {
  static constexpr int kElements = 1;  // of a word
  static void put(const __m512 (&values)[4], std::uint32_t* to, std::int64_t stride) {
    for (int i = 0; i < 4; ++i) _mm512_store_ps(to + i * stride, values[i]);
  }
};

struct Narrow {
  static constexpr int kElements = 2;
  /// To nearest even, in the upper half. Stored values are finite.
  static __m512i rounded(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  }
  static __m512i pair(__m512 first, __m512 second) {
    constexpr int kSelect = 0xCA;  // first ? second : third
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0xFFFF), _mm512_srli_epi32(rounded(first), 16),
                                     rounded(second), kSelect);
  }
  static void put(const __m512 (&values)[4], std::uint32_t* to, std::int64_t stride) {
    _mm512_store_si512(to, pair(values[0], values[1]));
    _mm512_store_si512(to + stride, pair(values[2], values[3]));
  }
};

template <class Unit, int Byte>
inline __m512 value(__m512i codes, __m512 scale, __m512 minimum) {
  const __m512i code = _mm512_and_si512(_mm512_srli_epi32(codes, 8 * Byte), _mm512_set1_epi32(255));
  const __m512 number = _mm512_cvtepi32_ps(_mm512_sub_epi32(code, _mm512_set1_epi32(Unit::Layout::kZero)));
  // Products are exact: 11 bits of a half, up to 13 of the integers.
  if constexpr (Unit::kMinima) return _mm512_fmsub_ps(number, scale, minimum);
  return _mm512_mul_ps(number, scale);
}

template <class Unit, class Words>
inline void put_line(__m512i codes, __m512 scale, __m512 minimum, std::uint32_t* to, std::int64_t stride) {
  const __m512 values[4] = {value<Unit, 0>(codes, scale, minimum), value<Unit, 1>(codes, scale, minimum),
                            value<Unit, 2>(codes, scale, minimum), value<Unit, 3>(codes, scale, minimum)};
  Words::put(values, to, stride);
}

template <class Unit, class Words, int Pair>
inline void widen_pair(const Unit& unit, std::uint32_t* to, std::int64_t stride) {
  constexpr int kLines = kRunLines / Unit::kParts;
  constexpr int kFirst = kPairCodes * Pair / Words::kElements;
  constexpr int kSecond = kFirst + kFixedRun / Words::kElements;
  constexpr int kStep = 4 / Words::kElements;
  for (int part = 0; part < Unit::kParts; ++part) {
    const __m512 first_scale = unit.scale(2 * Pair, part);
    const __m512 second_scale = unit.scale(2 * Pair + 1, part);
    const __m512 first_minimum = unit.minimum(2 * Pair, part);
    const __m512 second_minimum = unit.minimum(2 * Pair + 1, part);
    for (int line = part * kLines; line < (part + 1) * kLines; ++line) {
      const Codes codes = unit.template codes<Pair>(line);
      // Bits below the second run's codes are zero: none moves into the byte beside.
      const __m512i second = _mm512_srli_epi32(codes.second, Unit::Layout::kHighShift);
      put_line<Unit, Words>(codes.first, first_scale, first_minimum, to + (kFirst + kStep * line) * stride,
                            stride);
      put_line<Unit, Words>(second, second_scale, second_minimum, to + (kSecond + kStep * line) * stride,
                            stride);
    }
  }
}

template <class Unit, class Words>
void widen(const std::byte* group, std::int64_t n, std::uint32_t* to, std::int64_t stride) {
  constexpr int kElements = Unit::Layout::kElements;
  for (std::int64_t i = 0; i < n / kElements; ++i, to += kElements / Words::kElements * stride) {
    const Unit unit(group, n, i);
    widen_pair<Unit, Words, 0>(unit, to, stride);
    if constexpr (kElements == kPairs * kPairCodes) {
      widen_pair<Unit, Words, 1>(unit, to, stride);
      widen_pair<Unit, Words, 2>(unit, to, stride);
      widen_pair<Unit, Words, 3>(unit, to, stride);
    }
  }
}

}  // namespace

constinit const GroupKernels avx512vnni_group_kernels = {
    {nullptr, nullptr, nullptr, arrange<Q8_0Unit>, arrange<Q4_0Unit>, arrange<Q4_1Unit>, arrange<Q5_0Unit>,
     arrange<Q5_1Unit>, arrange<Q4KUnit>, arrange<Q5KUnit>, arrange<Q6KUnit>, arrange<Iq4NlUnit>,
     arrange<Mxfp4Unit>, arrange<Q2KUnit>, arrange<Q3KUnit>, arrange<Iq4XsUnit>},
    {nullptr, nullptr, nullptr, dot<Q8_0Unit>, dot<Q4_0Unit>, dot<Q4_1Unit>, dot<Q5_0Unit>, dot<Q5_1Unit>,
     dot<Q4KUnit>, dot<Q5KUnit>, dot<Q6KUnit>, dot<Iq4NlUnit>, dot<Mxfp4Unit>, dot<Q2KUnit>, dot<Q3KUnit>,
     dot<Iq4XsUnit>},
    {nullptr, nullptr, nullptr, widen<Q8_0Unit, Wide>, widen<Q4_0Unit, Wide>, widen<Q4_1Unit, Wide>,
     widen<Q5_0Unit, Wide>, widen<Q5_1Unit, Wide>, widen<Q4KUnit, Wide>, widen<Q5KUnit, Wide>,
     widen<Q6KUnit, Wide>, widen<Iq4NlUnit, Wide>, widen<Mxfp4Unit, Wide>, widen<Q2KUnit, Wide>,
     widen<Q3KUnit, Wide>, widen<Iq4XsUnit, Wide>},
    {nullptr, nullptr, nullptr, widen<Q8_0Unit, Narrow>, widen<Q4_0Unit, Narrow>, widen<Q4_1Unit, Narrow>,
     widen<Q5_0Unit, Narrow>, widen<Q5_1Unit, Narrow>, widen<Q4KUnit, Narrow>, widen<Q5KUnit, Narrow>,
     widen<Q6KUnit, Narrow>, widen<Iq4NlUnit, Narrow>, widen<Mxfp4Unit, Narrow>, widen<Q2KUnit, Narrow>,
     widen<Q3KUnit, Narrow>, widen<Iq4XsUnit, Narrow>}};

}  // namespace headwater::runtime
