#include "runtime/tokenizer/jinja/builtins.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "runtime/support/utf8.hpp"

namespace headwater::runtime::jinja {
namespace {

// The stack that a level takes is below 2 KiB, ten times as much with the sanitizers.
constexpr int kMostLevels = 400;
constexpr std::size_t kElement = 32;            // units for an element of a list
constexpr std::int64_t kLongestRange = 100000;  // of jinja2's sandbox

/// Arguments of a call by place or by name, as a function of Python takes them.
class Given {
 public:
  Given(std::string what, const Arguments& all, std::vector<std::string_view> names)
      : what_(std::move(what)), names_(std::move(names)), values_(names_.size()) {
    if (all.values.size() > names_.size()) {
      refuse(
          fmt::format("{} got {} arguments; allowed: at most {}", what_, all.values.size(), names_.size()));
    }
    for (std::size_t i = 0; i < all.values.size(); ++i) values_[i] = &all.values[i];
    for (const auto& [name, value] : all.named) {
      const auto at = std::find(names_.begin(), names_.end(), name);
      if (at == names_.end()) refuse(fmt::format("{} has no argument {}", what_, quoted(name)));
      values_[static_cast<std::size_t>(at - names_.begin())] = &value;
    }
  }

  [[nodiscard]] const Value* find(std::size_t i) const { return values_[i]; }
  [[nodiscard]] const Value& need(std::size_t i) const {
    if (values_[i] == nullptr) refuse(fmt::format("{} needs its argument '{}'", what_, names_[i]));
    return *values_[i];
  }
  [[nodiscard]] const Text& text(std::size_t i) const {
    const Text* const text = need(i).text();
    if (text == nullptr)
      refuse(fmt::format("{}: '{}' is a {}; allowed: str", what_, names_[i], values_[i]->type()));
    return *text;
  }
  [[nodiscard]] std::int64_t integer(std::size_t i, std::int64_t fallback) const {
    if (values_[i] == nullptr || values_[i]->is_none()) return fallback;
    std::int64_t value = 0;
    if (!values_[i]->integer(&value))
      refuse(fmt::format("{}: '{}' is a {}; allowed: int", what_, names_[i], values_[i]->type()));
    return value;
  }
  [[nodiscard]] bool truth(std::size_t i, bool fallback) const {
    return values_[i] == nullptr ? fallback : values_[i]->truth();
  }

