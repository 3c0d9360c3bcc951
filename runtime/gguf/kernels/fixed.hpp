#pragma once

/// Dot products of quantised rows with a row in fixed point; rules for what may stand here: blocks.hpp. The sums of a run
/// are integers and exact; each is scaled once.
///
/// A vector type V has, for 32 words of 16 bits and 16 lanes of sums: Words, Sums; from_i8, from_u8 (32 bytes), halves
/// (16 bytes: their low nibbles, then their high ones), sixteens (32 bits: 16 where one is set), both (a | b), mask,
/// right<k>, left<k>, minus, zero_sums, all (32 times the same), add_run (sums + scale * products of neighbours added
/// up), add_runs (the same with a scale for each half), sum_of, runs (eight floats: unsigned bytes * scale * factors),
/// signed_runs (sixteen: signed bytes, and each factor for two of
/// them), dot_runs (eight products added up).

#include "runtime/gguf/kernels/blocks.hpp"
#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime {
namespace {

/// To nearest even, for |value| < 2^22.
inline float rounded(float value) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds in the lowest bit of the mantissa
  return (value + kMagic) - kMagic;
}

/// One run of kFixedRun elements. The largest decides the scale; NaN and infinity become a scale of NaN, which
/// every sum then is. Values far below those of activations become zero.
inline void fix_run(const float* x, std::int16_t* codes, float* scale, float* sum) {
  constexpr float kLargest = 32639.0F;  // 127 * 256 + 127
  constexpr float kNothing = 0x1p-100F;
  std::uint32_t most = 0;
  for (int i = 0; i < kFixedRun; ++i) {
    const auto size = __builtin_bit_cast(std::uint32_t, x[i]) & 0x7FFFFFFF;
    most = size > most ? size : most;
  }
  const auto largest = __builtin_bit_cast(float, most);
  const bool finite = most < 0x7F800000;
  const float inverse = finite && largest > kNothing ? kLargest / largest : 0.0F;
  int total = 0;
  for (int i = 0; i < kFixedRun; ++i) {
    const int code = static_cast<int>(rounded(finite ? x[i] * inverse : 0.0F));
    codes[i] = static_cast<std::int16_t>(code);
    total += code;
  }
  *scale = finite ? (largest > kNothing ? largest / kLargest : 0.0F) : __builtin_nanf("");
  *sum = *scale * static_cast<float>(total);
}

inline void fix_row(const float* x, std::int64_t n, std::int16_t* codes, float* scales, float* sums) {
  for (std::int64_t run = 0; run < n / kFixedRun; ++run) {
    fix_run(x + run * kFixedRun, codes + run * kFixedRun, scales + run, sums + run);
  }
}

/// six_bit_scales() without the scales of scales, four bytes at a time: eight scales, then eight minima.
inline void six_bit_codes(const std::byte* packed, std::uint8_t* codes) {
  constexpr std::uint32_t kSix = 0x3F3F3F3F;
  constexpr std::uint32_t kFour = 0x0F0F0F0F;
  constexpr std::uint32_t kTwo = 0x03030303;
  const std::uint32_t scales = load_u32(packed);
  const std::uint32_t minima = load_u32(packed + 4);
  const std::uint32_t last = load_u32(packed + 8);
  const std::uint32_t words[4] = {scales & kSix, (last & kFour) | ((scales >> 6) & kTwo) << 4, minima & kSix,
                                  ((last >> 4) & kFour) | ((minima >> 6) & kTwo) << 4};
  __builtin_memcpy(codes, words, sizeof words);
}

template <class V>
typename V::Words codes_of(const std::byte* row, Q8_0) {
  return V::from_i8(row + 2);
}
template <class V>
typename V::Words codes_of(const std::byte* row, Q4_0) {
  return V::minus(V::halves(row + 2), 8);
}
template <class V>
typename V::Words codes_of(const std::byte* row, Q4_1) {
  return V::halves(row + 4);
}
template <class V>
typename V::Words codes_of(const std::byte* row, Q5_0) {
  return V::minus(V::both(V::halves(row + 6), V::sixteens(load_u32(row + 2))), 16);
}
template <class V>
typename V::Words codes_of(const std::byte* row, Q5_1) {
  return V::both(V::halves(row + 8), V::sixteens(load_u32(row + 4)));
}

