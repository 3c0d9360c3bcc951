#include "cli/support/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {

std::int64_t parse_integer(std::string_view flag, std::string_view text, std::int64_t low,
                           std::int64_t high) {
  // from_chars would take a minus sign, and no number of this program is negative.
  const bool digits =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = digits ? std::from_chars(text.data(), end, value)
                                    : std::from_chars_result{text.data(), std::errc::invalid_argument};
  if (error != std::errc{} || stop != end || value < low || value > high) {
    throw Failure(fmt::format("{}: {} is not allowed; use a whole number from {} to {}", flag,
                              in_quotes(text), low, high));
  }
  return value;
}

double parse_real(std::string_view flag, std::string_view text, double low) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc{} || stop != end || !std::isfinite(value) || value < low) {
    const std::string range = std::isfinite(low) && low > std::numeric_limits<double>::lowest()
                                  ? fmt::format("use a finite number >= {}", low)
                                  : std::string("use a finite number");
    throw Failure(fmt::format("{}: {} is not allowed; {}", flag, in_quotes(text), range));
  }
  return value;
}

}  // namespace headwater::cli
