#include "conformance/report.hpp"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "headwater/error.hpp"
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

std::map<Status, int> totals_of(const std::vector<Result>& results) {
  std::map<Status, int> totals{
      {Status::pass, 0}, {Status::fail, 0}, {Status::skip, 0}, {Status::mistrusted, 0}};
  for (const Result& result : results) ++totals[result.status];
  return totals;
}

nlohmann::json case_json(const Case& test) {
  return {{"name", test.name},
          {"clauses", test.clauses},
          {"stage", test.stage},
          {"lane", lane_name(test.lane)},
          {"per_engine", test.per_engine}};
}

}  // namespace

void write_table(std::ostream& to, const std::vector<Result>& results, double seconds) {
  for (const Result& result : results) {
    if (result.status == Status::pass) continue;
    fmt::print(to, "{:<10} {:<14} {}\n           {}\n", status_name(result.status), engine_or_stage(result),
               result.test->name, result.message);
    if (result.status != Status::skip) fmt::print(to, "           {}\n", result.reproduce);
  }
  std::map<std::string, std::map<Lane, std::map<Status, int>>> table;
  for (const Result& result : results) ++table[engine_or_stage(result)][result.test->lane][result.status];
  fmt::print(to, "{:<14} {:<12} {:>5} {:>5} {:>5} {:>11}\n", "engine", "lane", "PASS", "FAIL", "SKIP",
             "MISTRUSTED");
  for (auto& [engine, lanes] : table) {
    for (auto& [lane, counts] : lanes) {
      fmt::print(to, "{:<14} {:<12} {:>5} {:>5} {:>5} {:>11}\n", engine, lane_name(lane),
                 counts[Status::pass], counts[Status::fail], counts[Status::skip],
                 counts[Status::mistrusted]);
    }
  }
  auto totals = totals_of(results);
  fmt::print(to, "{} cases: {} PASS, {} FAIL, {} SKIP, {} MISTRUSTED in {:.1f} s\n", results.size(),
             totals[Status::pass], totals[Status::fail], totals[Status::skip], totals[Status::mistrusted],
             seconds);
}

std::string results_json(const std::vector<Result>& results, const Settings& settings) {
  nlohmann::json all = nlohmann::json::array();
  for (const Result& result : results) {
    nlohmann::json marks = nlohmann::json::array();
    for (const Mark& mark : result.marks) {
      marks.push_back({{"stage", mark.stage}, {"dtype", mark.dtype}, {"err_over_bound", mark.ratio}});
    }
    nlohmann::json entry = case_json(*result.test);
    entry["case"] = result.test->name;
    entry.erase("name");
    entry["engine"] = result.engine;
    entry["status"] = status_name(result.status);
    entry["message"] = result.message;
    entry["reproduce"] = result.reproduce;
    entry["seconds"] = result.seconds;
    entry["marks"] = marks;
    all.push_back(entry);
  }
  nlohmann::json totals;
  for (const auto& [status, count] : totals_of(results)) totals[status_name(status)] = count;
  return nlohmann::json{{"version", kVersion}, {"seed", settings.seed}, {"totals", totals}, {"results", all}}
             .dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string results_junit(const std::vector<Result>& results) {
  std::map<std::string, std::vector<const Result*>> suites;
  for (const Result& result : results) suites[engine_or_stage(result)].push_back(&result);
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  for (const auto& [engine, members] : suites) {
    int failures = 0;
    int skips = 0;
    for (const Result* result : members) {
      failures += result->status == Status::fail || result->status == Status::mistrusted;
      skips += result->status == Status::skip;
    }
    text += fmt::format("<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n", xml(engine),
                        members.size(), failures, skips);
    for (const Result* result : members) {
      text += fmt::format("<testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\">", xml(engine),
                          xml(result->test->name), result->seconds);
      if (result->status == Status::skip) {
        text += fmt::format("<skipped message=\"{}\"/>", xml(result->message));
      } else if (result->status != Status::pass) {
        text += fmt::format("<failure type=\"{}\" message=\"{}\">{}</failure>", status_name(result->status),
                            xml(result->message), xml(result->reproduce));
      }
      text += "</testcase>\n";
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

void write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text << std::flush;
    if (!std::cout) throw Error(ErrorCode::invalid_argument, "standard output cannot be written");
    return;
  }
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw Error(ErrorCode::invalid_argument,
                path + ": cannot be written; allowed: a file in a writable folder");
  }
}

}  // namespace headwater::conformance