/// Values of a table.
template <class V, class Block>
typename V::Words table_values(const std::byte* row) {
  alignas(64) std::int8_t values[Block::kElements];
  float scale;
  Block::unpack(row, values, &scale, nullptr);
  return V::from_i8(reinterpret_cast<const std::byte*>(values));
}
template <class V>
typename V::Words codes_of(const std::byte* row, IQ4_NL) {
  return table_values<V, IQ4_NL>(row);
}
template <class V>
typename V::Words codes_of(const std::byte* row, MXFP4) {
  return table_values<V, MXFP4>(row);
}

template <class Block>
float scale_of(const std::byte* row, Block) {
  return float_of_half(load_u16(row));
}
inline float scale_of(const std::byte* row, MXFP4) { return MXFP4::scale_of(row); }

/// What the kernels below add up for each of R rows x: two chains, since additions of one wait for each other. A row has the
/// same sum for every R.
template <class V, int R>
struct Chains {
  typename V::Sums even[R], odd[R];

  Chains() {
    for (int r = 0; r < R; ++r) even[r] = odd[r] = V::zero_sums();
  }
  [[nodiscard]] float total(int r) const { return V::sum_of(even[r], odd[r]); }
};

/// `minima` are what the blocks' minima add up to for each of the R rows.
template <class V, class Block, int R>
inline void add_block(typename V::Sums (&sums)[R], float (&minima)[R], const std::byte* row,
                      const FixedRow* x, std::int64_t b) {
  const typename V::Words codes = codes_of<V>(row, Block());
  const float scale = scale_of(row, Block());
  for (int r = 0; r < R; ++r) {
    sums[r] = V::add_run(sums[r], codes, x[r].codes + kFixedRun * b, scale * x[r].scales[b]);
    if constexpr (Block::kMinima) minima[r] += float_of_half(load_u16(row + 2)) * x[r].sums[b];
  }
}

/// Blocks of 32 codes with one scale, and a minimum that is added where the type has one.
template <class V, class Block, int R>
void dot_fixed_blocks(const std::byte* row, std::int64_t n, const FixedRow* x, float* out) {
  Chains<V, R> sums;
  float minima[R] = {};
  const std::int64_t blocks = n / kFixedRun;
  std::int64_t b = 0;
  for (; b + 2 <= blocks; b += 2, row += 2 * Block::kBytes) {
    add_block<V, Block, R>(sums.even, minima, row, x, b);
    add_block<V, Block, R>(sums.odd, minima, row + Block::kBytes, x, b + 1);
  }
  if (b < blocks) add_block<V, Block, R>(sums.even, minima, row, x, b);
  for (int r = 0; r < R; ++r) out[r] = Block::kMinima ? sums.total(r) + minima[r] : sums.total(r);
}

/// Scales of the eight runs of a Q4_K or Q5_K block times those of x; returns what the minima add up to.
template <class V>
float prepare_runs(const std::byte* block, const float* x_scales, const float* x_sums, float* scales) {
  alignas(16) std::uint8_t codes[16];
  six_bit_codes(block + 4, codes);
  V::runs(codes, float_of_half(load_u16(block)), x_scales, scales);
  return float_of_half(load_u16(block + 2)) * V::dot_runs(codes + 8, x_sums);
}

/// Scales of the eight runs of a block for each of R rows, and what minima take off each.
template <int R>
struct Runs {
  alignas(32) float scales[R][8];
  float minima[R] = {};

  template <class V>
  void prepare(const std::byte* block, const FixedRow* x, std::int64_t run) {
    for (int r = 0; r < R; ++r)
      minima[r] += prepare_runs<V>(block, x[r].scales + run, x[r].sums + run, scales[r]);
  }
};

