#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "headwater/error.hpp"
#include "runtime/grammar/builder.hpp"
#include "runtime/grammar/characters.hpp"
#include "runtime/grammar/numbers.hpp"
#include "runtime/grammar/pattern.hpp"
#include "runtime/support/json_levels.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

using Json = nlohmann::ordered_json;
using Node = GrammarBuilder::Node;
using Rule = GrammarBuilder::Rule;

constexpr int kMostDepth = 64;           // of schemas that refer to each other
constexpr int kMostLevels = 128;         // of brackets
constexpr std::size_t kMostKeys = 4096;  // of one object: ordered_json compares each with all before it

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "json schema: " + message);
}

/// A name of the schema as a part of a place in a message.
std::string in_line(const std::string& name) {
  const std::string text = runtime::quoted(name);
  return text.substr(1, text.size() - 2);
}

/// Keywords that cannot be followed from left to right, or are not.
const std::set<std::string, std::less<>>& unsupported() {
  static const std::set<std::string, std::less<>> keywords = {"not",
                                                              "if",
                                                              "then",
                                                              "else",
                                                              "dependentRequired",
                                                              "dependentSchemas",
                                                              "dependencies",
                                                              "contains",
                                                              "minContains",
                                                              "maxContains",
                                                              "patternProperties",
                                                              "propertyNames",
                                                              "minProperties",
                                                              "maxProperties",
                                                              "multipleOf",
                                                              "$dynamicRef",
                                                              "$recursiveRef",
                                                              "unevaluatedItems",
                                                              "unevaluatedProperties"};
  return keywords;
}

/// Keywords that say something, by the type that they are about.
constexpr std::pair<const char*, const char*> kTypeOf[] = {{"properties", "object"},
                                                           {"required", "object"},
                                                           {"additionalProperties", "object"},
                                                           {"items", "array"},
                                                           {"prefixItems", "array"},
                                                           {"minItems", "array"},
                                                           {"maxItems", "array"},
                                                           {"additionalItems", "array"},
                                                           {"pattern", "string"},
                                                           {"minLength", "string"},
                                                           {"maxLength", "string"},
                                                           {"format", "string"},
                                                           {"minimum", "number"},
                                                           {"maximum", "number"},
                                                           {"exclusiveMinimum", "number"},
                                                           {"exclusiveMaximum", "number"}};

class JsonSchema {
 public:
  explicit JsonSchema(Json whole) : whole_(std::move(whole)), strings_(builder_), numbers_(builder_) {
    const Node blank = builder_.set({{' ', ' '}, {'\t', '\t'}});
    // Not without limit, where a model that has nothing to say may stay.
    blank_ = builder_.choice(
        {builder_.sequence({}), builder_.literal(" "),
         builder_.sequence({builder_.repeat(builder_.literal("\n"), 1, 2), builder_.repeat(blank, 0, 20)})});
  }

  std::shared_ptr<const Grammar> read(std::string_view before, std::string_view behind) {
    const Rule answer = builder_.declare();
    blank_ = builder_.shared(blank_);
    comma_ = builder_.sequence({builder_.literal(","), blank_});
    builder_.define(answer, builder_.sequence(
                                {builder_.literal(before), rule_of(whole_, "#"), builder_.literal(behind)}));
    // Rules are read one after the other, so that no schema is too deep for the stack.
    while (!unread_.empty()) {
      const Unread next = unread_.back();
      unread_.pop_back();
      root_ = next.root;
      builder_.define(next.rule, node_of(*next.schema, next.place, 0));
    }
    return builder_.build();
  }

 private:
  struct Unread {
    Rule rule;
    const Json* schema;
    const Json* root;
    std::string place;
  };

  Node rule_of(const Json& schema, const std::string& place) {
    const auto [found, added] = rules_.try_emplace(&schema, 0);
    if (added) {
      found->second = builder_.declare();
      // A schema with a name of its own is what references inside it are about.
      const bool own = schema.is_object() && schema.contains("$id");
      constexpr std::size_t kMostBytes = 512;  // of a place: there may be many that are deep
      unread_.push_back({found->second, &schema, own ? &schema : root_,
                         place.size() <= kMostBytes ? place : std::string("#/...")});
    }
    return builder_.call(found->second);
  }

