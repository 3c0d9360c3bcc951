#include "conformance/must_pass.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "conformance/embedded.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Whether the library has an engine that this machine cannot run.
bool of_another_machine(const std::string& name) {
  const auto all = engines();
  return std::any_of(all.begin(), all.end(), [&](const Engine* engine) {
    return engine->name() == name && !engine->unavailable_because().empty();
  });
}

// The cases of one line that one engine did not pass.
void judge_engine(const std::string& engine, const std::string& pattern, const std::vector<Result>& results,
                  const std::vector<const Case*>& chosen, std::vector<std::string>& missing) {
  for (const Case* test : chosen) {
    if (!matches(pattern, test->name) || test->per_engine == (engine == "none")) continue;
    const auto result = std::find_if(results.begin(), results.end(), [&](const Result& candidate) {
      return candidate.test == test && candidate.engine == (engine == "none" ? "" : engine);
    });
    if (result == results.end()) {
      missing.push_back(fmt::format("{} was not run on {}", test->name, engine));
    } else if (result->status == Status::skip) {
      missing.push_back(fmt::format("{} was skipped on {}: {}", test->name, engine, result->message));
    }
  }
}

}  // namespace

std::vector<std::string> missing_passes(const std::vector<Result>& results,
                                        const std::vector<const Case*>& chosen,
                                        const std::vector<std::string>& asked) {
  std::set<std::string> ran(asked.begin(), asked.end());
  for (const Result& result : results) {
    if (!result.engine.empty()) ran.insert(result.engine);
  }
  std::vector<std::string> missing;
  std::istringstream text(kMustPass);
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string engines;
    std::string pattern;
    if (!(words >> engines >> pattern)) {
      throw Error(ErrorCode::internal, "mustpass.txt: '" + line + "' is not ENGINE CASES");
    }
    const bool known = std::any_of(all_cases().begin(), all_cases().end(),
                                   [&](const Case& test) { return matches(pattern, test.name); });
    if (!known) missing.push_back(fmt::format("no case is called {}", pattern));
    const bool named = engines.find_first_of("*?[") == std::string::npos;
    if (named && (asked.empty() ? !of_another_machine(engines) : ran.count(engines) > 0)) {
      judge_engine(engines, pattern, results, chosen, missing);
    }
    for (const std::string& engine : ran) {
      if (!named && matches(engines, engine)) judge_engine(engine, pattern, results, chosen, missing);
    }
  }
  // Several lines may name the same case.
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

}  // namespace headwater::conformance