 private:
  std::string what_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

const Text& text_of(const Value& value, const std::string& what) {
  if (value.text() == nullptr)
    refuse(fmt::format("{}: a {} stands where a str is allowed", what, value.type()));
  return *value.text();
}

Value text_value(Text text, Engine& engine) {
  engine.budget.spend(64 + text.bytes.size());
  return Value(std::move(text));
}
Value list_value(std::vector<Value> items, Engine& engine) {
  engine.budget.spend(64 + kElement * items.size());
  return Value(std::move(items));
}

/// `text` with its ASCII letters changed; other ones would need the tables of Unicode.
template <class Change>
Text changed(const Text& text, const std::string& what, const Change& change) {
  Text result = text;
  bool word = false;  // is the letter before a letter?
  for (char& c : result.bytes) {
    if (static_cast<unsigned char>(c) >= 0x80)
      refuse(fmt::format("{} of characters beyond ASCII is not supported", what));
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter) c = static_cast<char>(change(&c == result.bytes.data(), word) ? c & ~0x20 : c | 0x20);
    word = letter;
  }
  return result;
}

std::optional<Text> in_case(const std::string& name, const Text& text) {
  if (name == "upper") return changed(text, name, [](bool, bool) { return true; });
  if (name == "lower") return changed(text, name, [](bool, bool) { return false; });
  if (name == "capitalize") return changed(text, name, [](bool first, bool) { return first; });
  if (name == "title") return changed(text, name, [](bool, bool word) { return !word; });
  return std::nullopt;
}

Text replaced(const Text& text, const Text& before, const Text& after, std::int64_t most, Engine& engine) {
  if (before.bytes.empty()) refuse("replace: an empty text to replace is not supported");
  Text result;
  std::size_t at = 0;
  for (std::int64_t done = 0; most < 0 || done < most; ++done) {
    const std::size_t found = text.bytes.find(before.bytes, at);
    if (found == std::string::npos) break;
    engine.budget.spend(found - at + after.bytes.size() + 1);
    result.append(text.part(at, found - at));
    result.append(after);
    at = found + before.bytes.size();
  }
  result.append(text.part(at, std::string::npos));
  return result;
}

std::vector<Value> split(const Text& text, const Text* separator, std::int64_t most, bool from_end,
                         Engine& engine) {
  std::vector<std::pair<std::size_t, std::size_t>> parts;  // begin, length
  const std::string& all = text.bytes;
  const auto may = [&] { return most < 0 || static_cast<std::int64_t>(parts.size()) < most; };
  const auto add = [&](std::size_t begin, std::size_t length) {
    engine.budget.spend(64 + kElement + length);
    parts.emplace_back(begin, length);
  };
  if (separator == nullptr) {
    if (from_end) refuse("rsplit without a separator is not supported");
    const auto space = [&](std::size_t at) { return leading_space(std::string_view(all).substr(at)); };
    for (std::size_t at = 0; at < all.size();) {
      if (space(at) > 0) {
        at += space(at);
        continue;
      }
      std::size_t end = at;
      if (may()) {
        while (end < all.size() && space(end) == 0) ++end;
      } else {
        end = all.size();
      }
      add(at, end - at);
      at = end;
    }
  } else {
    if (separator->bytes.empty()) refuse("split: the separator is empty");
    if (from_end) {
      std::size_t end = all.size();
      while (may()) {
        const std::size_t size = separator->bytes.size();
        const std::size_t found = end < size ? std::string::npos : all.rfind(separator->bytes, end - size);
        if (found == std::string::npos) break;
        add(found + size, end - found - size);
        end = found;
      }
      add(0, end);
      std::reverse(parts.begin(), parts.end());
    } else {
      std::size_t at = 0;
      while (may()) {
        const std::size_t found = all.find(separator->bytes, at);
        if (found == std::string::npos) break;
        add(at, found - at);
        at = found + separator->bytes.size();
      }
      add(at, all.size() - at);
    }
  }
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const auto& [begin, length] : parts) items.emplace_back(text.part(begin, length));
  return items;
}

std::vector<Value> lines_of(const Text& text, Engine& engine) {
  std::vector<Value> lines;
  for (std::size_t at = 0; at < text.bytes.size();) {
    const std::size_t end = std::min(text.bytes.find_first_of("\r\n", at), text.bytes.size());
    engine.budget.spend(64 + kElement + end - at);
    lines.emplace_back(text.part(at, end - at));
    at = end + (text.bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines;
}

Text joined(const std::vector<Value>& items, const Text& separator, Engine& engine) {
  Text all;
  bool first = true;
  for (const Value& item : items) {
    engine.budget.spend(separator.bytes.size() + 1);
    if (!first) all.append(separator);
    first = false;
    all.append(printed(item, engine.budget));
  }
  return all;
}

Value length_of(const Value& value) {
  if (value.is_undefined()) return Value(std::int64_t{0});
  if (value.text() != nullptr) return Value(static_cast<std::int64_t>(characters(value.text()->bytes)));
  if (value.list() != nullptr) return Value(static_cast<std::int64_t>(value.list()->size()));
  if (value.dict() != nullptr) return Value(static_cast<std::int64_t>(value.dict()->items.size()));
  refuse(fmt::format("a {} has no length", value.type()));
}

Value pairs_of(const Value& value, Engine& engine) {
  if (value.is_undefined()) return list_value({}, engine);
  if (value.dict() == nullptr)
    refuse(fmt::format("items: a {} stands where a dict is allowed", value.type()));
  std::vector<Value> pairs;
  for (const auto& [key, item] : value.dict()->items) {
    engine.budget.spend(64 + 3 * kElement);
    pairs.emplace_back(std::vector<Value>{key, item}, true);
  }
  return list_value(std::move(pairs), engine);
}

Value to_integer(const Value& value, const Value& fallback) {
  std::int64_t integer = 0;
  if (value.integer(&integer)) return Value(integer);
  double real = 0;
  if (value.number(&real)) {
    if (!(std::abs(real) < 9.2e18)) return fallback;
    return Value(static_cast<std::int64_t>(real));
  }
  if (value.text() == nullptr) return fallback;
  const std::string text = stripped(*value.text(), true, true, nullptr).bytes;
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), integer);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return Value(integer);
  const auto [real_end, real_error] = std::from_chars(begin, text.data() + text.size(), real);
  if (real_error == std::errc() && real_end == text.data() + text.size() && std::abs(real) < 9.2e18)
    return Value(static_cast<std::int64_t>(real));
  return fallback;
}

Value to_real(const Value& value, const Value& fallback) {
  double real = 0;
  if (value.number(&real)) return Value(real);
  if (value.text() == nullptr) return fallback;
  const std::string text = stripped(*value.text(), true, true, nullptr).bytes;
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), real);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() ? Value(real) : fallback;
}

