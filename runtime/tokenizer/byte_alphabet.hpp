#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headwater::runtime {

/// GPT-2's way to spell bytes as printable characters in a vocabulary (Radford et al. 2019): printable
/// Latin-1 is itself, the other 68 bytes are U+0100 and on, in order. "Ġ" is a space.
class ByteAlphabet {
 public:
  ByteAlphabet();
  /// The character of a byte, in UTF-8.
  [[nodiscard]] const std::string& character(std::uint8_t byte) const { return characters_[byte]; }
  /// The bytes that a token's text spells; none where it holds another character.
  [[nodiscard]] std::optional<std::string> bytes_of(std::string_view text) const;

 private:
  std::array<std::string, 256> characters_;
  std::array<std::int16_t, 0x144> bytes_{};  ///< by code point; -1: not in the alphabet
};

}  // namespace headwater::runtime
