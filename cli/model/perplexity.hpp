#pragma once

#include <string>
#include <vector>

#include "cli/failure.hpp"

namespace headwater::cli {

/// `headwater perplexity`: how well a model predicts a text behind dense and behind sparse prefill. `arguments` are
/// those behind the command's name.
[[nodiscard]] ExitCode perplexity_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
