#pragma once

/// ggml's quantised blocks (ggml-common.h, ggml-quants.c), unpacked to one form: signed codes, and for each run of
/// codes a scale and a minimum: value = scale * code - minimum. Included by one file per ISA and built with its
/// flags; everything sits in an unnamed namespace and nothing of the standard library is called, so that no function
/// compiled for a newer processor can be linked into code that runs on an older one.

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

namespace headwater::runtime {
namespace {

/// Exact.
inline float float_of_half(std::uint16_t bits) {
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t rest = bits & 0x7FFF;
  // Subnormal halves are multiples of 2^-24; Infinity and NaN get the largest exponent, the others another bias.
  const float small = static_cast<float>(rest) * 0x1p-24f;
  const std::uint32_t bias = rest >= 0x7C00 ? 224u << 23 : 112u << 23;
  const std::uint32_t wide = rest < 0x400 ? __builtin_bit_cast(std::uint32_t, small) : (rest << 13) + bias;
  return __builtin_bit_cast(float, wide | sign);
#endif
}

inline float float_of_bf16(std::uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

/// To nearest even; NaN becomes a quiet one of the same sign.
inline std::uint16_t bf16_of_float(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}

inline std::uint16_t load_u16(const std::byte* p) {
  std::uint16_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

inline std::uint32_t load_u32(const std::byte* p) {
  std::uint32_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

inline int byte_at(const std::byte* p, int i) { return static_cast<int>(p[i]); }

/// A vector of the compilers (docs/adr/0008): loops over bytes may alias what they write and are not vectorised well.
using Bytes16 = std::uint8_t __attribute__((vector_size(16)));

/// codes[i] = a nibble of packed[i] - zero, i < n, n a multiple of 16. Every code is written once: a load that spans
/// two stores would wait for both to reach the cache.
template <bool High>
inline void nibbles(const std::byte* packed, int n, std::uint8_t zero, std::int8_t* codes) {
  for (int i = 0; i < n; i += 16) {
    Bytes16 bytes;
    __builtin_memcpy(&bytes, packed + i, sizeof bytes);
    bytes = (High ? bytes >> 4 : bytes & 15) - zero;
    __builtin_memcpy(codes + i, &bytes, sizeof bytes);
  }
}

// unpack() returns where the codes are: in `room`, or in the block itself where it stores them so.

/// 32 codes, one scale: f16 scale, 32 x i8.
struct Q8_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = false;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t*, float* scales, float*) {
    scales[0] = float_of_half(load_u16(block));
    return reinterpret_cast<const std::int8_t*>(block + 2);
  }
};

/// 32 codes, one scale: f16 scale, 16 bytes; low nibbles are the first half, and 8 stands for zero.
struct Q4_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = false;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float*) {
    scales[0] = float_of_half(load_u16(block));
    nibbles<false>(block + 2, 16, 8, codes);
    nibbles<true>(block + 2, 16, 8, codes + 16);
    return codes;
  }
};

/// As Q4_0 with codes from zero on, and an f16 minimum behind the scale that is added: value = scale * code + minimum. So
/// minima[0], which is taken off, is the stored one with the other sign.
struct Q4_1 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 20;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = true;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float* minima) {
    scales[0] = float_of_half(load_u16(block));
    minima[0] = -float_of_half(load_u16(block + 2));
    nibbles<false>(block + 4, 16, 0, codes);
    nibbles<true>(block + 4, 16, 0, codes + 16);
    return codes;
  }
};

/// 32 codes of 5 bits less `zero`: bit i of the first 32 is the fifth of code i; then nibbles as those of Q4_0.
inline void five_bits(const std::byte* packed, int zero, std::int8_t* codes) {
  const std::uint32_t fifth = load_u32(packed);
  for (int i = 0; i < 16; ++i) {
    const int byte = byte_at(packed + 4, i);
    codes[i] = static_cast<std::int8_t>(((byte & 15) | static_cast<int>(fifth >> i & 1) << 4) - zero);
    codes[i + 16] =
        static_cast<std::int8_t>((byte >> 4 | static_cast<int>(fifth >> (i + 16) & 1) << 4) - zero);
  }
}

/// 32 codes, one scale: f16 scale, codes; 16 stands for zero.
struct Q5_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 22;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = false;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float*) {
    scales[0] = float_of_half(load_u16(block));
    five_bits(block + 2, 16, codes);
    return codes;
  }
};

/// f16 scale, f16 minimum as that of Q4_1, codes.
struct Q5_1 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 24;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = true;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float* minima) {
    scales[0] = float_of_half(load_u16(block));
    minima[0] = -float_of_half(load_u16(block + 2));
    five_bits(block + 4, 0, codes);
    return codes;
  }
};