/// 32 words that belong to run `run` of the row, `at` of its block.
template <class V, int R>
inline void add_words(typename V::Sums (&sums)[R], typename V::Words words, const FixedRow* x,
                      std::int64_t run, int at, const Runs<R>& runs) {
  for (int r = 0; r < R; ++r) {
    sums[r] = V::add_run(sums[r], words, x[r].codes + (run + at) * kFixedRun, runs.scales[r][at]);
  }
}

template <class V, int R>
void dot_fixed_q4_k(const std::byte* row, std::int64_t n, const FixedRow* x, float* out) {
  Chains<V, R> sums;
  Runs<R> runs;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q4K::kBytes) {
    runs.template prepare<V>(row, x, run);
    for (int pair = 0; pair < 4; ++pair) {
      const typename V::Words bytes = V::from_u8(row + 16 + 32 * pair);
      add_words<V, R>(sums.even, V::mask(bytes, 15), x, run, 2 * pair, runs);
      add_words<V, R>(sums.odd, V::template right<4>(bytes), x, run, 2 * pair + 1, runs);
    }
  }
  for (int r = 0; r < R; ++r) out[r] = sums.total(r) - runs.minima[r];
}

/// Bit `Bit` of each word, as bit To.
template <class V, int Bit, int To>
typename V::Words moved_bit(typename V::Words bits) {
  if constexpr (Bit < To) {
    return V::mask(V::template left<To - Bit>(bits), 1 << To);
  } else {
    return V::mask(V::template right<Bit - To>(bits), 1 << To);
  }
}

template <class V, int R, int Pair>
inline void add_q5_pair(Chains<V, R>& sums, const std::byte* packed, typename V::Words bits,
                        const FixedRow* x, std::int64_t run, const Runs<R>& runs) {
  const typename V::Words bytes = V::from_u8(packed + 32 * Pair);
  const auto low = V::both(V::mask(bytes, 15), moved_bit<V, 2 * Pair, 4>(bits));
  const auto high = V::both(V::template right<4>(bytes), moved_bit<V, 2 * Pair + 1, 4>(bits));
  add_words<V, R>(sums.even, low, x, run, 2 * Pair, runs);
  add_words<V, R>(sums.odd, high, x, run, 2 * Pair + 1, runs);
}

template <class V, int R>
void dot_fixed_q5_k(const std::byte* row, std::int64_t n, const FixedRow* x, float* out) {
  Chains<V, R> sums;
  Runs<R> runs;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q5K::kBytes) {
    runs.template prepare<V>(row, x, run);
    const typename V::Words bits = V::from_u8(row + 16);
    add_q5_pair<V, R, 0>(sums, row + 48, bits, x, run, runs);
    add_q5_pair<V, R, 1>(sums, row + 48, bits, x, run, runs);
    add_q5_pair<V, R, 2>(sums, row + 48, bits, x, run, runs);
    add_q5_pair<V, R, 3>(sums, row + 48, bits, x, run, runs);
  }
  for (int r = 0; r < R; ++r) out[r] = sums.total(r) - runs.minima[r];
}

/// 32 codes, with a scale for the first and for the last 16, of which run `run` of the row begins at scale `at`.
template <class V, int R>
inline void add_halves(typename V::Sums (&sums)[R], typename V::Words words, const FixedRow* x,
                       std::int64_t run, const float (&scales)[R][16], int at) {
  for (int r = 0; r < R; ++r) {
    sums[r] = V::add_runs(sums[r], words, x[r].codes + run * kFixedRun, scales[r] + at);
  }
}