Value json_filter(const Value& input, const Arguments& arguments, Engine& engine) {
  const Given given("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonLayout layout;
  layout.ascii = given.truth(0, false);
  layout.indent = given.integer(1, -1);
  if (layout.indent < -1 || layout.indent > 32) refuse("tojson: 'indent' is out of range; allowed: 0 .. 32");
  if (layout.indent >= 0) layout.item_separator.pop_back();  // no space before a line feed
  if (given.find(2) != nullptr && !given.find(2)->is_none()) {
    const std::vector<Value>* const both = given.find(2)->list();
    if (both == nullptr || both->size() != 2) refuse("tojson: 'separators' is no pair of str");
    layout.item_separator = text_of((*both)[0], "tojson").bytes;
    layout.key_separator = text_of((*both)[1], "tojson").bytes;
  }
  layout.sort_keys = given.truth(3, false);
  return text_value(json_of(input, layout, engine.budget), engine);
}

Value indented(const Value& input, const Arguments& arguments, Engine& engine) {
  const Given given("indent", arguments, {"width", "first", "blank"});
  const Text& text = text_of(input, "indent");
  Text margin;
  if (given.find(0) != nullptr && given.find(0)->text() != nullptr) {
    margin = given.text(0);
  } else {
    const std::int64_t width = given.integer(0, 4);
    if (width < 0 || width > 1000) refuse("indent: 'width' is out of range; allowed: 0 .. 1000");
    margin = Text(std::string(static_cast<std::size_t>(width), ' '));
  }
  Text all;
  if (given.truth(1, false)) all.append(margin);
  for (std::size_t at = 0;;) {
    const std::size_t end = text.bytes.find('\n', at);
    const bool last = end == std::string::npos;
    engine.budget.spend(margin.bytes.size() + 1);
    all.append(text.part(at, last ? end : end - at));
    if (last) break;
    all.append(Text("\n"));
    at = end + 1;
    const bool empty = at == text.bytes.size() || text.bytes[at] == '\n';
    if (!empty || given.truth(2, false)) all.append(margin);
  }
  return text_value(std::move(all), engine);
}

/// `a.b.0` of an item, as map, selectattr and others name it.
Value attribute(const Value& item, const Value& path, Engine& engine) {
  if (path.text() == nullptr) return item_of(item, path, engine);
  Value value = item;
  for (std::size_t at = 0;;) {
    const std::string& all = path.text()->bytes;
    const std::size_t end = std::min(all.find('.', at), all.size());
    const std::string name = all.substr(at, end - at);
    const bool number =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
    engine.budget.spend(name.size() + 8);
    value = number ? item_of(value, Value(static_cast<std::int64_t>(std::stoll(name))), engine)
                   : member_of(value, name, true, engine);
    if (end == all.size()) return value;
    at = end + 1;
  }
}

Value mapped(const Value& input, const Arguments& arguments, Engine& engine) {
  const Level level(engine);
  std::vector<Value> results;
  if (!input.truth()) return list_value({}, engine);  // also of none, as in jinja2
  const std::vector<Value> items = items_of(input, engine);
  if (arguments.values.empty()) {
    const Given given("map", arguments, {"attribute", "default"});
    for (const Value& item : items) {
      const Value value = attribute(item, given.need(0), engine);
      results.push_back(value.is_undefined() && given.find(1) != nullptr ? *given.find(1) : value);
    }
  } else {
    const std::string& name = text_of(arguments.values[0], "map").bytes;
    const Arguments rest{{arguments.values.begin() + 1, arguments.values.end()}, arguments.named};
    engine.budget.spend(kElement * rest.values.size());
    for (const Value& item : items) results.push_back(apply_filter(name, item, rest, engine));
  }
  return list_value(std::move(results), engine);
}

/// select, reject, selectattr, rejectattr
Value selected(const std::string& name, const Value& input, const Arguments& arguments, Engine& engine) {
  const bool wanted = name.starts_with("select");
  const bool by_attribute = name.ends_with("attr");
  if (!arguments.named.empty()) refuse(fmt::format("{} got an argument with a name", name));
  std::size_t at = 0;
  if (by_attribute && arguments.values.empty())
    refuse(fmt::format("{} needs the name of an attribute", name));
  const Value path = by_attribute ? arguments.values[at++] : Value();
  std::string test;
  if (at < arguments.values.size()) test = text_of(arguments.values[at++], name).bytes;
  const std::vector<Value> rest(arguments.values.begin() + static_cast<std::ptrdiff_t>(at),
                                arguments.values.end());
  std::vector<Value> kept;
  if (!input.truth()) return list_value({}, engine);  // also of none, as in jinja2
  for (const Value& item : items_of(input, engine)) {
    const Value value = by_attribute ? attribute(item, path, engine) : item;
    if ((test.empty() ? value.truth() : apply_test(test, value, rest, engine)) == wanted)
      kept.push_back(item);
  }
  return list_value(std::move(kept), engine);
}

Value sorted(const Value& input, const Arguments& arguments, Engine& engine) {
  const Given given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items_of(input, engine)) {
    Value key = given.find(2) != nullptr ? attribute(item, *given.find(2), engine) : item;
    if (!given.truth(1, false) && key.text() != nullptr)
      key = text_value(*in_case("lower", *key.text()), engine);
    keyed.emplace_back(std::move(key), item);
  }
  const bool down = given.truth(0, false);
  // Each key is compared with the others here, before the algorithm relies on their order.
  for (const auto& [key, item] : keyed) (void)less(keyed[0].first, key, engine.budget);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return down ? less(b.first, a.first, engine.budget) : less(a.first, b.first, engine.budget);
  });
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return list_value(std::move(items), engine);
}

