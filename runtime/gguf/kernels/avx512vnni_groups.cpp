// Rows in groups of sixteen (groups.hpp) for AVX-512 with VNNI. A lane is a row: four activations are broadcast to all
// of them, and vpdpbusd adds four products to each, exactly. An activation is 256 h + l, both signed bytes.

#include <immintrin.h>

#include "runtime/gguf/kernels/groups.hpp"
#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime {
namespace {

inline __m512i load(const std::byte* p) { return _mm512_load_si512(p); }
inline __m512i four_bytes_each(const std::byte* p) {
  int bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}
inline __m512 float_each(const std::byte* p) { return _mm512_castsi512_ps(four_bytes_each(p)); }
inline __m512 sixteen_halves(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m128i sixteen_bytes(const void* p) { return _mm_load_si128(static_cast<const __m128i*>(p)); }

/// First ? a : b, bit by bit.
inline __m512i masked_or(__m512i a, char mask, __m512i b) {
  constexpr int kAndOr = 0xEA;  // (first & second) | third
  return _mm512_ternarylogic_epi64(a, _mm512_set1_epi8(mask), b, kAndOr);
}
inline __m512i masked(__m512i a, char mask) { return _mm512_and_si512(a, _mm512_set1_epi8(mask)); }

/// Four codes of each row, in unsigned bytes: of the first run of a pair, and of the second, times 2^kHighShift.
struct Codes {
  __m512i first;
  __m512i second;
};

// A unit has: codes<Pair>(line), scale(run, part) of the rows and minimum(run). kParts: how many scales a run of 32 has.

template <class Group>
struct PlainUnit {
  using Layout = Group;
  static constexpr int kParts = 1;
  static constexpr bool kMinima = false;
  const std::byte* at;

  PlainUnit(const std::byte* group, std::int64_t, std::int64_t i) : at(group + i * Group::kBytes) {}
  __m512 scale(int run, int) const { return sixteen_halves(at + Group::kScales + 2 * kGroupRows * run); }
  static __m512 minimum(int) { return _mm512_setzero_ps(); }
};

struct Q8_0Unit : PlainUnit<Q8_0Group> {
  using PlainUnit::PlainUnit;
  template <int Pair>
  Codes codes(int line) const {
    const std::byte* const lines = at + Q8_0Group::kLines + 2 * kLine * line;
    return {load(lines), load(lines + kLine)};
  }
};

inline Codes nibbles_of(__m512i bytes) { return {masked(bytes, 15), masked(bytes, '\xF0')}; }

struct Q4_0Unit : PlainUnit<Q4_0Group> {
  using PlainUnit::PlainUnit;
  template <int Pair>
  Codes codes(int line) const {
    return nibbles_of(load(at + Q4_0Group::codes_at(Pair, line)));
  }
};

/// The bytes of a line whose codes of five bits lack their bits; those stand in `bits`, turned to their places.
inline Codes fives_of(__m512i bytes, __m512i bits) {
  return {masked_or(bytes, 15, masked(bits, 16)), masked_or(bytes, '\xF0', masked(bits, 8))};
}

template <class Group>
struct MinimaUnit : PlainUnit<Group> {
  using PlainUnit<Group>::PlainUnit;
  static constexpr bool kMinima = true;
  __m512 minimum(int run) const { return sixteen_halves(this->at + Group::kMinima + 2 * kGroupRows * run); }
};

struct Q4_1Unit : MinimaUnit<Q4_1Group> {
  using MinimaUnit::MinimaUnit;
  template <int Pair>
  Codes codes(int line) const {
    return nibbles_of(load(at + Q4_1Group::codes_at(Pair, line)));
  }
};

/// Codes of Q5_0 and Q5_1.
template <class Unit>
struct FiveBitUnit : Unit {
  using Unit::Unit;
  template <int Pair>
  Codes codes(int line) const {
    using Group = typename Unit::Layout;
    const __m512i turns = _mm512_set1_epi32(2 * (line % 4));
    return fives_of(load(this->at + Group::codes_at(Pair, line)),
                    _mm512_rolv_epi32(load(this->at + Group::bits_at(Pair, line)), turns));
  }
};
using Q5_0Unit = FiveBitUnit<PlainUnit<Q5_0Group>>;
using Q5_1Unit = FiveBitUnit<MinimaUnit<Q5_1Group>>;

/// Scales and minima of Q4_K and Q5_K.
template <class Group>
struct SixBitUnit {
  using Layout = Group;
  static constexpr int kParts = 1;
  static constexpr bool kMinima = true;
  const std::byte* at;
  __m512 scale_of_scales;
  __m512 scale_of_minima;
  alignas(kLine) std::uint8_t factors[4 * kLine];  // scales of eight runs, then minima, sixteen rows each

  SixBitUnit(const std::byte* group, std::int64_t, std::int64_t i)
      : at(group + i * Group::kBytes),
        scale_of_scales(sixteen_halves(at + Group::kScale)),
        scale_of_minima(sixteen_halves(at + Group::kMinimum)) {
    const __m512i lines[3] = {load(at + Group::kScales), load(at + Group::kScales + kLine),
                              load(at + Group::kScales + 2 * kLine)};
    for (int line = 0; line < 3; ++line) _mm512_store_si512(factors + kLine * line, masked(lines[line], 63));
    const __m512i low = masked(_mm512_srli_epi16(lines[0], 6), 3);
    const __m512i middle = masked_or(_mm512_srli_epi16(lines[1], 4), 12, low);
    _mm512_store_si512(factors + 3 * kLine, masked_or(_mm512_srli_epi16(lines[2], 2), 48, middle));
  }
  SixBitUnit(const SixBitUnit&) = delete;
  SixBitUnit& operator=(const SixBitUnit&) = delete;

  __m512 factor(int i) const {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen_bytes(factors + kGroupRows * i)));
  }
  __m512 scale(int run, int) const { return _mm512_mul_ps(factor(run), scale_of_scales); }
  __m512 minimum(int run) const { return _mm512_mul_ps(factor(8 + run), scale_of_minima); }
};

