#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headwater::runtime {

/// U+FFFD in UTF-8: what an ill-formed sequence is read as.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// The sequence of UTF-8 at the start of a text (Unicode 15, table 3-7 and "Substitution of Maximal Subparts").
struct Utf8Sequence {
  std::size_t length = 0;  ///< bytes of the character, or of the maximal ill-formed subsequence; 0 at the end
  bool well_formed = true;  ///< is it a character?
  bool incomplete = false;  ///< not well-formed, but would be the start of a character if more bytes came
};
[[nodiscard]] Utf8Sequence next_utf8(std::string_view text);

/// Offset of the first byte of `text` that belongs to no well-formed character; none if all is well-formed. For
/// programs that refuse such a text.
[[nodiscard]] std::optional<std::size_t> first_ill_formed_utf8(std::string_view text);

/// `text` with each maximal ill-formed subsequence replaced by U+FFFD.
[[nodiscard]] std::string well_formed_utf8(std::string_view text);

/// `code_point` in UTF-8. Precondition: a Unicode scalar value.
[[nodiscard]] std::string utf8_of(char32_t code_point);

/// A foreign text (a key, a name) between single quotes for an error message: control characters and ill-formed bytes
/// as \xNN, cut at 120 bytes.
[[nodiscard]] std::string quoted(std::string_view text);

}  // namespace headwater::runtime
