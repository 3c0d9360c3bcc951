#pragma once

#include <string>

#include "headwater/engine.hpp"

namespace headwater::cli {

/// The engine that a flag names; where it names none, the one of HEADWATER_ENGINE, or the default. Failure for a name that
/// no engine of the project has: bad usage. Failure or headwater::Error for one that this build or this machine lacks:
/// no_engine.
[[nodiscard]] const Engine& chosen_engine(const std::string& name);

}  // namespace headwater::cli
