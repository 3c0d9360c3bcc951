#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace headwater::cli {

/// Most tokens, and the largest count that a flag takes: positions are 32-bit (MEM-4).
inline constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

/// A whole number in decimal digits and nothing else. Failure naming flag, value and range otherwise.
[[nodiscard]] std::int64_t parse_integer(std::string_view flag, std::string_view text, std::int64_t low,
                                         std::int64_t high);

/// Whole numbers from 0 to `high` and ranges of them, as 0,3,8-11: those that are named, in the order of the text. Failure
/// naming flag and item otherwise, and where they are more than there are numbers.
[[nodiscard]] std::vector<std::int64_t> parse_numbers(std::string_view flag, std::string_view text,
                                                      std::int64_t high);

/// A finite decimal number, possibly with fraction and exponent, >= low. Failure otherwise.
[[nodiscard]] double parse_real(std::string_view flag, std::string_view text,
                                double low = std::numeric_limits<double>::lowest());

/// The bits of a number that F16 holds exactly: what a stored row was widened from.
[[nodiscard]] std::uint16_t exact_half(float value);

}  // namespace headwater::cli
