// The bookkeeping of a layer beside its arithmetic. Every stage is compared with the reference on the same data first.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/suite/suite.hpp"
#include "conformance/formats.hpp"
#include "conformance/random.hpp"
#include "core/memory_sets.hpp"
#include "core/score_store.hpp"
#include "headwater/rope.hpp"
#include "reference/memory_set.hpp"
#include "reference/numbers.hpp"
#include "reference/rope.hpp"
#include "reference/scores.hpp"

namespace headwater::bench {

namespace {

constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kChunk = 1024;
constexpr std::int64_t kLocal = 256;
constexpr std::int64_t kHeavy = 256;
constexpr std::int64_t kTokens = 4 * kChunk;

/// Column sums as attention has them: most are small, a few tokens draw many queries; many of them tie in BF16.
std::vector<float> column_sums(std::int64_t count, std::uint64_t seed) {
  conformance::Random random(seed);
  std::vector<float> sums(static_cast<std::size_t>(count));
  for (float& sum : sums) {
    const double u = random.uniform();
    sum = static_cast<float>(u * u * u * 8.0);
  }
  return sums;
}

/// Scores of kTokens tokens of every head, as after a prefill.
core::ScoreStore filled_scores(ScoreType type) {
  core::ScoreStore scores(1, kHeads, kTokens, type);
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const auto sums = column_sums(kTokens, static_cast<std::uint64_t>(head));
    scores.initialise(0, head, 0, kTokens, sums.data());
  }
  return scores;
}

/// One layer selects: 256 of the last set's heavy ones, and 1024 new tokens, compete (MEM-2); all heads in a row.
class Selection {
 public:
  explicit Selection(ScoreType type)
      : scores_(filled_scores(type)),
        keys_(static_cast<std::size_t>(kTokens)),
        chosen_(static_cast<std::size_t>(kLocal + kHeavy)) {}

  void select(core::MemorySets& sets, std::int64_t end) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      sets.build_head(0, head, end, scores_, keys_.data(), chosen_.data());
    }
    sets.finish(0, end);
  }

  /// The same sets as the reference builds?
  [[nodiscard]] bool right() {
    core::MemorySets sets(1, kHeads, kLocal, kHeavy, kTokens);
    select(sets, 2 * kChunk);
    std::vector<std::vector<std::int32_t>> first;
    for (std::int64_t head = 0; head < kHeads; ++head) first.push_back(copy(sets, head));
    select(sets, 3 * kChunk);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const auto score = [&](std::int64_t position) { return scores_.read(0, head, position); };
      const auto before = reference::build_memory_set({}, 0, 2 * kChunk, kLocal, kHeavy, score);
      const auto after = reference::build_memory_set(before, 2 * kChunk, 3 * kChunk, kLocal, kHeavy, score);
      if (first[static_cast<std::size_t>(head)] != before || copy(sets, head) != after) return false;
    }
    return true;
  }

 private:
  static std::vector<std::int32_t> copy(const core::MemorySets& sets, std::int64_t head) {
    return {sets.entries(0, head), sets.entries(0, head) + sets.count(0)};
  }

  core::ScoreStore scores_;
  std::vector<std::uint32_t> keys_;
  std::vector<std::int32_t> chosen_;
};

void run_selection(benchmark::State& state, ScoreType type) {
  Selection selection(type);
  if (!selection.right()) {
    state.SkipWithError("the sets differ from the reference's");
    return;
  }
  core::MemorySets before(1, kHeads, kLocal, kHeavy, kTokens);
  selection.select(before, 2 * kChunk);
  for (auto _ : state) {
    state.PauseTiming();
    core::MemorySets sets(1, kHeads, kLocal, kHeavy, kTokens);
    selection.select(sets, 2 * kChunk);
    state.ResumeTiming();
    selection.select(sets, 3 * kChunk);
    benchmark::ClobberMemory();
  }
}

/// SCORE-3 for one layer: 32 heads, sets of 512 entries.
void run_accumulation(benchmark::State& state, ScoreType type) {
  core::ScoreStore scores = filled_scores(type);
  std::vector<std::int32_t> set(static_cast<std::size_t>(kLocal + kHeavy));
  for (std::size_t i = 0; i < set.size(); ++i) set[i] = static_cast<std::int32_t>(i * 7);
  const auto sums = column_sums(kLocal + kHeavy, 77);
  const auto accumulate = [&] {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      scores.accumulate(0, head, set.data(), kLocal + kHeavy, sums.data());
    }
  };
  const core::ScoreStore before = filled_scores(type);
  accumulate();
  for (std::int64_t head = 0; head < kHeads; ++head) {
    for (std::size_t i = 0; i < set.size(); ++i) {
      const float wanted = reference::accumulated_score(type, before.read(0, head, set[i]), sums[i]);
      if (scores.read(0, head, set[i]) != wanted) {
        state.SkipWithError("a score differs from the reference's");
        return;
      }
    }
  }
  for (auto _ : state) {
    accumulate();
    benchmark::ClobberMemory();
  }
}