Value unique(const Value& input, Engine& engine) {
  std::vector<Value> kept;
  for (const Value& item : items_of(input, engine)) {
    engine.budget.spend(8 * kept.size());
    if (std::none_of(kept.begin(), kept.end(),
                     [&](const Value& one) { return equal(one, item, engine.budget); }))
      kept.push_back(item);
  }
  return list_value(std::move(kept), engine);
}

Value rounded(const Value& input, const Arguments& arguments) {
  const Given given("round", arguments, {"precision", "method"});
  double value = 0;
  if (!input.number(&value)) refuse(fmt::format("round: a {} is no number", input.type()));
  const std::int64_t digits = given.integer(0, 0);
  const std::string method = given.find(1) == nullptr ? "common" : given.text(1).bytes;
  if (digits < 0 || digits > 15) refuse("round: 'precision' is out of range; allowed: 0 .. 15");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return Value(std::ceil(value * scale) / scale);
  if (method == "floor") return Value(std::floor(value * scale) / scale);
  if (method != "common") refuse("round: 'method' is not known; allowed: common, ceil, floor");
  return Value(std::nearbyint(value * scale) / scale);
}

Value extreme(const std::string& name, const Value& input, Engine& engine) {
  const std::vector<Value> items = items_of(input, engine);
  if (items.empty()) return Value::undefined(name);
  const Value* best = items.data();
  for (const Value& item : items) {
    const bool better = name == "min" ? less(item, *best, engine.budget) : less(*best, item, engine.budget);
    if (better) best = &item;
  }
  return *best;
}

Value join_filter(const Value& input, const Arguments& arguments, Engine& engine) {
  const Given given("join", arguments, {"d", "attribute"});
  std::vector<Value> items = items_of(input, engine);
  if (given.find(1) != nullptr) {
    for (Value& item : items) item = attribute(item, *given.find(1), engine);
  }
  const Text separator = given.find(0) == nullptr ? Text() : printed(*given.find(0), engine.budget);
  return text_value(joined(items, separator, engine), engine);
}

Value absolute(const Value& input) {
  std::int64_t integer = 0;
  double real = 0;
  if (input.integer(&integer) && integer != std::numeric_limits<std::int64_t>::min())
    return Value(integer < 0 ? -integer : integer);
  if (input.number(&real)) return Value(std::abs(real));
  refuse(fmt::format("abs: a {} is no number", input.type()));
}

Value summed(const Value& input, const Arguments& arguments, Engine& engine) {
  const Given given("sum", arguments, {"attribute", "start"});
  std::int64_t total = given.integer(1, 0);
  double real = 0;
  bool has_real = false;
  for (const Value& item : items_of(input, engine)) {
    const Value value = given.find(0) != nullptr ? attribute(item, *given.find(0), engine) : item;
    std::int64_t integer = 0;
    double number = 0;
    if (value.integer(&integer)) {
      if (__builtin_add_overflow(total, integer, &total)) refuse("sum: the result needs more than 64 bits");
    } else if (value.number(&number)) {
      real += number;
      has_real = true;
    } else {
      refuse(fmt::format("sum: a {} is no number", value.type()));
    }
  }
  return has_real ? Value(static_cast<double>(total) + real) : Value(total);
}

Value reversed(const Value& input, Engine& engine) {
  std::vector<Value> items = items_of(input, engine);
  std::reverse(items.begin(), items.end());
  if (input.text() == nullptr) return list_value(std::move(items), engine);
  Text all;
  for (const Value& item : items) all.append(*item.text());
  return text_value(std::move(all), engine);
}

/// The format of a date, with what the C library takes and is bounded.
Value date(const std::string& format, Engine& engine) {
  constexpr std::size_t kLongestFormat = 200;
  if (format.empty()) return Value("");
  if (format.size() > kLongestFormat) refuse("strftime_now: the format is longer than 200 bytes");
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    ++i;
    if (i < format.size() && format[i] == '-') ++i;
    if (i >= format.size() ||
        std::string_view("aAbBcdDeFHIjmMnpSTtuUwWxXyYZz%").find(format[i]) == std::string_view::npos)
      refuse(fmt::format("strftime_now: {} has a field that is not supported", quoted(format)));
  }
  std::tm parts{};
  if (localtime_r(&engine.now, &parts) == nullptr) refuse("strftime_now: the clock is out of range");
  std::array<char, 64 * kLongestFormat> room{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"  // its fields were looked at
  const std::size_t length = std::strftime(room.data(), room.size(), format.c_str(), &parts);
#pragma GCC diagnostic pop
  return text_value(Text(well_formed_utf8({room.data(), length})), engine);
}

