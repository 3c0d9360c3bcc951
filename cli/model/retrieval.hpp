#pragma once

#include <string>
#include <vector>

#include "cli/failure.hpp"

namespace headwater::cli {

/// `headwater retrieval`: how often a model finds a code again that was planted in a long text, behind dense prefill,
/// sparse prefill, and sparse prefill with a dense tail. `arguments` are those behind the command's name.
[[nodiscard]] ExitCode retrieval_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
