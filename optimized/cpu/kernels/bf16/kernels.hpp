#pragma once

/// The kernels of bf16/table.hpp, but for the two matrix products, which a `Unit` supplies:
///   Unit::dot<Halves>(segment, first, n, logits): raw dot products of n <= kKeyTile keys from `first`, one line of
///     kBlockRows lanes each, of which the first 16 Halves are computed; lines from n on hold anything.
///   Unit::accumulate: as in the table.
///   Unit::Session: exists around calls of dot.
///   Unit::kRowLogits: Bf16Table::row_logits, or null.
///   Unit::kKeysInPlace: Bf16Table::keys_in_place.
///   Unit::kPipelined: whether the products of a tile are computed beside the weights of the tile before it. Then there are
///     Unit::steps_of_dot(d) and Unit::dot_beside<Halves>(segment, first, n, logits, beside): dot, which calls
///     beside(Place<0 .. 3>) in each step, between its products.
/// Included by files that are built for AVX-512 (F, BW, DQ, VL, BF16) and hold nothing but kernels; everything sits in
/// an unnamed namespace.

#include "cpu/kernels/avx512/vector.hpp"
#include "cpu/kernels/bf16/table.hpp"
#include "cpu/kernels/wide/kernels.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {
namespace {

inline constexpr int kHalves = static_cast<int>(kBlockRows / Avx512::kWidth);  // vectors of a line

inline __mmask16 first_lanes(std::int64_t n) {
  return n >= 16 ? __mmask16(0xFFFF) : static_cast<__mmask16>((1u << n) - 1u);
}

inline __mmask32 first_elements(std::int64_t n) {
  return n >= 32 ? ~__mmask32(0) : n > 0 ? static_cast<__mmask32>((std::uint32_t{1} << n) - 1) : 0;
}

inline void pack_bf16_queries(const void* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,
                              std::int64_t d_padded, std::uint16_t* packed) {
  const auto* bytes = static_cast<const unsigned char*>(rows);
  const std::int64_t pairs = d_padded / 2;
  for (std::int64_t first = 0; first < pairs; first += 16) {
    const __mmask32 some = first_elements(d - 2 * first);
    for (int half = 0; half < kHalves; ++half) {
      __m512i tile[16];
      for (int i = 0; i < 16; ++i) {
        const std::int64_t row = 16 * half + i;
        tile[i] = row < n_rows ? _mm512_maskz_loadu_epi16(some, bytes + row * stride + 4 * first)
                               : _mm512_setzero_si512();
      }
      transpose(tile);
      for (int i = 0; i < 16; ++i) {
        if (first + i < pairs)
          _mm512_storeu_si512(packed + ((first + i) * kBlockRows + 16 * half) * 2, tile[i]);
      }
    }
  }
}

inline void copy_bf16_keys(const void* const* rows, std::int64_t n_keys, std::int64_t d,
                           std::int64_t d_padded, std::uint16_t* to) {
  for (std::int64_t key = 0; key < n_keys; ++key, to += d_padded) {
    const auto* from = static_cast<const std::uint16_t*>(rows[key]);
    std::int64_t e = 0;
    for (; e + 32 <= d; e += 32) _mm512_storeu_si512(to + e, _mm512_loadu_si512(from + e));
    for (; e < d_padded; e += 32) {
      const __m512i part = _mm512_maskz_loadu_epi16(first_elements(d - e), from + e);
      _mm512_mask_storeu_epi16(to + e, first_elements(d_padded - e), part);
    }
  }
}

inline void pack_bf16_values(const void* const* rows, std::int64_t n_keys, std::int64_t dv,
                             std::int64_t dv_padded, std::uint16_t* packed) {
  for (std::int64_t first = 0; first < dv_padded; first += 16) {
    const __mmask16 columns = first < dv ? first_lanes(dv - first) : __mmask16(0);
    const auto row = [&](std::int64_t key) {
      if (key >= n_keys) return _mm512_setzero_si512();
      const auto* from = static_cast<const std::uint16_t*>(rows[key]) + first;
      return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, from));
    };
    __m512i tile[16];
    for (int pair = 0; pair < 16; ++pair) {
      tile[pair] = _mm512_or_si512(row(2 * pair), _mm512_slli_epi32(row(2 * pair + 1), 16));
    }
    transpose(tile);
    for (int i = 0; i < 16; ++i) {
      if (first + i < dv_padded) _mm512_storeu_si512(packed + (first + i) * kKeyTile, tile[i]);
    }
  }
}