Value range(const Arguments& arguments, Engine& engine) {
  if (!arguments.named.empty() || arguments.values.empty() || arguments.values.size() > 3)
    refuse("range takes 1 to 3 integers");
  std::array<std::int64_t, 3> n{0, 0, 1};
  for (std::size_t i = 0; i < arguments.values.size(); ++i) {
    if (!arguments.values[i].integer(&n[i])) refuse("range takes 1 to 3 integers");
  }
  if (arguments.values.size() == 1) std::swap(n[0], n[1]);
  if (n[2] == 0) refuse("range: the step is 0");
  const double length =
      std::ceil((static_cast<double>(n[1]) - static_cast<double>(n[0])) / static_cast<double>(n[2]));
  if (length > static_cast<double>(kLongestRange))
    refuse(fmt::format("range has more than {} numbers", kLongestRange));
  std::vector<Value> items;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(std::max(length, 0.0)); ++i)
    items.emplace_back(n[0] + i * n[2]);
  return list_value(std::move(items), engine);
}

bool is_kind(const std::string& name, const Value& input, bool* result) {
  std::int64_t integer = 0;
  double number = 0;
  const bool is_bool = input.get<bool>() != nullptr;
  if (name == "defined")
    *result = !input.is_undefined();
  else if (name == "undefined")
    *result = input.is_undefined();
  else if (name == "none")
    *result = input.is_none();
  else if (name == "boolean")
    *result = is_bool;
  else if (name == "true")
    *result = is_bool && input.truth();
  else if (name == "false")
    *result = is_bool && !input.truth();
  else if (name == "string")
    *result = input.text() != nullptr;
  else if (name == "number")
    *result = input.number(&number);
  else if (name == "integer")
    *result = !is_bool && input.integer(&integer);
  else if (name == "float")
    *result = input.get<double>() != nullptr;
  else if (name == "mapping")
    *result = input.dict() != nullptr;
  else if (name == "callable")
    *result = input.get<FunctionPointer>() != nullptr || input.is_undefined();
  else if (name == "sequence" || name == "iterable")
    *result =
        input.text() != nullptr || input.list() != nullptr || input.dict() != nullptr || input.is_undefined();
  else
    return false;
  return true;
}

}  // namespace

Level::Level(Engine& engine) : engine_(engine) {
  if (engine.level >= kMostLevels)
    refuse(fmt::format("calls and blocks lie more than {} deep in each other", kMostLevels));
  ++engine.level;
}

std::vector<Value> items_of(const Value& value, Engine& engine) {
  std::vector<Value> items;
  if (value.list() != nullptr) {
    engine.budget.spend(kElement * value.list()->size());
    return *value.list();
  }
  if (value.dict() != nullptr) {
    engine.budget.spend(kElement * value.dict()->items.size());
    for (const auto& [key, item] : value.dict()->items) items.push_back(key);
  } else if (value.text() != nullptr) {
    std::string_view rest = value.text()->bytes;
    for (std::size_t at = 0; at < value.text()->bytes.size();) {
      const std::size_t length = std::max<std::size_t>(next_utf8(rest.substr(at)).length, 1);
      engine.budget.spend(64 + kElement);
      items.emplace_back(value.text()->part(at, length));
      at += length;
    }
  } else if (!value.is_undefined()) {
    refuse(fmt::format("a {} has no items", value.type()));
  }
  return items;
}

