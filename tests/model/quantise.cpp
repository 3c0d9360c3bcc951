#include "tests/model/quantise.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace headwater::runtime::testing {
namespace {

constexpr std::size_t kSmall =
    32;  // elements of a block of Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1, and of a sub-block of Q4_K and Q5_K
constexpr std::size_t kSuper = 256;   // elements of a block of the K types and IQ4_XS
constexpr std::size_t kSixteen = 16;  // of a sub-block of Q2_K, Q3_K and Q6_K

/// The nearest F16 of a finite number below its range's end.
std::uint16_t half_bits(double value) {
  const double size = std::fabs(value);
  const std::uint16_t sign = std::signbit(value) ? 0x8000U : 0U;
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), -14);
  const double units = std::nearbyint(std::ldexp(size, 10 - exponent));  // 1024 and more for a normal number
  // A mantissa that rounds up to 2048 carries into the exponent.
  return static_cast<std::uint16_t>(sign + static_cast<unsigned>((exponent + 14) << 10) +
                                    static_cast<unsigned>(units));
}

double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double size =
      exponent == 0 ? std::ldexp(bits & 1023, -24) : std::ldexp((bits & 1023) + 1024, exponent - 25);
  return (bits & 0x8000U) != 0 ? -size : size;
}

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  void byte(int value) { out_.push_back(static_cast<std::byte>(static_cast<unsigned>(value) & 0xFFU)); }
  void half(std::uint16_t bits) { byte(bits & 0xFF), byte(bits >> 8); }

 private:
  std::vector<std::byte>& out_;
};

int code(double value, double scale, int low, int high) {
  return scale == 0 ? std::clamp(0, low, high)
                    : static_cast<int>(std::clamp(std::nearbyint(value / scale), static_cast<double>(low),
                                                  static_cast<double>(high)));
}

