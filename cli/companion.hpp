#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "failure.hpp"

namespace headwater::cli {

/// Path of a program that comes with this one: beside it, else on PATH; empty if it is nowhere.
[[nodiscard]] std::string find_companion(std::string_view program);

/// Becomes that program with the same arguments, and returns only by a Failure, which names the build option that it is
/// built with.
[[nodiscard]] ExitCode become_companion(std::string_view program, std::string_view build_option,
                                        const std::vector<std::string>& arguments);

}  // namespace headwater::cli