/// Runs of 32 nibbles behind a head of some bytes, low ones the first half of each.
template <int Head, int Runs = 1>
struct Nibbles {
  static constexpr int kElements = 32 * Runs;
  static constexpr int kBytes = Head + 16 * Runs;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float*, float*) {
    for (int run = 0; run < Runs; ++run) {
      nibbles<false>(block + Head + 16 * run, 16, 0, codes + 32 * run);
      nibbles<true>(block + Head + 16 * run, 16, 0, codes + 32 * run + 16);
    }
    return codes;
  }
};

/// f16 scale, then nibbles that stand for values of a table.
struct IQ4_NL {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = false;
  static constexpr std::int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
  static float scale_of(const std::byte* block) { return float_of_half(load_u16(block)); }
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float*) {
    scales[0] = scale_of(block);
    Nibbles<2>::unpack(block, codes, nullptr, nullptr);
    for (int i = 0; i < kElements; ++i) codes[i] = kValues[codes[i]];
    return codes;
  }
};

/// MXFP4 of the Open Compute Project: an exponent, then numbers of four bits, which a table has times two.
struct MXFP4 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 17;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = false;
  static constexpr std::int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  static constexpr int kLargest = 252;  ///< of the exponents with which 12 is finite; 255 stands for NaN
  /// 2^(exponent - 128) in BF16, which has every one of them.
  static std::uint16_t scale_bits(const std::byte* block) {
    const int exponent = byte_at(block, 0);
    return static_cast<std::uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
  }
  static float scale_of(const std::byte* block) { return float_of_bf16(scale_bits(block)); }
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float*) {
    scales[0] = scale_of(block);
    Nibbles<1>::unpack(block, codes, nullptr, nullptr);
    for (int i = 0; i < kElements; ++i) codes[i] = kValues[codes[i]];
    return codes;
  }
};

/// Scales and minima of the 8 runs of a Q4_K or Q5_K block: f16 scale of scales, f16 scale of minima, 12 bytes with
/// 6 bits for each. The first four of both have a byte each, whose two top bits belong to the last four.
inline void six_bit_scales(const std::byte* block, float* scales, float* minima) {
  const float scale = float_of_half(load_u16(block));
  const float minimum = float_of_half(load_u16(block + 2));
  const std::byte* const packed = block + 4;
  for (int i = 0; i < 4; ++i) {
    scales[i] = scale * static_cast<float>(byte_at(packed, i) & 63);
    minima[i] = minimum * static_cast<float>(byte_at(packed, i + 4) & 63);
    const int last = byte_at(packed, i + 8);
    scales[i + 4] = scale * static_cast<float>((last & 15) | (byte_at(packed, i) >> 6) << 4);
    minima[i + 4] = minimum * static_cast<float>((last >> 4) | (byte_at(packed, i + 4) >> 6) << 4);
  }
}

/// 256 codes of 4 bits in runs of 32: scales, then 4 x 32 bytes, low nibbles a run, high nibbles the next one.
struct Q4K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 144;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = true;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float* minima) {
    six_bit_scales(block, scales, minima);
    for (int pair = 0; pair < 4; ++pair) {
      nibbles<false>(block + 16 + 32 * pair, 32, 0, codes + 64 * pair);
      nibbles<true>(block + 16 + 32 * pair, 32, 0, codes + 64 * pair + 32);
    }
    return codes;
  }
};

/// As Q4_K, with the fifth bit of run r in bit r of 32 bytes in front of the nibbles.
struct Q5K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 176;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = true;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float* minima) {
    six_bit_scales(block, scales, minima);
    const std::byte* const fifth = block + 16;
    for (int pair = 0; pair < 4; ++pair) {
      const std::byte* const packed = block + 48 + 32 * pair;
      std::int8_t* const low = codes + 64 * pair;
      for (int i = 0; i < 32; ++i) {
        const int bits = byte_at(fifth, i) >> (2 * pair);
        low[i] = static_cast<std::int8_t>((byte_at(packed, i) & 15) | (bits & 1) << 4);
        low[i + 32] = static_cast<std::int8_t>((byte_at(packed, i) >> 4) | (bits & 2) << 3);
      }
    }
    return codes;
  }
};

/// 256 codes of 6 bits in runs of 16, 32 stands for zero: 128 bytes of low nibbles, 64 bytes of the two high bits,
/// 16 x i8 scales, f16 scale of scales. A half has 4 x 32 codes: the nibbles of 64 bytes, the bit pairs of 32.
struct Q6K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;
  static constexpr int kRun = 16;
  static constexpr bool kMinima = false;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float*) {
    const float scale = float_of_half(load_u16(block + 208));
    for (int run = 0; run < 16; ++run) {
      scales[run] = scale * static_cast<float>(static_cast<std::int8_t>(block[192 + run]));
    }
    for (int half = 0; half < 2; ++half) {
      const std::byte* const low = block + 64 * half;
      const std::byte* const high = block + 128 + 32 * half;
      std::int8_t* const out = codes + 128 * half;
      for (int i = 0; i < 32; ++i) {
        const int top = byte_at(high, i);
        out[i] = static_cast<std::int8_t>(((byte_at(low, i) & 15) | (top & 3) << 4) - 32);
        out[i + 32] = static_cast<std::int8_t>(((byte_at(low, i + 32) & 15) | (top & 12) << 2) - 32);
        out[i + 64] = static_cast<std::int8_t>(((byte_at(low, i) >> 4) | (top & 48)) - 32);
        out[i + 96] = static_cast<std::int8_t>(((byte_at(low, i + 32) >> 4) | (top & 192) >> 2) - 32);
      }
    }
    return codes;
  }
};

