#pragma once

/// Sixteen stored rows side by side, so that a register holds the same four elements of each: dot products then need
/// no sum across a register, and a scale is read once for sixteen rows. Rules for what may stand here: blocks.hpp.
///
/// A group of rows of n elements is cut into units of kElements, each cut into pairs of runs of 32: elements 64 p ..
/// 64 p + 31 are the first run of pair p, the next 32 the second. A line is 64 bytes: byte 4 r + b of line j of a run
/// belongs to element 4 j + b of row r. Codes are unsigned (stored code + kZero), and where they have fewer than eight
/// bits a line holds both runs: the low nibble the first run's code, the rest of whose bits lie elsewhere; the high one
/// the upper four bits of the second run's. So both are codes after one AND, the second one times 2^kHighShift.

#include "runtime/gguf/kernels/blocks.hpp"

namespace headwater::runtime {
namespace {

inline constexpr int kGroupRows = 16;
inline constexpr int kLine = 64;       // bytes
inline constexpr int kRunLines = 8;    // of a run of 32
inline constexpr int kPairCodes = 64;  // elements of two runs
inline constexpr int kPairs = 4;       // of a block of 256

/// Bytes that stand for one run of 32 activations, in the order in which elements come: the high bytes of their codes,
/// the signed low ones (code = 256 high + low), the scale divided by what the codes of that run are multiplied with, the
/// sum of their values, and what zero points add to the products: -kZero times the sum of the codes, of each
/// half of the run where runs of 16 have their own scale. Where those have their own minima, and no zero point, the sums of
/// the codes of both halves as floats, times that too, from kSum on.
struct GroupRun {
  static constexpr int kLow = 32;
  static constexpr int kScale = 64;
  static constexpr int kSum = 68;
  static constexpr int kStart = 72;
  static constexpr int kBytes = 80;
};

/// 2 x 16 x f16 scales, then lines of the first and of the second run in turn.
struct Q8_0Group {
  using Block = Q8_0;
  static constexpr int kElements = 64;
  static constexpr int kBytes = 16 * 2 * Q8_0::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kLines = 64;
  static constexpr int kZero = 128;
  static constexpr int kHighShift = 0;
};

/// 2 x 16 x f16 scales, then eight lines.
struct Q4_0Group {
  using Block = Q4_0;
  static constexpr int kElements = 64;
  static constexpr int kBytes = 16 * 2 * Q4_0::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kLines = 64;
  static constexpr int kZero = 8;
  static constexpr int kHighShift = 4;
  static constexpr int codes_at(int pair, int j) { return kLines + kLine * (kRunLines * pair + j); }
};

/// 2 x 16 x f16 scales, 2 x 16 x f16 minima (to be taken off, so with the sign changed), then eight lines.
struct Q4_1Group {
  using Block = Q4_1;
  static constexpr int kElements = 64;
  static constexpr int kBytes = 16 * 2 * Q4_1::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kMinima = 64;
  static constexpr int kLines = 128;
  static constexpr int kZero = 0;
  static constexpr int kHighShift = 4;
  static constexpr int codes_at(int, int j) { return kLines + kLine * j; }
};

/// 2 x 16 x f16 scales, then twice a line of bits and four lines of codes. Turned left by 2 (j % 4), a line of bits has the
/// fifth bit of the first run's codes of line j in bit 4 of each byte, and the lowest bit of the second run's in bit 3.
struct Q5_0Group {
  using Block = Q5_0;
  static constexpr int kElements = 64;
  static constexpr int kBytes = 16 * 2 * Q5_0::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kLines = 64;
  static constexpr int kZero = 16;
  static constexpr int kHighShift = 3;
  static constexpr int bits_at(int, int j) { return kLines + kLine * (j / 4 * 5); }
  static constexpr int codes_at(int pair, int j) { return bits_at(pair, j) + kLine * (1 + j % 4); }
};

/// Scales and minima as those of Q4_1, then lines as those of Q5_0.
struct Q5_1Group {
  using Block = Q5_1;
  static constexpr int kElements = 64;
  static constexpr int kBytes = 16 * 2 * Q5_1::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kMinima = 64;
  static constexpr int kLines = 128;
  static constexpr int kZero = 0;
  static constexpr int kHighShift = 3;
  static constexpr int bits_at(int, int j) { return kLines + kLine * (j / 4 * 5); }
  static constexpr int codes_at(int pair, int j) { return bits_at(pair, j) + kLine * (1 + j % 4); }
};

/// 2 x 16 x f16 scales, then eight lines of nibbles that stand for values of a table; codes are those values and kZero.
struct Iq4NlGroup {
  using Block = IQ4_NL;
  static constexpr int kElements = 64;
  static constexpr int kBytes = 16 * 2 * IQ4_NL::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kLines = 64;
  static constexpr int kZero = 128;
  static constexpr int kHighShift = 0;
  static constexpr int codes_at(int, int j) { return kLines + kLine * j; }
};

/// The same with 2 x 16 x bf16 scales.
struct Mxfp4Group {
  using Block = MXFP4;
  static constexpr int kElements = 64;
  static constexpr int kBytes = 16 * 2 * (MXFP4::kBytes + 1);
  static constexpr int kScales = 0;
  static constexpr int kLines = 64;
  static constexpr int kZero = 16;
  static constexpr int kHighShift = 0;
  static constexpr int codes_at(int, int j) { return kLines + kLine * j; }
};

/// Three lines with 6 bits in each byte for scales of runs 0 .. 3, 4 .. 7, and minima of runs 0 .. 3 (16 rows each); their
/// upper two bits are, from the lowest on, the minima of runs 4 .. 7. Then 16 x f16 scales of scales, 16 x f16 of minima,
/// and eight lines for each pair.
struct Q4KGroup {
  using Block = Q4K;
  static constexpr int kElements = 256;
  static constexpr int kBytes = 16 * Q4K::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kScale = 192;
  static constexpr int kMinimum = 224;
  static constexpr int kLines = 256;
  static constexpr int kZero = 0;
  static constexpr int kHighShift = 4;
  static constexpr int codes_at(int pair, int j) { return kLines + kLine * (kRunLines * pair + j); }
};

// Lines stand in the order in which a dot product reads them: the processor's prefetcher follows one stream.

/// As Q4KGroup; in front of each line of the first pair a line of bits, for all pairs. Turned left by 2 p in each 32 bits, line j has the fifth bit
/// of the first run's code in bit 4 of each byte, and the lowest bit of the second run's in bit 3.
struct Q5KGroup {
  using Block = Q5K;
  static constexpr int kElements = 256;
  static constexpr int kBytes = 16 * Q5K::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kScale = 192;
  static constexpr int kMinimum = 224;
  static constexpr int kLines = 256;
  static constexpr int kZero = 0;
  static constexpr int kHighShift = 3;
  static constexpr int bits_at(int, int j) { return kLines + 2 * kLine * j; }
  static constexpr int codes_at(int pair, int j) {
    return kLines + kLine * (pair == 0 ? 2 * j + 1 : kRunLines * (pair + 1) + j);
  }
};

/// 16 x 16 x i8 scales (runs of 16, then rows), then the lines of pairs 0 and 1, and of 2 and 3: eight of bits in turn with
/// the first pair's, and those of the second. Turned left by 4 for odd pairs, a line of bits has the upper two bits of the first run's code in bits 4
/// and 5 of each byte, and the lower two of the second run's in bits 2 and 3. The 16 x f16 scales of scales of all units
/// stand in front of the first: a unit with them would end inside a cache line.
struct Q6KGroup {
  using Block = Q6K;
  static constexpr int kElements = 256;
  static constexpr int kScaleBytes = 32;
  static constexpr int kBytes = 16 * Q6K::kBytes - kScaleBytes;
  static constexpr int kScales = 0;
  static constexpr int kLines = 256;
  static constexpr int kZero = 32;
  static constexpr int kHighShift = 2;
  static constexpr int bits_at(int pair, int j) {
    return kLines + kLine * (3 * kRunLines * (pair / 2) + 2 * j);
  }
  static constexpr int codes_at(int pair, int j) {
    return bits_at(pair, 0) + kLine * (pair % 2 == 0 ? 2 * j + 1 : 2 * kRunLines + j);
  }
};

/// Four lines as stored, a scale and a minimum of a run in each byte, 16 rows one after the other; 16 x f16 scales of
/// scales, 16 x f16 of minima; eight lines for pairs 0 and 1, eight for 2 and 3. From the lowest on a byte has two bits
/// each of the first and of the second run of the even pair, then those of the odd one.
struct Q2KGroup {
  using Block = Q2K;
  static constexpr int kElements = 256;
  static constexpr int kBytes = 16 * Q2K::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kScale = 256;
  static constexpr int kMinimum = 288;
  static constexpr int kLines = 320;
  static constexpr int kZero = 0;
  static constexpr int kHighShift = 2;
  static constexpr int codes_at(int pair, int j) { return kLines + kLine * (kRunLines * (pair / 2) + j); }
};

/// Three lines of six bits as those of Q4KGroup, for scales of runs of 16; lines of pairs 0 and 1, each behind a line of
/// bits for all pairs, then those of pairs 2 and 3, all as those of Q2KGroup. Turned left by turn(p) in each 32 bits, a
/// line of bits has the third bit of the first run's codes in bit 2 of each byte, and that of the second run's in bit 4.
/// Scales of scales as those of Q6KGroup.
struct Q3KGroup {
  using Block = Q3K;
  static constexpr int kElements = 256;
  static constexpr int kScaleBytes = 32;
  static constexpr int kBytes = 16 * Q3K::kBytes - kScaleBytes;
  static constexpr int kScales = 0;
  static constexpr int kLines = 192;
  static constexpr int kZero = 4;
  static constexpr int kHighShift = 2;
  static constexpr int turn(int pair) { return pair % 2 + 4 * (pair / 2); }
  static constexpr int bits_at(int, int j) { return kLines + 2 * kLine * j; }
  static constexpr int codes_at(int pair, int j) {
    return kLines + kLine * (pair / 2 == 0 ? 2 * j + 1 : 2 * kRunLines + j);
  }
};

/// Three times 32 bytes with 6 bits in each byte for scales of runs 0 and 1, 2 and 3, 4 and 5 (16 rows each); their upper two
/// bits are, from the lowest on, those of runs 6 and 7. Then 16 x f16 scales of scales, and lines as those of Iq4NlGroup.
struct Iq4XsGroup {
  using Block = IQ4_XS;
  static constexpr int kElements = 256;
  static constexpr int kBytes = 16 * IQ4_XS::kBytes;
  static constexpr int kScales = 0;
  static constexpr int kScale = 96;
  static constexpr int kLines = 128;
  static constexpr int kZero = 128;
  static constexpr int kHighShift = 0;
  static constexpr int codes_at(int pair, int j) { return kLines + kLine * (kRunLines * pair + j); }
};

/// Bytes in front of the first unit.
template <class Group>
constexpr std::int64_t front_bytes(std::int64_t n) {
  if constexpr (requires { Group::kScaleBytes; }) {
    return (n / Group::kElements * Group::kScaleBytes + kLine - 1) / kLine * kLine;
  } else {
    return 0;
  }
}

static_assert(Q8_0Group::kBytes % kLine == 0 && Q4_0Group::kBytes % kLine == 0 &&
              Q4_1Group::kBytes % kLine == 0 && Q5_0Group::kBytes % kLine == 0 &&
              Q5_1Group::kBytes % kLine == 0 && Iq4NlGroup::kBytes % kLine == 0 &&
              Mxfp4Group::kBytes % kLine == 0 && Q4KGroup::kBytes % kLine == 0 &&
              Q5KGroup::kBytes % kLine == 0 && Q6KGroup::kBytes % kLine == 0 &&
              Q2KGroup::kBytes % kLine == 0 && Q3KGroup::kBytes % kLine == 0 &&
              Iq4XsGroup::kBytes % kLine == 0);

}  // namespace
}  // namespace headwater::runtime
