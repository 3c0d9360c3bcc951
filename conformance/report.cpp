#include "conformance/report.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/support/text.hpp"
#include "conformance/claims.hpp"
#include "conformance/worse.hpp"
#include "headwater/version.hpp"

namespace headwater::conformance {
namespace {

const char* engine_or_stage(const Result& result) {
  return result.engine.empty() ? "(stage)" : result.engine.c_str();
}

std::string xml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

// Every line of what a plug-in wrote, indented.
std::string indented(const std::string& output) {
  std::string text = "           it wrote: ";
  for (const char c : output) text += c == '\n' ? std::string("\n                     ") : std::string(1, c);
  return text;
}

std::map<Status, int> totals_of(const std::vector<Result>& results) {
  std::map<Status, int> totals{
      {Status::pass, 0}, {Status::fail, 0}, {Status::skip, 0}, {Status::mistrusted, 0}, {Status::waived, 0}};
  for (const Result& result : results) ++totals[result.status];
  return totals;
}

nlohmann::json engine_json(const Run& run, const Engine& engine) {
  const Claims made = engine.claims();
  nlohmann::json claims = nlohmann::json::object();
  for (const ClaimInfo& claim : kClaims) claims[claim.name] = made.*claim.member;
  nlohmann::json worst = nlohmann::json::object();
  for (const auto& [key, entry] : worst_of(run, engine.name())) {
    worst[key] = {{"err_over_bound", entry.err_over_bound}, {"case", entry.test}};
  }
  return {{"name", engine.name()},
          {"isa", engine.isa()},
          {"description", engine.description()},
          {"claims", claims},
          {"worst", worst}};
}

nlohmann::json case_json(const Case& test) {
  return {{"name", test.name},
          {"clauses", test.clauses},
          {"stage", test.stage},
          {"lane", lane_name(test.lane)},
          {"per_engine", test.per_engine}};
}

}  // namespace

bool Run::failed() const {
  return !problems.empty() || !not_loaded.empty() ||
         std::any_of(results.begin(), results.end(),
                     [](const Result& result) { return is_failure(result.status); });
}

std::map<std::string, Worst> worst_of(const Run& run, std::string_view engine) {
  std::map<std::string, Worst> worst;
  for (const Result& result : run.results) {
    if (result.engine != engine) continue;
    for (const StageError& error : result.errors) {
      Worst& entry = worst[error.stage + " " + error.dtype];
      if (entry.test.empty() || worse(error.ratio, entry.err_over_bound))
        entry = {error.ratio, result.test->name};
    }
  }
  return worst;
}

void write_table(std::ostream& to, const Run& run) {
  for (const std::string& line : run.said) fmt::print(to, "{}\n", line);
  for (const Result& result : run.results) {
    if (result.status == Status::pass) continue;
    fmt::print(to, "{:<10} {:<14} {}\n           {}\n", status_name(result.status), engine_or_stage(result),
               result.test->name, result.message);
    if (!result.waiver.empty()) fmt::print(to, "           waived: {}\n", result.waiver);
    if (!result.output.empty()) fmt::print(to, "{}\n", indented(result.output));
    if (result.status != Status::skip) fmt::print(to, "           {}\n", result.reproduce);
  }
  std::map<std::string, std::map<Lane, std::map<Status, int>>> table;
  for (const Result& result : run.results) ++table[engine_or_stage(result)][result.test->lane][result.status];
  fmt::print(to, "{:<14} {:<12} {:>5} {:>5} {:>5} {:>11} {:>6}\n", "engine", "lane", "PASS", "FAIL", "SKIP",
             "MISTRUSTED", "WAIVED");
  for (auto& [engine, lanes] : table) {
    for (auto& [lane, counts] : lanes) {
      fmt::print(to, "{:<14} {:<12} {:>5} {:>5} {:>5} {:>11} {:>6}\n", engine, lane_name(lane),
                 counts[Status::pass], counts[Status::fail], counts[Status::skip], counts[Status::mistrusted],
                 counts[Status::waived]);
    }
  }
  auto totals = totals_of(run.results);
  fmt::print(to, "{}: {} PASS, {} FAIL, {} SKIP, {} MISTRUSTED, {} WAIVED in {:.1f} s\n",
             cli::count_text(run.results.size(), "case"), totals[Status::pass], totals[Status::fail],
             totals[Status::skip], totals[Status::mistrusted], totals[Status::waived], run.seconds);
  for (const std::string& line : run.problems) fmt::print(to, "FAIL       {}\n", line);
}

std::string results_json(const Run& run) {
  nlohmann::json all = nlohmann::json::array();
  for (const Result& result : run.results) {
    nlohmann::json errors = nlohmann::json::array();
    for (const StageError& error : result.errors) {
      errors.push_back({{"stage", error.stage}, {"dtype", error.dtype}, {"err_over_bound", error.ratio}});
    }
    nlohmann::json entry = case_json(*result.test);
    entry["case"] = result.test->name;
    entry.erase("name");
    entry["engine"] = result.engine;
    entry["status"] = status_name(result.status);
    entry["message"] = result.message;
    entry["reproduce"] = result.reproduce;
    entry["seconds"] = result.seconds;
    entry["marks"] = errors;
    if (!result.waiver.empty()) entry["waiver"] = result.waiver;
    if (!result.output.empty()) entry["output"] = result.output;
    all.push_back(entry);
  }
  nlohmann::json engines = nlohmann::json::array();
  for (const Engine* engine : run.engines) engines.push_back(engine_json(run, *engine));
  nlohmann::json totals;
  for (const auto& [status, count] : totals_of(run.results)) totals[status_name(status)] = count;
  nlohmann::json document{{"version", kVersion},
                          {"seed", run.settings.seed},
                          {"verdict", run.failed() ? "FAIL" : "PASS"},
                          {"seconds", run.seconds},
                          {"engines", engines},
                          {"problems", run.problems},
                          {"totals", totals},
                          {"results", all}};
  if (!run.settings.plugin.empty()) document["plugin"] = run.settings.plugin;
  if (!run.not_loaded.empty()) document["not_loaded"] = run.not_loaded;
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string results_junit(const Run& run) {
  std::map<std::string, std::vector<const Result*>> suites;
  for (const Result& result : run.results) suites[engine_or_stage(result)].push_back(&result);
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  for (const auto& [engine, members] : suites) {
    int failures = 0;
    int skips = 0;
    for (const Result* result : members) {
      failures += is_failure(result->status);
      skips += result->status == Status::skip || result->status == Status::waived;
    }
    text += fmt::format("<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n", xml(engine),
                        members.size(), failures, skips);
    for (const Result* result : members) {
      text += fmt::format("<testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\">", xml(engine),
                          xml(result->test->name), result->seconds);
      if (result->status == Status::skip || result->status == Status::waived) {
        const std::string& why = result->waiver.empty() ? result->message : result->waiver;
        text += fmt::format("<skipped message=\"{}\"/>", xml(why));
      } else if (result->status != Status::pass) {
        text += fmt::format("<failure type=\"{}\" message=\"{}\">{}</failure>", status_name(result->status),
                            xml(result->message), xml(result->reproduce));
      }
      text += "</testcase>\n";
    }
    text += "</testsuite>\n";
  }
  std::vector<std::string> problems = run.problems;
  if (!run.not_loaded.empty()) problems.push_back(run.not_loaded);
  if (!problems.empty()) {
    text += fmt::format("<testsuite name=\"(run)\" tests=\"{0}\" failures=\"{0}\" skipped=\"0\">\n",
                        problems.size());
    for (const std::string& problem : problems) {
      text += fmt::format(
          "<testcase classname=\"(run)\" name=\"besides the cases\"><failure type=\"FAIL\" "
          "message=\"{}\"/></testcase>\n",
          xml(problem));
    }
    text += "</testsuite>\n";
  }
  return text + "</testsuites>\n";
}

std::string list_json(const std::vector<const Case*>& cases) {
  nlohmann::json list = nlohmann::json::array();
  for (const Case* test : cases) list.push_back(case_json(*test));
  return nlohmann::json{{"cases", list}}.dump(1) + "\n";
}

void write_list(std::ostream& to, const std::vector<const Case*>& cases) {
  for (const Case* test : cases) {
    fmt::print(to, "{:<40} {:<12} {:<12} {}\n", test->name, lane_name(test->lane), test->stage,
               fmt::join(test->clauses, " "));
  }
}

}  // namespace headwater::conformance
