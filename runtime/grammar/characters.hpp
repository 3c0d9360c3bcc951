#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/grammar/builder.hpp"

namespace headwater::runtime {

/// A text that is read character by character, with one reader's words for what is wrong in it.
class CharacterReader {
 public:
  /// `text` is well-formed UTF-8 (Error otherwise); `what` names it in messages. Both must outlive the reader.
  CharacterReader(std::string_view text, std::string_view what);

  [[nodiscard]] bool done() const { return at_ == text_.size(); }
  /// The next character; 0xFFFFFFFF at the end.
  [[nodiscard]] char32_t peek() const;
  char32_t take();
  /// Takes the next character if it is this one.
  bool take_if(char32_t c);
  /// A decimal number of at most nine digits; none: the next character is no digit.
  [[nodiscard]] std::optional<std::int64_t> number();
  /// So many hexadecimal digits.
  [[nodiscard]] char32_t hexadecimal(int digits);
  /// Error(invalid_argument): "WHAT, line N: MESSAGE".
  [[noreturn]] void refuse(std::string_view message) const;
  /// `{m}`, `{m,}`, `{m,n}`, `*`, `+` and `?` behind a part; none: no such thing follows.
  struct Times {
    std::int64_t least = 0;
    std::int64_t most = GrammarBuilder::kUnlimited;
  };
  [[nodiscard]] std::optional<Times> times();

 private:
  std::string_view text_, what_;
  std::size_t at_ = 0;
};

}  // namespace headwater::runtime