/// 2^x for any x: exactly 1 for 0 and 0 for -inf, relative error below 3.5e-6 else. The polynomial is minimax on
/// [0, 1) among those that are 1 at 0; vscalefps multiplies by 2^floor(x).
inline __m512 exp2_any(__m512 x) {
  constexpr int kRoundDown = 0x09;  // towards minus infinity, no exception
  const __m512 f = _mm512_reduce_ps(x, kRoundDown);
  __m512 p = Avx512::set(1.34266843e-2f);
  p = Avx512::fma(p, f, Avx512::set(5.22424742e-2f));
  p = Avx512::fma(p, f, Avx512::set(2.41280205e-1f));
  p = Avx512::fma(p, f, Avx512::set(6.93044845e-1f));
  p = Avx512::fma(p, f, Avx512::set(1.0f));
  return _mm512_scalef_ps(p, x);
}

/// Raw dot products of a tile to logits in units of ln 2 (LOGIT-1 to 3), -inf where a lane does not see the key
/// (MASK-1) or where there is none.
inline void map_tile(const Bf16Segment& segment, std::int64_t first, std::int64_t n, float* logits) {
  const __m512 factor = Avx512::set(segment.factor);
  for (std::int64_t i = 0; i < n * kBlockRows; i += Avx512::kWidth) {
    Avx512::store(logits + i, Avx512::mul(Avx512::load(logits + i), factor));
  }
  BlockPositions positions = segment.positions;
  if (positions.gathered) {
    positions.gathered += first;
  } else {
    positions.first_key += first;
  }
  if (segment.map.softcap > 0 || segment.map.slope != 0) {
    cap_and_bias<Avx512>(segment.map, positions, kBlockRows, n, logits);
  }
  const __m512 nothing = Avx512::set(-__builtin_inff());
  for (std::int64_t key = n; key < kKeyTile; ++key) {
    for (int half = 0; half < kHalves; ++half) {
      Avx512::store(logits + key * kBlockRows + half * Avx512::kWidth, nothing);
    }
  }
  if (positions.gathered) return;
  const std::int64_t diagonal =
      positions.first_row - positions.first_key;  // lane r sees keys up to diagonal + r
  for (std::int64_t key = diagonal < 0 ? 0 : diagonal + 1; key < n; ++key) {
    const std::int64_t hidden = least(key - diagonal, kBlockRows);
    const auto lanes = static_cast<std::uint32_t>((std::uint64_t{1} << hidden) - 1);
    for (int half = 0; half < kHalves; ++half) {
      float* at = logits + key * kBlockRows + half * Avx512::kWidth;
      const auto mask = static_cast<__mmask16>(lanes >> (16 * half));
      Avx512::store(at, _mm512_mask_blend_ps(mask, Avx512::load(at), nothing));
    }
  }
}

inline void raise_lanes(const float* logits, std::int64_t n, float* highest) {
  for (int half = 0; half < kHalves; ++half) {
    float* at = highest + half * Avx512::kWidth;
    __m512 top = Avx512::load(at);
    for (std::int64_t key = 0; key < n; ++key) {
      top = Avx512::max(Avx512::load(logits + key * kBlockRows + half * Avx512::kWidth), top);
    }
    Avx512::store(at, top);
  }
}

/// The offset is the sink, or -inf, until the first tile is known.
inline void set_anchor(const float* logits, Bf16Softmax& softmax) {
  raise_lanes(logits, kKeyTile, softmax.offset);
  for (int half = 0; half < kHalves; ++half) {
    float* at = softmax.offset + half * Avx512::kWidth;
    Avx512::store(at, Avx512::finite_or_zero(Avx512::load(at)));
  }
  softmax.anchored = true;
}

/// LOGIT-4: a column whose value row is zero.
inline void add_sink(float sink, Bf16Softmax& softmax) {
  for (int half = 0; half < kHalves; ++half) {
    const int at = half * Avx512::kWidth;
    const __m512 weight = exp2_any(Avx512::sub(Avx512::set(sink), Avx512::load(softmax.offset + at)));
    Avx512::store(softmax.sum + at, Avx512::add(Avx512::load(softmax.sum + at), weight));
    Avx512::store(softmax.rounded + at, Avx512::add(Avx512::load(softmax.rounded + at), weight));
  }
}

