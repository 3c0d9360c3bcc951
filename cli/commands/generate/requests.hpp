#pragma once

#include "cli/commands/generate/flags.hpp"
#include "cli/support/failure.hpp"

namespace headwater::cli {

/// `headwater generate --requests FILE`: answers every prompt of a file, several at a time. Failure, before anything is
/// written, where a line of the file is no request that can be answered.
[[nodiscard]] ExitCode answer_requests(const GenerateFlags& flags);

}  // namespace headwater::cli
