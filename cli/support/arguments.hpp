#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace headwater::cli {

/// Lets `app` read the arguments after a command's name. llama.cpp's `-ub` (two letters after one dash) is read as
/// `--ubatch-size`. False if help was asked for; it then stands on standard output. Failure on anything that the app
/// does not know, on what is missing, and on a wrong number of values. A flag given several times counts the last time.
[[nodiscard]] bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

/// Failure where `output` and the object of --json both want standard output.
void check_output_beside_json(const std::string& output, bool json);

}  // namespace headwater::cli
