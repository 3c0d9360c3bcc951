#pragma once

/// The codes and scales of groups of sixteen rows (groups.hpp) in registers of AVX-512. Included by kernels alone.

#include <immintrin.h>

#include "runtime/gguf/kernels/groups.hpp"

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

// A unit has: codes<Pair>(line), scale(run, part) of the rows and minimum(run, part). kParts: how many scales, and minima, a
// run of 32 has.

/// Whether each half of a run has a minimum of its own, which is multiplied with the sum of that half alone.
template <class Unit>
constexpr bool kHalfMinima = (Unit::kParts == 2) && Unit::kMinima;

template <class Group>
struct PlainUnit {
  using Layout = Group;
  static constexpr int kParts = 1;
  static constexpr bool kMinima = false;
  const std::byte* at;

  PlainUnit(const std::byte* group, std::int64_t, std::int64_t i) : at(group + i * Group::kBytes) {}
  __m512 scale(int run, int) const { return sixteen_halves(at + Group::kScales + 2 * kGroupRows * run); }
  static __m512 minimum(int, int) { return _mm512_setzero_ps(); }
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
  __m512 minimum(int run, int) const {
    return sixteen_halves(this->at + Group::kMinima + 2 * kGroupRows * run);
  }
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

/// Codes that stand for values of a table.
template <class Unit>
struct TableUnit : Unit {
  using Unit::Unit;
  template <int Pair>
  Codes codes(int line) const {
    using Group = typename Unit::Layout;
    const __m512i bytes = load(this->at + Group::codes_at(Pair, line));
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(Group::Block::kValues));
    const __m512i values =
        _mm512_add_epi8(_mm512_broadcast_i32x4(stored), _mm512_set1_epi8(static_cast<char>(Group::kZero)));
    return {_mm512_shuffle_epi8(values, masked(bytes, 15)),
            _mm512_shuffle_epi8(values, masked(_mm512_srli_epi16(bytes, 4), 15))};
  }
};
using Iq4NlUnit = TableUnit<PlainUnit<Iq4NlGroup>>;

struct Mxfp4Unit : TableUnit<PlainUnit<Mxfp4Group>> {
  using TableUnit::TableUnit;
  __m512 scale(int run, int) const {
    const auto* const scales =
        reinterpret_cast<const __m256i*>(at + Mxfp4Group::kScales + 2 * kGroupRows * run);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(scales)), 16));
  }
};

/// Three lines of `Bytes` bytes with six bits in each, and `Bytes` more of which they have two bits each, one after the other.
/// Fewer than a register are read, and written, with some behind them.
template <int Bytes>
inline void unpack_sixes(const std::byte* at, std::uint8_t* codes) {
  const __m512i lines[3] = {_mm512_loadu_si512(at), _mm512_loadu_si512(at + Bytes),
                            _mm512_loadu_si512(at + 2 * Bytes)};
  for (int line = 0; line < 3; ++line) _mm512_storeu_si512(codes + Bytes * line, masked(lines[line], 63));
  const __m512i low = masked(_mm512_srli_epi16(lines[0], 6), 3);
  const __m512i middle = masked_or(_mm512_srli_epi16(lines[1], 4), 12, low);
  _mm512_storeu_si512(codes + 3 * Bytes, masked_or(_mm512_srli_epi16(lines[2], 2), 48, middle));
}

inline __m512 sixteen_unsigned(const std::uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen_bytes(p)));
}
/// Less a zero point.
inline __m512 sixteen_less(const std::uint8_t* p, int zero) {
  return _mm512_cvtepi32_ps(
      _mm512_sub_epi32(_mm512_cvtepu8_epi32(sixteen_bytes(p)), _mm512_set1_epi32(zero)));
}

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
    unpack_sixes<kLine>(at + Group::kScales, factors);
  }
  SixBitUnit(const SixBitUnit&) = delete;
  SixBitUnit& operator=(const SixBitUnit&) = delete;

  __m512 factor(int i) const { return sixteen_unsigned(factors + kGroupRows * i); }
  __m512 scale(int run, int) const { return _mm512_mul_ps(factor(run), scale_of_scales); }
  __m512 minimum(int run, int) const { return _mm512_mul_ps(factor(8 + run), scale_of_minima); }
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
  static __m512 minimum(int, int) { return _mm512_setzero_ps(); }
  template <int Pair>
  Codes codes(int line) const {
    const __m512i bits = _mm512_rol_epi32(load(at + Q6KGroup::bits_at(Pair, line)), 4 * (Pair % 2));
    const __m512i bytes = load(at + Q6KGroup::codes_at(Pair, line));
    return {masked_or(bytes, 15, masked(bits, 48)), masked_or(bytes, '\xF0', masked(bits, 12))};
  }
};

