#include "conformance/formats.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace headwater::conformance {
namespace {

// 2^exponent for the exponents of floats and of what scales them; std::ldexp takes ten times as long.
constexpr int kMostExponent = 300;
const std::vector<double> kPowers = [] {
  std::vector<double> all;
  for (int e = -kMostExponent; e <= kMostExponent; ++e) all.push_back(std::ldexp(1.0, e));
  return all;
}();
// std::ilogb of a positive normal number, in the time of a load.
int exponent_of(double value) { return static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52) - 1023; }
double power_of_two(int exponent) { return kPowers[static_cast<std::size_t>(exponent + kMostExponent)]; }

// Rounds |value| to p significant bits with smallest exponent `least` (of the unit in the last place of
// subnormals) in the ambient rounding mode, nearest even. A double has 53 bits: the sum with 1.5 * 2^52 units of the last
// place keeps whole units, and nothing else is lost.
double round_significand(double magnitude, int p, int least) {
  if (!(magnitude < 0x1p200)) return magnitude;
  const int exponent = magnitude == 0.0 ? least : exponent_of(magnitude) - (p - 1);
  const int ulp = exponent < least ? least : exponent;
  const double whole_units = 1.5 * power_of_two(52 + ulp);
  return (magnitude + whole_units) - whole_units;
}

struct Format {
  int significant;  // bits of the significand, the hidden one included
  int least;        // log2 of the smallest subnormal
  int bias;         // of the exponent field
  double beyond;    // first magnitude that is infinity: 2^(emax + 1)
  std::uint16_t infinity;
};

constexpr Format kBf16{8, -133, 127, 0x1p128, 0x7f80};
constexpr Format kF16{11, -24, 15, 0x1p16, 0x7c00};

std::uint16_t encode(const Format& format, float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double rounded =
      round_significand(std::fabs(static_cast<double>(value)), format.significant, format.least);
  if (!(rounded < format.beyond)) return static_cast<std::uint16_t>(sign | format.infinity);
  const int fraction_bits = format.significant - 1;
  const double normal = power_of_two(format.least + fraction_bits);
  if (rounded < normal) {  // subnormal or zero: the field counts units of the smallest number
    return static_cast<std::uint16_t>(sign |
                                      static_cast<std::uint16_t>(rounded * power_of_two(-format.least)));
  }
  const int exponent = exponent_of(rounded);
  const double fraction = rounded * power_of_two(fraction_bits - exponent) - power_of_two(fraction_bits);
  const auto field = static_cast<unsigned>(exponent + format.bias) << fraction_bits;
  return static_cast<std::uint16_t>(sign | field | static_cast<unsigned>(fraction));
}

float decode(const Format& format, std::uint16_t bits) {
  const int fraction_bits = format.significant - 1;
  const unsigned fraction = bits & ((1u << fraction_bits) - 1u);
  const unsigned exponent = (bits & 0x7fffu) >> fraction_bits;
  const float sign = (bits & 0x8000u) != 0 ? -1.0f : 1.0f;
  if (exponent == (static_cast<unsigned>(format.infinity) >> fraction_bits)) {
    return fraction != 0 ? std::bit_cast<float>(0x7fc00000u) : sign * HUGE_VALF;
  }
  const double units = exponent == 0 ? fraction : fraction + (1u << fraction_bits);
  const int shift = exponent == 0 ? format.least : format.least + static_cast<int>(exponent) - 1;
  return sign * static_cast<float>(units * power_of_two(shift));
}

std::vector<float> all_values(const Format& format) {
  std::vector<float> values;
  for (unsigned bits = 0; bits < 0x10000u; ++bits)
    values.push_back(decode(format, static_cast<std::uint16_t>(bits)));
  return values;
}
const std::vector<float> kBf16Values = all_values(kBf16);
const std::vector<float> kF16Values = all_values(kF16);

}  // namespace

std::uint16_t bf16_bits(float value) {
  if (std::isnan(value)) return 0x7fc0;
  // Most values that are asked for are BF16 numbers: the upper half of the float.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0xffffu) == 0 ? static_cast<std::uint16_t>(bits >> 16) : encode(kBf16, value);
}
float bf16_value(std::uint16_t bits) { return kBf16Values[bits]; }
std::uint16_t f16_bits(float value) {
  if (std::isnan(value)) return 0x7e00;
  // Most values that are asked for are normal F16 numbers: sign, the low five bits of the exponent with the other bias, and
  // the upper ten bits of the fraction.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if ((bits & 0x1fffu) == 0 && magnitude >= 0x38800000u && magnitude < 0x47800000u) {
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | (magnitude - 0x38000000u) >> 13);
  }
  return encode(kF16, value);
}
float f16_value(std::uint16_t bits) { return kF16Values[bits]; }

void store_element(DType type, float value, void* to) {
  if (type == DType::f32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = type == DType::f16 ? f16_bits(value) : bf16_bits(value);
  std::memcpy(to, &bits, sizeof bits);
}

float load_element(DType type, const void* from) {
  if (type == DType::f32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return type == DType::f16 ? f16_value(bits) : bf16_value(bits);
}

float round_to(DType type, float value) {
  if (type == DType::f32) return value;
  return type == DType::f16 ? f16_value(f16_bits(value)) : bf16_value(bf16_bits(value));
}

double unit_roundoff(DType type) {
  return type == DType::f32 ? 0x1p-24 : type == DType::f16 ? 0x1p-11 : 0x1p-8;
}

double smallest(DType type) {
  return type == DType::f32 ? 0x1p-149 : type == DType::f16 ? 0x1p-24 : 0x1p-133;
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
}

}  // namespace headwater::conformance
