#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/jinja/lexer.hpp"
#include "runtime/tokenizer/jinja/syntax.hpp"

namespace headwater::runtime::jinja {
namespace {

using Kind = Node::Kind;

// The parser, the interpreter and the destructor of a tree take the stack for each level.
constexpr int kDeepestTree = 200;
constexpr int kDeepestBrackets = 100;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  NodePointer run() {
    NodePointer all = block({});
    if (!at_end()) refuse_here("a tag closes nothing that is open");
    return all;
  }

 private:
  /// A level of recursion.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.level_ > kDeepestBrackets)
        parser_.refuse_here(
            fmt::format("brackets, blocks or signs lie more than {} deep in each other", kDeepestBrackets));
    }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  [[nodiscard]] const Token& token() const { return tokens_[at_]; }
  [[nodiscard]] const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  [[nodiscard]] bool at_end() const { return token().kind == Token::Kind::end; }
  Token take() {
    Token token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  [[nodiscard]] bool is(Token::Kind kind, std::string_view text) const {
    return token().kind == kind && token().text == text;
  }
  [[nodiscard]] bool is_sign(std::string_view text) const { return is(Token::Kind::sign, text); }
  [[nodiscard]] bool is_name(std::string_view text) const { return is(Token::Kind::name, text); }
  bool skip_sign(std::string_view text) {
    if (!is_sign(text)) return false;
    (void)take();
    return true;
  }
  bool skip_name(std::string_view text) {
    if (!is_name(text)) return false;
    (void)take();
    return true;
  }

  [[noreturn]] void refuse_here(const std::string& what) const { refuse_at(token().line, what); }
  [[noreturn]] void refuse_token(std::string_view allowed) const {
    constexpr const char* kNames[] = {
        "text between tags", "{{", "}}", "{%", "%}", "", "", "", "", "", "the end"};
    const char* const name = kNames[static_cast<std::size_t>(token().kind)];
    refuse_here(
        fmt::format("{} stands where {} is allowed", *name != '\0' ? name : quoted(token().text), allowed));
  }
  void expect_sign(std::string_view text) {
    if (!skip_sign(text)) refuse_token(fmt::format("'{}'", text));
  }
  void expect(Token::Kind kind, std::string_view allowed) {
    if (token().kind != kind) refuse_token(allowed);
    (void)take();
  }
  std::string expect_name() {
    if (token().kind != Token::Kind::name) refuse_token("a name");
    return take().text;
  }

  template <class... Parts>
  NodePointer make(Node node, Parts... parts) {
    std::vector<NodePointer> all;
    (all.push_back(std::move(parts)), ...);
    return finish(std::move(node), std::move(all));
  }
  NodePointer finish(Node node, std::vector<NodePointer> parts) {
    for (const NodePointer& part : parts) {
      if (part) node.depth = std::max(node.depth, part->depth + 1);
    }
    if (node.depth > kDeepestTree)
      refuse_at(node.line, fmt::format("an expression or block has more than {} levels", kDeepestTree));
    node.parts = std::move(parts);
    return std::make_unique<const Node>(std::move(node));
  }
  [[nodiscard]] Node node(Kind kind, std::string text = {}) const {
    return {kind, token().line, std::move(text)};
  }

  // ---- statements

  /// Up to a tag of one of these names, whose name comes next; or to the end where there is none.
  NodePointer block(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Node all = node(Kind::block);
    std::vector<NodePointer> parts;
    for (;;) {
      if (at_end()) {
        if (ends.size() > 0)
          refuse_at(all.line, fmt::format("a block has no end; allowed: {{% {} %}}", *(ends.end() - 1)));
        break;
      }
      if (token().kind == Token::Kind::data) {
        Node text = node(Kind::constant);
        text.value = Value(std::string_view(token().text));
        Node output = node(Kind::output);
        (void)take();
        parts.push_back(make(std::move(output), make(std::move(text))));
      } else if (token().kind == Token::Kind::output_begin) {
        (void)take();
        Node output = node(Kind::output);
        NodePointer value = tuple_or_one(true);
        expect(Token::Kind::output_end, "}}");
        parts.push_back(make(std::move(output), std::move(value)));
      } else {
        expect(Token::Kind::statement_begin, "a tag");
        if (token().kind != Token::Kind::name) refuse_token("the name of a statement");
        if (std::find(ends.begin(), ends.end(), token().text) != ends.end()) break;
        if (NodePointer one = statement()) parts.push_back(std::move(one));
      }
    }
    return finish(std::move(all), std::move(parts));
  }
  void close() { expect(Token::Kind::statement_end, "%}"); }
  /// {% NAME %} ... {% endNAME %}
  NodePointer body(std::string_view end) {
    close();
    NodePointer all = block({end});
    (void)take();
    close();
    return all;
  }

  NodePointer statement() {
    Node own = node(Kind::block);
    const std::string name = take().text;
    if (name == "if") return branch(std::move(own));
    if (name == "for") return loop(std::move(own));
    if (name == "set") return set(std::move(own));
    if (name == "macro") return macro(std::move(own));
    if (name == "generation") {
      own.kind = Kind::with;
      return make(std::move(own), body("endgeneration"));
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse_at(own.line, fmt::format("{} stands outside of a loop", name));
      own.kind = name == "break" ? Kind::leave : Kind::next;
      close();
      return make(std::move(own));
    }
    if (name == "filter") {
      own.kind = Kind::filtered;
      NodePointer filters = filter_chain(nullptr, true);
      return make(std::move(own), std::move(filters), body("endfilter"));
    }
    if (name == "with") return with(std::move(own));
    if (name == "call") {
      own.kind = Kind::call;
      if (skip_sign("(")) parameters(own, ")");
      std::vector<NodePointer> defaults = std::move(defaults_);
      defaults_.clear();
      NodePointer called = postfix(primary());
      if (called->kind != Kind::call_of)
        refuse_at(own.line, "{% call %} calls nothing; allowed: {% call NAME() %}");
      std::vector<NodePointer> parts;
      parts.push_back(std::move(called));
      parts.push_back(body("endcall"));
      for (NodePointer& one : defaults) parts.push_back(std::move(one));
      return finish(std::move(own), std::move(parts));
    }
    refuse_at(own.line, fmt::format("statement {} is not known or not supported", quoted(name)));
  }

  NodePointer branch(Node own) {
    own.kind = Kind::branch;
    std::vector<NodePointer> parts;
    for (;;) {
      parts.push_back(tuple_or_one(true));
      close();
      parts.push_back(block({"elif", "else", "endif"}));
      const std::string name = take().text;
      if (name == "elif") continue;
      if (name == "else") {
        close();
        parts.push_back(block({"endif"}));
        (void)take();
      }
      close();
      return finish(std::move(own), std::move(parts));
    }
  }

  NodePointer loop(Node own) {
    own.kind = Kind::loop;
    NodePointer to = target(false);
    if (!skip_name("in")) refuse_token("'in'");
    NodePointer over = tuple_or_one(false);
    NodePointer condition;
    if (skip_name("if")) condition = expression();
    if (is_name("recursive")) refuse_here("a recursive loop is not supported");
    close();
    ++loops_;
    NodePointer all = block({"else", "endfor"});
    --loops_;
    NodePointer otherwise;
    if (take().text == "else") {
      close();
      otherwise = block({"endfor"});
      (void)take();
    }
    close();
    return make(std::move(own), std::move(to), std::move(over), std::move(condition), std::move(all),
                std::move(otherwise));
  }

  NodePointer set(Node own) {
    NodePointer to = target(true);
    if (skip_sign("=")) {
      own.kind = Kind::assign;
      NodePointer value = tuple_or_one(true);
      close();
      return make(std::move(own), std::move(to), std::move(value));
    }
    own.kind = Kind::capture;
    NodePointer filters;
    if (is_sign("|")) filters = filter_chain(nullptr, false);
    NodePointer all = body("endset");
    return make(std::move(own), std::move(to), std::move(all), std::move(filters));
  }

  /// Names with their default values up to `end`; the values are left in defaults_.
  void parameters(Node& own, std::string_view end) {
    defaults_.clear();
    std::vector<NodePointer> values;
    while (!skip_sign(end)) {
      if (!own.names.empty()) expect_sign(",");
      if (skip_sign(end)) break;
      own.names.push_back(expect_name());
      if (skip_sign("=")) {
        values.push_back(expression());
      } else if (!values.empty()) {
        refuse_here("a parameter without a default value stands behind one with it");
      }
    }
    defaults_ = std::move(values);
  }

  NodePointer macro(Node own) {
    own.kind = Kind::macro;
    own.text = expect_name();
    expect_sign("(");
    parameters(own, ")");
    std::vector<NodePointer> parts;
    std::vector<NodePointer> defaults = std::move(defaults_);
    const int loops = std::exchange(loops_, 0);
    parts.push_back(body("endmacro"));
    loops_ = loops;
    for (NodePointer& one : defaults) parts.push_back(std::move(one));
    return finish(std::move(own), std::move(parts));
  }

  NodePointer with(Node own) {
    own.kind = Kind::with;
    std::vector<NodePointer> values;
    while (token().kind != Token::Kind::statement_end) {
      if (!own.names.empty()) expect_sign(",");
      own.names.push_back(expect_name());
      expect_sign("=");
      values.push_back(expression());
    }
    std::vector<NodePointer> parts;
    parts.push_back(body("endwith"));
    for (NodePointer& value : values) parts.push_back(std::move(value));
    return finish(std::move(own), std::move(parts));
  }

  /// a, (a, b), and where `of_set` ns.a
  NodePointer target(bool of_set) {
    const Level level(*this);
    const auto one = [&]() -> NodePointer {
      if (skip_sign("(")) {
        NodePointer inner = target(false);
        expect_sign(")");
        return inner;
      }
      Node own = node(Kind::name);
      own.text = expect_name();
      if (is_constant(own.text)) refuse_at(own.line, fmt::format("{} cannot be set", quoted(own.text)));
      if (of_set && skip_sign(".")) {
        Node names = node(Kind::member, expect_name());
        return make(std::move(names), make(std::move(own)));
      }
      return make(std::move(own));
    };
    Node all = node(Kind::tuple);
    std::vector<NodePointer> parts;
    parts.push_back(one());
    if (!is_sign(",")) return std::move(parts[0]);
    while (skip_sign(",")) {
      if (token().kind != Token::Kind::name && !is_sign("(")) break;
      if (is_name("in")) break;
      parts.push_back(one());
    }
    return finish(std::move(all), std::move(parts));
  }

  // ---- expressions, from the loosest to the tightest

  NodePointer tuple_or_one(bool with_condition) {
    Node own = node(Kind::tuple);
    const auto one = [&] { return with_condition ? expression() : logical_or(); };
    std::vector<NodePointer> parts;
    parts.push_back(one());
    if (!is_sign(",")) return std::move(parts[0]);
    while (skip_sign(",")) {
      if (ends_expression()) break;
      parts.push_back(one());
    }
    return finish(std::move(own), std::move(parts));
  }
  [[nodiscard]] bool ends_expression() const {
    return token().kind == Token::Kind::output_end || token().kind == Token::Kind::statement_end ||
           is_sign(")");
  }

  NodePointer expression() {
    const Level level(*this);
    NodePointer value = logical_or();
    while (is_name("if")) {
      Node own = node(Kind::condition);
      (void)take();
      NodePointer condition = logical_or();
      NodePointer other;
      if (skip_name("else")) other = expression();
      value = make(std::move(own), std::move(value), std::move(condition), std::move(other));
    }
    return value;
  }

  NodePointer logical_or() {
    NodePointer left = logical_and();
    while (is_name("or")) {
      Node own = node(Kind::logical_or);
      (void)take();
      NodePointer right = logical_and();
      left = make(std::move(own), std::move(left), std::move(right));
    }
    return left;
  }

  NodePointer logical_and() {
    NodePointer left = logical_not();
    while (is_name("and")) {
      Node own = node(Kind::logical_and);
      (void)take();
      NodePointer right = logical_not();
      left = make(std::move(own), std::move(left), std::move(right));
    }
    return left;
  }

  NodePointer logical_not() {
    if (!is_name("not")) return compare();
    const Level level(*this);
    Node own = node(Kind::logical_not);
    (void)take();
    return make(std::move(own), logical_not());
  }

  NodePointer compare() {
    Node own = node(Kind::compare);
    std::vector<NodePointer> parts;
    parts.push_back(sum());
    for (;;) {
      std::string sign;
      if (token().kind == Token::Kind::sign) {
        for (const std::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
          if (token().text == known) sign = known;
        }
      }
      if (!sign.empty()) {
        (void)take();
      } else if (skip_name("in")) {
        sign = "in";
      } else if (is_name("not") && after().kind == Token::Kind::name && after().text == "in") {
        (void)take();
        (void)take();
        sign = "not in";
      } else {
        break;
      }
      own.names.push_back(sign);
      parts.push_back(sum());
    }
    if (own.names.empty()) return std::move(parts[0]);
    return finish(std::move(own), std::move(parts));
  }

  template <class Operand>
  NodePointer binary(std::initializer_list<std::string_view> signs, const Operand& operand) {
    NodePointer left = operand();
    while (token().kind == Token::Kind::sign &&
           std::find(signs.begin(), signs.end(), token().text) != signs.end()) {
      Node own = node(Kind::binary, token().text);
      (void)take();
      NodePointer right = operand();
      left = make(std::move(own), std::move(left), std::move(right));
    }
    return left;
  }

  NodePointer sum() {
    return binary({"+", "-"}, [this] { return concat(); });
  }
  NodePointer concat() {
    Node own = node(Kind::concat);
    std::vector<NodePointer> parts;
    parts.push_back(product());
    while (skip_sign("~")) parts.push_back(product());
    if (parts.size() == 1) return std::move(parts[0]);
    return finish(std::move(own), std::move(parts));
  }
  NodePointer product() {
    return binary({"*", "/", "//", "%"}, [this] { return power(); });
  }
  NodePointer power() {
    return binary({"**"}, [this] { return unary(true); });
  }

  NodePointer unary(bool with_filters) {
    NodePointer value;
    if (is_sign("-") || is_sign("+")) {
      const Level level(*this);
      Node own = node(is_sign("-") ? Kind::negate : Kind::plus);
      (void)take();
      NodePointer inner = unary(false);
      value = make(std::move(own), std::move(inner));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
  }

  static bool is_constant(std::string_view name) {
    constexpr std::string_view kNames[] = {"true", "True", "false", "False", "none", "None"};
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
  }

  NodePointer primary() {
    const Level level(*this);
    Node own = node(Kind::constant);
    switch (token().kind) {
      case Token::Kind::name: {
        const std::string name = take().text;
        if (is_constant(name)) {
          own.value =
              name[0] == 'n' || name[0] == 'N' ? Value(None{}) : Value(name[0] == 't' || name[0] == 'T');
        } else {
          own.kind = Kind::name;
          own.text = name;
        }
        return make(std::move(own));
      }
      case Token::Kind::text: {
        std::string all;
        while (token().kind == Token::Kind::text) all += take().text;
        own.value = Value(std::string_view(all));
        return make(std::move(own));
      }
      case Token::Kind::integer:
      case Token::Kind::real: own.value = number(take()); return make(std::move(own));
      case Token::Kind::sign:
        if (is_sign("(")) return in_brackets();
        if (is_sign("[")) return list();
        if (is_sign("{")) return dict();
        break;
      default: break;
    }
    refuse_token("a value");
  }

  static Value number(const Token& token) {
    const char* const end = token.text.data() + token.text.size();
    if (token.kind == Token::Kind::integer) {
      std::int64_t value = 0;
      if (std::from_chars(token.text.data(), end, value).ec != std::errc())
        refuse_at(token.line,
                  fmt::format("{} is too large; allowed: integers of 64 bits", quoted(token.text)));
      return Value(value);
    }
    double value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc())
      refuse_at(token.line, fmt::format("{} is no number of 64 bits", quoted(token.text)));
    return Value(value);
  }

  NodePointer in_brackets() {
    Node own = node(Kind::tuple);
    (void)take();
    if (skip_sign(")")) return make(std::move(own));
    NodePointer all = tuple_or_one(true);
    expect_sign(")");
    return all;
  }

  NodePointer list() {
    Node own = node(Kind::list);
    (void)take();
    std::vector<NodePointer> parts;
    while (!skip_sign("]")) {
      if (!parts.empty()) expect_sign(",");
      if (skip_sign("]")) break;
      parts.push_back(expression());
    }
    return finish(std::move(own), std::move(parts));
  }

  NodePointer dict() {
    Node own = node(Kind::dict);
    (void)take();
    std::vector<NodePointer> parts;
    while (!skip_sign("}")) {
      if (!parts.empty()) expect_sign(",");
      if (skip_sign("}")) break;
      parts.push_back(expression());
      expect_sign(":");
      parts.push_back(expression());
    }
    return finish(std::move(own), std::move(parts));
  }

  NodePointer postfix(NodePointer value) {
    for (;;) {
      if (is_sign(".")) {
        Node own = node(Kind::member);
        (void)take();
        if (token().kind == Token::Kind::integer) {
          Node index = node(Kind::constant);
          index.value = number(take());
          own.kind = Kind::item;
          value = make(std::move(own), std::move(value), make(std::move(index)));
        } else {
          own.text = expect_name();
          value = make(std::move(own), std::move(value));
        }
      } else if (is_sign("[")) {
        value = subscript(std::move(value));
      } else if (is_sign("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  NodePointer subscript(NodePointer value) {
    Node own = node(Kind::item);
    (void)take();
    std::vector<NodePointer> parts;
    parts.push_back(std::move(value));
    bool colon = false;
    for (std::size_t place = 1;; ++place) {
      NodePointer part;
      if (!is_sign(":") && !is_sign("]")) part = expression();
      parts.push_back(std::move(part));
      if (place == 3 || !skip_sign(":")) break;
      colon = true;
    }
    if (is_sign(",")) refuse_here("a tuple as an index is not supported");
    if (!is_sign("]")) refuse_token("']'");
    if (!colon && !parts[1]) refuse_token("an index");
    (void)take();
    if (colon) {
      own.kind = Kind::slice;
      parts.resize(4);
    }
    return finish(std::move(own), std::move(parts));
  }

  /// What stands between ( and ).
  void arguments(Node& own, std::vector<NodePointer>& parts) {
    expect_sign("(");
    bool first = true;
    while (!skip_sign(")")) {
      if (!first) expect_sign(",");
      first = false;
      if (skip_sign(")")) break;
      if (is_sign("*") || is_sign("**")) refuse_here("arguments by * and ** are not supported");
      if (token().kind == Token::Kind::name && after().kind == Token::Kind::sign && after().text == "=") {
        own.names.push_back(take().text);
        (void)take();
      } else if (!own.names.empty()) {
        refuse_here("an argument without a name stands behind one with a name");
      }
      parts.push_back(expression());
    }
  }

  NodePointer call(NodePointer value) {
    Node own = node(Kind::call_of);
    std::vector<NodePointer> parts;
    parts.push_back(std::move(value));
    arguments(own, parts);
    return finish(std::move(own), std::move(parts));
  }

  /// | NAME(...) | ...; `first`: the first one has no sign before it.
  NodePointer filter_chain(NodePointer value, bool first) {
    while (first || is_sign("|")) {
      if (!first) (void)take();
      first = false;
      Node own = node(Kind::filter, expect_name());
      if (is_sign(".")) refuse_here("a filter with a dot in its name is not supported");
      std::vector<NodePointer> parts;
      parts.push_back(std::move(value));
      if (is_sign("(")) arguments(own, parts);
      value = finish(std::move(own), std::move(parts));
    }
    return value;
  }

  NodePointer filters_and_tests(NodePointer value) {
    for (;;) {
      if (is_sign("|")) {
        value = filter_chain(std::move(value), false);
      } else if (is_name("is")) {
        value = test(std::move(value));
      } else if (is_sign("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  NodePointer test(NodePointer value) {
    Node own = node(Kind::test);
    (void)take();
    Node negation = node(Kind::logical_not);
    const bool negated = skip_name("not");
    own.text = expect_name();
    std::vector<NodePointer> parts;
    parts.push_back(std::move(value));
    using Token = Token::Kind;
    const Token kind = token().kind;
    if (is_sign("(")) {
      arguments(own, parts);
      if (!own.names.empty()) refuse_here("an argument of a test with a name is not supported");
    } else if (kind == Token::text || kind == Token::integer || kind == Token::real || is_sign("[") ||
               is_sign("{") ||
               (kind == Token::name && !is_name("else") && !is_name("or") && !is_name("and") &&
                !is_name("is") && !is_name("if") && !is_name("not") && !is_name("in"))) {
      parts.push_back(postfix(primary()));
    }
    NodePointer all = finish(std::move(own), std::move(parts));
    return negated ? make(std::move(negation), std::move(all)) : std::move(all);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;  // around the statement
  std::vector<NodePointer> defaults_;
};

}  // namespace

NodePointer parse(std::string_view source) {
  if (source.size() > kLongestTemplate)
    refuse(fmt::format("it has {} bytes; allowed: 0 .. {}", source.size(), kLongestTemplate));
  return Parser(tokens_of(source)).run();
}

}  // namespace headwater::runtime::jinja
