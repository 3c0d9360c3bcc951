#include "runtime/grammar/characters.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

constexpr char32_t kEnd = 0xFFFFFFFF;

}  // namespace

CharacterReader::CharacterReader(std::string_view text, std::string_view what) : text_(text), what_(what) {
  if (const auto bad = first_ill_formed_utf8(text)) {
    at_ = *bad;
    refuse("a byte is no UTF-8; allowed: characters in UTF-8");
  }
}

char32_t CharacterReader::peek() const {
  if (done()) return kEnd;
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<std::uint8_t>(text_[at_ + i]));
  };
  const std::size_t length = next_utf8(text_.substr(at_)).length;
  if (length == 1) return byte(0);
  char32_t c = byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) c = c << 6U | (byte(i) & 0x3FU);
  return c;
}

char32_t CharacterReader::take() {
  const char32_t c = peek();
  if (done()) refuse("the text ends too early");
  at_ += next_utf8(text_.substr(at_)).length;
  return c;
}

bool CharacterReader::take_if(char32_t c) {
  if (peek() != c) return false;
  (void)take();
  return true;
}

std::optional<std::int64_t> CharacterReader::number() {
  constexpr std::int64_t kMost = 999'999'999;
  const auto digit = [&] { return peek() >= '0' && peek() <= '9'; };
  if (!digit()) return std::nullopt;
  std::int64_t value = 0;
  while (digit()) {
    value = 10 * value + static_cast<std::int64_t>(take() - '0');
    if (value > kMost) refuse(fmt::format("a number is too large; allowed: 0 .. {}", kMost));
  }
  return value;
}

char32_t CharacterReader::hexadecimal(int digits) {
  char32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char32_t c = take();
    const char32_t small = c | 0x20U;
    if (c >= '0' && c <= '9') {
      value = value << 4U | (c - '0');
    } else if (small >= 'a' && small <= 'f') {
      value = value << 4U | (small - 'a' + 10);
    } else {
      refuse(fmt::format("an escape has another digit; allowed: {} hexadecimal ones", digits));
    }
  }
  return value;
}

std::optional<CharacterReader::Times> CharacterReader::times() {
  if (take_if('*')) return Times{0};
  if (take_if('+')) return Times{1};
  if (take_if('?')) return Times{0, 1};
  if (!take_if('{')) return std::nullopt;
  const std::optional<std::int64_t> least = number();
  if (!least) refuse("a repetition has no number; allowed: {m}, {m,}, {m,n}");
  Times times = {*least, *least};
  if (take_if(',')) times.most = number().value_or(GrammarBuilder::kUnlimited);
  if (!take_if('}')) refuse("a repetition does not end; allowed: {m}, {m,}, {m,n}");
  if (times.most != GrammarBuilder::kUnlimited && times.most < times.least)
    refuse(
        fmt::format("a repetition is {{{},{}}}; allowed: no less than the first", times.least, times.most));
  return times;
}

void CharacterReader::refuse(std::string_view message) const {
  const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
  throw Error(ErrorCode::invalid_argument, fmt::format("{}, line {}: {}", what_, line, message));
}

}  // namespace headwater::runtime
