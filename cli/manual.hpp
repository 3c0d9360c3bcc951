#pragma once

#include <string>
#include <vector>

#include "failure.hpp"
#include "flag_table.hpp"

namespace headwater::cli {

/// `headwater man [COMMAND] [--write DIR]`: the manual page of a command or of the program, or all of them as files.
[[nodiscard]] ExitCode manual_command(const std::vector<std::string>& arguments,
                                      const std::vector<CommandLine>& commands);

}  // namespace headwater::cli