/// 256 codes of 2 bits in 64 bytes: each half 4 x 32 codes in 32 bytes, the lowest bits of all first.
inline void two_bits(const std::byte* packed, std::int8_t* codes) {
  for (int i = 0; i < 256; ++i) {
    codes[i] = static_cast<std::int8_t>(byte_at(packed, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3);
  }
}

/// 256 codes of 2 bits in runs of 16: 16 bytes with a scale in the low nibble and a minimum in the high one, codes, f16
/// scale of scales, f16 scale of minima.
struct Q2K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 84;
  static constexpr int kRun = 16;
  static constexpr bool kMinima = true;
  static constexpr int kCodes = 16;
  static constexpr int kScale = 80;
  static constexpr int kMinimum = 82;
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float* minima) {
    const float scale = float_of_half(load_u16(block + kScale));
    const float minimum = float_of_half(load_u16(block + kMinimum));
    for (int run = 0; run < 16; ++run) {
      scales[run] = scale * static_cast<float>(byte_at(block, run) & 15);
      minima[run] = minimum * static_cast<float>(byte_at(block, run) >> 4);
    }
    two_bits(block + kCodes, codes);
    return codes;
  }
};

/// 256 codes of 3 bits in runs of 16, 4 stands for zero: 32 bytes whose bit 4 h + p is the third of the codes of part p of
/// half h, codes of 2 bits as those of Q2_K, 12 bytes with 16 scales of 6 bits, f16 scale of scales.
struct Q3K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 110;
  static constexpr int kRun = 16;
  static constexpr bool kMinima = false;
  static constexpr int kCodes = 32;
  static constexpr int kScales = 96;
  static constexpr int kScale = 108;
  static constexpr int kZero = 32;  ///< of the scales
  /// Scales of 6 bits: the low nibbles of 8 bytes, their high ones, and bits 2 (run / 4) of 4 bytes above them.
  static void six_bits(const std::byte* block, std::uint8_t* scales) {
    const std::byte* const packed = block + kScales;
    for (int run = 0; run < 16; ++run) {
      const int low = byte_at(packed, run % 8) >> (run / 8 * 4) & 15;
      const int high = byte_at(packed, 8 + run % 4) >> (run / 4 * 2) & 3;
      scales[run] = static_cast<std::uint8_t>(low | high << 4);
    }
  }
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float*) {
    std::uint8_t stored[16];
    six_bits(block, stored);
    const float scale = float_of_half(load_u16(block + kScale));
    for (int run = 0; run < 16; ++run) scales[run] = scale * static_cast<float>(stored[run] - kZero);
    two_bits(block + kCodes, codes);
    for (int i = 0; i < kElements; ++i) {
      const int third = byte_at(block, i % 32) >> (i / 32) & 1;
      codes[i] = static_cast<std::int8_t>((codes[i] | third << 2) - 4);
    }
    return codes;
  }
};

/// 8 runs of 32 nibbles that stand for the values of IQ4_NL: f16 scale of scales, upper 2 bits of the runs' scales in 16
/// bits, their lower 4 in 4 bytes, nibbles.
struct IQ4_XS {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 136;
  static constexpr int kRun = 32;
  static constexpr bool kMinima = false;
  static constexpr int kZero = 32;  ///< of the scales
  static constexpr const std::int8_t (&kValues)[16] = IQ4_NL::kValues;
  static void six_bits(const std::byte* block, std::uint8_t* scales) {
    for (int run = 0; run < 8; ++run) {
      const int low = byte_at(block + 4, run / 2) >> (run % 2 * 4) & 15;
      scales[run] = static_cast<std::uint8_t>(low | (load_u16(block + 2) >> (2 * run) & 3) << 4);
    }
  }
  static const std::int8_t* unpack(const std::byte* block, std::int8_t* codes, float* scales, float*) {
    std::uint8_t stored[8];
    six_bits(block, stored);
    const float scale = float_of_half(load_u16(block));
    for (int run = 0; run < 8; ++run) scales[run] = scale * static_cast<float>(stored[run] - kZero);
    Nibbles<8, 8>::unpack(block, codes, nullptr, nullptr);
    for (int i = 0; i < kElements; ++i) codes[i] = kValues[codes[i]];
    return codes;
  }
};

}  // namespace
}  // namespace headwater::runtime
