#pragma once

#include <string>
#include <vector>

#include "failure.hpp"

namespace headwater::cli {

/// `headwater attend`: attention alone on dumped tensors. `arguments` are those behind the command's name.
[[nodiscard]] ExitCode attend_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
