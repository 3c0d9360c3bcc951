#include "conformance/html_report.hpp"

#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "conformance/claims.hpp"
#include "conformance/worse.hpp"
#include "headwater/version.hpp"

namespace headwater::conformance {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --line: #8886; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--dim); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; margin: 0; }
.s { font-weight: 600; padding: .05rem .45rem; border-radius: .3rem; color: #fff; font-size: .85rem; }
.PASS { background: #2a7d46; } .FAIL, .MISTRUSTED { background: #b3261e; }
.SKIP { background: #6b6b6b; } .WAIVED { background: #96690a; }
.dim { color: var(--dim); }
)css";

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string badge(std::string_view status) { return fmt::format("<span class=\"s {0}\">{0}</span>", status); }

std::string section(const std::string& title, const std::string& body) {
  return body.empty() ? "" : fmt::format("<h2>{}</h2>\n{}\n", title, body);
}

// A row of cells that are HTML already; from `numbers` on they are right-aligned.
std::string row(const std::vector<std::string>& cells, const char* cell = "td", std::size_t numbers = 99) {
  std::string text = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += fmt::format("<{0}{1}>{2}</{0}>", cell, i >= numbers ? " class=\"n\"" : "", cells[i]);
  }
  return text + "</tr>\n";
}

std::string table(const std::vector<std::string>& head, const std::string& rows, std::size_t numbers = 99) {
  return rows.empty() ? "" : "<table>\n" + row(head, "th", numbers) + rows + "</table>";
}

std::string engine_of(const Result& result) {
  return result.engine.empty() ? "(stage functions)" : escaped(result.engine);
}

std::string claim(bool made, const char* what) {
  return fmt::format("{} {}<br>", made ? "&#10003;" : "<span class=\"dim\">&#8212; not</span>", what);
}

std::string engines_table(const Run& run) {
  std::string rows;
  for (const Engine* engine : run.engines) {
    std::string claims;
    for (const ClaimInfo& info : kClaims) claims += claim(engine->claims().*info.member, info.said);
    rows += row({"<b>" + escaped(engine->name()) + "</b>", escaped(engine->isa()),
                 escaped(engine->description()), claims});
  }
  return table({"engine", "ISA or device", "description", "claims"}, rows);
}

std::string problems_list(const Run& run) {
  std::string items;
  for (const std::string& problem : run.problems) items += "<li>" + escaped(problem) + "</li>\n";
  return items.empty() ? "" : "<ul>\n" + items + "</ul>";
}

// Results of one kind with their message, what was written, and the command that repeats them.
std::string details(const Run& run, const std::function<bool(const Result&)>& wanted) {
  std::string rows;
  for (const Result& result : run.results) {
    if (!wanted(result)) continue;
    std::string text = "<code>" + escaped(result.message) + "</code>";
    if (!result.waiver.empty()) text += "<br>waived: " + escaped(result.waiver);
    if (!result.output.empty()) {
      text += "<details><summary>it wrote</summary><pre>" + escaped(result.output) + "</pre></details>";
    }
    if (result.status != Status::skip)
      text += "<br><code class=\"dim\">" + escaped(result.reproduce) + "</code>";
    rows += row({badge(status_name(result.status)), engine_of(result), escaped(result.test->name),
                 lane_name(result.test->lane), text});
  }
  return table({"", "engine", "case", "lane", "what"}, rows);
}

std::string lanes_table(const Run& run) {
  std::map<std::pair<std::string, Lane>, std::map<Status, int>> counts;
  for (const Result& result : run.results) {
    ++counts[{engine_of(result), result.test->lane}][result.status];
  }
  std::string rows;
  for (const auto& entry : counts) {  // no structured binding: clang 14 lets no lambda capture one
    const auto number = [&](Status status) {
      const auto found = entry.second.find(status);
      return found == entry.second.end() ? std::string("<span class=\"dim\">0</span>")
                                         : std::to_string(found->second);
    };
    rows += row({entry.first.first, lane_name(entry.first.second), number(Status::pass), number(Status::fail),
                 number(Status::mistrusted), number(Status::waived), number(Status::skip)},
                "td", 2);
  }
  return table({"engine", "lane", "PASS", "FAIL", "MISTRUSTED", "WAIVED", "SKIP"}, rows, 2);
}

std::string worst_table(const Run& run) {
  std::string rows;
  for (const Engine* engine : run.engines) {
    for (const auto& [key, worst] : worst_of(run, engine->name())) {
      rows += row({escaped(engine->name()), escaped(key), fmt::format("{:.3g}", worst.err_over_bound),
                   escaped(worst.test)});
    }
  }
  return table({"engine", "stage and stored type", "worst error / bound", "case"}, rows);
}

std::string all_cases_table(const Run& run) {
  std::string rows;
  for (const Result& result : run.results) {
    double worst = 0.0;
    for (const StageError& error : result.errors) worst = worse_of(worst, error.ratio);
    rows += row(
        {badge(status_name(result.status)), engine_of(result), escaped(result.test->name),
         lane_name(result.test->lane), escaped(result.test->stage),
         fmt::format("{}", fmt::join(result.test->clauses, " ")),
         result.errors.empty() ? "" : fmt::format("{:.3g}", worst), fmt::format("{:.2f}", result.seconds)},
        "td", 6);
  }
  return table({"", "engine", "case", "lane", "stage", "clauses", "error / bound", "s"}, rows, 6);
}

}  // namespace

std::string results_html(const Run& run) {
  const char* verdict = run.failed() ? "FAIL" : "PASS";
  std::string who;
  for (const Engine* engine : run.engines) who += (who.empty() ? "" : ", ") + escaped(engine->name());
  if (who.empty() && !run.settings.plugin.empty()) who = escaped(run.settings.plugin);
  std::string text =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  text += fmt::format("<title>{}: {} Headwater conformance</title>\n<style>{}</style>\n</head>\n<body>\n",
                      verdict, who, kStyle);
  text += fmt::format("<h1>{} Headwater conformance of {}</h1>\n", badge(verdict), who);
  text +=
      fmt::format("<p class=\"dim\">kit {}, seed {}{}, {} cases in {:.1f} s{}</p>\n", kVersion,
                  run.settings.seed, run.settings.quick ? ", --quick" : "", run.results.size(), run.seconds,
                  run.settings.plugin.empty() ? "" : ", plug-in " + escaped(run.settings.plugin));
  if (!run.not_loaded.empty()) text += section("Not judged", "<code>" + escaped(run.not_loaded) + "</code>");
  text += section("Tested", engines_table(run));
  text += section("Besides the cases", problems_list(run));
  text += section("Failed", details(run, [](const Result& r) { return is_failure(r.status); }));
  text += section("Waived", details(run, [](const Result& r) { return r.status == Status::waived; }));
  text += section("Lanes", lanes_table(run));
  text += section("Worst error over bound", worst_table(run));
  text +=
      section("Determinism", details(run, [](const Result& r) { return r.test->lane == Lane::determinism; }));
  text += section("Skipped", details(run, [](const Result& r) { return r.status == Status::skip; }));
  text +=
      section("Passed, but wrote to standard output or standard error",
              details(run, [](const Result& r) { return r.status == Status::pass && !r.output.empty(); }));
  text += section("All cases", all_cases_table(run));
  return text + "</body>\n</html>\n";
}

}  // namespace headwater::conformance