/// One tile of logits (times `factor`) to weights, some pairs of keys at a time.
class TileWeights {
 public:
  [[gnu::always_inline]] TileWeights(const float* logits, __m512 factor, const Bf16Softmax& softmax,
                                     std::uint16_t* weights)
      : logits_(logits), weights_(weights), factor_(factor) {
    repeat<kHalves>([&](auto half) {
      offset_[half] = Avx512::load(softmax.offset + half * Avx512::kWidth);
      even_[half] = odd_[half] = rounded_[half] = Avx512::zero();
    });
  }

  template <int Pairs>
  [[gnu::always_inline]] void next() {
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                                23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i ones = _mm512_set1_epi32(0x3F803F80);
    repeat<Pairs>([&](auto pair) {
      repeat<kHalves>([&](auto half) {
        const float* line = logits_ + 2 * pair * kBlockRows + half * Avx512::kWidth;
        const __m512 a = exp2_any(_mm512_fmsub_ps(Avx512::load(line), factor_, offset_[half]));
        const __m512 b = exp2_any(_mm512_fmsub_ps(Avx512::load(line + kBlockRows), factor_, offset_[half]));
        even_[half] = Avx512::add(even_[half], a);
        odd_[half] = Avx512::add(odd_[half], b);
        const auto apart = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        const __m512i both = _mm512_permutexvar_epi16(interleave, apart);
        rounded_[half] = _mm512_dpbf16_ps(rounded_[half], (__m512bh)both, (__m512bh)ones);
        _mm512_storeu_si512(weights_ + (pair * kBlockRows + half * Avx512::kWidth) * 2, both);
      });
    });
    logits_ += Pairs * 2 * kBlockRows;
    weights_ += Pairs * 2 * kBlockRows;
  }

  [[gnu::always_inline]] void finish(Bf16Softmax& softmax) const {
    repeat<kHalves>([&](auto half) {
      const auto add = [&](float* to, __m512 x) { Avx512::store(to, Avx512::add(Avx512::load(to), x)); };
      add(softmax.sum + half * Avx512::kWidth, Avx512::add(even_[half], odd_[half]));
      add(softmax.rounded + half * Avx512::kWidth, rounded_[half]);
    });
  }

 private:
  const float* logits_;
  std::uint16_t* weights_;
  __m512 factor_;
  __m512 offset_[kHalves], even_[kHalves], odd_[kHalves], rounded_[kHalves];
};

/// The mapped path (masks, cap, bias, the tile that holds the anchor) and the plain one round differently; which of
/// them a tile takes follows from positions alone, so that a second pass repeats the bits of the first.
inline bool is_mapped(const Bf16Segment& segment, std::int64_t first) {
  if (segment.map.softcap > 0 || segment.map.slope != 0 || first + kKeyTile >= segment.n_keys) return true;
  const BlockPositions& at = segment.positions;
  return !at.gathered && at.first_key + first + kKeyTile > at.first_row + 1;
}

template <class Unit>
void raise_to_highest(const Bf16Segment& segment, float* highest) {
  const typename Unit::Session session;
  alignas(64) float logits[kKeyTile * kBlockRows];
  for (std::int64_t first = 0; first < segment.n_keys; first += kKeyTile) {
    const std::int64_t n = least(kKeyTile, segment.n_keys - first);
    Unit::template dot<kHalves>(segment, first, n, logits);
    map_tile(segment, first, n, logits);
    raise_lanes(logits, n, highest);
  }
}

template <class Unit>
void products(const std::uint16_t* queries, std::int64_t lanes, const RowRun* runs, std::int64_t n_runs,
              std::int64_t d, std::int64_t stride, float* products) {
  const typename Unit::Session session;
  Bf16Segment segment;
  segment.queries = queries;
  segment.key_stride = stride;
  segment.d = d;
  for (std::int64_t run = 0; run < n_runs; ++run) {
    const std::int64_t n_keys = runs[run].n;
    segment.keys = static_cast<const std::uint16_t*>(runs[run].rows);
    segment.next = run + 1 < n_runs ? static_cast<const std::uint16_t*>(runs[run + 1].rows) : nullptr;
    for (std::int64_t tile = key_tiles(n_keys); tile-- > 0;) {  // from the last, as Unit::dot prefetches
      const std::int64_t first = tile * kKeyTile;
      const std::int64_t n = least(kKeyTile, n_keys - first);
      if (lanes > Avx512::kWidth) {
        Unit::template dot<kHalves>(segment, first, n, products + first * kBlockRows);
      } else {
        Unit::template dot<1>(segment, first, n, products + first * kBlockRows);
      }
    }
    products += n_keys * kBlockRows;
  }
}

