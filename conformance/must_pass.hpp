#pragma once

#include <string>
#include <vector>

#include "conformance/runner.hpp"

namespace headwater::conformance {

/// Holds results against conformance/mustpass.txt. Only lines of which a case was chosen count, so that a run of some
/// lanes is held to those; `asked` are the engines that were asked for by name, if any were, and then only lines about
/// those. One line for each thing that is missing; empty: nothing is.
[[nodiscard]] std::vector<std::string> missing_passes(const std::vector<Result>& results,
                                                      const std::vector<const Case*>& chosen,
                                                      const std::vector<std::string>& asked = {});

}  // namespace headwater::conformance