bool contains(const Value& haystack, const Value& needle, Engine& engine) {
  if (haystack.text() != nullptr) {
    engine.budget.spend(haystack.text()->bytes.size() / 16 + 1);
    return haystack.text()->bytes.find(text_of(needle, "in").bytes) != std::string::npos;
  }
  if (haystack.dict() != nullptr) return haystack.dict()->find(needle, engine.budget) != nullptr;
  if (haystack.is_undefined()) return false;
  if (haystack.list() == nullptr) refuse(fmt::format("a {} has no items", haystack.type()));
  return std::any_of(haystack.list()->begin(), haystack.list()->end(),
                     [&](const Value& one) { return equal(one, needle, engine.budget); });
}

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments, Engine& engine) {
  const auto none = [&] { (void)Given(name, arguments, {}); };
  engine.budget.spend(8);
  if (name == "trim") {
    const Given given(name, arguments, {"chars"});
    const std::string* const which =
        given.find(0) == nullptr || given.find(0)->is_none() ? nullptr : &given.text(0).bytes;
    return text_value(stripped(printed(input, engine.budget), true, true, which), engine);
  }
  if (name == "default" || name == "d") {
    const Given given(name, arguments, {"default_value", "boolean"});
    const bool lacks = given.truth(1, false) ? !input.truth() : input.is_undefined();
    if (!lacks) return input;
    return given.find(0) == nullptr ? Value("") : *given.find(0);
  }
  if (name == "tojson") return json_filter(input, arguments, engine);
  if (name == "length" || name == "count") return none(), length_of(input);
  if (name == "items") return none(), pairs_of(input, engine);
  if (name == "string" || name == "safe") return none(), text_value(printed(input, engine.budget), engine);
  if (name == "list") return none(), list_value(items_of(input, engine), engine);
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "title") {
    none();
    return text_value(*in_case(name, printed(input, engine.budget)), engine);
  }
  if (name == "first" || name == "last") {
    none();
    const std::vector<Value> items = items_of(input, engine);
    if (items.empty()) return Value::undefined(name);
    return name == "first" ? items.front() : items.back();
  }
  if (name == "join") return join_filter(input, arguments, engine);
  if (name == "replace") {
    const Given given(name, arguments, {"old", "new", "count"});
    return text_value(
        replaced(printed(input, engine.budget), given.text(0), given.text(1), given.integer(2, -1), engine),
        engine);
  }
  if (name == "map") return mapped(input, arguments, engine);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return selected(name, input, arguments, engine);
  if (name == "reverse") return none(), reversed(input, engine);
  if (name == "sort") return sorted(input, arguments, engine);
  if (name == "unique") return none(), unique(input, engine);
  if (name == "indent") return indented(input, arguments, engine);
  if (name == "min" || name == "max") return none(), extreme(name, input, engine);
  if (name == "sum") return summed(input, arguments, engine);
  if (name == "int") {
    const Given given(name, arguments, {"default"});
    return to_integer(input, given.find(0) == nullptr ? Value(std::int64_t{0}) : *given.find(0));
  }
  if (name == "float") {
    const Given given(name, arguments, {"default"});
    return to_real(input, given.find(0) == nullptr ? Value(0.0) : *given.find(0));
  }
  if (name == "round") return rounded(input, arguments);
  if (name == "abs") return none(), absolute(input);
  if (name == "attr") {
    const Given given(name, arguments, {"name"});
    return member_of(input, given.text(0).bytes, false, engine);
  }
  if (name == "dictsort") {
    none();
    const Value pairs = pairs_of(input, engine);
    return sorted(pairs, {{}, {{"attribute", Value(std::int64_t{0})}}}, engine);
  }
  refuse(fmt::format("filter {} is not known or not supported", quoted(name)));
}

bool apply_test(const std::string& name, const Value& input, const std::vector<Value>& arguments,
                Engine& engine) {
  engine.budget.spend(8);
  const auto takes = [&](std::size_t count) {
    if (arguments.size() != count)
      refuse(fmt::format("test {} takes {} arguments and got {}", name, count, arguments.size()));
  };
  bool result = false;
  if (is_kind(name, input, &result)) {
    takes(0);
    return result;
  }
  if (name == "even" || name == "odd" || name == "divisibleby") {
    takes(name == "divisibleby" ? 1 : 0);
    std::int64_t value = 0;
    std::int64_t by = 2;
    if (!input.integer(&value) || (!arguments.empty() && !arguments[0].integer(&by)) || by == 0)
      refuse(fmt::format("test {} needs integers other than 0", name));
    if (by == -1) return true;
    return (value % by == 0) == (name != "odd");
  }
  if (name == "lower" || name == "upper") {
    takes(0);
    const Text& text = text_of(input, name);
    const auto has = [&](char from, char to) {
      return std::any_of(text.bytes.begin(), text.bytes.end(), [&](char c) { return c >= from && c <= to; });
    };
    return name == "lower" ? has('a', 'z') && !has('A', 'Z') : has('A', 'Z') && !has('a', 'z');
  }
  constexpr std::string_view kCompares[] = {"eq", "equalto",  "==", "ne", "!=",          "lt",
                                            "<",  "lessthan", "gt", ">",  "greaterthan", "le",
                                            "<=", "ge",       ">=", "in", "sameas"};
  if (std::find(std::begin(kCompares), std::end(kCompares), name) == std::end(kCompares))
    refuse(fmt::format("test {} is not known or not supported", quoted(name)));
  takes(1);
  const Value& other = arguments[0];
  Budget& budget = engine.budget;
  if (name == "eq" || name == "equalto" || name == "==") return equal(input, other, budget);
  if (name == "ne" || name == "!=") return !equal(input, other, budget);
  if (name == "lt" || name == "<" || name == "lessthan") return less(input, other, budget);
  if (name == "gt" || name == ">" || name == "greaterthan") return less(other, input, budget);
  if (name == "le" || name == "<=") return !less(other, input, budget);
  if (name == "ge" || name == ">=") return !less(input, other, budget);
  if (name == "in") return contains(other, input, engine);
  return input.type() == other.type() && equal(input, other, budget);
}

