#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace headwater::cli {

/// As the last argument of any command, of this program or of its companions: the command's flags as one JSON object, for
/// completion and manual.
inline constexpr const char* kFlagTable = "--flag-table";

/// A command as its --help has it: name, description, footer, flags, positionals, and commands of its own.
[[nodiscard]] nlohmann::ordered_json flag_table(const CLI::App& app);

struct Flag {
  std::vector<std::string> names;  ///< "-o", "--output"; of a positional its one name
  std::string value;               ///< what its value is called; empty: takes none
  std::string help;
  bool positional = false;
};

/// One way to call a command: `atlas` and `bench` have another one with -m.
struct CommandForm {
  std::string name;  ///< "headwater atlas"
  std::string description;
  std::string footer;
  std::vector<Flag> flags;
};

/// A command of the program, for the lists of main().
struct CommandLine {
  std::string name;
  std::string help;
};

/// The forms of a command, asked of this program itself; none where its companion is not installed.
[[nodiscard]] std::vector<CommandForm> command_forms(const std::string& command);

}  // namespace headwater::cli
