#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "conformance/runner.hpp"

namespace headwater::conformance {

/// One line per result that is not PASS, its reason and its reproduction command, then totals per engine and lane.
void write_table(std::ostream& to, const std::vector<Result>& results, double seconds);

/// {"version", "seed", "totals", "results": [{"case", "engine", "status", ...}]}
[[nodiscard]] std::string results_json(const std::vector<Result>& results, const Settings& settings);

/// JUnit XML: one test suite per engine.
[[nodiscard]] std::string results_junit(const std::vector<Result>& results);

/// Cases with clauses, stage, lane: for `--list` and the traceability lint.
[[nodiscard]] std::string list_json(const std::vector<const Case*>& cases);
void write_list(std::ostream& to, const std::vector<const Case*>& cases);

/// Writes `text` to a file by way of a temporary one, or to standard output for "-". Errors: headwater::Error.
void write_text(const std::string& path, const std::string& text);

}  // namespace headwater::conformance
