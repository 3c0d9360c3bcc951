#include "runtime/tokenizer/jinja/render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/jinja/builtins.hpp"

namespace headwater::runtime::jinja {

/// Names of a loop, a macro or a block. All of them live until the rendering ends: a macro goes on to see those among which
/// it was defined.
struct Scope {
  Scope* above = nullptr;
  std::map<std::string, Value, std::less<>> names = {};
};

namespace {

using Kind = Node::Kind;

constexpr std::size_t kNode = 8;      // units for a node
constexpr std::size_t kObject = 128;  // for what lives until the end

enum class Flow : std::uint8_t { on, leave, next };

class Interpreter {
 public:
  Interpreter(std::size_t units, std::time_t now) : engine_{Budget(units), now, 0} {}

  Text run(const Node& root, const std::vector<std::pair<std::string, Value>>& variables) {
    Scope& scope = new_scope(nullptr);
    for (const auto& [name, value] : variables) scope.names.insert_or_assign(name, value);
    Text out;
    try {
      (void)execute(root, scope, out);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("line {}: {}", line_, error.what()));
    }
    return out;
  }

 private:
  Scope& new_scope(Scope* above) {
    engine_.budget.spend(kObject);
    return scopes_.emplace_back(Scope{above});
  }

  // ---- statements

  Flow execute(const Node& node, Scope& scope, Text& out) {
    const Level level(engine_);
    engine_.budget.spend(kNode);
    line_ = node.line;
    switch (node.kind) {
      case Kind::block:
        for (const NodePointer& part : node.parts) {
          const Flow flow = execute(*part, scope, out);
          if (flow != Flow::on) return flow;
        }
        break;
      case Kind::output: write(printed(evaluate(*node.parts[0], scope), engine_.budget), out); break;
      case Kind::branch: return branch(node, scope, out);
      case Kind::loop: return loop(node, scope, out);
      case Kind::assign: assign(*node.parts[0], evaluate(*node.parts[1], scope), scope); break;
      case Kind::capture: capture(node, scope); break;
      case Kind::macro:
        engine_.budget.spend(kObject);
        scope.names.insert_or_assign(node.text,
                                     Value(Function{Function::Kind::macro, node.text, {}, &node, &scope}));
        break;
      case Kind::call: call_block(node, scope, out); break;
      case Kind::filtered:
        write(printed(filter(*node.parts[0], written_by(*node.parts[1], scope), scope), engine_.budget), out);
        break;
      case Kind::with: return with(node, scope, out);
      case Kind::leave: return Flow::leave;
      case Kind::next: return Flow::next;
      default: refuse("an expression stands where a statement is allowed");
    }
    return Flow::on;
  }

  void write(const Text& text, Text& out) {
    engine_.budget.spend(text.bytes.size());
    out.append(text);
  }

  /// What a block with names of its own writes.
  Value written_by(const Node& block, Scope& scope) {
    Text out;
    (void)execute(block, new_scope(&scope), out);
    return Value(std::move(out));
  }

  Flow branch(const Node& node, Scope& scope, Text& out) {
    std::size_t i = 0;
    for (; i + 1 < node.parts.size(); i += 2) {
      if (evaluate(*node.parts[i], scope).truth()) return execute(*node.parts[i + 1], scope, out);
    }
    return i < node.parts.size() ? execute(*node.parts[i], scope, out) : Flow::on;
  }

