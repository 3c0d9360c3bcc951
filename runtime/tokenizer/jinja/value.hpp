#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace headwater::runtime::jinja {

/// The work that one rendering may do: a unit for a node that is evaluated, for a byte that is made, for an element that is
/// looked at. Memory is bounded by it, too: whatever is kept was paid for.
class Budget {
 public:
  explicit Budget(std::size_t units) : left_(units) {}
  /// Error(invalid_argument) once it is used up.
  void spend(std::size_t units);
  [[nodiscard]] std::size_t left() const { return left_; }

 private:
  std::size_t left_;
};

/// The template goes wrong: Error(invalid_argument), one line without the place, which the interpreter adds.
[[noreturn]] void refuse(const std::string& what);

/// A text that knows for each byte where it comes from: marks has a byte for each, or is empty where all are 0, the
/// template's own. What is built of texts keeps the marks.
struct Text {
  std::string bytes;
  std::string marks;

  Text() = default;
  explicit Text(std::string all, char mark = 0);
  /// Of other bytes, made from `from` in a way that does not say where each comes from: foreign if anything in it is.
  static Text made_from(std::string all, const Text& from);

  void append(const Text& more);
  [[nodiscard]] Text part(std::size_t begin, std::size_t length) const;
  [[nodiscard]] char mark(std::size_t i) const { return marks.empty() ? '\0' : marks[i]; }
  [[nodiscard]] char highest_mark() const;
};

struct List;
struct Dict;
struct Function;
struct Namespace;
struct Node;
struct Scope;
struct Loop;

struct None {};
struct Undefined {
  std::shared_ptr<const std::string> name;  ///< what was looked for
};

using TextPointer = std::shared_ptr<const Text>;
using ListPointer = std::shared_ptr<const List>;
using DictPointer = std::shared_ptr<const Dict>;
using FunctionPointer = std::shared_ptr<const Function>;

/// A value of the language. Lists and dictionaries do not change once they are made, as in a sandbox of jinja2, so that
/// they hold no cycles; a namespace changes, and belongs to the interpreter.
class Value {
 public:
  using Held = std::variant<Undefined, None, bool, std::int64_t, double, TextPointer, ListPointer,
                            DictPointer, FunctionPointer, Namespace*, Loop*>;

  Value() = default;
  explicit Value(None none) : held_(none) {}
  explicit Value(bool value) : held_(value) {}
  explicit Value(std::int64_t value) : held_(value) {}
  explicit Value(double value) : held_(value) {}
  explicit Value(Text text) : held_(std::make_shared<const Text>(std::move(text))) {}
  explicit Value(std::string_view text) : Value(Text(std::string(text))) {}
  explicit Value(const char* text) : Value(std::string_view(text)) {}
  explicit Value(std::vector<Value> items, bool tuple = false);
  explicit Value(std::vector<std::pair<Value, Value>> items);
  explicit Value(Function function);
  explicit Value(Namespace* names) : held_(names) {}
  explicit Value(Loop* loop) : held_(loop) {}
  static Value undefined(std::string_view name);

  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(held_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(held_); }
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&held_);
  }
  [[nodiscard]] const Text* text() const;
  [[nodiscard]] const std::vector<Value>* list() const;
  [[nodiscard]] const Dict* dict() const;
  /// Integers and booleans, which are numbers, too.
  [[nodiscard]] bool integer(std::int64_t* value) const;
  [[nodiscard]] bool number(double* value) const;

  /// As Python names it, for messages.
  [[nodiscard]] std::string type() const;
  /// How deep lists and dictionaries lie in it.
  [[nodiscard]] int depth() const;
  /// bool() of Python.
  [[nodiscard]] bool truth() const;

 private:
  Held held_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
};
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  [[nodiscard]] const Value* find(const Value& key, Budget& budget) const;
};
/// Something that can be called: a macro, a function of the engine, a method of a value.
struct Function {
  enum class Kind : std::uint8_t { builtin, method, macro } kind = Kind::builtin;
  std::string name;
  Value self = {};             ///< of a method
  const Node* node = nullptr;  ///< of a macro
  Scope* scope = nullptr;      ///< in which it was defined
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> names;
};
struct Loop {
  std::vector<Value> items;
  std::size_t at = 0;
  Value changed;  ///< what changed() saw last
};

[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);
/// a < b, of numbers, texts and lists.
[[nodiscard]] bool less(const Value& a, const Value& b, Budget& budget);

/// str() of Python: what {{ }} writes.
[[nodiscard]] Text printed(const Value& value, Budget& budget);

struct JsonLayout {
  std::int64_t indent = -1;  ///< of a level; -1: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ascii = false;
};
/// json.dumps() of Python.
[[nodiscard]] Text json_of(const Value& value, const JsonLayout& layout, Budget& budget);

/// Characters of well-formed UTF-8.
[[nodiscard]] std::size_t characters(std::string_view text);
/// Where character `number` begins; the end where there are fewer.
[[nodiscard]] std::size_t byte_of_character(std::string_view text, std::size_t number);
/// str.strip() of Python: white space of Unicode, or the characters of `which`.
[[nodiscard]] Text stripped(const Text& text, bool left, bool right, const std::string* which);
/// Bytes of the white space at the start of `text`; 0 where there is none.
[[nodiscard]] std::size_t leading_space(std::string_view text);

}  // namespace headwater::runtime::jinja
