#pragma once

#include <string>
#include <vector>

#include "cli/failure.hpp"

namespace headwater::cli {

/// Whether the arguments behind `atlas` name a model (-m).
[[nodiscard]] bool asks_for_model(const std::vector<std::string>& arguments);

/// `headwater atlas -m`: runs a text through a model, and shows which of its tokens survive in every layer and head.
[[nodiscard]] ExitCode atlas_model_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
