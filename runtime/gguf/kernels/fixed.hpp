#pragma once

/// Dot products of quantised rows with a row in fixed point; rules for what may stand here: blocks.hpp. The sums of a run
/// are integers and exact; each is scaled once.
///
/// A vector type V has, for 32 words of 16 bits and 16 lanes of sums: Words, Sums; from_i8, from_u8 (32 bytes), halves
/// (16 bytes: their low nibbles, then their high ones), both (a | b), mask, right<k>, left<k>, minus, zero_sums,
/// add_run (sums + scale * products of neighbours added up), add_runs (the same with a scale for each half), sum_of,
/// runs (eight floats: unsigned bytes * scale * factors), signed_runs (sixteen: signed bytes, and each factor for two of
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

inline std::uint32_t load_u32(const std::byte* p) {
  std::uint32_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
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

template <class V, class Block>
typename V::Sums add_block(typename V::Sums sums, const std::byte* row, const FixedRow& x, std::int64_t b) {
  const float scale = float_of_half(load_u16(row)) * x.scales[b];
  return V::add_run(sums, codes_of<V>(row, Block()), x.codes + kFixedRun * b, scale);
}

/// Blocks of 32 codes with one scale, two at a time: additions of one chain wait for each other.
template <class V, class Block>
float dot_fixed_blocks(const std::byte* row, std::int64_t n, const FixedRow& x) {
  typename V::Sums even = V::zero_sums();
  typename V::Sums odd = V::zero_sums();
  const std::int64_t blocks = n / kFixedRun;
  std::int64_t b = 0;
  for (; b + 2 <= blocks; b += 2, row += 2 * Block::kBytes) {
    even = add_block<V, Block>(even, row, x, b);
    odd = add_block<V, Block>(odd, row + Block::kBytes, x, b + 1);
  }
  if (b < blocks) even = add_block<V, Block>(even, row, x, b);
  return V::sum_of(even, odd);
}

/// Scales of the eight runs of a Q4_K or Q5_K block times those of x; returns what the minima add up to.
template <class V>
float prepare_runs(const std::byte* block, const float* x_scales, const float* x_sums, float* scales) {
  alignas(16) std::uint8_t codes[16];
  six_bit_codes(block + 4, codes);
  V::runs(codes, float_of_half(load_u16(block)), x_scales, scales);
  return float_of_half(load_u16(block + 2)) * V::dot_runs(codes + 8, x_sums);
}

template <class V>
float dot_fixed_q4_k(const std::byte* row, std::int64_t n, const FixedRow& x) {
  typename V::Sums sums[2] = {V::zero_sums(), V::zero_sums()};
  float minima = 0.0F;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q4K::kBytes) {
    alignas(32) float scales[8];
    minima += prepare_runs<V>(row, x.scales + run, x.sums + run, scales);
    const std::int16_t* const codes = x.codes + run * kFixedRun;
    for (int pair = 0; pair < 4; ++pair) {
      const typename V::Words bytes = V::from_u8(row + 16 + 32 * pair);
      sums[0] = V::add_run(sums[0], V::mask(bytes, 15), codes + 64 * pair, scales[2 * pair]);
      sums[1] =
          V::add_run(sums[1], V::template right<4>(bytes), codes + 64 * pair + 32, scales[2 * pair + 1]);
    }
  }
  return V::sum_of(sums[0], sums[1]) - minima;
}

/// Bit r of each word, as 16.
template <class V, int Bit>
typename V::Words fifth(typename V::Words bits) {
  if constexpr (Bit < 4) {
    return V::mask(V::template left<4 - Bit>(bits), 16);
  } else {
    return V::mask(V::template right<Bit - 4>(bits), 16);
  }
}

template <class V, int Pair>
void add_q5_pair(const std::byte* packed, typename V::Words bits, const std::int16_t* codes,
                 const float* scales, typename V::Sums (&sums)[2]) {
  const typename V::Words bytes = V::from_u8(packed + 32 * Pair);
  const auto low = V::both(V::mask(bytes, 15), fifth<V, 2 * Pair>(bits));
  const auto high = V::both(V::template right<4>(bytes), fifth<V, 2 * Pair + 1>(bits));
  sums[0] = V::add_run(sums[0], low, codes + 64 * Pair, scales[2 * Pair]);
  sums[1] = V::add_run(sums[1], high, codes + 64 * Pair + 32, scales[2 * Pair + 1]);
}

template <class V>
float dot_fixed_q5_k(const std::byte* row, std::int64_t n, const FixedRow& x) {
  typename V::Sums sums[2] = {V::zero_sums(), V::zero_sums()};
  float minima = 0.0F;
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q5K::kBytes) {
    alignas(32) float scales[8];
    minima += prepare_runs<V>(row, x.scales + run, x.sums + run, scales);
    const std::int16_t* const codes = x.codes + run * kFixedRun;
    const typename V::Words bits = V::from_u8(row + 16);
    add_q5_pair<V, 0>(row + 48, bits, codes, scales, sums);
    add_q5_pair<V, 1>(row + 48, bits, codes, scales, sums);
    add_q5_pair<V, 2>(row + 48, bits, codes, scales, sums);
    add_q5_pair<V, 3>(row + 48, bits, codes, scales, sums);
  }
  return V::sum_of(sums[0], sums[1]) - minima;
}

/// Half a block of Q6_K: four times 32 codes, each with a scale for its first and its last 16.
template <class V>
void add_q6_half(const std::byte* low, const std::byte* high, const std::int16_t* codes, const float* scales,
                 typename V::Sums (&sums)[2]) {
  const typename V::Words first = V::from_u8(low);
  const typename V::Words second = V::from_u8(low + 32);
  const typename V::Words top = V::from_u8(high);
  const typename V::Words parts[4] = {
      V::both(V::mask(first, 15), V::template left<4>(V::mask(top, 3))),
      V::both(V::mask(second, 15), V::template left<2>(V::mask(top, 12))),
      V::both(V::template right<4>(first), V::mask(top, 48)),
      V::both(V::template right<4>(second), V::template right<2>(V::mask(top, 192)))};
  for (int part = 0; part < 4; ++part) {
    sums[part % 2] =
        V::add_runs(sums[part % 2], V::minus(parts[part], 32), codes + 32 * part, scales + 2 * part);
  }
}

template <class V>
float dot_fixed_q6_k(const std::byte* row, std::int64_t n, const FixedRow& x) {
  typename V::Sums sums[2] = {V::zero_sums(), V::zero_sums()};
  for (std::int64_t run = 0; run < n / kFixedRun; run += 8, row += Q6K::kBytes) {
    alignas(64) float scales[16];
    V::signed_runs(row + 192, float_of_half(load_u16(row + 208)), x.scales + run, scales);
    const std::int16_t* const codes = x.codes + run * kFixedRun;
    add_q6_half<V>(row, row + 128, codes, scales, sums);
    add_q6_half<V>(row + 64, row + 160, codes + 128, scales + 8, sums);
  }
  return V::sum_of(sums[0], sums[1]);
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
      for (int i = begin; i < begin + Block::kRun; ++i) sum += codes[i] * x.codes[first + i];
      total += scales[run] * x.scales[at] * static_cast<float>(sum);
      if constexpr (Block::kMinima) total -= minima[run] * x.sums[at];
    }
  }
  return total;
}

}  // namespace
}  // namespace headwater::runtime