/// SCORE-2 for one layer and chunk.
void run_initialisation(benchmark::State& state, ScoreType type) {
  core::ScoreStore scores(1, kHeads, kChunk, type);
  const auto sums = column_sums(kChunk, 78);
  const auto initialise = [&] {
    for (std::int64_t head = 0; head < kHeads; ++head) scores.initialise(0, head, 0, kChunk, sums.data());
  };
  initialise();
  for (std::int64_t i = 0; i < kChunk; ++i) {
    if (scores.read(0, kHeads - 1, i) != reference::initial_score(type, sums[static_cast<std::size_t>(i)])) {
      state.SkipWithError("a score differs from the reference's");
      return;
    }
  }
  for (auto _ : state) {
    initialise();
    benchmark::ClobberMemory();
  }
}

/// All memory of a long session: 16384 tokens, 32 heads, 8 key/value heads, d = 128, one layer.
void run_open(benchmark::State& state, const std::string& name, DType type) {
  Shape shape;
  shape.n_head = 32;
  shape.n_head_kv = 8;
  shape.d_head = shape.d_value = 128;
  shape.capacity = 16384;
  shape.kv_type = type;
  Options options;
  options.threads = 1;
  const Engine& chosen = engine(name);
  for (auto _ : state) benchmark::DoNotOptimize(chosen.open(shape, options));
}

/// ROPE-1 for one chunk of 32 query heads.
void run_rotation(benchmark::State& state, DType type) {
  constexpr std::int64_t kWidth = 128;
  constexpr double kAngleError = 1e-6;  // ROPE-3
  const auto element = static_cast<std::int64_t>(dtype_size(type));
  LineBytes rows(static_cast<std::size_t>(kChunk * kHeads * kWidth * element));
  conformance::Random random(6);
  for (std::int64_t i = 0; i < kChunk * kHeads * kWidth; ++i) {
    conformance::store_element(type, static_cast<float>(random.normal()), rows.data() + i * element);
  }
  const std::vector<double> frequencies = rope_inverse_frequencies(kWidth, 10000.0);
  const auto view = MutableRows::token_major(rows.data(), type, kHeads, kWidth);
  const auto turn = [&] {
    rotate(view, kChunk, kHeads, kWidth, kTokens, frequencies, 1.0, RopeLayout::split_halves);
  };

  std::vector<double> last(static_cast<std::size_t>(kWidth));
  const Rows readable = Rows::token_major(rows.data(), type, kHeads, kWidth);
  reference::read_row(readable, kChunk - 1, kHeads - 1, last);
  reference::rotate_row(last, kTokens + kChunk - 1, frequencies, 1.0, RopeLayout::split_halves);
  turn();
  std::vector<double> got(last.size());
  reference::read_row(readable, kChunk - 1, kHeads - 1, got);
  for (std::size_t i = 0; i < last.size(); ++i) {
    const double pair = std::fabs(last[i]) + std::fabs(last[(i + last.size() / 2) % last.size()]);
    if (!(std::fabs(got[i] - last[i]) <= (conformance::unit_roundoff(type) + 2.0 * kAngleError) * pair)) {
      state.SkipWithError("a row differs from the reference's");
      return;
    }
  }
  for (auto _ : state) {
    turn();
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * kChunk);
}

}  // namespace

void register_stages() {
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    const std::string name = type == ScoreType::bf16 ? "scores:bf16" : "scores:f32";
    const auto add = [&](const char* stage, void (*run)(benchmark::State&, ScoreType)) {
      benchmark::RegisterBenchmark(fmt::format("stage/{}/heads:32/{}", stage, name).c_str(),
                                   [=](benchmark::State& state) { run(state, type); })
          ->Unit(benchmark::kMicrosecond);
    };
    add("selection/candidates:1280", run_selection);
    add("accumulate/memory:512", run_accumulation);
    add("initialise/chunk:1024", run_initialisation);
  }
  for (const std::string& name : engine_names()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      benchmark::RegisterBenchmark(
          fmt::format("stage/open/n:16384/heads:32/kv:8/d:128/engine:{}/type:{}", name, dtype_name(type))
              .c_str(),
          [=](benchmark::State& state) { run_open(state, name, type); })
          ->Unit(benchmark::kMillisecond);
    }
  }
  for (const DType type : {DType::f32, DType::bf16}) {
    benchmark::RegisterBenchmark(
        fmt::format("stage/rotate/rows:1024/heads:32/d:128/type:{}", dtype_name(type)).c_str(),
        [=](benchmark::State& state) { run_rotation(state, type); })
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace headwater::bench
