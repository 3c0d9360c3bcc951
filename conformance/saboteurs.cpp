#include "conformance/saboteurs.hpp"

#ifdef HEADWATER_TESTING

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <nlohmann/json.hpp>

#include "conformance/embedded.hpp"
#include "headwater/engine.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::conformance {
namespace {

// An entry of saboteurs.json: a fault and the case that must fail, or a hook and the case that must reach it. Faults
// that name a program are tested by saboteurs_outside.py.
struct Entry {
  std::string name;
  std::string engine;  // "none": a stage case
  std::string test;
  std::string why;
  bool outside = false;
};

std::vector<Entry> entries_of(const nlohmann::json& list) {
  std::vector<Entry> entries;
  for (const nlohmann::json& item : list) {
    const bool outside = item.contains("program");
    entries.push_back({item.at("name").get<std::string>(),
                       outside ? "" : item.at("engine").get<std::string>(),
                       item.at("case").get<std::string>(), item.at("why").get<std::string>(), outside});
  }
  return entries;
}

std::map<std::string, testing::Site*> compiled_in() {
  std::map<std::string, testing::Site*> sites;
  for (testing::Site* site = testing::Site::first(); site != nullptr; site = site->next()) {
    sites.emplace(site->name(), site);
  }
  return sites;
}

// Switched on for one run of a case.
class Activation {
 public:
  Activation(testing::Site& site, bool on) : site_(site) {
    site_.clear();
    site_.activate(on);
  }
  ~Activation() { site_.activate(false); }
  Activation(const Activation&) = delete;
  Activation& operator=(const Activation&) = delete;

 private:
  testing::Site& site_;
};

// Why this machine cannot run the engine of an entry, or nothing.
std::string skipped_because(const Entry& entry) {
  if (entry.engine == "none") return "";
  for (const Engine* engine : engines()) {
    if (engine->name() == entry.engine) return engine->unavailable_because();
  }
  return "";
}

// What went wrong with one entry, or nothing.
std::string judge(const Entry& entry, bool is_hook, const std::map<std::string, testing::Site*>& sites,
                  const Settings& settings, std::string& killed_by) {
  const auto site = sites.find(entry.name);
  if (site == sites.end()) return "is listed, but no such place is compiled in";
  const auto test = std::find_if(all_cases().begin(), all_cases().end(),
                                 [&](const Case& candidate) { return candidate.name == entry.test; });
  if (test == all_cases().end()) return fmt::format("names case {}, which does not exist", entry.test);
  const Engine* engine = entry.engine == "none" ? nullptr : &headwater::engine(entry.engine);
  if (test->per_engine != (engine != nullptr))
    return fmt::format("engine {} does not fit {}", entry.engine, entry.test);
  const Activation activation(*site->second, !is_hook);
  const Result result = run_case(*test, engine, settings);
  if (site->second->hits() == 0) return fmt::format("was never reached by {}", entry.test);
  if (is_hook) return result.status == Status::pass ? "" : fmt::format("{}: {}", entry.test, result.message);
  if (result.status != Status::fail)
    return fmt::format("SURVIVED {}: {}", entry.test, status_name(result.status));
  killed_by = result.message;
  return "";
}

}  // namespace

bool run_saboteurs(std::ostream& to, const Request& request) {
  const nlohmann::json json = nlohmann::json::parse(kSaboteursJson);
  const std::vector<Entry> faults = entries_of(json.at("saboteurs"));
  const std::vector<Entry> hooks = entries_of(json.at("hooks"));
  const std::map<std::string, testing::Site*> sites = compiled_in();
  const auto wanted = [&](const Entry& entry) {
    return request.cases.empty() ||
           std::any_of(request.cases.begin(), request.cases.end(), [&](const auto& pattern) {
             return ::fnmatch(pattern.c_str(), entry.name.c_str(), 0) == 0;
           });
  };

  std::set<std::string> listed;
  std::size_t judged = 0;
  std::size_t skipped = 0;
  bool fine = true;
  for (const bool is_hook : {false, true}) {
    for (const Entry& entry : is_hook ? hooks : faults) {
      listed.insert(entry.name);
      if (entry.outside || !wanted(entry)) continue;
      if (const std::string reason = skipped_because(entry); !reason.empty()) {
        fmt::print(to, "SKIP       {:<36} {}: {}\n", entry.name, entry.engine, reason);
        ++skipped;
        continue;
      }
      ++judged;
      std::string killed_by;
      const std::string wrong = judge(entry, is_hook, sites, request.settings, killed_by);
      if (!wrong.empty()) {
        fmt::print(to, "FAIL       {} {}\n           {} --saboteurs --case {}\n", entry.name, wrong,
                   "headwater-conformance-testing", entry.name);
        fine = false;
      } else if (is_hook) {
        fmt::print(to, "REACHED    {:<36} by {}\n", entry.name, entry.test);
      } else {
        fmt::print(to, "KILLED     {:<36} by {}: {}\n", entry.name, entry.test, killed_by.substr(0, 120));
      }
    }
  }
  for (const auto& [name, site] : sites) {
    if (listed.count(name) > 0) continue;
    fmt::print(to, "FAIL       {} is compiled in, but not listed in conformance/saboteurs.json\n", name);
    fine = false;
  }
  fmt::print(to, "{} of {} faults and hooks judged: {}; {} skipped\n", judged, faults.size() + hooks.size(),
             fine ? "all killed or reached" : "FAILED", skipped);
  return fine && judged > 0;
}

}  // namespace headwater::conformance

#else

#include "headwater/error.hpp"

namespace headwater::conformance {

bool run_saboteurs(std::ostream&, const Request&) {
  throw Error(ErrorCode::invalid_argument,
              "--saboteurs: this build has no test hooks; use headwater-conformance-testing");
}

}  // namespace headwater::conformance

#endif
