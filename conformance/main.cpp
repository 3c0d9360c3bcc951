// The conformance kit's program; docs/verification.md says what it shows and what not.

#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <iostream>
#include <memory>
#include <new>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "cli/support/failure.hpp"
#include "cli/support/streams.hpp"
#include "conformance/case.hpp"
#include "conformance/clauses.hpp"
#include "conformance/command_line.hpp"
#include "conformance/crash_note.hpp"
#include "conformance/filter.hpp"
#include "conformance/html_report.hpp"
#include "conformance/must_pass.hpp"
#include "conformance/plugin_run.hpp"
#include "conformance/program.hpp"
#include "conformance/report.hpp"
#include "conformance/saboteurs.hpp"
#include "conformance/self_test.hpp"
#include "conformance/text_file.hpp"
#include "conformance/verify.hpp"
#include "conformance/waivers.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

// A line on a terminal that says how far the run is; nothing elsewhere.
class Progress {
 public:
  explicit Progress(std::size_t total) : total_(total), shown_(::isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (shown_) fmt::print(std::cerr, "\r\033[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void step(const std::string& name) {
    constexpr std::size_t kWidth = 24;
    if (!shown_) return;
    const std::size_t bar = total_ == 0 ? kWidth : done_ * kWidth / total_;
    const std::string line =
        fmt::format("[{:<{}}] {}/{} {}", std::string(bar, '#'), kWidth, done_, total_, name);
    fmt::print(std::cerr, "\r\033[K{}", line.substr(0, cli::terminal_columns() - 1));
    std::cerr.flush();
    ++done_;
  }

 private:
  std::size_t total_;
  std::size_t done_ = 0;
  bool shown_;
};

std::vector<std::string> report_files(const Request& request) {
  std::vector<std::string> files;
  for (const std::string& file : {request.json, request.junit, request.html}) {
    if (!file.empty()) files.push_back(file);
  }
  if (!request.report.empty()) {
    files.push_back(request.report + "/report.json");
    files.push_back(request.report + "/report.html");
  }
  return files;
}

// Every file that the run will write, so that a folder that is not there is said before the run and not after it.
void require_writable_reports(Request& request) {
  if (!request.report.empty()) make_folder(request.report);
  for (const std::string& path : report_files(request)) require_writable(path);
}

void write_reports(const Request& request, const Run& run) {
  const std::string json = results_json(run);
  if (!request.json.empty()) write_text(request.json, json);
  if (!request.junit.empty()) write_text(request.junit, results_junit(run));
  if (!request.html.empty()) write_text(request.html, results_html(run));
  if (request.report.empty()) return;
  write_text(request.report + "/report.json", json);
  write_text(request.report + "/report.html", results_html(run));
}

// The plug-in as an engine that can be named. A plug-in that cannot be loaded leaves a report behind, too.
std::unique_ptr<Engine> load_plugin(Request& request, Run& run) {
  try {
    request.settings.plugin = find_plugin(request.settings.plugin);
    auto engine = described_engine(inspect_plugin(request.settings.plugin, request.settings.time_limit));
    const std::string reason = engine->unavailable_because();
    if (reason.empty()) return engine;
    throw Error(ErrorCode::engine_unavailable, fmt::format("{}: engine {} is not available here: {}",
                                                           request.settings.plugin, engine->name(), reason));
  } catch (const Error& error) {
    run.settings = request.settings;
    run.not_loaded = error.what();
    write_reports(request, run);
    throw;
  }
}

using Work = std::vector<std::pair<const Case*, const Engine*>>;

Work work_of(const Request& request, const std::vector<const Case*>& cases,
             const std::vector<const Engine*>& engines) {
  Work work;
  for (const Engine* engine : engines) {
    for (const Case* test : cases) {
      if (test->per_engine) work.emplace_back(test, engine);
    }
  }
  const bool stages = request.settings.plugin.empty() && (request.engines.empty() || engines.empty());
  for (const Case* test : cases) {
    if (!test->per_engine && stages) work.emplace_back(test, nullptr);
  }
  if (work.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "nothing to run: stage cases run without --engine or with --engine none, the others with an engine");
  }
  return work;
}

void run_all(const Request& request, const Work& work, Run& run) {
  const auto start = std::chrono::steady_clock::now();
  {
    Progress progress(work.size());
    for (const auto& [test, engine] : work) {
      progress.step(test->name);
      run.results.push_back(run.settings.plugin.empty() ? run_case(*test, engine, run.settings)
                                                        : run_isolated_case(*test, *engine, run.settings));
      if (request.fail_fast && is_failure(run.results.back().status)) break;
    }
  }
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void record_baselines(const std::string& path, const Work& work, const Run& run) {
  if (run.failed()) {
    throw Error(ErrorCode::invalid_argument, "--update-ratchet: no baselines are recorded from a failed run");
  }
  Ratchet baselines = ::access(path.c_str(), F_OK) == 0 ? Ratchet::load(path) : Ratchet::built_in();
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    if (work[i].second != nullptr && !run.results[i].errors.empty()) {
      baselines.record(ratchet_name(*work[i].second), work[i].first->name, run.results[i].errors);
    }
  }
  baselines.save(path);
}

