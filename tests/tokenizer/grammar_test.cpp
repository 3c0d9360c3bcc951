// Grammars, JSON schemas and the tokens that they allow, against a slow reader of the same grammar and against what JSON is.

#include "runtime/grammar/grammar.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/generate/model_file.hpp"
#include "runtime/generate/sampler.hpp"
#include "runtime/grammar/builder.hpp"
#include "runtime/grammar/token_filter.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

enum class Reading : std::uint8_t { fails, goes_on, complete };

Reading reading(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  GrammarMatcher::State state = matcher.begin(), next;
  for (const char byte : text) {
    if (!matcher.step(state, static_cast<std::uint8_t>(byte), next)) return Reading::fails;
    std::swap(state, next);
  }
  return state.complete ? Reading::complete : Reading::goes_on;
}

bool matches(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  return reading(grammar, text) == Reading::complete;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "accepted";
}

// A random grammar as a tree, its notation, and the texts it has up to a length: by substitution until nothing is new.
class RandomGrammar {
 public:
  explicit RandomGrammar(std::uint64_t seed) : random_(seed) {
    rules_ = 1 + below(3);
    for (std::size_t i = 0; i < rules_; ++i) bodies_.push_back(node(3));
  }

  [[nodiscard]] std::string text() const {
    std::string all;
    for (std::size_t i = 0; i < rules_; ++i) all += name(i) + " ::= " + text_of(bodies_[i]) + "\n";
    return all;
  }

  [[nodiscard]] std::set<std::string> texts(std::size_t longest) const {
    std::vector<std::set<std::string>> known(rules_);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < rules_; ++i) {
        std::set<std::string> now = texts_of(bodies_[i], known, longest);
        changed = changed || now != known[i];
        known[i] = std::move(now);
      }
    }
    return known[0];
  }

 private:
  struct Node {
    enum class Kind : std::uint8_t { literal, set, rule, sequence, choice, repeat } kind;
    std::string text = {};
    std::size_t rule = 0;
    std::vector<Node> parts = {};
    int least = 0, most = 0;  // most -1: no limit
  };
  static std::string name(std::size_t rule) { return rule == 0 ? "root" : "rule-" + std::to_string(rule); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  Node node(int depth) {
    using Kind = Node::Kind;
    const std::size_t kind = below(depth == 0 ? 3 : 6);
    if (kind == 0) return {Kind::literal, std::string(below(3), static_cast<char>('a' + below(2)))};
    if (kind == 1) return {Kind::set, below(2) == 0 ? "ab" : "b"};
    if (kind == 2) return {Kind::rule, {}, below(rules_)};
    if (kind == 5) {
      const int least = static_cast<int>(below(3));
      const int most = below(2) == 0 ? -1 : least + static_cast<int>(below(3));
      return {Kind::repeat, {}, 0, {node(depth - 1)}, least, most};
    }
    Node all = {kind == 3 ? Kind::sequence : Kind::choice};
    for (std::size_t i = 0, n = 1 + below(3); i < n; ++i) all.parts.push_back(node(depth - 1));
    return all;
  }

  static std::string text_of(const Node& node) {
    using Kind = Node::Kind;
    switch (node.kind) {
      case Kind::literal: return "\"" + node.text + "\"";
      case Kind::set: return "[" + node.text + "]";
      case Kind::rule: return name(node.rule);
      case Kind::repeat:
        return text_of(node.parts[0]) + "{" + std::to_string(node.least) + "," +
               (node.most < 0 ? "" : std::to_string(node.most)) + "}";
      default: break;
    }
    std::string all = "(";
    for (std::size_t i = 0; i < node.parts.size(); ++i) {
      if (i > 0) all += node.kind == Kind::choice ? " | " : " ";
      all += text_of(node.parts[i]);
    }
    return all + ")";
  }

  using Texts = std::set<std::string>;
  static Texts joined(const Texts& one, const Texts& other, std::size_t longest) {
    Texts all;
    for (const std::string& a : one) {
      for (const std::string& b : other) {
        if (a.size() + b.size() <= longest) all.insert(a + b);
      }
    }
    return all;
  }
  static Texts texts_of(const Node& node, const std::vector<Texts>& known, std::size_t longest) {
    using Kind = Node::Kind;
    Texts all;
    switch (node.kind) {
      case Kind::literal: return {node.text};
      case Kind::set:
        for (const char c : node.text) all.insert(std::string(1, c));
        return all;
      case Kind::rule: return known[node.rule];
      case Kind::sequence:
        all = {""};
        for (const Node& part : node.parts) all = joined(all, texts_of(part, known, longest), longest);
        return all;
      case Kind::choice:
        for (const Node& part : node.parts) all.merge(texts_of(part, known, longest));
        return all;
      case Kind::repeat: break;
    }
    const Texts part = texts_of(node.parts[0], known, longest);
    Texts times = {""};
    for (int i = 0; i < node.least; ++i) times = joined(times, part, longest);
    all = times;
    for (int i = node.least; node.most < 0 || i < node.most; ++i) {
      times = joined(times, part, longest);
      const std::size_t before = all.size();
      all.insert(times.begin(), times.end());
      if (node.most < 0 && all.size() == before) break;
    }
    return all;
  }

  std::mt19937_64 random_;
  std::size_t rules_;
  std::vector<Node> bodies_;
};

