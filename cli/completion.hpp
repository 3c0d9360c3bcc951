#pragma once

#include <string>
#include <vector>

#include "failure.hpp"
#include "flag_table.hpp"

namespace headwater::cli {

/// `headwater completion SHELL`: the completion of a shell, for all these commands, on standard output.
[[nodiscard]] ExitCode completion_command(const std::vector<std::string>& arguments,
                                          const std::vector<CommandLine>& commands);

}  // namespace headwater::cli
