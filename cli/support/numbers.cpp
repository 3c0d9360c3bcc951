#include "cli/support/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
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

std::vector<std::int64_t> parse_numbers(std::string_view flag, std::string_view text, std::int64_t high) {
  std::vector<std::int64_t> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const auto dash = item.find('-', 1);  // a first dash is a sign, which no number has
    const std::int64_t first = parse_integer(flag, item.substr(0, dash), 0, high);
    const std::int64_t last =
        dash == std::string_view::npos ? first : parse_integer(flag, item.substr(dash + 1), 0, high);
    if (last < first) {
      throw Failure(fmt::format("{}: {} runs backwards; a range is FIRST-LAST", flag, in_quotes(item)));
    }
    for (std::int64_t number = first; number <= last; ++number) numbers.push_back(number);
    if (numbers.size() > static_cast<std::size_t>(high) + 1) {
      throw Failure(fmt::format("{}: names more than {} of them", flag, high + 1));
    }
    begin = end + 1;
  }
  return numbers;
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

std::uint16_t exact_half(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x7f800000U) {  // infinity, or a NaN whose payload's upper bits F16 has
    return static_cast<std::uint16_t>(sign | 0x7c00U | (magnitude >> 13 & 0x3ffU));
  }
  if (magnitude >= 0x38800000U) return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000U) >> 13);
  float size = 0;
  std::memcpy(&size, &magnitude, sizeof size);
  return static_cast<std::uint16_t>(sign |
                                    static_cast<std::uint32_t>(size * 0x1p24F));  // subnormal: units of 2^-24
}

}  // namespace headwater::cli