  Flow loop(const Node& node, Scope& scope, Text& out) {
    const Node& target = *node.parts[0];
    std::vector<Value> items = items_of(evaluate(*node.parts[1], scope), engine_);
    Scope& own = new_scope(&scope);
    if (node.parts[2] != nullptr) {
      std::vector<Value> kept;
      for (Value& item : items) {
        own.names.clear();
        assign(target, item, own);
        if (evaluate(*node.parts[2], own).truth()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      own.names.clear();
      return node.parts[4] == nullptr ? Flow::on : execute(*node.parts[4], own, out);
    }
    engine_.budget.spend(kObject);
    Loop& loop = loops_.emplace_back(Loop{std::move(items), 0, {}});
    for (; loop.at < loop.items.size(); ++loop.at) {
      engine_.budget.spend(kNode);
      own.names.clear();
      assign(target, loop.items[loop.at], own);
      own.names.insert_or_assign("loop", Value(&loop));
      if (execute(*node.parts[3], own, out) == Flow::leave) break;
    }
    return Flow::on;
  }

  void assign(const Node& target, Value value, Scope& scope) {
    if (target.kind == Kind::name) {
      engine_.budget.spend(kObject);
      scope.names.insert_or_assign(target.text, std::move(value));
    } else if (target.kind == Kind::member) {
      const Value object = look_up(target.parts[0]->text, scope);
      const auto* const names = object.get<Namespace*>();
      if (names == nullptr)
        refuse(fmt::format("{} is a {}; allowed: set of a namespace's attribute",
                           quoted(target.parts[0]->text), object.type()));
      for (auto& [name, held] : (*names)->names) {
        engine_.budget.spend(1);
        if (name == target.text) {
          held = std::move(value);
          return;
        }
      }
      engine_.budget.spend(kObject);
      (*names)->names.emplace_back(target.text, std::move(value));
    } else {
      std::vector<Value> items = items_of(value, engine_);
      if (items.size() != target.parts.size())
        refuse(fmt::format("{} values are set to {} names", items.size(), target.parts.size()));
      for (std::size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], std::move(items[i]), scope);
    }
  }

  void capture(const Node& node, Scope& scope) {
    Value value = written_by(*node.parts[1], scope);
    if (node.parts[2] != nullptr) value = filter(*node.parts[2], value, scope);
    assign(*node.parts[0], std::move(value), scope);
  }

  void call_block(const Node& node, Scope& scope, Text& out) {
    const Node& called = *node.parts[0];
    const Value function = evaluate(*called.parts[0], scope);
    const auto* const macro = function.get<FunctionPointer>();
    if (macro == nullptr || (*macro)->kind != Function::Kind::macro)
      refuse("{% call %} of something that is no macro");
    Arguments arguments = arguments_of(called, 1, scope);
    engine_.budget.spend(kObject);
    // The block is what the macro calls as `caller`.
    arguments.named.emplace_back("caller",
                                 Value(Function{Function::Kind::macro, "caller", {}, &node, &scope}));
    write(*call_macro(**macro, arguments).text(), out);
  }

  Flow with(const Node& node, Scope& scope, Text& out) {
    Scope& own = new_scope(&scope);
    for (std::size_t i = 0; i < node.names.size(); ++i)
      own.names.insert_or_assign(node.names[i], evaluate(*node.parts[i + 1], scope));
    return execute(*node.parts[0], own, out);
  }

  // ---- expressions

  Value evaluate(const Node& node, Scope& scope) {
    const Level level(engine_);
    engine_.budget.spend(kNode);
    line_ = node.line;
    switch (node.kind) {
      case Kind::constant: return node.value;
      case Kind::name: return look_up(node.text, scope);
      case Kind::member: return member_of(evaluate(*node.parts[0], scope), node.text, false, engine_);
      case Kind::item: {
        const Value object = evaluate(*node.parts[0], scope);
        return item_of(object, evaluate(*node.parts[1], scope), engine_);
      }
      case Kind::slice: return slice(node, scope);
      case Kind::call_of: return call(node, scope);
      case Kind::filter: return filter(node, Value(), scope);
      case Kind::test: return test(node, scope);
      case Kind::list:
      case Kind::tuple: return list(node, scope);
      case Kind::dict: return dict(node, scope);
      case Kind::condition:
        if (evaluate(*node.parts[1], scope).truth()) return evaluate(*node.parts[0], scope);
        return node.parts[2] == nullptr ? Value::undefined("the value of an if without else")
                                        : evaluate(*node.parts[2], scope);
      case Kind::logical_or: {
        Value left = evaluate(*node.parts[0], scope);
        return left.truth() ? left : evaluate(*node.parts[1], scope);
      }
      case Kind::logical_and: {
        Value left = evaluate(*node.parts[0], scope);
        return left.truth() ? evaluate(*node.parts[1], scope) : left;
      }
      case Kind::logical_not: return Value(!evaluate(*node.parts[0], scope).truth());
      case Kind::compare: return compare(node, scope);
      case Kind::concat: return concat(node, scope);
      case Kind::binary: return binary(node, scope);
      case Kind::negate:
      case Kind::plus: return sign(node, scope);
      default: refuse("a statement stands where an expression is allowed");
    }
  }

  Value look_up(const std::string& name, Scope& scope) {
    for (const Scope* one = &scope; one != nullptr; one = one->above) {
      engine_.budget.spend(1);
      const auto found = one->names.find(name);
      if (found != one->names.end()) return found->second;
    }
    if (is_global(name)) {
      engine_.budget.spend(kObject);
      return Value(Function{Function::Kind::builtin, name});
    }
    return Value::undefined(name);
  }

  Value slice(const Node& node, Scope& scope) {
    const Value object = evaluate(*node.parts[0], scope);
    if (object.text() == nullptr && object.list() == nullptr)
      refuse(fmt::format("a slice of a {}; allowed: str, list", object.type()));
    std::optional<std::int64_t> bound[3];
    for (std::size_t i = 0; i < 3; ++i) {
      if (node.parts[i + 1] == nullptr) continue;
      const Value value = evaluate(*node.parts[i + 1], scope);
      std::int64_t number = 0;
      if (value.is_none()) continue;
      if (!value.integer(&number))
        refuse(fmt::format("a bound of a slice is a {}; allowed: int", value.type()));
      bound[i] = number;
    }
    const std::int64_t step = bound[2].value_or(1);
    if (step == 0) refuse("the step of a slice is 0");
    const Text* const text = object.text();
    if (text != nullptr) engine_.budget.spend(text->bytes.size() / 8);
    const auto size =
        static_cast<std::int64_t>(text != nullptr ? characters(text->bytes) : object.list()->size());
    // As Python's slice.indices(). No step longer than the sequence is told from one that is.
    const std::int64_t stride = std::clamp(step, -size - 1, size + 1);
    const auto place = [&](std::optional<std::int64_t> at, std::int64_t fallback) {
      if (!at) return fallback;
      const std::int64_t from_front = *at < 0 ? *at + size : *at;
      return std::clamp(from_front, std::int64_t{step > 0 ? 0 : -1}, step > 0 ? size : size - 1);
    };
    const std::int64_t begin = place(bound[0], step > 0 ? 0 : size - 1);
    const std::int64_t end = place(bound[1], step > 0 ? size : -1);
    if (text != nullptr && step == 1) {
      const std::size_t first = byte_of_character(text->bytes, static_cast<std::size_t>(begin));
      const std::size_t last = byte_of_character(text->bytes, static_cast<std::size_t>(std::max(begin, end)));
      engine_.budget.spend(64 + last - first);
      return Value(text->part(first, last - first));
    }
    const std::vector<Value> items = items_of(object, engine_);
    std::vector<Value> kept;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += stride)
      kept.push_back(items[static_cast<std::size_t>(i)]);
    if (text == nullptr) return Value(std::move(kept), (*object.get<ListPointer>())->tuple);
    Text all;
    for (const Value& one : kept) all.append(*one.text());
    return Value(std::move(all));
  }

