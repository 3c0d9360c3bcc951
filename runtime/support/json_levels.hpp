#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace headwater::runtime {

/// How many levels of lists and objects a text of JSON has, well-formed or not: to be asked before a parser's tree is built, whose
/// parts hold each other as deep as that.
[[nodiscard]] inline std::ptrdiff_t json_levels(std::string_view text) {
  std::ptrdiff_t levels = 0, most = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      most = std::max(most, ++levels);
    } else if (!quoted && (c == ']' || c == '}')) {
      --levels;
    }
  }
  return most;
}

}  // namespace headwater::runtime
