#pragma once

#include <string>
#include <vector>

#include "failure.hpp"

namespace headwater::cli {

/// `headwater info`: the machine, the engines, and what this build has.
[[nodiscard]] ExitCode info_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
