#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/tokenizer/jinja/value.hpp"

namespace headwater::runtime::jinja {

struct Node;
using NodePointer = std::unique_ptr<const Node>;

/// Of statements and expressions. What `parts` holds in which order stands beside each kind; a part that is not there is
/// null.
struct Node {
  enum class Kind : std::uint8_t {
    // statements
    block,     ///< statements
    output,    ///< of the value of part 0
    branch,    ///< condition, block, condition, block, ..., [block of else]
    loop,      ///< target, what it goes over, condition, block, block of else
    assign,    ///< target, value
    capture,   ///< target, block, filter: {% set x %}...{% endset %}
    macro,     ///< block, then default values of the last parameters; `names` are the parameters
    call,      ///< call, block: {% call f() %}...{% endcall %}
    filtered,  ///< filter, block
    with,      ///< block, then values of `names`
    leave,     ///< break
    next,      ///< continue
    // expressions
    constant,   ///< `value`
    name,       ///< `text`
    member,     ///< object; `text` is the name: a.b
    item,       ///< object, index
    slice,      ///< object, begin, end, step
    call_of,    ///< what is called, arguments; the last ones have `names`
    filter,     ///< input, arguments; `text` is its name, the last arguments have `names`
    test,       ///< input, arguments; `text` is its name
    list,       ///< items
    tuple,      ///< items; as a target: names
    dict,       ///< key, value, key, value, ...
    condition,  ///< value, condition, [other value]
    logical_or,
    logical_and,
    logical_not,
    compare,  ///< operands; `names` are the operators between them
    concat,   ///< operands of ~
    binary,   ///< operands; `text` is the operator
    negate,
    plus,
  };

  Kind kind;
  std::uint32_t line = 1;
  std::string text = {};
  std::vector<std::string> names = {};
  std::vector<NodePointer> parts = {};
  Value value = {};
  int depth = 1;  ///< of the tree below; bounded, so that recursion over it is
};

/// The longest template that is read; the longest published one has some 30 KiB.
inline constexpr std::size_t kLongestTemplate = std::size_t{1} << 20U;

/// A template in the dialect of transformers: Jinja with trim_blocks, lstrip_blocks, break and continue, and
/// {% generation %}. Error(invalid_argument) that names line, what is wrong or not supported.
[[nodiscard]] NodePointer parse(std::string_view source);

}  // namespace headwater::runtime::jinja