/// Into the second-level cache.
inline void prefetch_next(PrefetchRows& rows) {
  if (rows.left == 0) return;
  constexpr std::int64_t kCacheLine = 64;
  for (std::int64_t line = 0; line < rows.bytes; line += kCacheLine)
    __builtin_prefetch(rows.next + line, 0, 2);
  rows.next += rows.stride;
  --rows.left;
}

inline constexpr int kTilePairs = static_cast<int>(kKeyTile / 2);

/// The products of the keys from `next` on, and between them the weights of the tile of `logits`: PairsOfStep of its pairs in
/// every step. A processor looks no further ahead than half of either, so they overlap only where they alternate.
template <class Unit, int PairsOfStep>
void weights_beside(const Bf16Segment& segment, std::int64_t next, float* next_logits, const float* logits,
                    __m512 factor, Bf16Softmax& softmax, std::uint16_t* weights) {
  if (HEADWATER_SABOTAGE("cpu.amx.logits_of_the_next_tile")) logits = next_logits;
  TileWeights own(logits, factor, softmax, weights);
  const auto beside = [&](auto place) __attribute__((always_inline)) {
    constexpr int kPairs = (PairsOfStep + 3 - place) / 4;
    own.template next<kPairs>();
  };
  Unit::template dot_beside<kHalves>(segment, next, kKeyTile, next_logits, beside);
  for (std::int64_t left = kTilePairs - PairsOfStep * Unit::steps_of_dot(segment.d); left > 0; --left) {
    own.template next<1>();
  }
  own.finish(softmax);
}

template <class Unit>
void softmax_weights(const Bf16Segment& segment, Bf16Softmax& softmax, std::uint16_t* weights) {
  const typename Unit::Session session;
  alignas(64) float buffer[2][kKeyTile * kBlockRows];
  const auto dot = [&](std::int64_t tile) {
    const std::int64_t first = tile * kKeyTile;
    Unit::template dot<kHalves>(segment, first, least(kKeyTile, segment.n_keys - first),
                                buffer[Unit::kPipelined ? tile & 1 : 0]);
  };
  const std::int64_t tiles = key_tiles(segment.n_keys);
  if (Unit::kPipelined) dot(tiles - 1);
  for (std::int64_t tile = tiles; tile-- > 0;) {
    for (std::int64_t i = 0; i < segment.n_prefetch; ++i) prefetch_next(segment.prefetch[i]);
    if (!Unit::kPipelined) dot(tile);
    float* logits = buffer[Unit::kPipelined ? tile & 1 : 0];
    const std::int64_t first = tile * kKeyTile;
    __m512 factor = Avx512::set(segment.factor);
    if (is_mapped(segment, first)) {
      map_tile(segment, first, least(kKeyTile, segment.n_keys - first), logits);
      factor = Avx512::set(1.0f);
    }
    if (!softmax.anchored) set_anchor(logits, softmax);
    std::uint16_t* const to = weights + tile * kTileWeights;
    if constexpr (Unit::kPipelined) {
      if (tile > 0) {
        const std::int64_t steps = Unit::steps_of_dot(segment.d);
        const auto run = steps <= 1            ? weights_beside<Unit, 16>
                         : steps <= 2          ? weights_beside<Unit, 8>
                         : steps <= 4          ? weights_beside<Unit, 4>
                         : steps <= 8          ? weights_beside<Unit, 2>
                         : steps <= kTilePairs ? weights_beside<Unit, 1>
                                               : weights_beside<Unit, 0>;
        run(segment, first - kKeyTile, buffer[(tile - 1) & 1], logits, factor, softmax, to);
        continue;
      }
    }
    TileWeights own(logits, factor, softmax, to);
    for (int pair = 0; pair < kTilePairs; ++pair) own.template next<1>();
    own.finish(softmax);
  }
}

