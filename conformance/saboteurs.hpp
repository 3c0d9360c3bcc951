#pragma once

#include <iosfwd>

#include "conformance/command_line.hpp"

namespace headwater::conformance {

/// Activates every fault of saboteurs.json, one at a time, and runs the cases that must kill it; runs the case that must
/// reach every hook. False, with a line for each, if a fault survives or is never reached, if a hook is not reached,
/// and if the list and the places compiled in differ. In the test build only; --case filters the names of the faults.
[[nodiscard]] bool run_saboteurs(std::ostream& to, const Request& request);

}  // namespace headwater::conformance
