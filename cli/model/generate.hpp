#pragma once

#include <string>
#include <vector>

#include "cli/failure.hpp"

namespace headwater::cli {

/// `headwater generate`: continues a prompt with a model. `arguments` are those behind the command's name.
[[nodiscard]] ExitCode generate_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
