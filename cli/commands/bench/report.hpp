#pragma once

#include <string>

#include "cli/commands/bench/comparison.hpp"
#include "cli/commands/bench/flags.hpp"

namespace headwater::bench {

/// One JSON object and a line feed.
[[nodiscard]] std::string json_text(const Flags& flags, const Comparison& comparison);
/// A few lines for a reader.
[[nodiscard]] std::string summary_text(const Flags& flags, const Comparison& comparison);

}  // namespace headwater::bench
