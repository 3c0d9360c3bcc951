#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conformance/runner.hpp"

namespace headwater::conformance {

/// A command line, parsed.
struct Request {
  enum class Action { run, list, clauses, self_test, saboteurs, verify };
  Action action = Action::run;
  std::vector<std::string> engines;  ///< "none": stage cases only
  std::vector<std::string> cases;    ///< shell patterns
  std::vector<std::string> clauses;
  std::vector<std::string> stages;
  std::vector<std::string> lanes;
  Settings settings;
  std::string json;  ///< file, "-" or empty
  std::string junit;
  std::string html;
  std::string report;          ///< folder for report.json and report.html
  std::string waivers;         ///< a waivers.json instead of the built-in one
  std::string update_ratchet;  ///< file to record baselines in
  bool no_ratchet = false;
  bool fail_fast = false;
  bool must_pass = false;
  std::string input;  ///< verify
  std::string output;
  std::string against;
};

/// The request of the arguments; nothing where they want help, which then was printed. cli::Failure on bad usage.
[[nodiscard]] std::optional<Request> parse_command_line(const std::vector<std::string>& arguments);

}  // namespace headwater::conformance
