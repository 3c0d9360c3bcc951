#include "runtime/grammar/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/grammar/characters.hpp"

namespace headwater::runtime {
namespace {

using Node = GrammarBuilder::Node;

const CharacterSet& digits() {
  static const CharacterSet set = {{'0', '9'}};
  return set;
}
const CharacterSet& word() {
  static const CharacterSet set = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
const CharacterSet& blank() {
  static const CharacterSet set = {
      {'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x2028, 0x2029}, {0xFEFF, 0xFEFF}};
  return set;
}

class Expression {
 public:
  Expression(std::string_view text, GrammarBuilder& builder, JsonStrings& strings)
      : reader_(text, "pattern"), builder_(builder), strings_(strings) {}

  Node read() {
    std::vector<Node> all;
    do {
      // Where an anchor is missing anything may stand.
      std::vector<Node> parts;
      if (!reader_.take_if('^')) parts.push_back(anything());
      parts.push_back(sequence(0));
      if (!reader_.take_if('$')) parts.push_back(anything());
      all.push_back(builder_.sequence(std::move(parts)));
    } while (reader_.take_if('|'));
    if (!reader_.done())
      reader_.refuse("a bracket or an anchor stands where none can; allowed: ^ first, $ last");
    return builder_.choice(std::move(all));
  }

 private:
  Node anything() { return builder_.repeat(strings_.any_character(), 0); }

  Node alternatives(int depth) {
    if (depth > kMostDepth)
      reader_.refuse(fmt::format("brackets are too deep; allowed: {} levels", kMostDepth));
    std::vector<Node> all = {sequence(depth)};
    while (reader_.take_if('|')) all.push_back(sequence(depth));
    return builder_.choice(std::move(all));
  }

  Node sequence(int depth) {
    std::vector<Node> parts;
    while (!reader_.done() && reader_.peek() != '|' && reader_.peek() != ')' && reader_.peek() != '$') {
      parts.push_back(part(depth));
      for (int i = 0; const auto times = reader_.times(); ++i) {
        if (i == kMostDepth) reader_.refuse("too many repetitions stand behind a part; allowed: 64");
        (void)reader_.take_if('?');  // lazy: the same texts
        parts.back() = builder_.repeat(parts.back(), times->least, times->most);
      }
    }
    return builder_.sequence(std::move(parts));
  }

  Node part(int depth) {
    switch (const char32_t c = reader_.take()) {
      case '(': {
        if (reader_.take_if('?') && !reader_.take_if(':'))
          reader_.refuse("(? is not supported; allowed: (?: and plain brackets");
        const Node inner = alternatives(depth + 1);
        if (!reader_.take_if(')')) reader_.refuse("a bracket is not closed; allowed: ( ... )");
        return inner;
      }
      case '[': return strings_.character(characters());
      case '.': return strings_.character(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '\\': return strings_.character(escaped());
      case '*':
      case '+':
      case '?':
      case '{':
      case '^':
        reader_.refuse(fmt::format("{} stands where it cannot; allowed: behind a part, or ^ first",
                                   static_cast<char>(c)));
      default: return strings_.character({{c, c}});
    }
  }

  /// What stands behind a backslash.
  CharacterSet escaped() {
    const char32_t c = reader_.take();
    const auto one = [](char32_t only) { return CharacterSet{{only, only}}; };
    switch (c) {
      case 'd': return digits();
      case 'D': return complement(digits());
      case 'w': return word();
      case 'W': return complement(word());
      case 's': return blank();
      case 'S': return complement(blank());
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one(0);
      case 'x': return one(reader_.hexadecimal(2));
      case 'u': return one(reader_.hexadecimal(4));
      default: break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
    if (letter)
      reader_.refuse(
          fmt::format("\\{} is not supported; allowed: \\d \\w \\s \\D \\W \\S \\n \\r \\t \\f \\v \\0 \\xHH "
                      "\\uHHHH and signs",
                      static_cast<char>(c)));
    return one(c);
  }

  CharacterSet characters() {
    const bool others = reader_.take_if('^');
    CharacterSet set;
    while (!reader_.take_if(']')) {
      const CharacterSet first = one_of_set();
      set.insert(set.end(), first.begin(), first.end());
      const auto single = [](const CharacterSet& s) { return s.size() == 1 && s[0].first == s[0].second; };
      // Behind a set, and before the end, - is itself.
      if (!single(first) || !reader_.take_if('-')) continue;
      if (reader_.peek() == ']') {
        set.emplace_back('-', '-');
        continue;
      }
      const CharacterSet last = one_of_set();
      if (!single(last) || last[0].first < first[0].first)
        reader_.refuse("a range is in no order; allowed: a-z");
      set.back().second = last[0].first;
    }
    return others ? complement(set) : set;
  }

  CharacterSet one_of_set() {
    const char32_t c = reader_.take();
    if (c == '\\') return escaped();
    return {{c, c}};
  }

  static constexpr int kMostDepth = 64;
  CharacterReader reader_;
  GrammarBuilder& builder_;
  JsonStrings& strings_;
};

}  // namespace

Node JsonStrings::any_character() {
  if (any_ >= 0) return any_;
  const Node hex = builder_->set({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  // A code point beyond U+FFFF is a pair of surrogates; one alone is no text.
  const Node unit = builder_->choice(
      {builder_->sequence({builder_->set({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}),
                           builder_->repeat(hex, 3, 3)}),
       builder_->sequence({builder_->set({{'D', 'D'}, {'d', 'd'}}), builder_->set({{'0', '7'}}),
                           builder_->repeat(hex, 2, 2)}),
       builder_->sequence({builder_->set({{'D', 'D'}, {'d', 'd'}}),
                           builder_->set({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), builder_->repeat(hex, 2, 2),
                           builder_->literal("\\u"), builder_->set({{'D', 'D'}, {'d', 'd'}}),
                           builder_->set({{'C', 'F'}, {'c', 'f'}}), builder_->repeat(hex, 2, 2)})});
  const Node escape = builder_->choice({builder_->set({{'"', '"'},
                                                       {'\\', '\\'},
                                                       {'/', '/'},
                                                       {'b', 'b'},
                                                       {'f', 'f'},
                                                       {'n', 'n'},
                                                       {'r', 'r'},
                                                       {'t', 't'}}),
                                        builder_->sequence({builder_->literal("u"), unit})});
  any_ = builder_->choice({builder_->set(complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})),
                           builder_->sequence({builder_->literal("\\"), builder_->shared(escape)})});
  return any_;
}

Node JsonStrings::character(CharacterSet set) {
  set = normalised(set);
  const auto found = characters_.find(set);
  if (found != characters_.end()) return found->second;
  constexpr std::pair<char32_t, const char*> kEscapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"},
                                                           {'\f', "\\f"}, {'\n', "\\n"},  {'\r', "\\r"},
                                                           {'\t', "\\t"}};
  CharacterSet plain;
  std::vector<Node> ways;
  for (const auto& [first, last] : set) {
    for (char32_t c = first; c <= last && c < 0x80; ++c) {
      const auto* const escape = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                              [&](const auto& one) { return one.first == c; });
      if (escape != std::end(kEscapes)) {
        ways.push_back(builder_->literal(escape->second));
      } else if (c < 0x20) {
        ways.push_back(builder_->literal(fmt::format("\\u{:04x}", static_cast<unsigned>(c))));
      } else {
        plain.emplace_back(c, c);
      }
    }
    if (last >= 0x80) plain.emplace_back(std::max<char32_t>(first, 0x80), last);
  }
  if (!plain.empty() || ways.empty()) ways.push_back(builder_->set(std::move(plain)));
  const Node node = ways.size() == 1 ? ways[0] : builder_->shared(builder_->choice(std::move(ways)));
  characters_.emplace(std::move(set), node);
  return node;
}

Node JsonStrings::pattern(std::string_view expression) {
  const Node body = Expression(expression, *builder_, *this).read();
  return builder_->sequence({builder_->literal("\""), body, builder_->literal("\"")});
}

}  // namespace headwater::runtime
