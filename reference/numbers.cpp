#include "reference/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

namespace headwater::reference {
namespace {

/// A 16-bit binary format: a sign, then exponent_bits, then fraction_bits (IEEE 754).
struct Format {
  int exponent_bits;
  int fraction_bits;
  std::uint16_t nan;

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  /// Exponent of the smallest normal number, which the subnormals share.
  [[nodiscard]] int least_exponent() const { return 1 - bias(); }
  /// Pattern of infinity: all exponent bits set.
  [[nodiscard]] std::int64_t infinity() const {
    return ((std::int64_t{1} << exponent_bits) - 1) << fraction_bits;
  }
};

constexpr Format kF16{5, 10, 0x7E00};
constexpr Format kBF16{8, 7, 0x7FC0};
constexpr std::uint16_t kSign = 0x8000;

double decode(const Format& format, std::uint16_t bits) {
  const bool negative = (bits & kSign) != 0;
  const int magnitude = bits & ~kSign;
  const int exponent = magnitude >> format.fraction_bits;
  const int fraction = magnitude & ((1 << format.fraction_bits) - 1);
  const int hidden_bit = 1 << format.fraction_bits;
  double value = 0.0;
  if (magnitude > format.infinity()) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (magnitude == format.infinity()) {
    value = std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, format.least_exponent() - format.fraction_bits);
  } else {
    value = std::ldexp(hidden_bit + fraction, exponent - format.bias() - format.fraction_bits);
  }
  return negative ? -value : value;
}

/// Nearest integer of x >= 0, ties to even, whatever the rounding mode of the machine.
double nearest_even(double x) {
  const double below = std::floor(x);
  const double rest = x - below;
  const bool below_is_odd = std::fmod(below, 2.0) == 1.0;
  if (rest > 0.5) return below + 1.0;
  if (rest == 0.5 && below_is_odd) return below + 1.0;
  return below;
}

std::uint16_t encode(const Format& format, double value) {
  if (std::isnan(value)) return format.nan;
  std::int64_t pattern = format.infinity();
  if (std::isfinite(value)) {
    const double magnitude = std::fabs(value);
    const int exponent =
        magnitude == 0.0 ? format.least_exponent() : std::max(std::ilogb(magnitude), format.least_exponent());
    // The significand in units of its last place; a scaling by a power of two is exact here.
    const auto units =
        static_cast<std::int64_t>(nearest_even(std::ldexp(magnitude, format.fraction_bits - exponent)));
    // Patterns are ordered as their values are, so a significand that was rounded up to the next power of two
    // carries into the exponent, and beyond the largest number into infinity.
    const std::int64_t exponent_steps = exponent - format.least_exponent();
    pattern = std::min((exponent_steps << format.fraction_bits) + units, format.infinity());
  }
  return static_cast<std::uint16_t>(std::signbit(value) ? pattern | kSign : pattern);
}

double read_element(const std::byte* element, DType type) {
  if (type == DType::f32) {
    float value = 0.0F;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof bits);
  return type == DType::f16 ? from_f16(bits) : from_bf16(bits);
}

void write_element(std::byte* element, DType type, double value) {
  if (type == DType::f32) {
    const float rounded = round_to_f32(value);
    std::memcpy(element, &rounded, sizeof rounded);
    return;
  }
  const std::uint16_t bits = type == DType::f16 ? round_to_f16(value) : round_to_bf16(value);
  std::memcpy(element, &bits, sizeof bits);
}

/// Bytes from the start of a tensor to row t of a head.
std::ptrdiff_t row_offset(std::int64_t row_stride, std::int64_t head_stride, DType type, std::int64_t t,
                          std::int64_t head) {
  return (t * row_stride + head * head_stride) * static_cast<std::ptrdiff_t>(dtype_size(type));
}

}  // namespace

double from_f16(std::uint16_t bits) { return decode(kF16, bits); }

double from_bf16(std::uint16_t bits) { return decode(kBF16, bits); }

// SCORE-4
std::uint16_t bf16(float value) {
  if (std::isnan(value)) return kBF16.nan;
  // A BF16 is the upper half of a float; the lower half is what is rounded away. Subnormals need no care, and
  // a carry runs into the exponent and at last into infinity, as it should.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t upper = bits >> 16U;
  const std::uint32_t rest = bits & 0xFFFFU;
  const std::uint32_t half = 0x8000U;
  const bool upper_is_odd = (upper & 1U) != 0;
  const bool up = rest > half || (rest == half && upper_is_odd);
  return static_cast<std::uint16_t>(up ? upper + 1 : upper);
}

std::uint16_t round_to_f16(double value) { return encode(kF16, value); }

std::uint16_t round_to_bf16(double value) { return encode(kBF16, value); }

// IEEE 754: to nearest even, overflow to infinity.
float round_to_f32(double value) { return static_cast<float>(value); }

std::vector<float> rounded_once(std::span<const double> values) {
  std::vector<float> rounded;
  for (const double value : values) rounded.push_back(round_to_f32(value));
  return rounded;
}

Matrix::Matrix(std::int64_t row_count, std::int64_t column_count)
    : rows(row_count),
      columns(column_count),
      values(static_cast<std::size_t>(row_count * column_count), 0.0) {}

void read_row(const Rows& rows, std::int64_t t, std::int64_t head, std::span<double> into) {
  const std::byte* element = static_cast<const std::byte*>(rows.data) +
                             row_offset(rows.row_stride, rows.head_stride, rows.type, t, head);
  for (double& value : into) {
    value = read_element(element, rows.type);
    element += dtype_size(rows.type);
  }
}

void copy_row(const Rows& rows, std::int64_t t, std::int64_t head, std::span<float> into) {
  const std::byte* element = static_cast<const std::byte*>(rows.data) +
                             row_offset(rows.row_stride, rows.head_stride, rows.type, t, head);
  for (float& value : into) {
    value = round_to_f32(read_element(element, rows.type));  // exact: every type fits in F32
    element += dtype_size(rows.type);
  }
}

void write_row(const MutableRows& rows, std::int64_t t, std::int64_t head, std::span<const double> values) {
  std::byte* element =
      static_cast<std::byte*>(rows.data) + row_offset(rows.row_stride, rows.head_stride, rows.type, t, head);
  for (const double value : values) {
    write_element(element, rows.type, value);
    element += dtype_size(rows.type);
  }
}

Matrix read_rows(const Rows& rows, std::int64_t begin, std::int64_t end, std::int64_t head,
                 std::int64_t width) {
  Matrix matrix(end - begin, width);
  for (std::int64_t t = begin; t < end; ++t) read_row(rows, t, head, matrix.row(t - begin));
  return matrix;
}

Matrix gather_rows(const Rows& rows, std::span<const std::int32_t> positions, std::int64_t head,
                   std::int64_t width) {
  Matrix matrix(static_cast<std::int64_t>(positions.size()), width);
  std::int64_t r = 0;
  for (const std::int32_t position : positions) {
    read_row(rows, position, head, matrix.row(r));
    ++r;
  }
  return matrix;
}

}  // namespace headwater::reference