/// Half a block of Q6_K, the runs `run` to `run` + 3: four times 32 codes, each with a scale for its first and its last 16.
template <class V, int R>
inline void add_q6_half(Chains<V, R>& sums, const std::byte* low, const std::byte* high, const FixedRow* x,
                        std::int64_t run, const float (&scales)[R][16], int at) {
  const typename V::Words first = V::from_u8(low);
  const typename V::Words second = V::from_u8(low + 32);
  const typename V::Words top = V::from_u8(high);
  const typename V::Words parts[4] = {
      V::both(V::mask(first, 15), V::template left<4>(V::mask(top, 3))),
      V::both(V::mask(second, 15), V::template left<2>(V::mask(top, 12))),
      V::both(V::template right<4>(first), V::mask(top, 48)),
      V::both(V::template right<4>(second), V::template right<2>(V::mask(top, 192)))};
  for (int part = 0; part < 4; ++part) {
    const typename V::Words words = V::minus(parts[part], 32);
    auto& chain = part % 2 == 0 ? sums.even : sums.odd;
    add_halves<V, R>(chain, words, x, run + part, scales, at + 2 * part);
  }
}

template <class V, int R>
void dot_fixed_q6_k(const std::byte* row, std::int64_t n, const FixedRow* x, float* out) {
  Chains<V, R> sums;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q6K::kBytes) {
    alignas(64) float scales[R][16];
    for (int r = 0; r < R; ++r) {
      V::signed_runs(row + 192, float_of_half(load_u16(row + 208)), x[r].scales + run, scales[r]);
    }
    add_q6_half<V, R>(sums, row, row + 128, x, run, scales, 0);
    add_q6_half<V, R>(sums, row + 64, row + 160, x, run + 4, scales, 8);
  }
  for (int r = 0; r < R; ++r) out[r] = sums.total(r);
}

/// Part `Part` of half a block: 32 codes of two bits.
template <class V, int Part>
typename V::Words two_bit_part(const std::byte* packed) {
  return V::mask(V::template right<2 * Part>(V::from_u8(packed)), 3);
}

/// Parts Part and Part + 1 of half a block of Q2_K that begins with run `run`. Minima are codes of one.
template <class V, int R, int Part>
inline void add_q2_parts(Chains<V, R>& sums, const std::byte* packed, const FixedRow* x, std::int64_t run,
                         const float (&scales)[R][16], const float (&minima)[R][16], int at) {
  const typename V::Words one = V::all(1);
  add_halves<V, R>(sums.even, two_bit_part<V, Part>(packed), x, run + Part, scales, at + 2 * Part);
  add_halves<V, R>(sums.odd, two_bit_part<V, Part + 1>(packed), x, run + Part + 1, scales, at + 2 * Part + 2);
  add_halves<V, R>(sums.even, one, x, run + Part, minima, at + 2 * Part);
  add_halves<V, R>(sums.odd, one, x, run + Part + 1, minima, at + 2 * Part + 2);
}

template <class V, int R>
void dot_fixed_q2_k(const std::byte* row, std::int64_t n, const FixedRow* x, float* out) {
  Chains<V, R> sums;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q2K::kBytes) {
    Bytes16 stored;
    __builtin_memcpy(&stored, row, sizeof stored);
    alignas(16) std::byte nibbles[2][16];
    const Bytes16 low = stored & 15;
    const Bytes16 high = stored >> 4;
    __builtin_memcpy(nibbles[0], &low, sizeof low);
    __builtin_memcpy(nibbles[1], &high, sizeof high);
    alignas(64) float scales[R][16];
    alignas(64) float minima[R][16];
    for (int r = 0; r < R; ++r) {
      V::signed_runs(nibbles[0], float_of_half(load_u16(row + Q2K::kScale)), x[r].scales + run, scales[r]);
      V::signed_runs(nibbles[1], -float_of_half(load_u16(row + Q2K::kMinimum)), x[r].scales + run, minima[r]);
    }
    for (int half = 0; half < 2; ++half) {
      const std::byte* const packed = row + Q2K::kCodes + 32 * half;
      add_q2_parts<V, R, 0>(sums, packed, x, run + 4 * half, scales, minima, 8 * half);
      add_q2_parts<V, R, 2>(sums, packed, x, run + 4 * half, scales, minima, 8 * half);
    }
  }
  for (int r = 0; r < R; ++r) out[r] = sums.total(r);
}