  /// From part `first` on.
  Arguments arguments_of(const Node& node, std::size_t first, Scope& scope) {
    Arguments all;
    engine_.budget.spend(kNode * node.parts.size());
    const std::size_t named = node.parts.size() - node.names.size();
    for (std::size_t i = first; i < named; ++i) all.values.push_back(evaluate(*node.parts[i], scope));
    for (std::size_t i = 0; i < node.names.size(); ++i)
      all.named.emplace_back(node.names[i], evaluate(*node.parts[named + i], scope));
    return all;
  }

  Value call(const Node& node, Scope& scope) {
    const Value called = evaluate(*node.parts[0], scope);
    const auto* const pointer = called.get<FunctionPointer>();
    if (pointer == nullptr) {
      line_ = node.line;
      const auto* const undefined = called.get<Undefined>();
      refuse(undefined != nullptr && undefined->name
                 ? fmt::format("{} is called, and is not known or not supported", quoted(*undefined->name))
                 : fmt::format("a {} is called", called.type()));
    }
    const Function& function = **pointer;
    const Arguments arguments = arguments_of(node, 1, scope);
    line_ = node.line;
    if (function.kind == Function::Kind::macro) return call_macro(function, arguments);
    if (function.kind == Function::Kind::method)
      return call_method(function.self, function.name, arguments, engine_);
    if (function.name != "namespace") return call_global(function.name, arguments, engine_);
    engine_.budget.spend(kObject * (1 + arguments.named.size()));
    Namespace& names = namespaces_.emplace_back();
    for (const Value& value : arguments.values) {
      if (value.dict() == nullptr) refuse("namespace() takes dictionaries, and arguments with names");
      for (const auto& [key, held] : value.dict()->items) {
        engine_.budget.spend(kObject);
        if (key.text() != nullptr) names.names.emplace_back(key.text()->bytes, held);
      }
    }
    for (const auto& [name, value] : arguments.named) names.names.emplace_back(name, value);
    return Value(&names);
  }

