#pragma once

#include <vector>

#include "conformance/case.hpp"
#include "conformance/command_line.hpp"

namespace headwater::conformance {

/// The cases that the filters of a request leave. Errors: headwater::Error when a filter matches nothing.
[[nodiscard]] std::vector<const Case*> chosen_cases(const Request& request);

/// The engines that a request runs: those named, or all that differ here. `said` gets one line for every engine left
/// out. Errors: headwater::Error engine_unavailable.
[[nodiscard]] std::vector<const Engine*> chosen_engines(const Request& request,
                                                        std::vector<std::string>& said);

}  // namespace headwater::conformance
