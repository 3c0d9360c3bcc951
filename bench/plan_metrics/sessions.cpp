#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/plan_metrics/rows.hpp"
#include "bench/workload.hpp"
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

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
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

/// Medians of a sparse and a dense prefill measured in turn on one thread, so that a busy machine hurts both alike.
TwoTimes compare(const std::string& name, Workload& work, int runs) {
  Options sparse, dense;
  dense.dense = true;
  sparse.threads = dense.threads = 1;
  const auto first = engine(name).open(work.shape(), sparse);
  const auto second = engine(name).open(work.shape(), dense);
  prefill(*first, work);
  prefill(*second, work);
  std::vector<double> times_a, times_b;
  for (int i = 0; i < runs; ++i) {
    times_a.push_back(seconds_of([&] { prefill(*first, work); }));
    times_b.push_back(seconds_of([&] { prefill(*second, work); }));
  }
  return {median(times_a), median(times_b)};
}

}  // namespace

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

Measured session_open(const std::string& name) {
  const double milli = kMilli * median_seconds(5, [&] {
                         const auto session = engine(name).open(plan_shape(16384), Options{});
                       });
  return {fmt::format("{:.1f} ms", milli), milli < 100};
}

/// A prompt of one chunk has column sums and no memory; the same prompt in a dense session has none of either.
Measured column_sum_cost(const std::string& name) {
  Workload work(plan_shape(1024), 1);
  const TwoTimes times = compare(name, work, 9);
  const double more = 100 * (times.first / times.second - 1);
  return {fmt::format("{:+.1f} %", more), more < 50};
}

Measured selection_share(const std::string& name) {
  constexpr std::int64_t kTokens = 4096, kSets = 3;  // four chunks of 1024
  Workload work(plan_shape(kTokens), 2);
  Options options;
  options.threads = 1;
  const auto session = engine(name).open(work.shape(), options);
  const double whole = median_seconds(5, [&] { prefill(*session, work); });
  const double selection = kSets * selection_seconds();
  const double more = 100 * selection / (whole - selection);
  return {fmt::format("{:+.2f} % (selection {:.2f} ms of {:.0f} ms, one thread)", more, selection * kMilli,
                      whole * kMilli),
          more < 20};
}

Measured sparse_against_dense(const std::string& name) {
  Measured result;
  for (const std::int64_t tokens : {1024, 2048, 4096, 8192, 16384}) {
    Workload work({.n_head = 8,
                   .n_head_kv = 2,
                   .d_head = 64,
                   .d_value = 64,
                   .capacity = tokens,
                   .kv_type = DType::bf16},
                  static_cast<std::uint64_t>(tokens));
    const TwoTimes times = compare(name, work, tokens > 4096 ? 3 : 7);
    const double faster = times.second / times.first;
    result.text += fmt::format("{}{}: {:.2f}x ({:.0f} tokens/s)", result.text.empty() ? "" : ", ", tokens,
                               faster, static_cast<double>(tokens) / times.first);
    if (tokens == 4096) result.met = faster > 1.5;
  }
  return result;
}

Measured memory_over_length(const std::string& name) {
  Measured result;
  const auto mebi = [](std::int64_t count) { return static_cast<double>(count) * kMebi; };
  for (const std::int64_t tokens : {1024, 4096, 16384}) {
    const MemoryBytes bytes = engine(name).open(plan_shape(tokens), Options{})->memory_bytes();
    result.text += fmt::format("{}{}: {:.1f} MiB (KV {:.1f}, scores {:.2f}, sets {:.2f}, workspace {:.1f})",
                               result.text.empty() ? "" : "; ", tokens, mebi(bytes.total()), mebi(bytes.kv),
                               mebi(bytes.scores), mebi(bytes.memory_sets), mebi(bytes.workspace));
  }
  result.met = true;  // to be reported, without a target
  return result;
}

std::vector<MetricRow> metric_rows() {
  const auto part = [](Measured (*measure)()) { return [measure](const std::string&) { return measure(); }; };
  return {{"P1.2", part(memory_lookup)},     {"P1.12", session_open},
          {"P1.13", part(memory_set_build)}, {"P1.14", part(score_update)},
          {"P2.7", column_sum_cost},         {"P4.4", selection_share},
          {"P7.1", part(gather_bandwidth)},  {"P7.3", part(gather_against_copy)},
          {"P8.1", sparse_against_dense},    {"P8.2", memory_over_length}};
}

}  // namespace headwater::bench