  /// Any value.
  Node any() {
    static const Json kAny = true;
    return rule_of(kAny, "#");
  }

  const Json& target_of(const Json& reference, const std::string& place) const {
    const std::string text = reference.is_string() ? reference.get<std::string>() : "";
    if (!text.starts_with('#'))
      refuse(fmt::format("{}/$ref is {}; allowed: #/... within the schema", place,
                         runtime::quoted(reference.dump())));
    try {
      return root_->at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
      refuse(fmt::format("{}/$ref is {}, which is not there; allowed: a place in the schema", place,
                         runtime::quoted(text)));
    }
  }

  /// The schema that asks for both. What both say must be the same, but for required and properties.
  const Json& both(const Json& one, const Json& other, const std::string& place, int depth) {
    if (depth > kMostDepth) refuse(fmt::format("{} refers to itself", place));
    if (other.is_object() && other.contains("$ref"))
      return both(one, target_of(other["$ref"], place), place, depth + 1);
    if (!other.is_object())
      refuse(fmt::format("{} is {}; allowed: an object", place, runtime::quoted(other.dump())));
    merged_bytes_ += one.dump().size() + other.dump().size();
    if (merged_bytes_ > 4 * Grammar::kMostBytes)
      refuse("allOf, anyOf and oneOf combine too much; allowed: less");
    merged_.push_back(one);
    Json& all = merged_.back();
    for (const auto& [key, value] : other.items()) {
      if (!all.contains(key)) {
        all[key] = value;
      } else if (key == "required" && value.is_array() && all[key].is_array()) {
        for (const Json& name : value) all[key].push_back(name);
      } else if (key == "properties" && value.is_object() && all[key].is_object()) {
        for (const auto& [name, schema] : value.items()) {
          if (all[key].contains(name) && all[key][name] != schema)
            refuse(fmt::format("{} has two different schemas for {}; allowed: one", place,
                               runtime::quoted(name)));
          all[key][name] = schema;
        }
      } else if (says_something(key) && all[key] != value) {
        refuse(fmt::format("{} has two different values of {}; allowed: one", place, key));
      }
    }
    return all;
  }

  static bool says_something(const std::string& key) {
    constexpr const char* kOthers[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};
    const auto same = [&](const char* other) { return key == other; };
    return std::any_of(std::begin(kOthers), std::end(kOthers), same) ||
           std::any_of(std::begin(kTypeOf), std::end(kTypeOf),
                       [&](const auto& one) { return key == one.first; });
  }

  Node node_of(const Json& schema, const std::string& place, int depth) {
    builder_.charge(1);
    if (depth > kMostDepth) refuse(fmt::format("{} refers to itself", place));
    if (schema.is_boolean()) return schema.get<bool>() ? typed(schema, place, "any") : builder_.choice({});
    if (!schema.is_object())
      refuse(fmt::format("{} is {}; allowed: an object", place, runtime::quoted(schema.dump())));
    for (const auto& [key, value] : schema.items()) {
      const bool off = key == "uniqueItems" && value != false;
      if (off || unsupported().contains(key))
        refuse(fmt::format("{} has {}, which is not supported; allowed: see docs/serve.md", place,
                           runtime::quoted(key)));
    }
    // Parts that several keywords share.
    for (const char* key : {"$ref", "allOf", "anyOf", "oneOf"}) {
      if (schema.contains(key)) return combined(schema, key, place, depth);
    }
    if (schema.contains("const")) return one_of(Json::array({schema["const"]}), schema, place);
    if (schema.contains("enum")) {
      if (!schema["enum"].is_array() || schema["enum"].empty())
        refuse(fmt::format("{}/enum is {}; allowed: a list of one value or more", place,
                           runtime::quoted(schema["enum"].dump())));
      return one_of(schema["enum"], schema, place);
    }
    if (const auto type = schema.find("type"); type != schema.end()) {
      if (type->is_string()) return typed(schema, place, type->get<std::string>());
      std::vector<Node> all;
      for (const Json& one : type->is_array() ? *type : Json::array()) {
        if (one.is_string()) all.push_back(typed(schema, place, one.get<std::string>()));
      }
      if (!type->is_array() || all.size() != type->size() || all.empty())
        refuse(fmt::format("{}/type is {}; allowed: a name, or a list of names", place,
                           runtime::quoted(type->dump())));
      return builder_.choice(std::move(all));
    }
    for (const auto& [key, type] : kTypeOf) {
      if (schema.contains(key)) return typed(schema, place, type);
    }
    return typed(schema, place, "any");
  }

