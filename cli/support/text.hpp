#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headwater::cli {

/// Most bytes of a foreign text (a file name, a JSON key, an argument) that an error message repeats.
inline constexpr std::size_t kQuotedLimit = 120;
/// Most bytes of a whole message.
inline constexpr std::size_t kLineLimit = 2000;

/// `text` on one line: control characters, line separators and bytes that are not UTF-8 become \xNN; what exceeds
/// `limit` bytes is replaced by "...".
[[nodiscard]] std::string one_line(std::string_view text, std::size_t limit = kLineLimit);

/// The same between single quotes, bounded by kQuotedLimit.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// Text for a terminal: line feeds and tabs stay, other control characters (C0, DEL, C1) and bytes that are not UTF-8
/// become \xNN, so that a text can neither move the cursor nor give the terminal commands.
[[nodiscard]] std::string for_terminal(std::string_view text);

/// "1 token", "2 tokens": a number of things whose plural ends in s.
template <std::integral Number>
[[nodiscard]] std::string count_text(Number number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

/// RFC 4648, section 4.
[[nodiscard]] std::string base64(std::span<const std::uint8_t> bytes);

/// "7.1 MiB".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace headwater::cli
