#pragma once

#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/runner.hpp"

namespace headwater::conformance {

/// One whole run of the kit, as every report shows it.
struct Run {
  Settings settings;
  std::vector<const Engine*> engines;
  std::vector<Result> results;
  std::vector<std::string> said;      ///< engines that were left out, and why
  std::vector<std::string> problems;  ///< what fails besides results: must-pass list, waivers
  std::string not_loaded;             ///< why a plug-in could not be tested at all; empty otherwise
  double seconds = 0.0;

  /// Whether anything failed.
  [[nodiscard]] bool failed() const;
};

/// The worst err/B of one stage and number format, and the case that showed it.
struct Worst {
  double err_over_bound = 0.0;
  std::string test;
};

/// "out F32" -> the worst of an engine's results. Empty where no case measured anything.
[[nodiscard]] std::map<std::string, Worst> worst_of(const Run& run, std::string_view engine);

/// One line per result that is not PASS, its reason and its reproduction command, then totals per engine and lane.
void write_table(std::ostream& to, const Run& run);

/// {"version", "seed", "verdict", "engines": [{"name", "claims", "worst", ...}], "problems", "totals",
/// "results": [{"case", "engine", "status", ...}]}, and "plugin" and "not_loaded" where there is such a thing.
[[nodiscard]] std::string results_json(const Run& run);

/// JUnit XML: one test suite per engine, and a suite "(run)" with a failure for each problem besides the cases.
[[nodiscard]] std::string results_junit(const Run& run);

/// Cases with clauses, stage, lane: for `--list` and the traceability lint.
[[nodiscard]] std::string list_json(const std::vector<const Case*>& cases);
void write_list(std::ostream& to, const std::vector<const Case*>& cases);

}  // namespace headwater::conformance