struct Q4KUnit : SixBitUnit<Q4KGroup> {
  using SixBitUnit::SixBitUnit;
  template <int Pair>
  Codes codes(int line) const {
    return nibbles_of(load(at + Q4KGroup::codes_at(Pair, line)));
  }
};

struct Q5KUnit : SixBitUnit<Q5KGroup> {
  using SixBitUnit::SixBitUnit;
  template <int Pair>
  Codes codes(int line) const {
    const __m512i bits = _mm512_rol_epi32(load(at + Q5KGroup::bits_at(Pair, line)), 2 * Pair);
    return fives_of(load(at + Q5KGroup::codes_at(Pair, line)), bits);
  }
};

struct Q6KUnit {
  using Layout = Q6KGroup;
  static constexpr int kParts = 2;
  static constexpr bool kMinima = false;
  const std::byte* at;
  __m512 scale_of_scales;
  alignas(kLine) std::int8_t factors[4 * kLine];  // read with the unit's first bytes, in the order of memory

  Q6KUnit(const std::byte* group, std::int64_t n, std::int64_t i)
      : at(group + front_bytes<Q6KGroup>(n) + i * Q6KGroup::kBytes),
        scale_of_scales(sixteen_halves(group + i * Q6KGroup::kScaleBytes)) {
    for (int line = 0; line < 4; ++line) {
      _mm512_store_si512(factors + kLine * line, load(at + Q6KGroup::kScales + kLine * line));
    }
  }
  Q6KUnit(const Q6KUnit&) = delete;
  Q6KUnit& operator=(const Q6KUnit&) = delete;

  __m512 scale(int run, int part) const {
    const __m128i stored = sixteen_bytes(factors + kGroupRows * (2 * run + part));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(stored)), scale_of_scales);
  }
  static __m512 minimum(int) { return _mm512_setzero_ps(); }
  template <int Pair>
  Codes codes(int line) const {
    const __m512i bits = _mm512_rol_epi32(load(at + Q6KGroup::bits_at(Pair, line)), 4 * (Pair % 2));
    const __m512i bytes = load(at + Q6KGroup::codes_at(Pair, line));
    return {masked_or(bytes, 15, masked(bits, 48)), masked_or(bytes, '\xF0', masked(bits, 12))};
  }
};