TEST(Grammar, ReadsWhatASlowReaderOfRandomGrammarsReads) {
  constexpr std::size_t kLongest = 6;
  std::vector<std::string> all = {""};
  for (std::size_t i = 0; all[i].size() < kLongest; ++i) {
    for (const char c : {'a', 'b'}) all.push_back(all[i] + c);
  }
  int with_texts = 0, without = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const RandomGrammar made(seed);
    const std::set<std::string> texts = made.texts(kLongest);
    std::shared_ptr<const Grammar> grammar;
    const std::string refused = refusal([&] { grammar = Grammar::gbnf(made.text()); });
    if (!grammar) {
      ASSERT_THAT(refused, HasSubstr("matches no text")) << made.text();
      ASSERT_TRUE(texts.empty()) << made.text();
      ++without;
      continue;
    }
    ++with_texts;
    for (const std::string& text : all)
      ASSERT_EQ(matches(grammar, text), texts.contains(text)) << made.text() << "text: " << text;
  }
  EXPECT_GT(with_texts, 1000);
  EXPECT_GT(without, 20);
}

TEST(Grammar, NeverGoesOnWhereNoTextDoes) {
  // What begins a text and cannot be ended is not read.
  const auto grammar =
      Grammar::gbnf("root ::= \"a\" dead | \"b\" [^\\U00000000-\\U0010FFFF] | \"c\"\ndead ::= \"x\" dead");
  EXPECT_EQ(reading(grammar, "a"), Reading::fails);
  EXPECT_EQ(reading(grammar, "b"), Reading::fails);
  EXPECT_EQ(reading(grammar, "c"), Reading::complete);
}

