#include "runtime/tokenizer/byte_alphabet.hpp"

#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

/// Code point of a well-formed sequence of one or two bytes; longer ones are in no alphabet.
int short_code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<int>(static_cast<unsigned char>(character[i])); };
  if (character.size() == 1) return byte(0);
  return character.size() == 2 ? (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F) : 0x10000;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = stands_for_itself(byte) ? byte : next++;
    characters_[static_cast<std::size_t>(byte)] = utf8_of(static_cast<char32_t>(code_point));
    bytes_[static_cast<std::size_t>(code_point)] = static_cast<std::int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view text) const {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Sequence sequence = next_utf8(text);
    const int code_point = sequence.well_formed ? short_code_point(text.substr(0, sequence.length)) : 0x10000;
    if (code_point >= static_cast<int>(bytes_.size())) return std::nullopt;
    const int byte = bytes_[static_cast<std::size_t>(code_point)];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    text.remove_prefix(sequence.length);
  }
  return bytes;
}

}  // namespace headwater::runtime
