#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwater::runtime::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    data,             ///< text between the tags, as it is written
    output_begin,     ///< {{
    output_end,       ///< }}
    statement_begin,  ///< {%
    statement_end,    ///< %}
    name,
    text,     ///< a literal, its escapes read
    integer,  ///< digits
    real,
    sign,  ///< an operator or a bracket
    end,
  };
  Kind kind;
  std::string text;
  std::uint32_t line;
};

/// Cuts a template as jinja2 does with trim_blocks and lstrip_blocks: white space around the tags is gone. The last one
/// is of kind end.
[[nodiscard]] std::vector<Token> tokens_of(std::string_view source);

/// Error(invalid_argument) that names the line.
[[noreturn]] void refuse_at(std::uint32_t line, const std::string& what);

}  // namespace headwater::runtime::jinja