TEST(Grammar, NotationOfLlamaCpp) {
  const auto grammar = Grammar::gbnf(
      "# a list\n"
      "root  ::= item (\", \" item)* \"\\n\"? # behind\n"
      "item  ::= (\"\\x41\\u00e9\\U0001F600\" |\n"
      "  [0-9]{2,3}\n"
      "  .)\r\n");
  for (const char* text : {"A\xC3\xA9\xF0\x9F\x98\x80", "12\xE2\x82\xAC, 123x\n"})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const char* text : {"A", "1x", "12", "12345", "12x, ", "12x,12y"})
    EXPECT_FALSE(matches(grammar, text)) << text;
  EXPECT_TRUE(matches(Grammar::gbnf("root ::= [\\]a-c-]+"), "]-b"));
  // A rule that ends with another one, called twice from one place.
  EXPECT_TRUE(matches(Grammar::gbnf("root ::= a \"1\" | a \"2\"\na ::= b\nb ::= \"x\""), "x1"));
  EXPECT_TRUE(matches(Grammar::gbnf("root ::= a \"1\" | a \"2\"\na ::= b\nb ::= \"x\""), "x2"));
  EXPECT_TRUE(matches(Grammar::gbnf("root ::= root \"+\" root | [0-9]"), "1+2+3+4+5+6+7+8+9"));
  const std::map<std::string, const char*> refused = {
      {"", "line 1: rule 'root' is not defined"},
      {"root ::= x\n\nx ::= y", "line 3: rule 'y' is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: rule 'root' is defined twice"},
      {"root := \"a\"", "no ::= stands behind 'root'"},
      {"::= \"a\"", "a rule has no name"},
      {"root ::= \"a", "ends too early"},
      {"root ::= [a", "ends too early"},
      {"root ::= (\"a\"", "a bracket is not closed"},
      {"root ::= \"a\")", "something stands behind a rule"},
      {"root ::= \"a\"{3,2}", "a repetition is {3,2}"},
      {"root ::= \"a\"{x}", "a repetition has no number"},
      {"root ::= \"a\"{1234567890}", "a number is too large"},
      {"root ::= \"\\q\"", "an escape is not known"},
      {"root ::= \"\\uD800\"", "an escape is no character"},
      {"root ::= \"\\x4\"", "another digit"},
      {"root ::= <think>", "a token (<...>) is not supported"},
      {"root ::= \"\xff\"", "line 1: a byte is no UTF-8"},
      {"root ::= root", "matches no text"},
  };
  for (const auto& [text, message] : refused)
    EXPECT_THAT(refusal([&] { (void)Grammar::gbnf(text); }), HasSubstr(message)) << text;
}

TEST(Grammar, EveryCharacterOfRandomSets) {
  std::mt19937_64 random(7);
  const std::vector<char32_t> edges = {0,       0x7F,    0x80,    0x7FF,   0x800,    0xFFF,
                                       0x1000,  0xCFFF,  0xD000,  0xD7FF,  0xE000,   0xFFFF,
                                       0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FFFF};
  const auto pick = [&] {
    if (random() % 2 == 0) return edges[random() % edges.size()];
    return static_cast<char32_t>(random() % 0x110000);
  };
  for (int round = 0; round < 24; ++round) {
    CharacterSet set;
    for (std::uint64_t i = 0, n = random() % 6; i < n; ++i) {
      const char32_t a = pick(), b = random() % 3 == 0 ? a : pick();
      set.emplace_back(std::min(a, b), std::max(a, b));
    }
    const CharacterSet wanted = round % 2 == 0 ? set : complement(set);
    GrammarBuilder builder;
    const auto rule = builder.declare();
    builder.define(rule, builder.choice({builder.set(wanted), builder.literal("\xff")}));
    const auto grammar = builder.build();
    GrammarMatcher matcher(grammar);
    const GrammarMatcher::State begin = matcher.begin();
    const CharacterSet ordered = normalised(set);
    for (char32_t c = 0; c < 0x110000; c += c < 0x1000 ? 1 : 1 + static_cast<char32_t>(random() % 13)) {
      // Surrogates, too: their bytes are written out, and never read.
      const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
      std::string bytes =
          surrogate ? std::string{static_cast<char>(0xED), static_cast<char>(0x80 | ((c >> 6U) & 0x3FU)),
                                  static_cast<char>(0x80 | (c & 0x3FU))}
                    : utf8_of(c);
      const bool inside = std::any_of(ordered.begin(), ordered.end(), [&](const auto& range) {
        return c >= range.first && c <= range.second;
      });
      GrammarMatcher::State state = begin, next;
      bool read = true;
      for (const char byte : bytes) {
        read = read && matcher.step(state, static_cast<std::uint8_t>(byte), next);
        std::swap(state, next);
      }
      ASSERT_EQ(read && state.complete, !surrogate && inside == (round % 2 == 0))
          << std::hex << static_cast<unsigned>(c);
    }
    // No byte is read that nothing can follow.
    for (unsigned lead = 0; lead < 256; ++lead) {
      GrammarMatcher::State state, next;
      if (!matcher.step(begin, static_cast<std::uint8_t>(lead), state) || state.complete) continue;
      bool goes_on = false;
      for (unsigned byte = 0x80; byte < 0xC0; ++byte)
        goes_on = matcher.step(state, static_cast<std::uint8_t>(byte), next) || goes_on;
      ASSERT_TRUE(goes_on) << std::hex << lead;
    }
    for (const char* overlong : {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x80\x80\x80",
                                 "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"})
      ASSERT_EQ(reading(grammar, overlong), Reading::fails) << round;
  }
}