int run_cases(Request& request) {
  const std::vector<const Case*> cases = chosen_cases(request);
  const Waivers waivers = request.waivers.empty() ? Waivers::built_in() : Waivers::load(request.waivers);
  const std::string baselines = request.settings.ratchet_file.value_or("");
  const Ratchet ratchet = baselines.empty() ? Ratchet::built_in() : Ratchet::load(baselines);
  const bool recording = !request.update_ratchet.empty();
  if (recording && (request.settings.seed != kDefaultSeed || request.settings.quick)) {
    throw Error(ErrorCode::invalid_argument,
                "--update-ratchet: baselines belong to the default seed without --quick");
  }
  require_writable_reports(request);

  Run run;
  std::unique_ptr<Engine> plugin;
  if (request.settings.plugin.empty()) {
    run.engines = chosen_engines(request, run.said);
  } else {
    plugin = load_plugin(request, run);
    run.engines = {plugin.get()};
  }
  // The built-in baselines are those of the library's own engines.
  const bool has_baselines = plugin == nullptr || request.settings.ratchet_file;
  if (!request.no_ratchet && !recording && has_baselines) request.settings.ratchet = &ratchet;
  run.settings = request.settings;
  for (const std::string& line : not_compared(run.engines, run.settings)) run.said.push_back(line);
  const Work work = work_of(request, cases, run.engines);
  run_all(request, work, run);
  if (request.must_pass) {
    for (const std::string& line : missing_passes(run.results, cases, request.engines)) {
      run.problems.push_back("must pass: " + line);
    }
  }
  for (const std::string& line : waivers.apply(run.results, today())) run.problems.push_back(line);
  write_table(request.json == "-" ? std::cerr : std::cout, run);
  write_reports(request, run);
  if (recording) record_baselines(request.update_ratchet, work, run);
  return run.failed() ? kCheckFailed : kDone;
}

int list_cases(const Request& request) {
  const std::vector<const Case*> cases = chosen_cases(request);
  if (request.json.empty()) {
    write_list(std::cout, cases);
  } else {
    write_text(request.json, list_json(cases));
  }
  return kDone;
}

int run(Request& request) {
  switch (request.action) {
    case Request::Action::list: return list_cases(request);
    case Request::Action::clauses: return write_clause_table(std::cout, all_cases()) ? kDone : kCheckFailed;
    case Request::Action::self_test: return run_self_test(std::cout) ? kDone : kCheckFailed;
    case Request::Action::saboteurs: return run_saboteurs(std::cout, request) ? kDone : kCheckFailed;
    case Request::Action::verify: return run_verify(request);
    case Request::Action::run: return run_cases(request);
  }
  return kBadUsage;
}

// The exit status of a run: success is one only where standard output could be written.
int finish(int exit_code) {
  if (std::cout.flush() || exit_code != kDone) return exit_code;
  if (cli::reader_gone()) return cli::kReaderGone;
  fmt::print(std::cerr, "{}: standard output cannot be written\n", kProgram);
  return kBadUsage;
}

}  // namespace
}  // namespace headwater::conformance

int main(int argc, char** argv) {
  using namespace headwater::conformance;
  headwater::cli::prepare_streams();
#ifndef HEADWATER_SANITIZED  // a sanitizer's own handlers say more
  install_crash_note();
#endif
  // Freed memory stays with the process: large cases would spend seconds of each engine in page faults.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  try {
    std::optional<Request> request = parse_command_line({argv + (argc > 0 ? 1 : 0), argv + argc});
    return request ? finish(run(*request)) : kDone;
  } catch (const headwater::cli::ReaderGone&) {
    return headwater::cli::kReaderGone;
  } catch (const headwater::cli::Failure& failure) {
    fmt::print(std::cerr, "{}: {}\n", kProgram, failure.what());
    return static_cast<int>(failure.code());
  } catch (const headwater::Error& error) {
    fmt::print(std::cerr, "{}: {}\n", kProgram, error.what());
    return error.code() == headwater::ErrorCode::engine_unavailable ? kNoEngine : kBadUsage;
  } catch (const std::bad_alloc&) {
    fmt::print(std::cerr, "{}: out of memory\n", kProgram);
    return kBadUsage;
  } catch (const std::exception& error) {
    fmt::print(std::cerr, "{}: {}\n", kProgram, error.what());
    return kBadUsage;
  }
}