inline void column_sums_bf16(const std::uint16_t* weights, std::int64_t n_keys, const float* factor,
                             double* sums) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const __m512 factors[kHalves] = {Avx512::load(factor), Avx512::load(factor + 16)};
  const auto pair_lines = [&](std::int64_t pair, __m512& even, __m512& odd) {
    const std::uint16_t* at = weights + pair * kBlockRows * 2;
    for (int half = 0; half < kHalves; ++half) {
      const __m512i both = _mm512_loadu_si512(at + half * 32);
      const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
      const __m512 b = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
      even = half == 0 ? Avx512::mul(a, factors[0]) : Avx512::fma(a, factors[half], even);
      odd = half == 0 ? Avx512::mul(b, factors[0]) : Avx512::fma(b, factors[half], odd);
    }
  };
  std::int64_t key = 0;
  for (; key + 16 <= n_keys; key += 16) {
    __m512 lines[16];
    for (int i = 0; i < 16; i += 2) pair_lines((key + i) / 2, lines[i], lines[i + 1]);
    Avx512::add_line_totals(lines, sums + key);
  }
  if (key == n_keys) return;
  __m512 lines[16];
  for (__m512& line : lines) line = Avx512::zero();
  for (int i = 0; key + i < n_keys; i += 2) pair_lines((key + i) / 2, lines[i], lines[i + 1]);
  double tail[16] = {};
  Avx512::add_line_totals(lines, tail);
  for (int i = 0; key + i < n_keys; ++i) sums[key + i] += tail[i];
}

inline std::uint32_t unpack_rows(const float* transposed, std::int64_t n_rows, std::int64_t dv,
                                 const float* factor, float* rows) {
  constexpr int kChains = 4;
  std::uint32_t not_finite = 0;
  for (int half = 0; half < kHalves; ++half) {
    const std::int64_t lanes = least(16, n_rows - 16 * half);
    if (lanes <= 0) break;
    const __m512 factors = Avx512::load(factor + 16 * half);
    __m512 probe[kChains];  // x * 0 is 0 for finite x and NaN for the others
    repeat<kChains>([&](auto chain) { probe[chain] = Avx512::zero(); });
    for (std::int64_t first = 0; first < dv; first += 16) {
      const std::int64_t n = least(16, dv - first);
      __m512i tile[16];
      repeat<16>([&](auto i) {
        tile[i] = _mm512_setzero_si512();
        if (i < n) {
          const __m512 x = Avx512::load(transposed + (first + i) * kBlockRows + 16 * half);
          probe[i % kChains] = Avx512::fma(x, Avx512::zero(), probe[i % kChains]);
          tile[i] = _mm512_castps_si512(Avx512::mul(x, factors));
        }
      });
      transpose(tile);
      for (int i = 0; i < 16; ++i) {
        if (i < lanes) _mm512_mask_storeu_epi32(rows + (16 * half + i) * dv + first, first_lanes(n), tile[i]);
      }
    }
    const __m512 all = Avx512::add(Avx512::add(probe[0], probe[1]), Avx512::add(probe[2], probe[3]));
    const auto failed =
        static_cast<std::uint32_t>(_mm512_cmp_ps_mask(all, all, _CMP_UNORD_Q) & first_lanes(lanes));
    not_finite |= failed << (half * Avx512::kWidth);
  }
  return not_finite;
}

/// The table of a unit.
template <class Unit>
constexpr Bf16Table bf16_kernels(const char* isa, std::int64_t d_multiple, std::int64_t dv_multiple,
                                 std::int64_t least_keys) {
  return {
      .isa = isa,
      .d_multiple = d_multiple,
      .dv_multiple = dv_multiple,
      .keys_in_place = Unit::kKeysInPlace,
      .least_keys = least_keys,
      .pack_queries = pack_bf16_queries,
      .copy_keys = copy_bf16_keys,
      .pack_values = pack_bf16_values,
      .products = products<Unit>,
      .raise_to_highest = raise_to_highest<Unit>,
      .softmax_weights = softmax_weights<Unit>,
      .add_sink = add_sink,
      .accumulate = Unit::accumulate,
      .column_sums = column_sums_bf16,
      .unpack_rows = unpack_rows,
      .row_logits = Unit::kRowLogits,
  };
}

}  // namespace
}  // namespace headwater::cpu
