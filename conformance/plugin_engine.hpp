#pragma once

#include <memory>

#include "conformance/plugin_library.hpp"
#include "headwater/engine.hpp"

namespace headwater::conformance {

/// The engine of a loaded plug-in. Every structure that is handed to it lies between canaries, inputs are compared
/// afterwards, what it returns is checked before it is used; what headwater/plugin.h does not allow is a Violation. What
/// C cannot say (sizes of vectors, exceptions from an observer) is checked here, so no case has to be left out.
/// Memory that this adapter takes for itself is not counted as the engine's (AllocationPause). `library` must outlive it.
[[nodiscard]] std::unique_ptr<Engine> plugin_engine(const PluginLibrary& library);

}  // namespace headwater::conformance
