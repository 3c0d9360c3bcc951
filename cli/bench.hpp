#pragma once

#include <string>
#include <vector>

#include "failure.hpp"

namespace headwater::cli {

/// Path of the program headwater-bench: beside this program, else on PATH; empty if it is nowhere.
[[nodiscard]] std::string find_bench();

/// `headwater bench`: becomes headwater-bench with the same arguments, and returns only by a Failure. A program of its
/// own, because it sees the oracle and the instruction sets of this machine.
[[nodiscard]] ExitCode bench_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