/// The element that is farthest from zero.
double extreme(std::span<const float> block) {
  return *std::max_element(block.begin(), block.end(),
                           [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

void q8_0(std::span<const float> block, Writer& out) {
  const double scale = std::fabs(extreme(block)) / 127;
  out.half(half_bits(scale));
  for (const float x : block) out.byte(code(x, scale, -127, 127));
}

/// x = scale (code - 8); the lower nibbles hold the first half of the block.
void q4_0(std::span<const float> block, Writer& out) {
  const std::uint16_t bits = half_bits(extreme(block) / -8);
  out.half(bits);
  const double scale = half_value(bits);
  for (std::size_t i = 0; i < kSmall / 2; ++i) {
    out.byte((code(block[i], scale, -8, 7) + 8) | (code(block[i + kSmall / 2], scale, -8, 7) + 8) << 4);
  }
}

/// The fifth bits of 32 codes in the order of elements; then the lower nibbles, those of the first half below.
void five_bits(std::span<const int> codes, Writer& out) {
  for (std::size_t byte = 0; byte < kSmall / 8; ++byte) {
    int bits = 0;
    for (std::size_t i = 0; i < 8; ++i) bits |= codes[8 * byte + i] >> 4 << i;
    out.byte(bits);
  }
  for (std::size_t i = 0; i < kSmall / 2; ++i) out.byte((codes[i] & 15) | (codes[i + kSmall / 2] & 15) << 4);
}

/// x = scale (code - 16).
void q5_0(std::span<const float> block, Writer& out) {
  const std::uint16_t bits = half_bits(extreme(block) / -16);
  out.half(bits);
  std::array<int, kSmall> codes{};
  for (std::size_t i = 0; i < kSmall; ++i) codes[i] = code(block[i], half_value(bits), -16, 15) + 16;
  five_bits(codes, out);
}

/// Q4_1 and Q5_1: x = scale code + minimum.
void q45_1(std::span<const float> block, int most, Writer& out) {
  const auto [smallest, largest] = std::minmax_element(block.begin(), block.end());
  const std::uint16_t minimum = half_bits(static_cast<double>(*smallest));
  const std::uint16_t scale = half_bits((static_cast<double>(*largest) - half_value(minimum)) / most);
  out.half(scale);
  out.half(minimum);
  std::array<int, kSmall> codes{};
  for (std::size_t i = 0; i < kSmall; ++i) {
    codes[i] = code(static_cast<double>(block[i]) - half_value(minimum), half_value(scale), 0, most);
  }
  if (most == 31) return five_bits(codes, out);
  for (std::size_t i = 0; i < kSmall / 2; ++i) out.byte(codes[i] | codes[i + kSmall / 2] << 4);
}

/// A super-block: x = (d factor) code - (dmin minimum), with a factor, and a minimum, for each sub-block.
struct SuperBlock {
  std::uint16_t d = 0;
  std::uint16_t dmin = 0;
  std::vector<int> factor;
  std::vector<int> minimum;
  std::array<int, kSuper> codes{};

  [[nodiscard]] double scale(std::size_t sub_block) const { return half_value(d) * factor[sub_block]; }
};

/// Codes from 0 to `most`, factors and minima from 0 to `most_factor`.
SuperBlock with_minima(std::span<const float> block, std::size_t sub_size, int most, int most_factor) {
  SuperBlock made;
  std::vector<double> scale;
  std::vector<double> minimum;
  for (std::size_t at = 0; at < kSuper; at += sub_size) {
    const auto sub = block.subspan(at, sub_size);
    minimum.push_back(std::max(0.0, -static_cast<double>(*std::min_element(sub.begin(), sub.end()))));
    scale.push_back(std::max(0.0, *std::max_element(sub.begin(), sub.end()) + minimum.back()) / most);
  }
  made.d = half_bits(*std::max_element(scale.begin(), scale.end()) / most_factor);
  made.dmin = half_bits(*std::max_element(minimum.begin(), minimum.end()) / most_factor);
  const double dmin = half_value(made.dmin);
  for (std::size_t s = 0; s < scale.size(); ++s) {
    made.factor.push_back(code(scale[s], half_value(made.d), 0, most_factor));
    made.minimum.push_back(code(minimum[s], dmin, 0, most_factor));
  }
  for (std::size_t i = 0; i < kSuper; ++i) {
    const std::size_t s = i / sub_size;
    made.codes[i] = code(block[i] + dmin * made.minimum[s], made.scale(s), 0, most);
  }
  return made;
}

/// Codes from -most on, factors of both signs and no minima.
SuperBlock without_minima(std::span<const float> block, std::size_t sub_size, int most, int most_factor) {
  SuperBlock made;
  std::vector<double> scale;
  double largest = 0;
  for (std::size_t at = 0; at < kSuper; at += sub_size) {
    scale.push_back(extreme(block.subspan(at, sub_size)) / -most);
    largest = std::max(largest, std::fabs(scale.back()));
  }
  made.d = half_bits(largest / most_factor);
  for (const double own : scale)
    made.factor.push_back(code(own, half_value(made.d), -most_factor, most_factor));
  for (std::size_t i = 0; i < kSuper; ++i) {
    made.codes[i] = code(block[i], made.scale(i / sub_size), -most, most - 1);
  }
  return made;
}

/// Bit s of byte i is bit `bit` of the code of element i of the s-th 32.
void bits_of_all(const std::array<int, kSuper>& codes, int bit, Writer& out) {
  for (std::size_t i = 0; i < kSmall; ++i) {
    int bits = 0;
    for (std::size_t s = 0; s < kSuper / kSmall; ++s) bits |= (codes[s * kSmall + i] >> bit & 1) << s;
    out.byte(bits);
  }
}

/// Each half: two bits, from `bit` on, of the codes of four times 32 elements in 32 bytes.
void two_bits(const std::array<int, kSuper>& codes, int bit, Writer& out) {
  for (std::size_t half = 0; half < kSuper; half += kSuper / 2) {
    for (std::size_t i = 0; i < kSmall; ++i) {
      int bits = 0;
      for (std::size_t part = 0; part < 4; ++part)
        bits |= (codes[half + part * kSmall + i] >> bit & 3) << (2 * part);
      out.byte(bits);
    }
  }
}

/// Q4_K and Q5_K: factors and minima of six bits for each 32 elements.
void q45_k(std::span<const float> block, int most, Writer& out) {
  constexpr std::size_t kSubs = kSuper / kSmall;
  const SuperBlock made = with_minima(block, kSmall, most, 63);
  const std::vector<int>& six = made.factor;
  const std::vector<int>& six_minimum = made.minimum;
  out.half(made.d);
  out.half(made.dmin);
  // Twelve bytes: six bits of the first four scales and minima with the upper two of the last four above them; then the
  // lower four of those.
  for (std::size_t s = 0; s < 4; ++s) out.byte(six[s] | six[s + 4] >> 4 << 6);
  for (std::size_t s = 0; s < 4; ++s) out.byte(six_minimum[s] | six_minimum[s + 4] >> 4 << 6);
  for (std::size_t s = 4; s < kSubs; ++s) out.byte((six[s] & 15) | (six_minimum[s] & 15) << 4);
  if (most == 31) bits_of_all(made.codes, 4, out);
  for (std::size_t s = 0; s < kSubs; s += 2) {
    for (std::size_t i = 0; i < kSmall; ++i) {
      out.byte((made.codes[s * kSmall + i] & 15) | (made.codes[(s + 1) * kSmall + i] & 15) << 4);
    }
  }
}

/// Factors and minima of four bits for each sixteen elements.
void q2_k(std::span<const float> block, Writer& out) {
  const SuperBlock made = with_minima(block, kSixteen, 3, 15);
  for (std::size_t s = 0; s < made.factor.size(); ++s) out.byte(made.factor[s] | made.minimum[s] << 4);
  two_bits(made.codes, 0, out);
  out.half(made.d);
  out.half(made.dmin);
}

/// Factors of six bits, less 32, for each sixteen elements; codes less 4.
void q3_k(std::span<const float> block, Writer& out) {
  SuperBlock made = without_minima(block, kSixteen, 4, 31);
  for (int& one : made.codes) one += 4;
  bits_of_all(made.codes, 2, out);
  two_bits(made.codes, 0, out);
  const auto six = [&](std::size_t s) { return made.factor[s] + 32; };
  for (std::size_t s = 0; s < 8; ++s) out.byte((six(s) & 15) | (six(s + 8) & 15) << 4);
  for (std::size_t s = 0; s < 4; ++s) {
    out.byte(six(s) >> 4 | six(s + 4) >> 4 << 2 | six(s + 8) >> 4 << 4 | six(s + 12) >> 4 << 6);
  }
  out.half(made.d);
}

/// Factors of eight bits for each sixteen elements; codes less 32.
void q6_k(std::span<const float> block, Writer& out) {
  constexpr std::size_t kHalf = kSuper / 2;
  SuperBlock made = without_minima(block, kSixteen, 32, 127);
  for (int& one : made.codes) one += 32;
  const auto at = [&](std::size_t half, std::size_t quarter, std::size_t i) {
    return made.codes[half * kHalf + quarter * kSmall + i];
  };
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t quarter = 0; quarter < 2; ++quarter) {
      for (std::size_t i = 0; i < kSmall; ++i) {
        out.byte((at(half, quarter, i) & 15) | (at(half, quarter + 2, i) & 15) << 4);
      }
    }
  }
  two_bits(made.codes, 4, out);
  for (const int s : made.factor) out.byte(s);
  out.half(made.d);
}

/// The nearest of sixteen values to x.
int nearest(const std::array<int, 16>& values, double x) {
  const auto best = std::min_element(values.begin(), values.end(),
                                     [x](int a, int b) { return std::fabs(a - x) < std::fabs(b - x); });
  return static_cast<int>(best - values.begin());
}

/// Nibbles of 32 places, low ones the first half.
void nibbles(std::span<const float> block, const std::array<int, 16>& values, double d, Writer& out) {
  const auto place = [&](std::size_t i) {
    return d == 0 ? nearest(values, 0) : nearest(values, static_cast<double>(block[i]) / d);
  };
  for (std::size_t i = 0; i < kSmall / 2; ++i) out.byte(place(i) | place(i + kSmall / 2) << 4);
}

/// The values of IQ4_NL and IQ4_XS.
constexpr std::array<int, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

/// x = d value, one of a table.
void iq4_nl(std::span<const float> block, Writer& out) {
  const std::uint16_t d = half_bits(extreme(block) / -127);
  out.half(d);
  nibbles(block, kIq4, half_value(d), out);
}

/// x = d (factor - 32) value, factors of six bits for each 32 elements.
void iq4_xs(std::span<const float> block, Writer& out) {
  const SuperBlock made = without_minima(block, kSmall, 127, 31);
  const auto six = [&](std::size_t s) { return made.factor[s] + 32; };
  unsigned upper = 0;
  for (std::size_t s = 0; s < kSuper / kSmall; ++s) upper |= static_cast<unsigned>(six(s) >> 4) << (2 * s);
  out.half(made.d);
  out.half(static_cast<std::uint16_t>(upper));
  for (std::size_t s = 0; s < kSuper / kSmall; s += 2) out.byte((six(s) & 15) | (six(s + 1) & 15) << 4);
  for (std::size_t s = 0; s < kSuper / kSmall; ++s)
    nibbles(block.subspan(s * kSmall, kSmall), kIq4, made.scale(s), out);
}

/// x = 2^(e - 128) value, one of a table whose largest is 12.
void mxfp4(std::span<const float> block, Writer& out) {
  const double most = std::fabs(static_cast<double>(extreme(block)));
  const int e = most == 0 ? 0 : std::clamp(static_cast<int>(std::ceil(std::log2(most / 12))) + 128, 0, 252);
  out.byte(e);
  nibbles(block, {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, std::ldexp(1.0, e - 128), out);
}

}  // namespace

void append_quantised(TensorType type, std::span<const float> row, std::vector<std::byte>& out) {
  Writer writer(out);
  const auto block = static_cast<std::size_t>(tensor_type_info(type).block_elements);
  for (; !row.empty(); row = row.subspan(block)) {
    const auto values = row.first(block);
    switch (type) {
      case TensorType::q8_0: q8_0(values, writer); break;
      case TensorType::q4_0: q4_0(values, writer); break;
      case TensorType::q4_1: q45_1(values, 15, writer); break;
      case TensorType::q5_0: q5_0(values, writer); break;
      case TensorType::q5_1: q45_1(values, 31, writer); break;
      case TensorType::q4_k: q45_k(values, 15, writer); break;
      case TensorType::q5_k: q45_k(values, 31, writer); break;
      case TensorType::q6_k: q6_k(values, writer); break;
      case TensorType::iq4_nl: iq4_nl(values, writer); break;
      case TensorType::mxfp4: mxfp4(values, writer); break;
      case TensorType::q2_k: q2_k(values, writer); break;
      case TensorType::q3_k: q3_k(values, writer); break;
      case TensorType::iq4_xs: iq4_xs(values, writer); break;
      case TensorType::f16: writer.half(half_bits(static_cast<double>(values[0]))); break;
      case TensorType::bf16:
        writer.half(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[0]) >> 16));
        break;
      case TensorType::f32:
        for (int at = 0; at < 32; at += 8)
          writer.byte(static_cast<int>(std::bit_cast<std::uint32_t>(values[0]) >> at & 0xFF));
        break;
    }
  }
}

}  // namespace headwater::runtime::testing
