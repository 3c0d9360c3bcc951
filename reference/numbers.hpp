#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/session.hpp"

/// Number formats (NUM-1, SCORE-4) and rows of tensors.
namespace headwater::reference {

/// Exact values of an IEEE binary16 and of a BF16 bit pattern. A NaN gives a NaN.
[[nodiscard]] double from_f16(std::uint16_t bits);
[[nodiscard]] double from_bf16(std::uint16_t bits);

/// SCORE-4: a float rounded once to BF16, nearest even; overflow goes to infinity, subnormals are kept, NaN
/// becomes 0x7FC0.
[[nodiscard]] std::uint16_t bf16(float value);

/// A double rounded once, nearest even, to each format (never by way of another one). Overflow goes to
/// infinity, subnormals are kept. NaN becomes 0x7E00 and 0x7FC0, a quiet NaN in F32.
[[nodiscard]] std::uint16_t round_to_f16(double value);
[[nodiscard]] std::uint16_t round_to_bf16(double value);
[[nodiscard]] float round_to_f32(double value);

/// Each value rounded once to F32: column sums (INTRA-2, INTER-2).
[[nodiscard]] std::vector<float> rounded_once(std::span<const double> values);

/// Row-major matrix of doubles: the rows of one head, widened exactly.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(std::int64_t row_count, std::int64_t column_count);
  [[nodiscard]] std::span<const double> row(std::int64_t r) const {
    return {values.data() + r * columns, static_cast<std::size_t>(columns)};
  }
  [[nodiscard]] std::span<double> row(std::int64_t r) {
    return {values.data() + r * columns, static_cast<std::size_t>(columns)};
  }
};

/// Row t of a head, widened exactly to `into` (its size is the width of the row). No alignment is assumed.
void read_row(const Rows& rows, std::int64_t t, std::int64_t head, std::span<double> into);

/// The same to F32, which holds every value of the types of NUM-1.
void copy_row(const Rows& rows, std::int64_t t, std::int64_t head, std::span<float> into);

/// Row t of a head, each value rounded once to the type of the rows.
void write_row(const MutableRows& rows, std::int64_t t, std::int64_t head, std::span<const double> values);

/// Rows [begin, end) of one head.
[[nodiscard]] Matrix read_rows(const Rows& rows, std::int64_t begin, std::int64_t end, std::int64_t head,
                               std::int64_t width);

/// The rows of one head at the given positions, in the order given.
[[nodiscard]] Matrix gather_rows(const Rows& rows, std::span<const std::int32_t> positions, std::int64_t head,
                                 std::int64_t width);

}  // namespace headwater::reference
