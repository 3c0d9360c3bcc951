#include "conformance/filter.hpp"

#include <fnmatch.h>

#include <algorithm>

#include <fmt/format.h>

#include "cli/support/chosen_engine.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

bool any_matches(const std::vector<std::string>& patterns, const std::string& text) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
  });
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

}  // namespace

std::vector<const Case*> chosen_cases(const Request& request) {
  std::vector<const Case*> chosen;
  const auto wants_clause = [&](const Case& test) {
    return std::any_of(test.clauses.begin(), test.clauses.end(),
                       [&](const std::string& clause) { return contains(request.clauses, clause); });
  };
  for (const Case& test : all_cases()) {
    if (!request.cases.empty() && !any_matches(request.cases, test.name)) continue;
    if (!request.clauses.empty() && !wants_clause(test)) continue;
    if (!request.stages.empty() && !contains(request.stages, test.stage)) continue;
    if (!request.lanes.empty() && !contains(request.lanes, lane_name(test.lane))) continue;
    chosen.push_back(&test);
  }
  if (chosen.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "no case matches these --case, --clause, --stage and --lane; --list shows all");
  }
  return chosen;
}

std::vector<const Engine*> chosen_engines(const Request& request, std::vector<std::string>& said) {
  std::vector<const Engine*> chosen;
  if (contains(request.engines, "none")) return chosen;
  if (!request.engines.empty()) {
    for (const std::string& name : request.engines) chosen.push_back(&cli::chosen_engine(name));
    return chosen;
  }
  for (const Engine* candidate : engines()) {
    const std::string reason = candidate->unavailable_because();
    if (!reason.empty()) {
      said.push_back(fmt::format("SKIP       engine {}: {}", candidate->name(), reason));
      continue;
    }
    const auto twin = std::find_if(chosen.begin(), chosen.end(),
                                   [&](const Engine* other) { return other->isa() == candidate->isa(); });
    if (twin != chosen.end()) {
      said.push_back(
          fmt::format("SKIP       engine {}: the same kernels as {} on this machine; run it with --engine {}",
                      candidate->name(), (*twin)->name(), candidate->name()));
      continue;
    }
    chosen.push_back(candidate);
  }
  return chosen;
}

}  // namespace headwater::conformance
