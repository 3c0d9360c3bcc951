#pragma once

#include <string>
#include <vector>

#include "failure.hpp"

namespace headwater::cli {

/// Path of the program headwater-conformance: beside this program, else on PATH; empty if it is nowhere.
[[nodiscard]] std::string find_conformance();

/// `headwater conform`: becomes headwater-conformance with the same arguments, and returns only by a Failure.
[[nodiscard]] ExitCode conform_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
