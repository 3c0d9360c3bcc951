#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace headwater::cli {

/// Lets `app` read the arguments behind a command's name. llama.cpp's `-ub` (two letters behind one dash) is read as
/// `--ubatch-size`. False if help was asked for; it then stands on standard output. Failure on anything that the app
/// does not know, on what is missing, and on a flag given twice.
[[nodiscard]] bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace headwater::cli
