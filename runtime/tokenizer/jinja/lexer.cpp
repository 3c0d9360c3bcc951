#include "runtime/tokenizer/jinja/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/jinja/value.hpp"

namespace headwater::runtime::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// jinja2 reads a template with line feeds, and without the last one.
std::string with_line_feeds(std::string_view source) {
  std::string all;
  all.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      all += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      all += source[i];
    }
  }
  if (all.ends_with('\n')) all.pop_back();
  return all;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_line_feeds(well_formed_utf8(source))) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] std::string_view rest() const { return std::string_view(source_).substr(at_); }
  [[nodiscard]] bool follows(std::string_view text) const { return rest().starts_with(text); }
  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t bytes) {
    line_ += static_cast<std::uint32_t>(std::count_if(
        source_.begin() + static_cast<std::ptrdiff_t>(at_),
        source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), [](char c) { return c == '\n'; }));
    at_ += bytes;
  }
  void skip_space() {
    std::size_t length = 0;
    for (std::size_t one = 0; (one = leading_space(rest().substr(length))) > 0;) length += one;
    advance(length);
  }

  /// Text up to the next tag, and the tag.
  void read_data() {
    const std::uint32_t line = line_;
    std::size_t open = at_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 == source_.size()) {
        open = source_.size();
        break;
      }
      if (std::string_view("{%#").find(source_[open + 1]) != std::string_view::npos) break;
    }
    std::string data = source_.substr(at_, open - at_);
    const bool tag = open < source_.size();
    const char kind = tag ? source_[open + 1] : '\0';
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    if (tag) cut_end(data, kind, sign);
    advance(open - at_);
    if (!data.empty()) tokens_.push_back({Token::Kind::data, std::move(data), line});
    if (!tag) return;
    advance(sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '#') {
      skip_comment();
    } else if (kind == '%' && is_raw()) {
      read_raw();
    } else {
      read_tag(kind == '%');
    }
  }

  /// White space in front of a tag.
  void cut_end(std::string& data, char kind, char sign) const {
    if (sign == '-') {
      data = stripped(Text(std::move(data)), false, true, nullptr).bytes;
    } else if (sign != '+' && kind != '{') {
      const std::size_t feed = data.rfind('\n');
      if (feed == std::string::npos && !begins_line_) return;
      const std::size_t line = feed == std::string::npos ? 0 : feed + 1;
      const std::string last = data.substr(line);
      if (stripped(Text(last), true, true, nullptr).bytes.empty()) data.resize(line);
    }
  }

  /// White space behind a tag, of which `length` bytes are the tag's end: "-" takes all, a block one line feed.
  void cut_begin(std::size_t length, char sign, bool feed) {
    advance(length);
    const std::size_t begin = at_;
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && feed && follows("\n")) {
      advance(1);
    }
    begins_line_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse_at(line_, "a comment has no end; allowed: #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    cut_begin(end + 2 - at_, sign, true);
  }

  [[nodiscard]] bool is_raw() const {
    std::string_view all = rest();
    while (leading_space(all) > 0) all.remove_prefix(leading_space(all));
    if (!all.starts_with("raw")) return false;
    all.remove_prefix(3);
    while (leading_space(all) > 0) all.remove_prefix(leading_space(all));
    return all.starts_with("%}") || all.starts_with("-%}");
  }

  void read_raw() {
    const std::size_t end = source_.find("%}", at_);
    cut_begin(end + 2 - at_, source_[end - 1] == '-' ? '-' : '+', false);
    const std::uint32_t line = line_;
    for (std::size_t open = source_.find("{%", at_); open != std::string::npos;
         open = source_.find("{%", open + 1)) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      std::string_view after = std::string_view(source_).substr(open + (sign == '-' || sign == '+' ? 3 : 2));
      while (leading_space(after) > 0) after.remove_prefix(leading_space(after));
      if (!after.starts_with("endraw")) continue;
      after.remove_prefix(6);
      while (leading_space(after) > 0) after.remove_prefix(leading_space(after));
      const bool signed_end = after.starts_with("-%}") || after.starts_with("+%}");
      if (!signed_end && !after.starts_with("%}")) continue;
      std::string data = source_.substr(at_, open - at_);
      cut_end(data, '%', sign);
      if (!data.empty()) tokens_.push_back({Token::Kind::data, std::move(data), line});
      const char close = signed_end ? after[0] : '\0';
      cut_begin(source_.size() - after.size() + (signed_end ? 3 : 2) - at_, close, true);
      return;
    }
    refuse_at(line, "raw has no end; allowed: {% endraw %}");
  }

  void read_tag(bool statement) {
    using Kind = Token::Kind;
    add(statement ? Kind::statement_begin : Kind::output_begin, "");
    const std::uint32_t begin = line_;
    const std::string_view end = statement ? "%}" : "}}";
    std::string brackets;
    for (;;) {
      skip_space();
      if (at_ >= source_.size()) {
        refuse_at(begin, fmt::format("a tag has no end; allowed: {}", end));
      }
      const char c = source_[at_];
      const bool has_sign = c == '-' || (c == '+' && statement);
      // Inside brackets }} closes two of them.
      if (brackets.empty() && (follows(end) || (has_sign && rest().substr(1).starts_with(end)))) {
        add(statement ? Kind::statement_end : Kind::output_end, "");
        cut_begin(has_sign ? 3 : 2, has_sign ? c : '\0', statement);
        return;
      }
      if (begins_name(c)) {
        std::size_t length = 1;
        while (at_ + length < source_.size() &&
               (begins_name(source_[at_ + length]) || is_digit(source_[at_ + length]))) {
          ++length;
        }
        add(Kind::name, source_.substr(at_, length));
        advance(length);
      } else if (is_digit(c)) {
        read_number();
      } else if (c == '\'' || c == '"') {
        read_text(c);
      } else {
        read_sign(brackets);
      }
    }
  }

  void read_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      const std::size_t from = end;
      while (end < source_.size() &&
             (is_digit(source_[end]) || (source_[end] == '_' && end > from && source_[end - 1] != '_'))) {
        ++end;
      }
      return end > from;
    };
    bool real = false;
    (void)digits();
    if (source_.compare(at_, 1, "0") == 0 && end == at_ + 1 && end < source_.size() &&
        std::string_view("xXoObB").find(source_[end]) != std::string_view::npos) {
      refuse_at(line_, "a number in another base is not supported; allowed: decimal digits");
    }
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      ++end;
      (void)digits();
      real = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t before = end;
      ++end;
      if (end < source_.size() && (source_[end] == '+' || source_[end] == '-')) ++end;
      if (digits()) {
        real = true;
      } else {
        end = before;
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    add(real ? Token::Kind::real : Token::Kind::integer, std::move(text));
    advance(end - at_);
  }

  void read_text(char quote) {
    const std::uint32_t begin = line_;
    std::string text;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        text += source_[i];
      } else if (i + 1 < source_.size()) {
        i = read_escape(i + 1, text);
      }
    }
    if (i >= source_.size()) refuse_at(begin, fmt::format("a text has no end; allowed: {}", quote));
    tokens_.push_back({Token::Kind::text, std::move(text), begin});
    advance(i + 1 - at_);
  }

  /// As Python reads escapes; `i` is behind the backslash. Returns the place of the last character.
  std::size_t read_escape(std::size_t i, std::string& text) const {
    constexpr std::string_view kNames = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[i];
    const std::size_t known = kNames.find(c);
    if (known != std::string_view::npos) {
      text += kValues[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      char32_t value = 0;
      for (std::size_t digit = 1; digit <= length; ++digit) {
        const int one = i + digit < source_.size() ? hex_digit(source_[i + digit]) : -1;
        if (one < 0)
          refuse_at(line_, fmt::format("\\{} is not followed by {} hexadecimal digits", c, length));
        value = value * 16 + static_cast<char32_t>(one);
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        refuse_at(line_, fmt::format("\\{} names no character of Unicode", c));
      text += utf8_of(value);
      i += length;
    } else if (c >= '0' && c <= '7') {
      char32_t value = 0;
      std::size_t length = 0;
      for (; length < 3 && i + length < source_.size() && source_[i + length] >= '0' &&
             source_[i + length] <= '7';
           ++length) {
        value = value * 8 + static_cast<char32_t>(source_[i + length] - '0');
      }
      text += utf8_of(value);
      i += length - 1;
    } else if (c != '\n') {
      text += '\\';
      text += c;
    }
    return i;
  }

  void read_sign(std::string& brackets) {
    constexpr std::string_view kSigns[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* const sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                          [&](std::string_view one) { return follows(one); });
    if (sign == std::end(kSigns)) {
      refuse_at(line_,
                fmt::format("{} is not known in a tag",
                            quoted(rest().substr(0, std::max<std::size_t>(next_utf8(rest()).length, 1)))));
    }
    const char c = (*sign)[0];
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c)
        refuse_at(line_, fmt::format("'{}' closes nothing; allowed: as many brackets as were opened", c));
      brackets.pop_back();
    }
    add(Token::Kind::sign, std::string(*sign));
    advance(sign->size());
  }

  std::string source_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool begins_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).run(); }

void refuse_at(std::uint32_t line, const std::string& what) {
  refuse(fmt::format("line {}: {}", line, what));
}

}  // namespace headwater::runtime::jinja