  Node combined(const Json& schema, const char* key, const std::string& place, int depth) {
    merged_.push_back(Json::object());
    Json& rest = merged_.back();  // a copy of all else, which is not what lies below
    for (const auto& [other, value] : schema.items()) {
      if (other != key) rest[other] = value;
    }
    const auto matters = [](const Json& one) {
      return std::any_of(one.items().begin(), one.items().end(),
                         [](const auto& item) { return says_something(item.key()); });
    };
    const bool alone = !matters(rest);
    const std::string at = fmt::format("{}/{}", place, key);
    const Json& value = schema[key];
    if (std::string_view(key) == "$ref") {
      const Json& target = target_of(value, place);
      if (alone) return rule_of(target, in_line(value.get<std::string>()));
      return node_of(both(rest, target, at, depth), at, depth + 1);
    }
    if (!value.is_array() || value.empty())
      refuse(
          fmt::format("{} is {}; allowed: a list of one schema or more", at, runtime::quoted(value.dump())));
    if (std::string_view(key) == "allOf") {
      const Json* all = &rest;
      for (const Json& one : value) all = &both(*all, one, at, depth);
      return node_of(*all, at, depth + 1);
    }
    std::vector<Node> ways;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string here = fmt::format("{}/{}", at, i);
      ways.push_back(alone ? rule_of(value[i], here)
                           : node_of(both(rest, value[i], here, depth), here, depth + 1));
    }
    return builder_.choice(std::move(ways));
  }

  Node one_of(const Json& values, const Json& schema, const std::string& place) {
    std::vector<Node> all;
    for (const Json& value : values) {
      if (is_type(value, schema)) all.push_back(builder_.literal(value.dump()));
    }
    if (all.empty()) refuse(fmt::format("{} has no value of its type; allowed: one or more", place));
    return builder_.choice(std::move(all));
  }

  static bool is_type(const Json& value, const Json& schema) {
    if (!schema.contains("type")) return true;
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    const bool whole =
        value.is_number_integer() || (value.is_number() && std::floor(value.get<double>()) == value);
    return std::any_of(types.begin(), types.end(), [&](const Json& type) {
      return type == value.type_name() || (type == "integer" && whole);
    });
  }

  Node typed(const Json& schema, const std::string& place, const std::string& type) {
    if (type == "any") {
      std::vector<Node> all;
      static const Json kPlain = Json::object();
      for (const char* one : {"object", "array", "string", "number", "boolean", "null"})
        all.push_back(typed(kPlain, place, one));
      return builder_.choice(std::move(all));
    }
    if (type == "object") return object(schema, place);
    if (type == "array") return array(schema, place);
    if (type == "string") return string(schema, place);
    if (type == "integer" || type == "number") return number(schema, place, type == "integer");
    if (type == "boolean") return builder_.choice({builder_.literal("true"), builder_.literal("false")});
    if (type == "null") return builder_.literal("null");
    refuse(fmt::format("{}/type is {}; allowed: object, array, string, number, integer, boolean, null", place,
                       runtime::quoted(type)));
  }

  /// A count that a keyword gives.
  std::optional<std::int64_t> count(const Json& schema, const char* key, const std::string& place) const {
    const auto found = schema.find(key);
    if (found == schema.end()) return std::nullopt;
    constexpr std::int64_t kMost = 999'999'999;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() > static_cast<std::uint64_t>(kMost))
      refuse(fmt::format("{}/{} is {}; allowed: integers, 0 .. {}", place, key,
                         runtime::quoted(found->dump()), kMost));
    return found->get<std::int64_t>();
  }

  struct Counts {
    std::int64_t least, most;
  };
  Counts counts(const Json& schema, const char* least, const char* most, const std::string& place) const {
    const Counts both = {count(schema, least, place).value_or(0),
                         count(schema, most, place).value_or(GrammarBuilder::kUnlimited)};
    if (both.most != GrammarBuilder::kUnlimited && both.most < both.least)
      refuse(
          fmt::format("{} has {} {} and {} {}; allowed: no less", place, least, both.least, most, both.most));
    return both;
  }

  /// A string of any characters, so many of them.
  Node text(const Counts& length = {0, GrammarBuilder::kUnlimited}) {
    const auto [found, added] = texts_.try_emplace({length.least, length.most}, 0);
    if (added) {
      const Node quote = builder_.literal("\"");
      Node character = strings_.any_character();
      // Written out it is quicker to try tokens on (TokenFilter::Walk), and larger.
      if (std::max(length.least, length.most) > 4096) character = builder_.shared(character);
      found->second = builder_.shared(
          builder_.sequence({quote, builder_.repeat(character, length.least, length.most), quote}));
    }
    return found->second;
  }

  Node string(const Json& schema, const std::string& place) {
    const Counts length = counts(schema, "minLength", "maxLength", place);
    const bool limited = length.least > 0 || length.most != GrammarBuilder::kUnlimited;
    std::string expression;
    if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
      if (!pattern->is_string())
        refuse(fmt::format("{}/pattern is {}; allowed: a text", place, runtime::quoted(pattern->dump())));
      expression = pattern->get<std::string>();
    } else if (const auto format = schema.find("format"); format != schema.end() && format->is_string()) {
      static const std::string kDate = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
      static const std::string kTime =
          "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
      if (*format == "date") expression = "^" + kDate + "$";
      if (*format == "time") expression = "^" + kTime + "$";
      if (*format == "date-time") expression = "^" + kDate + "T" + kTime + "$";
      if (*format == "uuid") expression = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
    }
    if (expression.empty()) return text(length);
    if (limited)
      refuse(
          fmt::format("{} has pattern or format beside minLength or maxLength; allowed: one of them", place));
    try {
      return strings_.pattern(expression);
    } catch (const Error& error) {
      refuse(fmt::format("{}: {}", place, error.what()));
    }
  }

  Node number(const Json& schema, const std::string& place, bool whole) {
    NumberRange range;
    const auto bound = [&](const char* key, std::optional<double>& limit, bool& open) {
      const auto found = schema.find(key);
      if (found == schema.end()) return;
      if (!found->is_number())
        refuse(fmt::format("{}/{} is {}; allowed: a number", place, key, runtime::quoted(found->dump())));
      const double value = found->get<double>();
      const bool strict = key[0] == 'e';
      const bool lower = std::string_view(key).ends_with("inimum");
      // The tighter one of two.
      if (limit && (lower ? value < *limit : value > *limit)) return;
      open = strict || (limit && *limit == value && open);
      limit = value;
    };
    bound("minimum", range.least, range.above);
    bound("exclusiveMinimum", range.least, range.above);
    bound("maximum", range.most, range.below);
    bound("exclusiveMaximum", range.most, range.below);
    try {
      return whole ? numbers_.integer(range) : numbers_.real(range);
    } catch (const Error& error) {
      refuse(fmt::format("{}: {}", place, error.what()));
    }
  }

  Node array(const Json& schema, const std::string& place) {
    const Counts size = counts(schema, "minItems", "maxItems", place);
    const auto items = schema.find("items");
    const bool listed = items != schema.end() && items->is_array();  // before 2020 a list was written so
    const auto prefix = listed ? items : schema.find("prefixItems");
    if (prefix != schema.end() && !prefix->is_array())
      refuse(fmt::format("{}/prefixItems is {}; allowed: a list of schemas", place,
                         runtime::quoted(prefix->dump())));
    const auto more = listed ? schema.find("additionalItems") : items;
    const bool closed = more != schema.end() && *more == false;
    const Node item = more == schema.end() ? any() : rule_of(*more, place + "/items");
    const auto first = prefix == schema.end() ? 0 : static_cast<std::int64_t>(prefix->size());
    std::int64_t most = size.most;
    if (closed && (most == GrammarBuilder::kUnlimited || most > first)) most = first;
    if (most != GrammarBuilder::kUnlimited && most < size.least)
      refuse(fmt::format("{} has minItems {}, but no more than {} items; allowed: no more", place, size.least,
                         most));
    const auto within = [&](std::int64_t n) { return most == GrammarBuilder::kUnlimited || n < most; };
    // From the end: what may follow the first n items.
    const std::int64_t listed_items = most == GrammarBuilder::kUnlimited ? first : std::min(first, most);
    const auto left = [&](std::int64_t limit, std::int64_t n) {
      return std::max<std::int64_t>(limit - n, 0);
    };
    Node rest = builder_.sequence({});
    if (within(listed_items)) {
      const std::int64_t least = left(size.least, listed_items);
      const bool unlimited = most == GrammarBuilder::kUnlimited;
      const std::int64_t upper = unlimited ? most : most - listed_items;
      const Node next = builder_.shared(builder_.sequence({comma_, item}));
      if (listed_items > 0) {
        rest = builder_.repeat(next, least, upper);
      } else {
        rest =
            builder_.sequence({item, builder_.repeat(next, left(least, 1), unlimited ? upper : upper - 1)});
        if (least == 0) rest = builder_.optional(rest);
      }
    }
    for (std::int64_t i = listed_items - 1; i >= 0; --i) {
      const auto index = static_cast<std::size_t>(i);
      const Node one = rule_of((*prefix)[index], fmt::format("{}/prefixItems/{}", place, i));
      std::vector<Node> parts = {one, rest};
      if (i > 0) parts.insert(parts.begin(), comma_);
      rest = builder_.shared(builder_.sequence(std::move(parts)));
      if (i >= size.least) rest = builder_.optional(rest);
    }
    return builder_.sequence({builder_.literal("["), blank_, rest, blank_, builder_.literal("]")});
  }

  /// A key that is none of these, which are in order: a rule for each beginning of theirs. No escapes, which could spell one.
  Node other_key(const std::vector<std::u32string>& names) {
    struct Job {
      Rule rule;
      std::size_t begin, end, length;  // names that begin with the same `length` characters
    };
    const CharacterSet never = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    const Node any = builder_.repeat(builder_.set(complement(never)), 0);
    const Rule whole = builder_.declare();
    std::vector<Job> jobs = {{whole, 0, names.size(), 0}};
    while (!jobs.empty()) {
      const Job job = jobs.back();
      jobs.pop_back();
      std::vector<Node> ways;
      CharacterSet taken = never;
      std::size_t i = job.begin;
      const bool name = names[i].size() == job.length;
      if (name) ++i;
      if (!name) ways.push_back(builder_.sequence({}));
      while (i < job.end) {
        const char32_t c = names[i][job.length];
        const std::size_t begin = i;
        while (i < job.end && names[i][job.length] == c) ++i;
        taken.emplace_back(c, c);
        jobs.push_back({builder_.declare(), begin, i, job.length + 1});
        ways.push_back(builder_.sequence({builder_.set({{c, c}}), builder_.call(jobs.back().rule)}));
      }
      ways.push_back(builder_.sequence({builder_.set(complement(taken)), any}));
      builder_.define(job.rule, builder_.choice(std::move(ways)));
    }
    return builder_.sequence({builder_.literal("\""), builder_.call(whole), builder_.literal("\"")});
  }

  Node object(const Json& schema, const std::string& place) {
    struct Property {
      Node pair;
      bool required;
    };
    const Node colon = builder_.sequence({builder_.literal(":"), blank_});
    static const Json kNone = Json::object();
    const auto given = schema.find("properties");
    const Json& named = given == schema.end() ? kNone : *given;
    if (!named.is_object())
      refuse(fmt::format("{}/properties is {}; allowed: an object", place, runtime::quoted(named.dump())));
    const auto additional = schema.find("additionalProperties");
    const bool open = additional == schema.end() ? named.empty() : *additional != false;
    const Node other =
        !open || additional == schema.end() ? any() : rule_of(*additional, place + "/additionalProperties");
    std::set<std::string> required;
    if (const auto list = schema.find("required"); list != schema.end()) {
      const bool names = list->is_array() && std::all_of(list->begin(), list->end(),
                                                         [](const Json& one) { return one.is_string(); });
      if (!names)
        refuse(
            fmt::format("{}/required is {}; allowed: a list of names", place, runtime::quoted(list->dump())));
      for (const Json& one : *list) required.insert(one.get<std::string>());
    }
    std::vector<Property> properties;
    std::vector<std::u32string> names;
    const auto add = [&](const std::string& name, Node value, bool needed) {
      properties.push_back({builder_.sequence({builder_.literal(Json(name).dump()), colon, value}), needed});
      names.push_back(code_points(name));
    };
    for (const auto& [name, value] : named.items())
      add(name, rule_of(value, fmt::format("{}/properties/{}", place, in_line(name))),
          required.erase(name) > 0);
    for (const std::string& name : required) {
      if (!open)
        refuse(fmt::format("{} requires {}, which is not among its properties; allowed: their names", place,
                           runtime::quoted(name)));
      add(name, other, true);
    }
    Node more = -1;  // further pairs
    if (open) {
      std::sort(names.begin(), names.end());
      const Node key = names.empty() ? text() : other_key(names);
      more = builder_.shared(builder_.sequence({key, colon, other}));
    }
    // Behind a pair: the properties from the i-th on.
    const std::size_t n = properties.size();
    std::vector<Node> after(n + 1);
    after[n] = open ? builder_.repeat(builder_.sequence({comma_, more}), 0) : builder_.sequence({});
    for (std::size_t i = n; i-- > 0;) {
      const Node pair = builder_.sequence({comma_, properties[i].pair, after[i + 1]});
      after[i] = builder_.shared(properties[i].required ? pair : builder_.choice({pair, after[i + 1]}));
    }
    // Before the first pair: any optional one, or the first that is required.
    std::vector<Node> ways;
    std::size_t i = 0;
    for (; i < n; ++i) {
      ways.push_back(builder_.sequence({properties[i].pair, after[i + 1]}));
      if (properties[i].required) break;
    }
    if (i == n) {
      if (open) ways.push_back(builder_.sequence({more, after[n]}));
      ways.push_back(builder_.sequence({}));
    }
    return builder_.sequence(
        {builder_.literal("{"), blank_, builder_.choice(std::move(ways)), blank_, builder_.literal("}")});
  }

  static std::u32string code_points(const std::string& text) {
    std::u32string points;
    CharacterReader reader(text, "a name");
    while (!reader.done()) points += reader.take();
    return points;
  }

  const Json whole_;
  const Json* root_ = &whole_;  // of what is read
  GrammarBuilder builder_;
  JsonStrings strings_;
  JsonNumbers numbers_;
  Node blank_ = 0, comma_ = 0;
  std::map<const Json*, Rule> rules_;
  std::map<std::pair<std::int64_t, std::int64_t>, Node> texts_;  // by their lengths
  std::vector<Unread> unread_;
  std::deque<Json> merged_;
  std::size_t merged_bytes_ = 0;
};

}  // namespace

