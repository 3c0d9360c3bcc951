// The conformance kit's program; docs/verification.md says what it shows and what not.

#include <unistd.h>

#include <chrono>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "conformance/case.hpp"
#include "conformance/clauses.hpp"
#include "conformance/command_line.hpp"
#include "conformance/crash_note.hpp"
#include "conformance/filter.hpp"
#include "conformance/must_pass.hpp"
#include "conformance/program.hpp"
#include "conformance/report.hpp"
#include "conformance/saboteurs.hpp"
#include "conformance/self_test.hpp"
#include "conformance/verify.hpp"
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
    fmt::print(std::cerr, "\r\033[K[{:<{}}] {}/{} {}", std::string(bar, '#'), kWidth, done_, total_, name);
    std::cerr.flush();
    ++done_;
  }

 private:
  std::size_t total_;
  std::size_t done_ = 0;
  bool shown_;
};

int run_cases(Request& request) {
  const std::vector<const Case*> cases = chosen_cases(request);
  std::vector<std::string> said;
  const std::vector<const Engine*> engines = chosen_engines(request, said);
  const Ratchet ratchet = request.ratchet.empty() ? Ratchet::built_in() : Ratchet::load(request.ratchet);
  const bool recording = !request.update_ratchet.empty();
  if (!request.no_ratchet && !recording) request.settings.ratchet = &ratchet;
  if (recording && (request.settings.seed != kDefaultSeed || request.settings.quick)) {
    throw Error(ErrorCode::invalid_argument,
                "--update-ratchet: marks belong to the default seed without --quick");
  }

  std::vector<std::pair<const Case*, const Engine*>> work;
  for (const Engine* engine : engines) {
    for (const Case* test : cases) {
      if (test->per_engine) work.emplace_back(test, engine);
    }
  }
  const bool stages = request.engines.empty() || engines.empty();
  for (const Case* test : cases) {
    if (!test->per_engine && stages) work.emplace_back(test, nullptr);
  }
  if (work.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "nothing to run: stage cases run without --engine or with --engine none, the others with an engine");
  }

  const auto start = std::chrono::steady_clock::now();
  std::vector<Result> results;
  {
    Progress progress(work.size());
    for (const auto& [test, engine] : work) {
      progress.step(test->name);
      results.push_back(run_case(*test, engine, request.settings));
      const Status status = results.back().status;
      if (request.fail_fast && (status == Status::fail || status == Status::mistrusted)) break;
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::ostream& human = request.json == "-" ? std::cerr : std::cout;
  for (const std::string& line : said) fmt::print(human, "{}\n", line);
  write_table(human, results, seconds);
  if (!request.json.empty()) write_text(request.json, results_json(results, request.settings));
  if (!request.junit.empty()) write_text(request.junit, results_junit(results));

  bool failed = false;
  if (request.must_pass) {
    for (const std::string& line : missing_passes(results, cases)) {
      fmt::print(human, "FAIL       must pass: {}\n", line);
      failed = true;
    }
  }
  for (const Result& result : results)
    failed = failed || result.status == Status::fail || result.status == Status::mistrusted;
  if (recording) {
    if (failed)
      throw Error(ErrorCode::invalid_argument, "--update-ratchet: no marks are recorded from a failed run");
    Ratchet marks = ::access(request.update_ratchet.c_str(), F_OK) == 0
                        ? Ratchet::load(request.update_ratchet)
                        : Ratchet::built_in();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (work[i].second != nullptr && !results[i].marks.empty()) {
        marks.record(ratchet_name(*work[i].second), work[i].first->name, results[i].marks);
      }
    }
    marks.save(request.update_ratchet);
  }
  return failed ? kCheckFailed : kDone;
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

}  // namespace
}  // namespace headwater::conformance

int main(int argc, char** argv) {
  using namespace headwater::conformance;
  int exit_code = kDone;
#ifndef HEADWATER_SANITIZED  // a sanitizer's own handlers say more
  install_crash_note();
#endif
  try {
    std::optional<Request> request = parse_command_line(argc, argv, exit_code);
    return request ? run(*request) : exit_code;
  } catch (const headwater::Error& error) {
    fmt::print(std::cerr, "{}: {}\n", kProgram, error.what());
    return error.code() == headwater::ErrorCode::engine_unavailable ? kNoEngine : kBadUsage;
  } catch (const std::exception& error) {
    fmt::print(std::cerr, "{}: {}\n", kProgram, error.what());
    return kBadUsage;
  }
}
