#include "runtime/tokenizer/jinja/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime::jinja {
namespace {

// Values are compared, printed and destroyed by recursion.
constexpr int kDeepest = 64;
constexpr std::size_t kLook = 8;  // units for a value that is compared or written

int depth_above(int deepest) {
  if (deepest >= kDeepest) refuse(fmt::format("lists lie more than {} deep in each other", kDeepest));
  return deepest + 1;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// repr() of a text.
void append_repr(const Text& text, Text& out) {
  const bool single = text.bytes.find('\'') == std::string::npos || text.bytes.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string all(1, quote);
  for (const char c : text.bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      all += '\\';
      all += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      all += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      all += fmt::format("\\x{:02x}", byte);
    } else {
      all += c;
    }
  }
  all += quote;
  out.append(Text::made_from(std::move(all), text));
}

void append_printed(const Value& value, bool repr, Text& out, Budget& budget) {
  const auto add = [&](const std::string& bytes) {
    budget.spend(bytes.size());
    out.append(Text(bytes));
  };
  budget.spend(kLook);
  std::int64_t integer = 0;
  if (const Text* const text = value.text()) {
    budget.spend(text->bytes.size());
    if (repr) {
      append_repr(*text, out);
    } else {
      out.append(*text);
    }
  } else if (value.is_undefined()) {
    if (repr) add("Undefined");
  } else if (value.is_none()) {
    add("None");
  } else if (const bool* const truth = value.get<bool>()) {
    add(*truth ? "True" : "False");
  } else if (value.integer(&integer)) {
    add(std::to_string(integer));
  } else if (const double* const number = value.get<double>()) {
    add(float_text(*number));
  } else if (const ListPointer* const list = value.get<ListPointer>()) {
    const bool tuple = (*list)->tuple;
    add(tuple ? "(" : "[");
    bool first = true;
    for (const Value& item : (*list)->items) {
      if (!first) add(", ");
      first = false;
      append_printed(item, true, out, budget);
    }
    if (tuple && (*list)->items.size() == 1) add(",");
    add(tuple ? ")" : "]");
  } else if (const Dict* const dict = value.dict()) {
    add("{");
    bool first = true;
    for (const auto& [key, item] : dict->items) {
      if (!first) add(", ");
      first = false;
      append_printed(key, true, out, budget);
      add(": ");
      append_printed(item, true, out, budget);
    }
    add("}");
  } else {
    refuse(fmt::format("a {} cannot be written", value.type()));
  }
}

void append_json_text(const Text& text, bool ascii, Text& out, Budget& budget) {
  std::string all = "\"";
  for (std::string_view rest = text.bytes; !rest.empty();) {
    const Utf8Sequence next = next_utf8(rest);
    const auto byte = static_cast<unsigned char>(rest[0]);
    if (next.length > 1 && ascii) {
      char32_t c = byte & (0xFFU >> (next.length + 1));
      for (std::size_t i = 1; i < next.length; ++i)
        c = c << 6U | (static_cast<unsigned char>(rest[i]) & 0x3FU);
      if (c > 0xFFFF) {
        c -= 0x10000;
        all += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (static_cast<std::uint32_t>(c) >> 10U),
                           0xDC00 + (static_cast<std::uint32_t>(c) & 0x3FFU));
      } else {
        all += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
      }
    } else if (next.length > 1) {
      all += rest.substr(0, next.length);
    } else if (byte == '"' || byte == '\\') {
      all += '\\';
      all += rest[0];
    } else if (byte < 0x20) {
      constexpr std::string_view kShort = "\b\t\n\f\r";
      const std::size_t at = kShort.find(rest[0]);
      all += at == std::string_view::npos ? fmt::format("\\u{:04x}", byte) : fmt::format("\\{}", "btnfr"[at]);
    } else {
      all += rest[0];
    }
    rest.remove_prefix(std::max<std::size_t>(next.length, 1));
  }
  all += '"';
  budget.spend(all.size());
  out.append(Text::made_from(std::move(all), text));
}

class JsonWriter {
 public:
  JsonWriter(const JsonLayout& layout, Budget& budget) : layout_(layout), budget_(budget) {}