struct SchemaCase {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

const std::vector<SchemaCase>& schema_cases() {
  static const std::vector<SchemaCase> cases = {
      {R"({"type": "object"})",
       {"{}", R"({"a": [1, null, {"b": "c"}]})", "{\n\n  \"a\":1}"},
       {"[]", R"({"a"})", R"({"a":1,})", ""}},
      {R"(true)", {"1", "\"a\"", "[]", "null"}, {"nul", "nope"}},
      {R"({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}, "m": {"type": "boolean"}},
           "required": ["a"]})",
       {R"({"a":1})", R"({"z":"","a":-20})", R"({"a":0,"m":true})", R"({ "z": "q", "a": 3, "m": false })"},
       {"{}", R"({"z":""})", R"({"a":1,"z":""})", R"({"a":1.5})", R"({"a":01})", R"({"a":1,"b":2})",
        R"({"a":1,"a":2})"}},
      {R"({"properties": {"a": {}, "b": {}}})",
       {"{}", R"({"b":1})", R"({"a":[],"b":1})"},
       {R"({"b":1,"a":2})", R"({"c":1})"}},
      {R"({"properties": {"ab": {"type": "null"}, "abc": {"type": "null"}, "x": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {R"({"ab":null})", R"({"a":1})", R"({"abd":1,"abcd":2,"":3})", R"({"ab":null,"y":1})", R"({"é":1})"},
       {R"({"ab":1})", R"({"abc":1})", R"({"x":1})", R"({"y":null})", R"({"\u0078":1})"}},
      {R"({"properties": {}, "required": ["a"], "additionalProperties": true})",
       {R"({"a":1,"b":[]})"},
       {"{}", R"({"b":1})"}},
      {R"({"type": "array", "items": {"enum": ["a", 2, null]}, "minItems": 1, "maxItems": 3})",
       {R"(["a"])", R"(["a", 2,null])"},
       {"[]", R"(["b"])", R"(["a","a","a","a"])", R"(["a",])"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 1})",
       {"[1]", R"([1,"a"])"},
       {"[]", R"(["a"])", R"([1,"a",2])"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}, "minItems": 3, "maxItems": 4})",
       {R"([1,"a",null])", R"([1,"a",null,null])"},
       {R"([1,"a"])", R"([1,"a",null,null,null])", R"([1,"a",3])"}},
      {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("é😀")", R"("a\n\u00e9")", R"("\ud83d\ude00b")"},
       {R"("a")", R"("abcd")", R"("\ud83d\ude00")", R"("\ud83d.")"}},
      {R"({"pattern": "^a[^b\"]+\\d{2}$"})",
       {R"("acc12")", R"("a\n00")", R"("a\\99")"},
       {R"("ab12")", R"("a\"12")", R"("a12")", R"("xac12")"}},
      {R"({"pattern": "b|^c"})", {R"("abc")", R"("b")", R"("cx")"}, {R"("xc")", R"("")"}},
      {R"({"pattern": "^(?:x|y\\.){1,2}?$"})", {R"("x")", R"("y.x")"}, {R"("y")", R"("xxx")"}},
      {R"({"format": "date-time", "type": "string"})",
       {R"("2026-11-30T17:05:09Z")", R"("2026-01-31T00:00:00.5+01:30")"},
       {R"("2026-13-30T17:05:09Z")", R"("2026-11-30 17:05:09Z")", R"("2026-11-30")"}},
      {R"({"format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
      {R"({"type": "integer", "minimum": 0, "maximum": 150})",
       {"0", "9", "10", "99", "150"},
       {"-1", "151", "007", "1000", "1.0"}},
      {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 5})",
       {"-12", "-9", "-1", "0", "4"},
       {"-13", "5", "-0"}},
      {R"({"type": "integer", "minimum": 997, "maximum": 10203})",
       {"997", "1000", "9999", "10203"},
       {"996", "10204", "99"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})",
       {"0", "0.5", "0.000", "1", "1.0"},
       {"-0.1", "1.1", "2", "1e0", "-0"}},
      {R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 3})",
       {"0.01", "1", "2.99"},
       {"0", "0.00", "3", "3.0"}},
      {R"({"type": "number", "minimum": -2, "exclusiveMaximum": 0})",
       {"-2", "-2.0", "-1.5", "-0.25"},
       {"-2.5", "0", "-3", "-0"}},
      {R"({"type": "number"})", {"-0", "1e-5", "12.50E+3", "3"}, {"+1", ".5", "1.", "01", "NaN"}},
      {R"({"const": {"a": [1, "é"]}})", {R"({"a":[1,"é"]})"}, {R"({"a":[1]})"}},
      {R"({"enum": [1, "1", 2.5], "type": "integer"})", {"1"}, {"\"1\"", "2.5"}},
      {R"({"type": ["string", "null"]})", {"\"\"", "null"}, {"1"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})",
       {"3", "[]", "[[1,[2]],3]"},
       {"\"a\"", "[\"a\"]"}},
      {R"({"$defs": {"node/1": {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/node~11"}, {"type": "null"}]}}, "required": ["next"]}},
           "$ref": "#/$defs/node~11"})",
       {R"({"next":{"next":null}})"},
       {R"({"next":{}})", "{}"}},
      {R"({"allOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}], "required": ["a"]})",
       {R"({"a":null,"b":null})"},
       {R"({"a":null})", R"({"b":null})"}},
      {R"({"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"], "oneOf": [{"required": ["a"], "properties": {"a": {}}}, {"required": ["b"], "properties": {"b": {}}}]})",
       {R"({"k":1,"a":2})", R"({"k":1,"b":2})"},
       {R"({"k":1})", R"({"a":2})"}},
      {R"({"properties": {"f": {"$id": "f", "$defs": {"x": {"type": "null"}}, "properties": {"a": {"$ref": "#/$defs/x"}}}}})",
       {R"({"f":{"a":null}})"},
       {R"({"f":{"a":1}})"}},
      {R"({"title": "t", "description": "d", "default": 1, "examples": [], "x-own": 1, "type": "null"})",
       {"null"},
       {"1"}},
  };
  return cases;
}

