#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace headwater::cli {

/// Lets `app` read the arguments behind a command's name. llama.cpp's `-ub` (two letters behind one dash) is read as
/// `--ubatch-size`. False if help was asked for; it then stands on standard output. Failure on anything that the app
/// does not know, on what is missing, and on a wrong number of values. A flag given several times counts the last time.
[[nodiscard]] bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

/// The flag --quiet: no progress, and no summary of a result that is written elsewhere. Warnings and errors stay.
void add_quiet(CLI::App& app, bool& quiet);

/// Failure where `output` and the object of --json both want standard output.
void check_output_beside_json(const std::string& output, bool json);

}  // namespace headwater::cli
