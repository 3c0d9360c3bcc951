#pragma once

#include <iosfwd>

namespace headwater::conformance {

/// Proves that the kit can fail: wraps engines in faults, each of which its lane must find. False, with a line for
/// each, if one survives.
[[nodiscard]] bool run_self_test(std::ostream& to);

}  // namespace headwater::conformance