  void write(const Value& value, std::int64_t level) {
    budget_.spend(kLook);
    std::int64_t integer = 0;
    if (const Text* const text = value.text()) {
      append_json_text(*text, layout_.ascii, out_, budget_);
    } else if (value.is_none()) {
      add("null");
    } else if (const bool* const truth = value.get<bool>()) {
      add(*truth ? "true" : "false");
    } else if (value.integer(&integer)) {
      add(std::to_string(integer));
    } else if (const double* const number = value.get<double>()) {
      add(std::isnan(*number)   ? "NaN"
          : std::isinf(*number) ? (*number < 0 ? "-Infinity" : "Infinity")
                                : float_text(*number));
    } else if (const std::vector<Value>* const list = value.list()) {
      if (list->empty()) return add("[]");
      add("[");
      for (std::size_t i = 0; i < list->size(); ++i) {
        if (i > 0) add(layout_.item_separator);
        line(level + 1);
        write((*list)[i], level + 1);
      }
      line(level);
      add("]");
    } else if (const Dict* const dict = value.dict()) {
      write_dict(*dict, level);
    } else {
      refuse(fmt::format("tojson: a value of type {} has no form in JSON", value.type()));
    }
  }
  Text take() { return std::move(out_); }

 private:
  void write_dict(const Dict& dict, std::int64_t level) {
    if (dict.items.empty()) return add("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (layout_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(a->first, b->first, budget_); });
    }
    add("{");
    bool first = true;
    for (const auto* const item : items) {
      if (!first) add(layout_.item_separator);
      first = false;
      line(level + 1);
      if (item->first.text() == nullptr) refuse("tojson: a key is no text");
      append_json_text(*item->first.text(), layout_.ascii, out_, budget_);
      add(layout_.key_separator);
      write(item->second, level + 1);
    }
    line(level);
    add("}");
  }
  void add(const std::string& bytes) {
    budget_.spend(bytes.size());
    out_.append(Text(bytes));
  }
  void line(std::int64_t level) {
    if (layout_.indent < 0) return;
    const auto spaces = static_cast<std::size_t>(layout_.indent * level);
    add("\n");
    add(std::string(spaces, ' '));
  }

  const JsonLayout& layout_;
  Budget& budget_;
  Text out_;
};

}  // namespace

void refuse(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

void Budget::spend(std::size_t units) {
  if (units > left_) {
    left_ = 0;
    refuse("it takes more steps, or makes more text, than any template needs");
  }
  left_ -= units;
}

Text::Text(std::string all, char mark) : bytes(std::move(all)) {
  if (mark != 0) marks.assign(bytes.size(), mark);
}

Text Text::made_from(std::string all, const Text& from) { return Text(std::move(all), from.highest_mark()); }

void Text::append(const Text& more) {
  if (!more.marks.empty() || !marks.empty()) {
    marks.resize(bytes.size());
    marks += more.marks;
  }
  bytes += more.bytes;
  if (!marks.empty()) marks.resize(bytes.size());
}

Text Text::part(std::size_t begin, std::size_t length) const {
  Text text;
  text.bytes = bytes.substr(begin, length);
  if (!marks.empty()) text.marks = marks.substr(begin, length);
  return text;
}

char Text::highest_mark() const {
  const auto highest = std::max_element(marks.begin(), marks.end());
  return highest == marks.end() ? '\0' : *highest;
}

Value::Value(std::vector<Value> items, bool tuple) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  held_ = std::make_shared<const List>(List{std::move(items), tuple, depth_above(deepest)});
}

Value::Value(std::vector<std::pair<Value, Value>> items) {
  int deepest = 0;
  for (const auto& [key, item] : items) deepest = std::max({deepest, key.depth(), item.depth()});
  held_ = std::make_shared<const Dict>(Dict{std::move(items), depth_above(deepest)});
}

Value::Value(Function function) {
  (void)depth_above(function.self.depth());
  held_ = std::make_shared<const Function>(std::move(function));
}

Value Value::undefined(std::string_view name) {
  Value value;
  value.held_ = Undefined{std::make_shared<const std::string>(name)};
  return value;
}

const Text* Value::text() const {
  const TextPointer* const text = get<TextPointer>();
  return text == nullptr ? nullptr : text->get();
}
const std::vector<Value>* Value::list() const {
  const ListPointer* const list = get<ListPointer>();
  return list == nullptr ? nullptr : &(*list)->items;
}
const Dict* Value::dict() const {
  const DictPointer* const dict = get<DictPointer>();
  return dict == nullptr ? nullptr : dict->get();
}

bool Value::integer(std::int64_t* value) const {
  if (const auto* const own = get<std::int64_t>()) {
    *value = *own;
  } else if (const auto* const truth = get<bool>()) {
    *value = *truth ? 1 : 0;
  } else {
    return false;
  }
  return true;
}

bool Value::number(double* value) const {
  std::int64_t own = 0;
  if (const auto* const real = get<double>()) {
    *value = *real;
  } else if (integer(&own)) {
    *value = static_cast<double>(own);
  } else {
    return false;
  }
  return true;
}

std::string Value::type() const {
  constexpr const char* kNames[] = {"undefined", "None", "bool",     "int",       "float", "str",
                                    "list",      "dict", "function", "namespace", "loop"};
  return kNames[held_.index()];
}

