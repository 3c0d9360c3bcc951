#pragma once

#include <string>
#include <vector>

#include "cli/failure.hpp"

namespace headwater::cli {

/// `headwater tokenize`: the tokens of a text, their ids and what each stands for. `arguments` are those behind the
/// command's name.
[[nodiscard]] ExitCode tokenize_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
