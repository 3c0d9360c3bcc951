#include <fmt/format.h>

#include <map>
#include <string>

#include "headwater/error.hpp"
#include "runtime/grammar/builder.hpp"
#include "runtime/grammar/characters.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

using Node = GrammarBuilder::Node;

bool is_word(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/// The notation as llama.cpp's documentation of its grammars describes it.
class Gbnf {
 public:
  explicit Gbnf(std::string_view text) : reader_(text, "grammar") {}

  std::shared_ptr<const Grammar> read() {
    (void)rule_of("root");
    for (skip(true); !reader_.done(); skip(true)) read_rule();
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined)
        reader_.refuse(
            fmt::format("rule {} is not defined; allowed: rules of the grammar", runtime::quoted(name)));
    }
    return builder_.build();
  }

 private:
  struct Named {
    GrammarBuilder::Rule rule = 0;
    bool defined = false;
  };

  /// Blanks and comments; line ends where a rule may go on behind them.
  void skip(bool lines) {
    for (;; (void)reader_.take()) {
      if (reader_.peek() == '#') {
        while (!reader_.done() && reader_.peek() != '\n') (void)reader_.take();
      }
      const char32_t c = reader_.peek();
      if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) return;
    }
  }

  std::string name() {
    std::string name;
    while (is_word(reader_.peek())) name += static_cast<char>(reader_.take());
    return name;
  }

  Named& rule_of(const std::string& name) {
    const auto [found, added] = rules_.try_emplace(name);
    if (added) found->second.rule = builder_.declare();
    return found->second;
  }

  void read_rule() {
    const std::string of = name();
    if (of.empty()) reader_.refuse("a rule has no name; allowed: name ::= ...");
    skip(false);
    if (!reader_.take_if(':') || !reader_.take_if(':') || !reader_.take_if('='))
      reader_.refuse(fmt::format("no ::= stands behind {}; allowed: name ::= ...", runtime::quoted(of)));
    if (rule_of(of).defined)
      reader_.refuse(fmt::format("rule {} is defined twice; allowed: once", runtime::quoted(of)));
    skip(true);
    const Node body = alternatives(0);
    builder_.define(rule_of(of).rule, body);
    rule_of(of).defined = true;
    if (!reader_.done() && reader_.peek() != '\n' && reader_.peek() != '\r')
      reader_.refuse("something stands behind a rule; allowed: the end of the line");
  }

  Node alternatives(int depth) {
    if (depth > kMostDepth)
      reader_.refuse(fmt::format("brackets are too deep; allowed: {} levels", kMostDepth));
    std::vector<Node> all = {sequence(depth)};
    while (reader_.take_if('|')) {
      skip(true);
      all.push_back(sequence(depth));
    }
    return all.size() == 1 ? all[0] : builder_.choice(std::move(all));
  }

  Node sequence(int depth) {
    std::vector<Node> parts;
    for (;; skip(depth > 0)) {
      const char32_t c = reader_.peek();
      if (c == '"') {
        parts.push_back(literal());
      } else if (c == '[') {
        parts.push_back(builder_.set(characters()));
      } else if (c == '.') {
        (void)reader_.take();
        parts.push_back(builder_.set(complement({})));
      } else if (c == '(') {
        (void)reader_.take();
        skip(true);
        parts.push_back(alternatives(depth + 1));
        if (!reader_.take_if(')')) reader_.refuse("a bracket is not closed; allowed: ( ... )");
      } else if (is_word(c)) {
        parts.push_back(builder_.call(rule_of(name()).rule));
      } else if (c == '<') {
        reader_.refuse("a token (<...>) is not supported; allowed: texts, characters, rules");
      } else {
        return parts.size() == 1 ? parts[0] : builder_.sequence(std::move(parts));
      }
      skip(depth > 0);
      for (int i = 0; const auto times = reader_.times(); ++i) {
        if (i == kMostDepth) reader_.refuse("too many repetitions stand behind a part; allowed: 100");
        parts.back() = builder_.repeat(parts.back(), times->least, times->most);
        skip(depth > 0);
      }
    }
  }

  char32_t character() {
    const char32_t c = reader_.take();
    if (c != '\\') return c;
    const char32_t escaped = reader_.take();
    switch (escaped) {
      case 'x': return reader_.hexadecimal(2);
      case 'u': return reader_.hexadecimal(4);
      case 'U': return reader_.hexadecimal(8);
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case '\\':
      case '"':
      case '[':
      case ']': return escaped;
      default:
        reader_.refuse(
            "an escape is not known; allowed: \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH");
    }
  }

  Node literal() {
    (void)reader_.take();
    std::string text;
    while (!reader_.take_if('"')) {
      const char32_t c = character();
      if (normalised({{c, c}}).empty())
        reader_.refuse("an escape is no character; allowed: U+0000 .. U+10FFFF");
      text += utf8_of(c);
    }
    return builder_.literal(text);
  }

  CharacterSet characters() {
    (void)reader_.take();
    const bool others = reader_.take_if('^');
    CharacterSet set;
    while (!reader_.take_if(']')) {
      const char32_t first = character();
      char32_t last = first;
      if (reader_.peek() == '-') {
        (void)reader_.take();
        if (reader_.peek() == ']') {
          set.emplace_back('-', '-');
        } else {
          last = character();
        }
      }
      set.emplace_back(first, last);
    }
    return others ? complement(set) : set;
  }

  static constexpr int kMostDepth = 100;
  CharacterReader reader_;
  GrammarBuilder builder_;
  std::map<std::string, Named> rules_;
};

}  // namespace

std::shared_ptr<const Grammar> Grammar::gbnf(std::string_view text) {
  if (text.size() > kMostBytes)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the grammar has {} bytes; allowed: {}", text.size(), kMostBytes));
  return Gbnf(text).read();
}

}  // namespace headwater::runtime
