#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/tokenizer/jinja/value.hpp"

namespace headwater::runtime::jinja {

/// What a call was given.
struct Arguments {
  std::vector<Value> values = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

/// What a rendering needs besides its template.
struct Engine {
  Budget budget;
  std::time_t now = 0;
  int level = 0;  ///< of recursion, in templates and in filters that call filters
};

/// A level of recursion: Error(invalid_argument) where there are too many.
class Level {
 public:
  explicit Level(Engine& engine);
  ~Level() { --engine_.level; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Engine& engine_;
};

/// What `for` goes over: items of a list, keys of a dictionary, characters of a text, nothing of an undefined value.
[[nodiscard]] std::vector<Value> items_of(const Value& value, Engine& engine);
/// `needle in haystack`
[[nodiscard]] bool contains(const Value& haystack, const Value& needle, Engine& engine);

[[nodiscard]] Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments,
                                 Engine& engine);
[[nodiscard]] bool apply_test(const std::string& name, const Value& input,
                              const std::vector<Value>& arguments, Engine& engine);
/// Whether values of this type have the method.
[[nodiscard]] bool has_method(const Value& self, std::string_view name);
[[nodiscard]] Value call_method(const Value& self, const std::string& name, const Arguments& arguments,
                                Engine& engine);
/// range, strftime_now, raise_exception, dict; namespace is the interpreter's.
[[nodiscard]] bool is_global(std::string_view name);
[[nodiscard]] Value call_global(const std::string& name, const Arguments& arguments, Engine& engine);
/// value.name, or value[name] where `item` is true.
[[nodiscard]] Value member_of(const Value& value, const std::string& name, bool item, Engine& engine);
[[nodiscard]] Value item_of(const Value& value, const Value& index, Engine& engine);

}  // namespace headwater::runtime::jinja
