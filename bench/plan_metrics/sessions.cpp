#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/plan_metrics/rows.hpp"
#include "cli/commands/bench/clock.hpp"
#include "cli/commands/bench/workload.hpp"
#include "headwater/headwater.hpp"

namespace headwater::bench {
namespace {

constexpr double kMilli = 1e3, kMebi = 1.0 / (1 << 20);

/// The shape of the source plan: 32 query heads, 8 key/value heads, d = 128.
Shape plan_shape(std::int64_t tokens) {
  return {.n_head = 32,
          .n_head_kv = 8,
          .d_head = 128,
          .d_value = 128,
          .capacity = tokens,
          .kv_type = DType::bf16};
}

/// One prefill of everything in an empty session.
void prefill(Session& session, Workload& work) {
  session.reset();
  session.begin(Step::prefill(work.shape().capacity));
  session.attend(0, work.q(), work.k(), work.v(), work.out());
  session.end();
}

struct TwoTimes {
  double first = 0, second = 0;
};

/// Medians of prefills with two options measured in turn, so that other work on the machine slows both alike.
TwoTimes compare(const std::string& name, Workload& work, const Options& one, const Options& other,
                 int runs) {
  const auto first = engine(name).open(work.shape(), one);
  const auto second = engine(name).open(work.shape(), other);
  const auto medians =
      medians_in_turn(runs, {[&] { prefill(*first, work); }, [&] { prefill(*second, work); }});
  return {medians[0], medians[1]};
}

/// A sparse and a dense prefill on one thread.
TwoTimes compare(const std::string& name, Workload& work, int runs) {
  Options sparse, dense;
  dense.dense = true;
  sparse.threads = dense.threads = 1;
  return compare(name, work, sparse, dense, runs);
}

/// Resident memory of this process in KiB, "VmRSS" now or "VmHWM" at its peak.
std::int64_t resident_kibibytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1));
  }
  throw std::runtime_error("/proc/self/status has no " + field);
}

/// Writes a byte of every page of that much fresh memory.
void touch_pages(std::int64_t bytes) {
  constexpr std::int64_t kPage = 4096;
  const auto size = static_cast<std::size_t>(bytes);
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  (void)::madvise(memory, size, MADV_NOHUGEPAGE);
  for (std::int64_t at = 0; at < bytes; at += kPage) static_cast<volatile unsigned char*>(memory)[at] = 1;
  (void)::munmap(memory, size);
}

}  // namespace