  Value call_macro(const Function& function, const Arguments& arguments) {
    const Node& node = *function.node;
    const Level level(engine_);
    Scope& own = new_scope(function.scope);
    // A {% call %} block has the call in front of its body.
    const std::size_t body = node.kind == Kind::call ? 1 : 0;
    if (arguments.values.size() > node.names.size())
      refuse(fmt::format("{} got {} arguments; allowed: at most {}", quoted(function.name),
                         arguments.values.size(), node.names.size()));
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      engine_.budget.spend(kObject);
      const std::string& name = node.names[i];
      const auto given = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&](const auto& one) { return one.first == name; });
      const std::size_t defaults = node.parts.size() - body - 1;
      const std::size_t from_end = node.names.size() - i;
      Value value = Value::undefined(name);
      if (i < arguments.values.size()) {
        value = arguments.values[i];
      } else if (given != arguments.named.end()) {
        value = given->second;
      } else if (from_end <= defaults) {
        value = evaluate(*node.parts[node.parts.size() - from_end], own);
      }
      own.names.insert_or_assign(name, std::move(value));
    }
    for (const auto& [name, value] : arguments.named) {
      if (std::find(node.names.begin(), node.names.end(), name) != node.names.end()) continue;
      if (name != "caller") refuse(fmt::format("{} has no argument {}", quoted(function.name), quoted(name)));
      own.names.insert_or_assign(name, value);
    }
    Text out;
    (void)execute(*node.parts[body], own, out);
    engine_.budget.spend(64);
    return Value(std::move(out));
  }

  /// A chain of filters; the first of those that have no input gets `input`.
  Value filter(const Node& node, const Value& input, Scope& scope) {
    const Level level(engine_);
    const Node* const before = node.parts[0].get();
    const Value value = before == nullptr              ? input
                        : before->kind == Kind::filter ? filter(*before, input, scope)
                                                       : evaluate(*before, scope);
    const Arguments arguments = arguments_of(node, 1, scope);
    line_ = node.line;
    return apply_filter(node.text, value, arguments, engine_);
  }

  Value test(const Node& node, Scope& scope) {
    const Value value = evaluate(*node.parts[0], scope);
    const Arguments arguments = arguments_of(node, 1, scope);
    line_ = node.line;
    return Value(apply_test(node.text, value, arguments.values, engine_));
  }

  Value list(const Node& node, Scope& scope) {
    engine_.budget.spend(64 + 32 * node.parts.size());
    std::vector<Value> items;
    for (const NodePointer& part : node.parts) items.push_back(evaluate(*part, scope));
    return Value(std::move(items), node.kind == Kind::tuple);
  }

  Value dict(const Node& node, Scope& scope) {
    engine_.budget.spend(64 + 32 * node.parts.size());
    std::vector<std::pair<Value, Value>> items;
    for (std::size_t i = 0; i < node.parts.size(); i += 2) {
      Value key = evaluate(*node.parts[i], scope);
      Value value = evaluate(*node.parts[i + 1], scope);
      if (key.dict() != nullptr || (key.list() != nullptr && !(*key.get<ListPointer>())->tuple))
        refuse(fmt::format("a {} is no key of a dict", key.type()));
      const auto known = std::find_if(items.begin(), items.end(),
                                      [&](const auto& one) { return equal(one.first, key, engine_.budget); });
      if (known != items.end()) {
        known->second = std::move(value);
      } else {
        items.emplace_back(std::move(key), std::move(value));
      }
    }
    return Value(std::move(items));
  }

  Value compare(const Node& node, Scope& scope) {
    Value left = evaluate(*node.parts[0], scope);
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      Value right = evaluate(*node.parts[i + 1], scope);
      line_ = node.line;
      const std::string& sign = node.names[i];
      Budget& budget = engine_.budget;
      const bool holds = sign == "=="   ? equal(left, right, budget)
                         : sign == "!=" ? !equal(left, right, budget)
                         : sign == "<"  ? less(left, right, budget)
                         : sign == "<=" ? !less(right, left, budget)
                         : sign == ">"  ? less(right, left, budget)
                         : sign == ">=" ? !less(left, right, budget)
                         : sign == "in" ? contains(right, left, engine_)
                                        : !contains(right, left, engine_);
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  Value concat(const Node& node, Scope& scope) {
    Text all;
    for (const NodePointer& part : node.parts) {
      const Value value = evaluate(*part, scope);
      write(printed(value, engine_.budget), all);
    }
    engine_.budget.spend(64);
    return Value(std::move(all));
  }

  Value sign(const Node& node, Scope& scope) {
    const Value value = evaluate(*node.parts[0], scope);
    line_ = node.line;
    std::int64_t integer = 0;
    double real = 0;
    const bool negative = node.kind == Kind::negate;
    if (value.integer(&integer)) {
      if (negative && integer == std::numeric_limits<std::int64_t>::min()) overflow();
      return Value(negative ? -integer : integer);
    }
    if (!value.number(&real)) refuse(fmt::format("a sign stands before a {}", value.type()));
    return Value(negative ? -real : real);
  }

  [[noreturn]] static void overflow() { refuse("a result needs more than 64 bits"); }

  Value binary(const Node& node, Scope& scope) {
    const Value left = evaluate(*node.parts[0], scope);
    const Value right = evaluate(*node.parts[1], scope);
    line_ = node.line;
    const std::string& sign = node.text;
    std::int64_t i = 0;
    std::int64_t j = 0;
    if (left.integer(&i) && right.integer(&j)) return of_integers(sign, i, j);
    double x = 0;
    double y = 0;
    if (left.number(&x) && right.number(&y)) return of_reals(sign, x, y);
    if (sign == "+" && left.text() != nullptr && right.text() != nullptr) {
      engine_.budget.spend(64 + left.text()->bytes.size() + right.text()->bytes.size());
      Text all = *left.text();
      all.append(*right.text());
      return Value(std::move(all));
    }
    if (sign == "+" && left.list() != nullptr && right.list() != nullptr) {
      std::vector<Value> items = items_of(left, engine_);
      const std::vector<Value> more = items_of(right, engine_);
      items.insert(items.end(), more.begin(), more.end());
      return Value(std::move(items), (*left.get<ListPointer>())->tuple);
    }
    if (sign == "*" && right.integer(&j)) return repeated(left, j);
    if (sign == "*" && left.integer(&i)) return repeated(right, i);
    const auto* const undefined = left.is_undefined() ? left.get<Undefined>() : right.get<Undefined>();
    refuse(fmt::format(
        "{} of a {} and a {} is not supported{}", quoted(sign), left.type(), right.type(),
        undefined != nullptr && undefined->name ? fmt::format(": {}", quoted(*undefined->name)) : ""));
  }

  Value repeated(const Value& value, std::int64_t times) {
    const std::size_t size = value.text() != nullptr   ? value.text()->bytes.size()
                             : value.list() != nullptr ? 32 * value.list()->size()
                                                       : 0;
    if (value.text() == nullptr && value.list() == nullptr)
      refuse(fmt::format("'*' of a {} and an int is not supported", value.type()));
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
    std::size_t all = 0;
    if (__builtin_mul_overflow(size + 1, count, &all)) all = std::numeric_limits<std::size_t>::max();
    engine_.budget.spend(all);
    engine_.budget.spend(64);
    if (value.text() != nullptr) {
      Text text;
      for (std::size_t n = 0; n < count && size > 0; ++n) text.append(*value.text());
      return Value(std::move(text));
    }
    std::vector<Value> items;
    for (std::size_t n = 0; n < count && size > 0; ++n)
      items.insert(items.end(), value.list()->begin(), value.list()->end());
    return Value(std::move(items), (*value.get<ListPointer>())->tuple);
  }

  static Value of_integers(const std::string& sign, std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    bool fits = true;
    if (sign == "+") {
      fits = !__builtin_add_overflow(a, b, &result);
    } else if (sign == "-") {
      fits = !__builtin_sub_overflow(a, b, &result);
    } else if (sign == "*") {
      fits = !__builtin_mul_overflow(a, b, &result);
    } else if (sign == "**") {
      if (b < 0) return of_reals(sign, static_cast<double>(a), static_cast<double>(b));
      result = 1;
      // What has not become too large after 64 factors is 0, 1 or -1.
      const std::int64_t factors = b > 64 ? 64 + b % 2 : b;
      for (std::int64_t n = 0; n < factors && fits; ++n) fits = !__builtin_mul_overflow(result, a, &result);
    } else {
      if (b == 0) refuse("a division by 0");
      if (sign == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
      fits = !(b == -1 && a == std::numeric_limits<std::int64_t>::min());
      if (fits) {
        const std::int64_t remainder = a % b;
        const bool down = remainder != 0 && (remainder < 0) != (b < 0);
        result = sign == "//" ? a / b - (down ? 1 : 0) : remainder + (down ? b : 0);
      }
    }
    if (!fits) overflow();
    return Value(result);
  }

  static Value of_reals(const std::string& sign, double a, double b) {
    if (sign == "+") return Value(a + b);
    if (sign == "-") return Value(a - b);
    if (sign == "*") return Value(a * b);
    if (sign == "**") return Value(std::pow(a, b));
    if (b == 0) refuse("a division by 0");
    if (sign == "/") return Value(a / b);
    const double whole = std::floor(a / b);
    return sign == "//" ? Value(whole) : Value(a - whole * b);
  }

  Engine engine_;
  std::uint32_t line_ = 1;
  std::deque<Scope> scopes_;
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
};

}  // namespace

Text render(const Node& root, const std::vector<std::pair<std::string, Value>>& variables, std::size_t units,
            std::time_t now) {
  return Interpreter(units, now).run(root, variables);
}

}  // namespace headwater::runtime::jinja