/// Codes of two bits: those of the odd pair stand above those of the even one.
template <class Group, int Pair>
inline __m512i twos_of(const std::byte* unit, int line) {
  return _mm512_srli_epi16(load(unit + Group::codes_at(Pair, line)), 4 * (Pair % 2));
}

struct Q2KUnit {
  using Layout = Q2KGroup;
  static constexpr int kParts = 2;
  static constexpr bool kMinima = true;
  const std::byte* at;
  __m512 scale_of_scales;
  __m512 scale_of_minima;
  alignas(kLine) std::uint8_t factors[8 * kLine];  // scales of sixteen runs, then minima, sixteen rows each

  Q2KUnit(const std::byte* group, std::int64_t, std::int64_t i)
      : at(group + i * Q2KGroup::kBytes),
        scale_of_scales(sixteen_halves(at + Q2KGroup::kScale)),
        scale_of_minima(sixteen_halves(at + Q2KGroup::kMinimum)) {
    for (int line = 0; line < 4; ++line) {
      const __m512i both = load(at + Q2KGroup::kScales + kLine * line);
      _mm512_store_si512(factors + kLine * line, masked(both, 15));
      _mm512_store_si512(factors + kLine * (4 + line), masked(_mm512_srli_epi16(both, 4), 15));
    }
  }
  Q2KUnit(const Q2KUnit&) = delete;
  Q2KUnit& operator=(const Q2KUnit&) = delete;

  __m512 factor(int i) const { return sixteen_unsigned(factors + kGroupRows * i); }
  __m512 scale(int run, int part) const { return _mm512_mul_ps(factor(2 * run + part), scale_of_scales); }
  __m512 minimum(int run, int part) const {
    return _mm512_mul_ps(factor(16 + 2 * run + part), scale_of_minima);
  }
  template <int Pair>
  Codes codes(int line) const {
    const __m512i twos = twos_of<Q2KGroup, Pair>(at, line);
    return {masked(twos, 3), masked(twos, 12)};
  }
};

struct Q3KUnit {
  using Layout = Q3KGroup;
  static constexpr int kParts = 2;
  static constexpr bool kMinima = false;
  const std::byte* at;
  __m512 scale_of_scales;
  alignas(kLine) std::uint8_t factors[4 * kLine];

  Q3KUnit(const std::byte* group, std::int64_t n, std::int64_t i)
      : at(group + front_bytes<Q3KGroup>(n) + i * Q3KGroup::kBytes),
        scale_of_scales(sixteen_halves(group + i * Q3KGroup::kScaleBytes)) {
    unpack_sixes<kLine>(at + Q3KGroup::kScales, factors);
  }
  Q3KUnit(const Q3KUnit&) = delete;
  Q3KUnit& operator=(const Q3KUnit&) = delete;

  __m512 scale(int run, int part) const {
    return _mm512_mul_ps(sixteen_less(factors + kGroupRows * (2 * run + part), Q3K::kZero), scale_of_scales);
  }
  static __m512 minimum(int, int) { return _mm512_setzero_ps(); }
  template <int Pair>
  Codes codes(int line) const {
    const __m512i twos = twos_of<Q3KGroup, Pair>(at, line);
    const __m512i bits = _mm512_rol_epi32(load(at + Q3KGroup::bits_at(Pair, line)), Q3KGroup::turn(Pair));
    return {masked_or(twos, 3, masked(bits, 4)), masked_or(twos, 12, masked(bits, 16))};
  }
};

/// Scales of IQ4_XS.
struct Iq4XsScales {
  using Layout = Iq4XsGroup;
  static constexpr int kParts = 1;
  static constexpr bool kMinima = false;
  static constexpr int kLineBytes = 2 * kGroupRows;
  const std::byte* at;
  __m512 scale_of_scales;
  alignas(kLine) std::uint8_t factors[3 * kLineBytes + kLine];  // eight runs, and what a register has more

  Iq4XsScales(const std::byte* group, std::int64_t, std::int64_t i)
      : at(group + i * Iq4XsGroup::kBytes), scale_of_scales(sixteen_halves(at + Iq4XsGroup::kScale)) {
    unpack_sixes<kLineBytes>(at + Iq4XsGroup::kScales, factors);
  }
  Iq4XsScales(const Iq4XsScales&) = delete;
  Iq4XsScales& operator=(const Iq4XsScales&) = delete;

  __m512 scale(int run, int) const {
    return _mm512_mul_ps(sixteen_less(factors + kGroupRows * run, IQ4_XS::kZero), scale_of_scales);
  }
  static __m512 minimum(int, int) { return _mm512_setzero_ps(); }
};
using Iq4XsUnit = TableUnit<Iq4XsScales>;

}  // namespace
}  // namespace headwater::runtime
