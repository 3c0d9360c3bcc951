#pragma once

#include <string>
#include <vector>

#include "cli/support/failure.hpp"
#include "cli/support/flag_table.hpp"

// The commands of the program: each takes the arguments after its name, and main() turns what it throws into one line and
// an exit status.

namespace headwater::cli {

using Arguments = std::vector<std::string>;

/// One HTML page, and a picture where asked for, of what an attention run read, or with -m a run of a model.
[[nodiscard]] ExitCode atlas_command(const Arguments& arguments);
/// Attention alone on dumped tensors.
[[nodiscard]] ExitCode attend_command(const Arguments& arguments);
/// Sparse against dense attention, or with -m or --random a whole model; refused where the build has no benchmarks.
[[nodiscard]] ExitCode bench_command(const Arguments& arguments);
/// The completion of a shell for all these commands.
[[nodiscard]] ExitCode completion_command(const Arguments& arguments,
                                          const std::vector<CommandLine>& commands);
/// Becomes headwater-conformance with the same arguments, and returns only by a Failure.
[[nodiscard]] ExitCode conform_command(const Arguments& arguments);
/// Continues a prompt with a model.
[[nodiscard]] ExitCode generate_command(const Arguments& arguments);
/// The machine, the engines, and what this build has.
[[nodiscard]] ExitCode info_command(const Arguments& arguments);
/// The manual page of a command or of the program, or all of them as files.
[[nodiscard]] ExitCode manual_command(const Arguments& arguments, const std::vector<CommandLine>& commands);
/// How well a model predicts a text after dense and after sparse prefill.
[[nodiscard]] ExitCode perplexity_command(const Arguments& arguments);
/// How often a model finds a code again that was planted in a long text: after dense prefill and after sparse prefill.
[[nodiscard]] ExitCode retrieval_command(const Arguments& arguments);
/// Serves a model over HTTP, until a signal ends it.
[[nodiscard]] ExitCode serve_command(const Arguments& arguments);
/// The tokens of a text: their ids and what each stands for.
[[nodiscard]] ExitCode tokenize_command(const Arguments& arguments);

/// Path of the program headwater-conformance: beside this program, else on PATH; empty if it is nowhere.
[[nodiscard]] std::string find_conformance();

}  // namespace headwater::cli