bool has_method(const Value& self, std::string_view name) {
  constexpr std::string_view kOfTexts[] = {
      "strip", "lstrip",       "rstrip",       "upper",      "lower",   "capitalize", "title",
      "split", "rsplit",       "startswith",   "endswith",   "replace", "join",       "find",
      "count", "removeprefix", "removesuffix", "splitlines", "isdigit"};
  constexpr std::string_view kOfDicts[] = {"items", "keys", "values", "get"};
  constexpr std::string_view kOfLists[] = {"index", "count"};
  constexpr std::string_view kOfLoops[] = {"cycle", "changed"};
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (self.text() != nullptr) return among(kOfTexts);
  if (self.dict() != nullptr) return among(kOfDicts);
  if (self.list() != nullptr) return among(kOfLists);
  return self.get<Loop*>() != nullptr && among(kOfLoops);
}

namespace {

Value call_of_dict(const Value& self, const std::string& name, const Arguments& arguments, Engine& engine) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const Given given("get", arguments, {"key", "default"});
    const Value* const found = dict.find(given.need(0), engine.budget);
    if (found != nullptr) return *found;
    return given.find(1) == nullptr ? Value(None{}) : *given.find(1);
  }
  (void)Given(name, arguments, {});
  if (name == "items") return pairs_of(self, engine);
  std::vector<Value> items;
  for (const auto& [key, item] : dict.items) items.push_back(name == "keys" ? key : item);
  return list_value(std::move(items), engine);
}

Value call_of_list(const Value& self, const std::string& name, const Arguments& arguments, Engine& engine) {
  const Given given(name, arguments, {"value"});
  std::int64_t place = 0;
  std::int64_t count = 0;
  for (const Value& item : *self.list()) {
    if (equal(item, given.need(0), engine.budget)) {
      if (name == "index") return Value(place);
      ++count;
    }
    ++place;
  }
  if (name == "index") refuse("index: the value is not in the list");
  return Value(count);
}

Value call_of_loop(Loop& loop, const std::string& name, const Arguments& arguments, Engine& engine) {
  if (!arguments.named.empty() || (name == "cycle" && arguments.values.empty()))
    refuse(fmt::format("loop.{} takes values", name));
  if (name == "cycle") return arguments.values[loop.at % arguments.values.size()];
  const Value now = list_value(arguments.values, engine);
  const bool changed = !equal(loop.changed, now, engine.budget);
  loop.changed = now;
  return Value(changed);
}

bool begins_or_ends(const Text& text, const Value& with, bool end, const std::string& name) {
  if (with.list() != nullptr) {
    return std::any_of(with.list()->begin(), with.list()->end(),
                       [&](const Value& one) { return begins_or_ends(text, one, end, name); });
  }
  const std::string& part = text_of(with, name).bytes;
  return end ? text.bytes.ends_with(part) : text.bytes.starts_with(part);
}

Value call_of_text(const Text& self, const std::string& name, const Arguments& arguments, Engine& engine) {
  engine.budget.spend(self.bytes.size() / 16 + 1);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Given given(name, arguments, {"chars"});
    const std::string* const which =
        given.find(0) == nullptr || given.find(0)->is_none() ? nullptr : &given.text(0).bytes;
    return text_value(stripped(self, name != "rstrip", name != "lstrip", which), engine);
  }
  if (name == "split" || name == "rsplit") {
    const Given given(name, arguments, {"sep", "maxsplit"});
    const Text* const separator =
        given.find(0) == nullptr || given.find(0)->is_none() ? nullptr : &given.text(0);
    return list_value(split(self, separator, given.integer(1, -1), name == "rsplit", engine), engine);
  }
  if (name == "startswith" || name == "endswith") {
    const Given given(name, arguments, {"prefix"});
    return Value(begins_or_ends(self, given.need(0), name == "endswith", name));
  }
  if (name == "replace") {
    const Given given(name, arguments, {"old", "new", "count"});
    return text_value(replaced(self, given.text(0), given.text(1), given.integer(2, -1), engine), engine);
  }
  if (name == "join") {
    const Given given(name, arguments, {"items"});
    return text_value(joined(items_of(given.need(0), engine), self, engine), engine);
  }
  if (name == "find" || name == "count") {
    const Given given(name, arguments, {"sub"});
    const std::string& part = given.text(0).bytes;
    std::size_t at = self.bytes.find(part);
    if (name == "find") {
      return Value(at == std::string::npos ? std::int64_t{-1}
                                           : static_cast<std::int64_t>(characters(self.bytes.substr(0, at))));
    }
    if (part.empty()) return Value(static_cast<std::int64_t>(characters(self.bytes)) + 1);
    std::int64_t count = 0;
    for (; at != std::string::npos; at = self.bytes.find(part, at + part.size())) ++count;
    return Value(count);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const Given given(name, arguments, {"part"});
    const std::string& part = given.text(0).bytes;
    const bool front = name == "removeprefix";
    if (!(front ? self.bytes.starts_with(part) : self.bytes.ends_with(part))) return text_value(self, engine);
    return text_value(self.part(front ? part.size() : 0, self.bytes.size() - part.size()), engine);
  }
  if (name == "splitlines") {
    (void)Given(name, arguments, {});
    return list_value(lines_of(self, engine), engine);
  }
  (void)Given(name, arguments, {});
  if (name == "isdigit") {
    return Value(!self.bytes.empty() && self.bytes.find_first_not_of("0123456789") == std::string::npos);
  }
  return text_value(*in_case(name, self), engine);
}

}  // namespace