TEST(JsonSchema, DocumentsThatItDescribes) {
  for (const SchemaCase& one : schema_cases()) {
    const auto grammar = Grammar::json_schema(one.schema);
    for (const char* text : one.valid) EXPECT_TRUE(matches(grammar, text)) << one.schema << "\n" << text;
    for (const char* text : one.invalid) EXPECT_FALSE(matches(grammar, text)) << one.schema << "\n" << text;
  }
}

// Whatever way is taken through a grammar: the text is JSON, and can always be ended.
TEST(JsonSchema, RandomTextsAreJson) {
  std::mt19937_64 random(11);
  int ended = 0;
  for (const SchemaCase& one : schema_cases()) {
    const auto grammar = Grammar::json_schema(one.schema);
    for (int round = 0; round < 8; ++round) {
      GrammarMatcher matcher(grammar);
      GrammarMatcher::State state = matcher.begin(), next;
      std::string text;
      while (text.size() < 400 && !(state.complete && random() % 4 == 0)) {
        std::vector<std::uint8_t> bytes;
        for (unsigned byte = 0; byte < 256; ++byte) {
          const GrammarMatcher::Mark mark = matcher.mark();
          if (matcher.step(state, static_cast<std::uint8_t>(byte), next))
            bytes.push_back(static_cast<std::uint8_t>(byte));
          matcher.forget(mark);
        }
        // No byte leads to where nothing goes on.
        ASSERT_TRUE(state.complete || !bytes.empty()) << one.schema << "\n" << text;
        if (bytes.empty()) break;
        // Ends are likelier than their share of bytes.
        std::uint8_t chosen = bytes[random() % bytes.size()];
        for (const char end : {'"', '}', ']'}) {
          if (random() % 3 == 0 && std::count(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(end)) > 0)
            chosen = static_cast<std::uint8_t>(end);
        }
        ASSERT_TRUE(matcher.step(state, chosen, next));
        std::swap(state, next);
        text += static_cast<char>(chosen);
      }
      if (!state.complete) continue;
      ++ended;
      ASSERT_TRUE(Json::accept(text)) << one.schema << "\n" << text;
    }
  }
  EXPECT_GT(ended, 100);
}

