#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tokenizer/jinja/syntax.hpp"
#include "runtime/tokenizer/jinja/value.hpp"

namespace headwater::runtime::jinja {

/// What the template writes with these variables. `units` bounds the work (Budget), `now` is what strftime_now reads.
/// Error(invalid_argument) with the line and what went wrong: an exception of the template's own, what is not
/// supported, a value of the wrong type, too much work.
[[nodiscard]] Text render(const Node& root, const std::vector<std::pair<std::string, Value>>& variables,
                          std::size_t units, std::time_t now);

}  // namespace headwater::runtime::jinja