std::shared_ptr<const Grammar> Grammar::json_schema(std::string_view text, std::string_view before,
                                                    std::string_view behind) {
  if (text.size() > kMostBytes) refuse(fmt::format("it has {} bytes; allowed: {}", text.size(), kMostBytes));
  if (json_levels(text) > kMostLevels)
    refuse(fmt::format("it has more than {} levels; allowed: as many", kMostLevels));
  const auto checked = [&](const nlohmann::json& json) {
    std::vector<const nlohmann::json*> all = {&json};
    while (!all.empty()) {
      const nlohmann::json& one = *all.back();
      all.pop_back();
      if (one.is_object() && one.size() > kMostKeys)
        refuse(fmt::format("an object has {} keys; allowed: {}", one.size(), kMostKeys));
      for (const nlohmann::json& inner : one) {
        if (inner.is_structured()) all.push_back(&inner);
      }
    }
  };
  try {
    checked(nlohmann::json::parse(text));
    return JsonSchema(Json::parse(text)).read(before, behind);
  } catch (const nlohmann::json::parse_error& error) {
    refuse(fmt::format("it is no JSON in UTF-8 at byte {}; allowed: an object", error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    refuse("a number is too large; allowed: those of 64 bits");
  }
}

std::shared_ptr<const Grammar> Grammar::json_object() {
  static const std::shared_ptr<const Grammar> one = json_schema(R"({"type": "object"})");
  return one;
}

}  // namespace headwater::runtime
