#pragma once

#include "cli/commands/generate/flags.hpp"
#include "cli/support/failure.hpp"

namespace headwater::cli {

/// `headwater generate --requests FILE`: answers every prompt of a file, several at a time. A line that
/// cannot be answered gets an answer with "error" and does not hinder the others; then Failure at the end, or at once where
/// there is no other line.
[[nodiscard]] ExitCode answer_requests(const GenerateFlags& flags);

}  // namespace headwater::cli
