#pragma once

#include <memory>
#include <string>

#include "conformance/plugin_library.hpp"
#include "conformance/runner.hpp"

namespace headwater::conformance {

/// Loads a plug-in in a process of its own and returns who it says it is. Errors: headwater::Error invalid_argument in
/// one line where it cannot be loaded (PluginLibrary), or crashes, hangs or exits on the way.
[[nodiscard]] PluginIdentity inspect_plugin(const std::string& path, double time_limit);

/// An engine that can be named but not opened: what the parent of the isolated cases knows of a plug-in.
[[nodiscard]] std::unique_ptr<Engine> described_engine(PluginIdentity identity);

/// Runs one case on the plug-in `settings.plugin` in a process of its own, which loads it anew: whatever the plug-in does
/// becomes a Result, and the next case starts from a clean process. `described` is its described_engine().
[[nodiscard]] Result run_isolated_case(const Case& test, const Engine& described, const Settings& settings);

}  // namespace headwater::conformance