/// Part `Part` of a half of a block of Q3_K, which begins with run `run`.
template <class V, int R, int Half, int Part>
inline void add_q3_part(typename V::Sums (&sums)[R], const std::byte* row, const FixedRow* x,
                        std::int64_t run, const float (&scales)[R][16]) {
  const auto two = two_bit_part<V, Part>(row + Q3K::kCodes + 32 * Half);
  const auto third = moved_bit<V, 4 * Half + Part, 2>(V::from_u8(row));
  add_halves<V, R>(sums, V::minus(V::both(two, third), 4), x, run + 4 * Half + Part, scales,
                   8 * Half + 2 * Part);
}

template <class V, int R, int Half>
inline void add_q3_half(Chains<V, R>& sums, const std::byte* row, const FixedRow* x, std::int64_t run,
                        const float (&scales)[R][16]) {
  add_q3_part<V, R, Half, 0>(sums.even, row, x, run, scales);
  add_q3_part<V, R, Half, 1>(sums.odd, row, x, run, scales);
  add_q3_part<V, R, Half, 2>(sums.even, row, x, run, scales);
  add_q3_part<V, R, Half, 3>(sums.odd, row, x, run, scales);
}

template <class V, int R>
void dot_fixed_q3_k(const std::byte* row, std::int64_t n, const FixedRow* x, float* out) {
  Chains<V, R> sums;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q3K::kBytes) {
    std::uint8_t stored[16];
    Q3K::six_bits(row, stored);
    alignas(16) std::byte signed_codes[16];
    for (int i = 0; i < 16; ++i) signed_codes[i] = static_cast<std::byte>(stored[i] - Q3K::kZero);
    alignas(64) float scales[R][16];
    for (int r = 0; r < R; ++r) {
      V::signed_runs(signed_codes, float_of_half(load_u16(row + Q3K::kScale)), x[r].scales + run, scales[r]);
    }
    add_q3_half<V, R, 0>(sums, row, x, run, scales);
    add_q3_half<V, R, 1>(sums, row, x, run, scales);
  }
  for (int r = 0; r < R; ++r) out[r] = sums.total(r);
}

template <class V, int R>
void dot_fixed_iq4_xs(const std::byte* row, std::int64_t n, const FixedRow* x, float* out) {
  Chains<V, R> sums;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += IQ4_XS::kBytes) {
    alignas(64) std::int8_t values[IQ4_XS::kElements];
    float own[8];
    IQ4_XS::unpack(row, values, own, nullptr);
    Runs<R> runs;
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < 8; ++i) runs.scales[r][i] = own[i] * x[r].scales[run + i];
    }
    for (int i = 0; i < 8; ++i) {
      auto& chain = i % 2 == 0 ? sums.even : sums.odd;
      const auto words = V::from_i8(reinterpret_cast<const std::byte*>(values + kFixedRun * i));
      add_words<V, R>(chain, words, x, run, i, runs);
    }
  }
  for (int r = 0; r < R; ++r) out[r] = sums.total(r);
}

/// Any block, one element after the other: what the vectors above are checked against.
template <class Block>
float dot_fixed_plain(const std::byte* row, std::int64_t n, const FixedRow& x) {
  float total = 0.0F;
  for (std::int64_t first = 0; first < n; first += Block::kElements, row += Block::kBytes) {
    std::int8_t room[Block::kElements];
    float scales[16];
    float minima[16];
    const std::int8_t* const codes = Block::unpack(row, room, scales, minima);
    for (int begin = 0; begin < Block::kElements; begin += Block::kRun) {
      const std::int64_t at = (first + begin) / kFixedRun;
      const int run = begin / Block::kRun;
      int sum = 0;
      int own = 0;  // of x: a run of a block may be half of one of x
      for (int i = begin; i < begin + Block::kRun; ++i) {
        sum += codes[i] * x.codes[first + i];
        own += x.codes[first + i];
      }
      float part = scales[run] * x.scales[at] * static_cast<float>(sum);
      if constexpr (Block::kMinima) part -= minima[run] * x.scales[at] * static_cast<float>(own);
      total += part;
    }
  }
  return total;
}

}  // namespace
}  // namespace headwater::runtime
