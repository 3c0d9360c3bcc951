#pragma once

#include <vector>

#include "conformance/case.hpp"
#include "conformance/command_line.hpp"

namespace headwater::conformance {

/// The cases that the filters of a request leave. Errors: headwater::Error when a filter matches nothing.
[[nodiscard]] std::vector<const Case*> chosen_cases(const Request& request);

/// The engines that a request runs: those named, those of this machine that match a shell pattern, or all that differ
/// here. Patterns in request.engines become names. `said` gets one line for every engine that cannot run, unless all are
/// named. Errors: headwater::Error engine_unavailable.
[[nodiscard]] std::vector<const Engine*> chosen_engines(Request& request, std::vector<std::string>& said);

}  // namespace headwater::conformance