TEST(JsonSchema, NamesWhatIsRefused) {
  const std::map<std::string, const char*> refused = {
      {"", "it is no JSON in UTF-8 at byte"},
      {"{\"type\": \"\xff\"}", "it is no JSON in UTF-8"},
      {"3", "# is '3'; allowed: an object"},
      {R"({"type": "text"})", "#/type is 'text'; allowed: object, array"},
      {R"({"type": []})", "#/type is '[]'"},
      {R"({"properties": {"a": {"not": {}}}})", "#/properties/a has 'not', which is not supported"},
      {R"({"properties": {"a\nb": {"not": {}}}})", "#/properties/a\\x0ab has 'not'"},
      {R"({"items": {"uniqueItems": true}})", "#/items has 'uniqueItems'"},
      {R"({"$ref": "other.json"})", "#/$ref is '\"other.json\"'"},
      {R"({"$ref": "#/$defs/a"})", "which is not there"},
      {R"({"$ref": "#"})", "matches no text"},
      {R"({"allOf": [{"$ref": "#"}]})", "refers to itself"},
      {R"({"anyOf": []})", "#/anyOf is '[]'"},
      {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "two different values of type"},
      {R"({"enum": []})", "#/enum is '[]'"},
      {R"({"enum": ["a"], "type": "integer"})", "no value of its type"},
      {R"({"minLength": -1})", "#/minLength is '-1'"},
      {R"({"minItems": 3, "maxItems": 2})", "minItems 3 and maxItems 2"},
      {R"({"prefixItems": [{}], "items": false, "minItems": 2})", "minItems 2, but no more than 1"},
      {R"({"required": ["a"], "properties": {"b": {}}})", "requires 'a', which is not among"},
      {R"x({"pattern": "(?=a)"})x", "(? is not supported"},
      {R"({"pattern": "\\bA"})", "\\b is not supported"},
      {R"x({"pattern": "a)"})x", "a bracket or an anchor stands where none can"},
      {R"({"pattern": "*"})", "* stands where it cannot"},
      {R"({"pattern": "a", "minLength": 3})", "beside minLength"},
      {R"({"type": "integer", "minimum": 1, "maximum": 0})", "no number is within the limits"},
      {R"({"type": "integer", "minimum": 0.2, "maximum": 0.8})", "no number is within the limits"},
      {R"({"type": "number", "minimum": 0.5})", "a limit of a number is 0.5"},
      {R"({"type": "integer", "minimum": "0"})", "#/minimum is '\"0\"'"},
  };
  for (const auto& [text, message] : refused)
    EXPECT_THAT(refusal([&] { (void)Grammar::json_schema(text); }), HasSubstr(message)) << text;
}

// Some of them take a published engine forever (ADR 42): within bounds here, before anything is generated or while it is.
TEST(Grammar, HostileTextsEndSoon) {
  std::string wide = R"({"enum": [0)";
  for (int i = 1; i < 20000; ++i) wide += "," + std::to_string(i * 7919);
  std::string many = R"({"type": "object", "properties": {"p": {})";
  for (int i = 0; i < 5000; ++i) many += R"(,"p)" + std::to_string(i) + R"(":{})";
  std::string merges = R"({"allOf": [{})";
  for (int i = 0; i < 3000; ++i) merges += R"(,{"properties": {"p)" + std::to_string(i) + R"(": {}}})";
  std::string alike = R"({"properties": {"p": {})";
  for (int i = 0; i < 300; ++i)
    alike += R"(,"p)" + std::to_string(i) + R"(": {"type": "string", "maxLength": 2000})";
  const auto nested = [](std::size_t n) {
    std::string text;
    for (std::size_t i = 0; i < n; ++i) text += R"({"items":)";
    return text + "{}" + std::string(n, '}');
  };
  const std::map<std::string, std::string> schemas = {
      {R"({"pattern": "^(([a-z]{1,99}){1,99}){1,99}$"})", "too large"},
      {R"({"pattern": "(){999999999}"})", "too large"},
      {R"({"maxLength": 999999999})", "too large"},
      {R"({"minItems": 100000, "maxItems": 200000, "items": {"maxItems": 5000, "items": {"type": "integer"}}})",
       "too large"},
      {nested(3000), "more than 128 levels"},
      {nested(127), "accepted"},
      {wide + "]}", "too large"},
      {many + "}}", "an object has 5001 keys"},
      {alike + "}}", "accepted"},
      {merges + "]}", "combine too much"},
      {std::string(Grammar::kMostBytes + 1, ' '), "bytes; allowed: 262144"},
  };
  for (const auto& [text, message] : schemas)
    EXPECT_THAT(refusal([&] { (void)Grammar::json_schema(text); }), HasSubstr(message))
        << text.substr(0, 100);
  const std::map<std::string, std::string> grammars = {
      {"root ::= " + std::string(20000, '(') + "\"a\"" + std::string(20000, ')'), "too deep"},
      {"root ::= ((\"\"){999999999}){999999999}", "too large"},
      {"root ::= [^a]{100000}{100000}", "too large"},
      {std::string(Grammar::kMostBytes + 1, ' '), "bytes; allowed: 262144"},
  };
  for (const auto& [text, message] : grammars)
    EXPECT_THAT(refusal([&] { (void)Grammar::gbnf(text); }), HasSubstr(message)) << text.substr(0, 100);
  // Exponentially many ways of reading; the work for a text of n bytes grows with n^2 or n^3, and is bounded.
  for (const char* text :
       {"root ::= root root | \"a\" | \"\"", "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"",
        "root ::= (\"a\"*)* x\nx ::= x \"a\" | \"a\" x | \"a\""}) {
    const auto grammar = Grammar::gbnf(text);
    const std::string refused = refusal([&] { (void)reading(grammar, std::string(3000, 'a')); });
    EXPECT_TRUE(refused == "accepted" || refused.find("allowed: a simpler one") != std::string::npos)
        << refused;
  }
  // What a step that ended by an error had still to do is not done by the next one, whose frames are others.
  GrammarMatcher heavy(Grammar::gbnf("root ::= (x?){3000} \"b\"\nx ::= [a-z]"));
  const GrammarMatcher::State first = heavy.begin();
  const GrammarMatcher::Mark mark = heavy.mark();
  GrammarMatcher::State now = first, after;
  EXPECT_THAT(refusal([&] {
                for (int i = 0; i < 100 && heavy.step(now, 'a', after); ++i) std::swap(now, after);
              }),
              HasSubstr("more than 16777216 steps"));
  heavy.forget(mark);
  heavy.begin_work();
  ASSERT_TRUE(heavy.step(first, 'b', after));
  EXPECT_TRUE(after.complete);
  // A list by recursion at its end leaves no chain behind: a long text takes neither time nor memory that grows.
  GrammarMatcher matcher(Grammar::gbnf("root ::= \"a\" root | \"b\""));
  GrammarMatcher::State state = matcher.begin(), next;
  for (int i = 0; i < 200000; ++i) {
    ASSERT_TRUE(matcher.step(state, 'a', next));
    std::swap(state, next);
    ASSERT_LE(state.threads.size(), 2U);
    matcher.begin_work();
  }
}

// All tokens at once, and each alone: at every place of an answer.
TEST(TokenFilter, AllowsTheTokensThatGoOn) {
  const ModelFile file(MODELS "/headwater-tiny-f16.gguf");
  const Tokenizer* const tokenizer = &file.tokenizer();
  const auto texts = std::make_shared<const TokenTexts>(*tokenizer);
  const auto grammar = Grammar::json_schema(
      R"({"properties": {"name": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}}, "required": ["name"]})");
  TokenFilter filter({grammar, texts});
  const std::string answer = R"({"name": "def \"é", "list": [1, 22]})";
  std::string said;
  const auto all = static_cast<std::size_t>(tokenizer->size());
  std::int64_t allowed_tokens = 0;
  const auto check = [&](bool complete) {
    std::vector<float> logits(all, 1.0F);
    filter.restrict_to_allowed(logits);
    for (std::int32_t id = 0; id < tokenizer->size(); ++id) {
      const bool allowed = logits[static_cast<std::size_t>(id)] == 1.0F;
      ASSERT_EQ(allowed, filter.allows(id)) << id << " behind " << said;
      const bool text = !tokenizer->is_control(id) && !tokenizer->is_end(id);
      ASSERT_EQ(allowed, text ? reading(grammar, said + tokenizer->piece(id)) != Reading::fails &&
                                    !tokenizer->piece(id).empty()
                              : complete && tokenizer->is_end(id))
          << id << " behind " << said;
      allowed_tokens += allowed ? 1 : 0;
    }
  };
  for (const std::int32_t id : tokenizer->encode(answer, false, false)) {
    check(false);
    filter.accept(id);
    said += tokenizer->piece(id);
  }
  ASSERT_EQ(said, answer);
  check(true);
  EXPECT_GT(allowed_tokens, 5000);
  EXPECT_FALSE(filter.allows(tokenizer->size())) << "a model may have more logits than tokens";
  filter.accept(tokenizer->eos());
  std::vector<float> logits(all, 1.0F);
  filter.restrict_to_allowed(logits);
  for (std::int32_t id = 0; id < tokenizer->size(); ++id)
    ASSERT_EQ(logits[static_cast<std::size_t>(id)] == 1.0F, tokenizer->is_end(id))
        << "an answer that has ended stays so";
  TokenFilter stuck({Grammar::gbnf("root ::= [\\u0378]"), texts});
  const std::string refused = refusal([&] { stuck.restrict_to_allowed(logits); });
  EXPECT_TRUE(refused == "accepted" || refused.find("no token of the vocabulary") == 0) << refused;
}

