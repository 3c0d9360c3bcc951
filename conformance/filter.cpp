#include "conformance/filter.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <utility>

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

std::vector<const Engine*> chosen_engines(Request& request, std::vector<std::string>& said) {
  if (contains(request.engines, "none")) return {};
  std::vector<const Engine*> all;
  for (const Engine* candidate : engines()) {
    const std::string reason = candidate->unavailable_because();
    if (!reason.empty()) {
      said.push_back(fmt::format("SKIP       engine {}: {}", candidate->name(), reason));
      continue;
    }
    const auto twin = std::find_if(all.begin(), all.end(),
                                   [&](const Engine* other) { return other->isa() == candidate->isa(); });
    if (twin != all.end()) {
      said.push_back(
          fmt::format("SKIP       engine {}: the same kernels as {} on this machine; run it with --engine {}",
                      candidate->name(), (*twin)->name(), candidate->name()));
      continue;
    }
    all.push_back(candidate);
  }
  if (request.engines.empty()) return all;

  std::vector<const Engine*> chosen;
  bool patterns = false;
  for (const std::string& name : std::exchange(request.engines, {})) {
    const std::size_t before = chosen.size();
    if (name.find_first_of("*?[") == std::string::npos) {
      chosen.push_back(&cli::chosen_engine(name));
    } else {
      patterns = true;
      std::copy_if(all.begin(), all.end(), std::back_inserter(chosen), [&](const Engine* engine) {
        return ::fnmatch(name.c_str(), std::string(engine->name()).c_str(), 0) == 0;
      });
    }
    if (chosen.size() == before) {
      throw Error(ErrorCode::engine_unavailable,
                  fmt::format("--engine {}: no engine of this machine matches", name));
    }
  }
  for (const Engine* engine : chosen) request.engines.emplace_back(engine->name());
  if (!patterns) said.clear();
  return chosen;
}

}  // namespace headwater::conformance
