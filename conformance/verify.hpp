#pragma once

#include "conformance/command_line.hpp"

namespace headwater::conformance {

/// `verify`: checks an output file of `headwater attend` against the oracle. Returns the exit status.
[[nodiscard]] int run_verify(const Request& request);

}  // namespace headwater::conformance