// A draw among what is allowed has the chances that it has among all, biases and penalties included; 1500 draws are off by five
// deviations once in two million.
TEST(TokenFilter, DrawsHaveTheChancesOfWhatIsAllowed) {
  const ModelFile file(MODELS "/headwater-tiny-f16.gguf");
  const Tokenizer& tokenizer = file.tokenizer();
  const auto id_of = [&](const char* text) { return tokenizer.encode(text, false, false).at(0); };
  std::vector<float> logits(static_cast<std::size_t>(tokenizer.size()), -3.0F);
  // Twenty tokens that are likely and not allowed.
  for (std::size_t i = 1000; i < 1020; ++i) logits[i] = 2.0F;
  logits[static_cast<std::size_t>(id_of("b"))] = 1.0F;
  logits[static_cast<std::size_t>(id_of("c"))] = 9.0F;
  SamplingOptions options;
  options.answer = {Grammar::gbnf("root ::= [ab] [ab]"), std::make_shared<const TokenTexts>(tokenizer)};
  options.logit_bias = {{id_of("a"), 4.0 + std::log(3.0)},
                        {id_of("c"), -10.0}};  // three times as likely as b
  options.temperature = 1;
  Sampler sampler(options, tokenizer.size());
  int a = 0, b = 0;
  constexpr int kDraws = 1500;
  for (int i = 0; i < kDraws; ++i) {
    sampler.begin_answer();
    const std::int32_t id = sampler.draw(logits);
    a += id == id_of("a") ? 1 : 0;
    b += id == id_of("b") ? 1 : 0;
  }
  const int pairs = kDraws - a - b;  // "aa", "ab", "ba" and "bb", as far as they are tokens
  EXPECT_LT(pairs, kDraws / 10);
  EXPECT_NEAR(a / static_cast<double>(a + b), 0.75, 5 * std::sqrt(0.75 * 0.25 / kDraws));
  options.temperature = 0;
  Sampler greedy(options, tokenizer.size());
  EXPECT_EQ(greedy.draw(logits), id_of("a"));
}

}  // namespace
}  // namespace headwater::runtime
