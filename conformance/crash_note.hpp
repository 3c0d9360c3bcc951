#pragma once

#include <string>

namespace headwater::conformance {

/// Installs handlers of fatal signals that print what was running, in one line, before the process dies of the signal:
/// an engine that crashes leaves a reproduction command behind, too.
void install_crash_note();

/// What is running now; empty when nothing is.
void set_crash_note(const std::string& command);

}  // namespace headwater::conformance