Value call_method(const Value& self, const std::string& name, const Arguments& arguments, Engine& engine) {
  if (self.dict() != nullptr) return call_of_dict(self, name, arguments, engine);
  if (self.list() != nullptr) return call_of_list(self, name, arguments, engine);
  if (const auto* const loop = self.get<Loop*>()) return call_of_loop(**loop, name, arguments, engine);
  return call_of_text(*self.text(), name, arguments, engine);
}

bool is_global(std::string_view name) {
  return name == "range" || name == "strftime_now" || name == "raise_exception" || name == "dict" ||
         name == "namespace";
}

Value call_global(const std::string& name, const Arguments& arguments, Engine& engine) {
  if (name == "range") return range(arguments, engine);
  if (name == "strftime_now") return date(Given(name, arguments, {"format"}).text(0).bytes, engine);
  if (name == "raise_exception") {
    const Given given(name, arguments, {"message"});
    refuse(fmt::format("the template refuses the conversation: {}",
                       quoted(printed(given.need(0), engine.budget).bytes)));
  }
  if (!arguments.values.empty()) refuse("dict() takes arguments with names only");
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : arguments.named) items.emplace_back(Value(std::string_view(key)), value);
  engine.budget.spend(64 + 2 * kElement * items.size());
  return Value(std::move(items));
}

Value member_of(const Value& value, const std::string& name, bool item, Engine& engine) {
  engine.budget.spend(4);
  if (value.is_undefined()) {
    const auto& own = value.get<Undefined>()->name;
    refuse(fmt::format("{} is undefined, and has no {}", own ? quoted(*own) : "a value", quoted(name)));
  }
  if (const auto* const names = value.get<Namespace*>()) {
    for (const auto& [key, held] : (*names)->names) {
      engine.budget.spend(1);
      if (key == name) return held;
    }
    return Value::undefined(name);
  }
  if (const auto* const own = value.get<Loop*>()) {
    const Loop& loop = **own;
    const auto at = static_cast<std::int64_t>(loop.at);
    const auto count = static_cast<std::int64_t>(loop.items.size());
    if (name == "index") return Value(at + 1);
    if (name == "index0") return Value(at);
    if (name == "revindex") return Value(count - at);
    if (name == "revindex0") return Value(count - at - 1);
    if (name == "first") return Value(at == 0);
    if (name == "last") return Value(at + 1 == count);
    if (name == "length") return Value(count);
    if (name == "depth") return Value(std::int64_t{1});  // of recursive loops, which are not supported
    if (name == "depth0") return Value(std::int64_t{0});
    if (name == "previtem") return at > 0 ? loop.items[loop.at - 1] : Value::undefined(name);
    if (name == "nextitem") return at + 1 < count ? loop.items[loop.at + 1] : Value::undefined(name);
  }
  const Value* found = nullptr;
  if (value.dict() != nullptr && (item || !has_method(value, name)))
    found = value.dict()->find(Value(std::string_view(name)), engine.budget);
  if (found != nullptr) return *found;
  if (has_method(value, name)) {
    engine.budget.spend(64);
    return Value(Function{Function::Kind::method, name, value});
  }
  return Value::undefined(name);
}

Value item_of(const Value& value, const Value& index, Engine& engine) {
  if (index.text() != nullptr) return member_of(value, index.text()->bytes, true, engine);
  std::int64_t at = 0;
  engine.budget.spend(4);
  if (value.is_undefined()) return member_of(value, "items", true, engine);
  if (value.dict() != nullptr) {
    const Value* const found = value.dict()->find(index, engine.budget);
    return found == nullptr ? Value::undefined("a key") : *found;
  }
  if (!index.integer(&at)) return Value::undefined("an index");
  if (value.list() != nullptr) {
    const auto size = static_cast<std::int64_t>(value.list()->size());
    if (at < 0) at += size;
    if (at < 0 || at >= size) return Value::undefined("an index out of range");
    return (*value.list())[static_cast<std::size_t>(at)];
  }
  if (value.text() == nullptr) return Value::undefined("an index");
  const std::string& all = value.text()->bytes;
  engine.budget.spend(all.size() / 8);
  const auto size = static_cast<std::int64_t>(characters(all));
  if (at < 0) at += size;
  if (at < 0 || at >= size) return Value::undefined("an index out of range");
  const std::size_t begin = byte_of_character(all, static_cast<std::size_t>(at));
  return text_value(value.text()->part(begin, next_utf8(std::string_view(all).substr(begin)).length), engine);
}

}  // namespace headwater::runtime::jinja