int Value::depth() const {
  if (const auto* const list = get<ListPointer>()) return (*list)->depth;
  if (const auto* const dict = get<DictPointer>()) return (*dict)->depth;
  if (const auto* const function = get<FunctionPointer>()) return (*function)->self.depth() + 1;
  return 0;
}

bool Value::truth() const {
  double number_value = 0;
  if (is_undefined() || is_none()) return false;
  if (number(&number_value)) return number_value != 0;
  if (const Text* const own = text()) return !own->bytes.empty();
  if (const auto* const own = list()) return !own->empty();
  if (const Dict* const own = dict()) return !own->items.empty();
  return true;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  for (const auto& [name, value] : items) {
    if (equal(name, key, budget)) return &value;
  }
  return nullptr;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend(kLook);
  std::int64_t i = 0;
  std::int64_t j = 0;
  if (a.integer(&i) && b.integer(&j)) return i == j;
  double x = 0;
  double y = 0;
  if (a.number(&x) && b.number(&y)) return x == y;
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.spend(std::min(a.text()->bytes.size(), b.text()->bytes.size()) / 16);
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    return (*a.get<ListPointer>())->tuple == (*b.get<ListPointer>())->tuple &&
           std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(),
                      [&](const Value& p, const Value& q) { return equal(p, q, budget); });
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::all_of(a.dict()->items.begin(), a.dict()->items.end(), [&](const auto& item) {
      const Value* const other = b.dict()->find(item.first, budget);
      return other != nullptr && equal(item.second, *other, budget);
    });
  }
  if (const auto* const names = a.get<Namespace*>())
    return b.get<Namespace*>() && *names == *b.get<Namespace*>();
  if (const auto* const loop = a.get<Loop*>()) return b.get<Loop*>() && *loop == *b.get<Loop*>();
  if (const auto* const own = a.get<FunctionPointer>())
    return b.get<FunctionPointer>() && *own == *b.get<FunctionPointer>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.spend(kLook);
  std::int64_t i = 0;
  std::int64_t j = 0;
  if (a.integer(&i) && b.integer(&j)) return i < j;
  double x = 0;
  double y = 0;
  if (a.number(&x) && b.number(&y)) return x < y;
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.spend(std::min(a.text()->bytes.size(), b.text()->bytes.size()) / 16);
    return a.text()->bytes < b.text()->bytes;  // in UTF-8 the order of code points
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    for (std::size_t at = 0; at < std::min(a.list()->size(), b.list()->size()); ++at) {
      if (!equal((*a.list())[at], (*b.list())[at], budget))
        return less((*a.list())[at], (*b.list())[at], budget);
    }
    return a.list()->size() < b.list()->size();
  }
  refuse(fmt::format("a {} cannot be compared with a {}", a.type(), b.type()));
}

Text printed(const Value& value, Budget& budget) {
  Text out;
  append_printed(value, false, out, budget);
  return out;
}

Text json_of(const Value& value, const JsonLayout& layout, Budget& budget) {
  JsonWriter writer(layout, budget);
  writer.write(value, 0);
  return writer.take();
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::size_t byte_of_character(std::string_view text, std::size_t number) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) continue;
    if (number == 0) return at;
    --number;
  }
  return text.size();
}

std::size_t leading_space(std::string_view text) {
  if (text.empty()) return 0;
  const auto first = static_cast<unsigned char>(text[0]);
  if ((first >= 0x09 && first <= 0x0D) || (first >= 0x1C && first <= 0x20)) return 1;
  for (const std::string_view space : {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\xA8", "\xE2\x80\xA9",
                                       "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    if (text.starts_with(space)) return space.size();
  }
  // U+2000 .. U+200A
  const bool blank = text.starts_with("\xE2\x80") && text.size() > 2 &&
                     static_cast<unsigned char>(text[2]) >= 0x80 &&
                     static_cast<unsigned char>(text[2]) <= 0x8A;
  return blank ? 3 : 0;
}

Text stripped(const Text& text, bool left, bool right, const std::string* which) {
  const std::string_view all = text.bytes;
  const auto goes = [&](std::string_view rest) -> std::size_t {
    if (which == nullptr) return leading_space(rest);
    const std::size_t length = next_utf8(rest).length;
    return length > 0 && which->find(rest.substr(0, length)) != std::string::npos ? length : 0;
  };
  std::size_t begin = 0;
  std::size_t end = all.size();
  while (left && begin < end) {
    const std::size_t length = goes(all.substr(begin, end - begin));
    if (length == 0) break;
    begin += length;
  }
  while (right && end > begin) {
    std::size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(all[last]) & 0xC0U) == 0x80U) --last;
    if (goes(all.substr(last, end - last)) != end - last) break;
    end = last;
  }
  return text.part(begin, end - begin);
}

}  // namespace headwater::runtime::jinja
