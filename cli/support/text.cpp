#include "cli/support/text.hpp"

#include <fmt/format.h>

#include <array>

namespace headwater::cli {
namespace {

/// Length of the well-formed UTF-8 sequence (Unicode 15, table 3-7) at the start of `text`; 0 if there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto in = [&](std::size_t i, unsigned low, unsigned high) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return in(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;
    return in(1, low, high) && in(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;
    return in(1, low, high) && in(2, 0x80, 0xBF) && in(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  return character.size() == 2 && byte(0) == 0xC2 && byte(1) < 0xA0;  // C1 controls, U+0085 among them
}

/// Would a line-based reader take this character for more than a glyph, or a reader be shown another order?
bool breaks_a_line(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 3 && byte(0) == 0xE2) {
    // U+2028 and U+2029 break lines; U+200E, U+200F, U+202A..U+202E and U+2066..U+2069 reorder text.
    if (byte(1) == 0x80) return byte(2) == 0x8E || byte(2) == 0x8F || (byte(2) >= 0xA8 && byte(2) <= 0xAE);
    if (byte(1) == 0x81) return byte(2) >= 0xA6 && byte(2) <= 0xA9;
  }
  return false;
}

std::string escaped(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

/// Takes the first character of `text`, or a byte that begins none: then the answer is false.
bool take_character(std::string_view& text, std::string_view& character) {
  const std::size_t length = utf8_length(text);
  character = text.substr(0, length == 0 ? 1 : length);
  text.remove_prefix(character.size());
  return length > 0;
}

}  // namespace

std::string one_line(std::string_view text, std::size_t limit) {
  constexpr std::string_view kEllipsis = "...";
  std::string line;
  while (!text.empty()) {
    std::string_view character;
    const bool whole = take_character(text, character);
    const bool hidden = !whole || is_control(character) || breaks_a_line(character);
    const std::string shown = hidden ? escaped(character) : std::string(character);
    if (line.size() + shown.size() > limit) return line + std::string(kEllipsis);
    line += shown;
  }
  return line;
}

std::string for_terminal(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    std::string_view character;
    const bool whole = take_character(text, character);
    const bool stays = character == "\n" || character == "\t" || (whole && !is_control(character));
    result += stays ? std::string(character) : escaped(character);
  }
  return result;
}

std::string in_quotes(std::string_view text) { return fmt::format("'{}'", one_line(text, kQuotedLimit)); }

std::string base64(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr std::size_t kGroup = 3;
  std::string text;
  text.reserve((bytes.size() + kGroup - 1) / kGroup * 4);
  for (std::size_t i = 0; i < bytes.size(); i += kGroup) {
    const auto byte = [&](std::size_t k) { return i + k < bytes.size() ? std::uint32_t{bytes[i + k]} : 0U; };
    const std::uint32_t group = byte(0) << 16U | byte(1) << 8U | byte(2);
    text += kDigits[group >> 18U & 63U];
    text += kDigits[group >> 12U & 63U];
    text += i + 1 < bytes.size() ? kDigits[group >> 6U & 63U] : '=';
    text += i + 2 < bytes.size() ? kDigits[group & 63U] : '=';
  }
  return text;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  constexpr double kStep = 1024.0;
  if (bytes < 1024) return count_text(bytes, "byte");
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= kStep && unit + 1 < kUnits.size()) {
    value /= kStep;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace headwater::cli
