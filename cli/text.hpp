#pragma once

#include <cstddef>
#include <cstdint>
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

/// "7.1 MiB".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace headwater::cli