// ---- activations --------------------------------------------------------------------------------------------------

inline void store_float(std::byte* p, float value) { __builtin_memcpy(p, &value, sizeof value); }
inline void store_int(std::byte* p, int value) { __builtin_memcpy(p, &value, sizeof value); }

template <class Unit>
void arrange(const FixedRow& x, std::int64_t n, std::byte* out) {
  constexpr int kZero = Unit::Layout::kZero;
  for (std::int64_t run = 0; run < n / kFixedRun; ++run, out += GroupRun::kBytes) {
    const int factor = run % 2 == 0 ? 1 : 1 << Unit::Layout::kHighShift;
    const __m512i codes = _mm512_loadu_si512(x.codes + run * kFixedRun);
    // The lower byte as a signed one: what it lacks of the code is a multiple of 256.
    const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(codes, _mm512_set1_epi16(128)), 8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi16_epi8(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + GroupRun::kLow), _mm512_cvtepi16_epi8(codes));
    store_float(out + GroupRun::kScale, x.scales[run] / static_cast<float>(factor));
    store_float(out + GroupRun::kSum, x.sums[run]);
    const __m512i pairs = _mm512_madd_epi16(codes, _mm512_set1_epi16(1));
    const int first = _mm512_mask_reduce_add_epi32(0x00FF, pairs);
    const int second = _mm512_mask_reduce_add_epi32(0xFF00, pairs);
    store_int(out + GroupRun::kStart, -kZero * factor * (Unit::kParts == 1 ? first + second : first));
    store_int(out + GroupRun::kStart + 4, -kZero * factor * second);
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
        const __m512 own = float_each(x[r] + at + GroupRun::kBytes * run + GroupRun::kScale);
        sums[r] = _mm512_fmadd_ps(total(high[r][run], low[r][run]), _mm512_mul_ps(scale, own), sums[r]);
      }
    }
  }
  if constexpr (Unit::kMinima) {
    for (int run = 0; run < 2; ++run) {
      const __m512 minimum = unit.minimum(2 * Pair + run);
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
  const __m512 first_minimum = unit.minimum(2 * Pair);
  const __m512 second_minimum = unit.minimum(2 * Pair + 1);
  for (int part = 0; part < Unit::kParts; ++part) {
    const __m512 first_scale = unit.scale(2 * Pair, part);
    const __m512 second_scale = unit.scale(2 * Pair + 1, part);
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
     arrange<Q5_1Unit>, arrange<Q4KUnit>, arrange<Q5KUnit>, arrange<Q6KUnit>},
    {nullptr, nullptr, nullptr, dot<Q8_0Unit>, dot<Q4_0Unit>, dot<Q4_1Unit>, dot<Q5_0Unit>, dot<Q5_1Unit>,
     dot<Q4KUnit>, dot<Q5KUnit>, dot<Q6KUnit>},
    {nullptr, nullptr, nullptr, widen<Q8_0Unit, Wide>, widen<Q4_0Unit, Wide>, widen<Q4_1Unit, Wide>,
     widen<Q5_0Unit, Wide>, widen<Q5_1Unit, Wide>, widen<Q4KUnit, Wide>, widen<Q5KUnit, Wide>,
     widen<Q6KUnit, Wide>},
    {nullptr, nullptr, nullptr, widen<Q8_0Unit, Narrow>, widen<Q4_0Unit, Narrow>, widen<Q4_1Unit, Narrow>,
     widen<Q5_0Unit, Narrow>, widen<Q5_1Unit, Narrow>, widen<Q4KUnit, Narrow>, widen<Q5KUnit, Narrow>,
     widen<Q6KUnit, Narrow>}};

}  // namespace headwater::runtime
