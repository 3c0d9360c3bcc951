#include "runtime/support/utf8.hpp"

#include <fmt/format.h>

namespace headwater::runtime {
namespace {

struct Range {
  unsigned low;
  unsigned high;
  [[nodiscard]] bool holds(unsigned byte) const { return byte >= low && byte <= high; }
};

constexpr Range kTrail{0x80, 0xBF};

/// Trail bytes that `lead` asks for; 0 where it starts no sequence of several bytes.
std::size_t trail_bytes(unsigned lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 1;
  if (lead >= 0xE0 && lead <= 0xEF) return 2;
  if (lead >= 0xF0 && lead <= 0xF4) return 3;
  return 0;
}

/// What may follow `lead`: no overlong form, no surrogate, nothing above U+10FFFF.
Range second_byte(unsigned lead) {
  switch (lead) {
    case 0xE0: return {0xA0, 0xBF};
    case 0xED: return {0x80, 0x9F};
    case 0xF0: return {0x90, 0xBF};
    case 0xF4: return {0x80, 0x8F};
    default: return kTrail;
  }
}

bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  if (character.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;  // C1 controls
  return false;
}

}  // namespace

Utf8Sequence next_utf8(std::string_view text) {
  if (text.empty()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[i])); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  const std::size_t trail = trail_bytes(lead);
  if (trail == 0) return {1, false, false};
  for (std::size_t i = 1; i <= trail; ++i) {
    if (i >= text.size()) return {i, false, true};
    const Range allowed = i == 1 ? second_byte(lead) : kTrail;
    if (!allowed.holds(byte(i))) return {i, false, false};
  }
  return {trail + 1, true, false};
}

std::optional<std::size_t> first_ill_formed_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Sequence sequence = next_utf8(text.substr(at));
    if (!sequence.well_formed) return at;
    at += sequence.length;
  }
  return std::nullopt;
}

std::string well_formed_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Sequence sequence = next_utf8(text);
    result += sequence.well_formed ? text.substr(0, sequence.length) : kReplacementCharacter;
    text.remove_prefix(sequence.length);
  }
  return result;
}

std::string utf8_of(char32_t code_point) {
  const auto trail = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | (code_point >> 6)), trail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | (code_point >> 12)), trail(6), trail(0)};
  return {static_cast<char>(0xF0 | (code_point >> 18)), trail(12), trail(6), trail(0)};
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kLimit = 120;
  std::string shown;
  while (!text.empty()) {
    const Utf8Sequence sequence = next_utf8(text);
    const std::string_view character = text.substr(0, sequence.length);
    std::string safe(character);
    if (!sequence.well_formed || is_control(character)) {
      safe.clear();
      for (const char c : character) safe += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    if (shown.size() + safe.size() > kLimit) return fmt::format("'{}...'", shown);
    shown += safe;
    text.remove_prefix(sequence.length);
  }
  return fmt::format("'{}'", shown);
}

}  // namespace headwater::runtime