double seconds_of(const std::function<void()>& action) {
  const Seconds start = seconds_now();
  action();
  return (seconds_now() - start).cpu;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<double> medians_in_turn(int runs, const std::vector<std::function<void()>>& actions) {
  for (const auto& action : actions) action();
  std::vector<std::vector<double>> times(actions.size());
  for (int i = 0; i < runs; ++i) {
    for (std::size_t a = 0; a < actions.size(); ++a) times[a].push_back(seconds_of(actions[a]));
  }
  std::vector<double> medians;
  for (const auto& times_of_one : times) medians.push_back(median(times_of_one));
  return medians;
}

double median_seconds(int runs, const std::function<void()>& action) {
  return medians_in_turn(runs, {action}).front();
}

/// open() reserves memory that has no pages yet: what touching all of it costs is added, on small pages, each by
/// a fault of its own.
std::string session_open(const std::string& name) {
  Options options;
  options.threads = 1;
  const auto open = [&] { return engine(name).open(plan_shape(16384), options); };
  const std::int64_t before = resident_kibibytes("VmRSS");
  const auto session = open();
  const double resident = static_cast<double>(resident_kibibytes("VmRSS") - before) / 1024;
  const std::int64_t total = session->memory_bytes().total();
  const std::vector<double> seconds =
      medians_in_turn(5, {[&] { (void)open(); }, [&] { touch_pages(total); }});
  return fmt::format(
      "{:.1f} ms with all pages touched: open {:.1f} ms ({:.1f} of {:.0f} MiB resident then), "
      "first touch of {:.0f} MiB on 4 KiB pages {:.1f} ms",
      kMilli * (seconds[0] + seconds[1]), kMilli * seconds[0], resident, static_cast<double>(total) * kMebi,
      static_cast<double>(total) * kMebi, kMilli * seconds[1]);
}

/// A prompt of one chunk has column sums and no memory; the same prompt in a dense session has none of either.
std::string column_sum_cost(const std::string& name) {
  Workload work(plan_shape(1024), 1);
  const TwoTimes times = compare(name, work, 9);
  const double more = 100 * (times.first / times.second - 1);
  return fmt::format("{:+.1f} %", more);
}

/// Sets of 256 newest and 256 chosen tokens against sets of the 512 newest: as many keys, and nothing to select. Column
/// sums and scores are kept in both.
std::string selection_cost(const std::string& name) {
  Workload work(plan_shape(4096), 2);  // four chunks of 1024
  Options with, without;
  with.threads = without.threads = 1;
  without.local = with.local + with.heavy;
  without.heavy = 0;
  const TwoTimes times = compare(name, work, with, without, 15);
  return fmt::format("{:+.2f} % ({:.1f} ms with selection, {:.1f} ms without, one thread)",
                     100 * (times.first / times.second - 1), kMilli * times.first, kMilli * times.second);
}

std::string sparse_against_dense(const std::string& name) {
  std::string text;
  for (const std::int64_t tokens : {1024, 2048, 4096, 8192, 16384}) {
    Workload work({.n_head = 8,
                   .n_head_kv = 2,
                   .d_head = 64,
                   .d_value = 64,
                   .capacity = tokens,
                   .kv_type = DType::bf16},
                  static_cast<std::uint64_t>(tokens));
    const TwoTimes times = compare(name, work, tokens > 4096 ? 3 : 7);
    text += fmt::format("{}{}: {:.2f}x ({:.0f} tokens/s)", text.empty() ? "attention alone, noise: " : ", ",
                        tokens, times.second / times.first, static_cast<double>(tokens) / times.first);
  }
  return text;
}

std::int64_t peak_kibibytes(const std::string& name, std::int64_t tokens, bool dense) {
  const Options defaults;
  Workload work(plan_shape(defaults.chunk), 1);
  Options options;
  options.threads = 1;
  options.dense = dense;
  const std::int64_t before = resident_kibibytes("VmRSS");
  const auto session = engine(name).open(plan_shape(tokens), options);
  for (std::int64_t first = 0; first < tokens; first += defaults.chunk) {
    session->begin(Step::prefill(defaults.chunk, tokens));
    session->attend(0, work.q(), work.k(), work.v(), work.out());
    session->end();
  }
  return resident_kibibytes("VmHWM") - before;
}

std::string memory_over_length(const std::string& name) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const auto peak = [&](std::int64_t tokens, const char* mode) {
    const std::string command = fmt::format("'{}' --engine '{}' --peak {} {}", program, name, tokens, mode);
    FILE* const child = ::popen(command.c_str(), "r");
    long long kibibytes = -1;
    const bool read = child != nullptr && std::fscanf(child, "%lld", &kibibytes) == 1;
    if (child == nullptr || ::pclose(child) != 0 || !read) throw std::runtime_error(command + " failed");
    return static_cast<double>(kibibytes) / 1024;
  };
  std::string text;
  for (const std::int64_t tokens : {1024, 2048, 4096, 8192, 16384, 32768}) {
    text += fmt::format("{}{}: {:.1f} and {:.1f}",
                        text.empty() ? "peak MiB, sparse and dense, a process each: " : ", ", tokens,
                        peak(tokens, ""), peak(tokens, "--dense"));
  }
  return text;
}

std::vector<MetricRow> metric_rows() {
  const auto part = [](std::string (*measure)()) {
    return [measure](const std::string&) { return measure(); };
  };
  return {{"P1.2", part(memory_lookup)},      {"P1.12", session_open},
          {"P1.13", part(memory_set_build)},  {"P1.14", part(score_update)},
          {"P2.7", column_sum_cost},          {"P4.4", selection_cost},
          {"P7.1", part(gather_bandwidth)},   {"P7.3", part(gather_against_copy)},
          {"P8.1", sparse_against_dense},     {"P8.2", memory_over_length},
#ifdef HEADWATER_MODELS
          {"P8.1-model", model_against_dense}
#endif
  };
}

}  // namespace headwater::bench
