#pragma once

#include <string>
#include <vector>

#include "failure.hpp"

namespace headwater::cli {

/// `headwater atlas`: one HTML page, and a picture where asked for, of what an attention run read. Both files appear
/// complete, or neither where anything before the last rename fails.
[[nodiscard]] ExitCode atlas_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
