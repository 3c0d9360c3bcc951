// Laws of docs/spec.md 14 on random problems, shrunk to the smallest that fails. Seeds are printed by rapidcheck;
// RC_PARAMS="seed=... max_success=1000" repeats and deepens.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "fuzz/ops.hpp"
#include "headwater/headwater.hpp"

namespace headwater::fuzz {
namespace {

/// One layer of random size and its inputs.
struct Problem {
  Shape shape;
  Options options;
  std::int64_t n = 1;
  std::vector<float> q, k, v;
};

std::vector<float> random_rows(std::int64_t count) {
  const auto state0 = *rc::gen::arbitrary<std::uint32_t>();
  std::uint32_t state = state0;
  std::vector<float> rows(static_cast<std::size_t>(count));
  for (float& value : rows) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(state >> 16) - 32768) / 16384.0f;
  }
  return rows;
}

Problem draw() {
  Problem p;
  p.shape.n_head_kv = *rc::gen::inRange<std::int64_t>(1, 3);
  p.shape.n_head = p.shape.n_head_kv * *rc::gen::inRange<std::int64_t>(1, 4);
  p.shape.d_head = *rc::gen::inRange<std::int64_t>(1, 20);
  p.shape.d_value = *rc::gen::inRange<std::int64_t>(1, 20);
  p.n = *rc::gen::inRange<std::int64_t>(1, 90);
  p.shape.capacity = p.n;
  p.options.chunk = *rc::gen::inRange<std::int64_t>(1, 40);
  p.options.batch = p.options.chunk * *rc::gen::inRange<std::int64_t>(1, 4);
  p.options.local = *rc::gen::inRange<std::int64_t>(0, 12);
  p.options.heavy = *rc::gen::inRange<std::int64_t>(0, 12);
  p.options.clamp = *rc::gen::arbitrary<bool>();
  p.options.threads = *rc::gen::inRange(1, 3);
  p.options.schedule = *rc::gen::element(Schedule::layer_major, Schedule::chunk_major);
  p.options.score_type = *rc::gen::element(ScoreType::bf16, ScoreType::f32);
  if (*rc::gen::arbitrary<bool>()) p.options.softcap = 3.0;
  if (*rc::gen::arbitrary<bool>()) p.options.sinks.assign(static_cast<std::size_t>(p.shape.n_head), 0.25f);
  if (*rc::gen::arbitrary<bool>()) p.options.alibi.assign(static_cast<std::size_t>(p.shape.n_head), 0.0625f);
  p.q = random_rows(p.n * p.shape.n_head * p.shape.d_head);
  p.k = random_rows(p.n * p.shape.n_head_kv * p.shape.d_head);
  p.v = random_rows(p.n * p.shape.n_head_kv * p.shape.d_value);
  return p;
}

/// What a run leaves behind.
struct Result {
  std::vector<float> out;             // [n][heads][dv]
  std::vector<float> scores;          // [heads][n]
  std::vector<std::int32_t> sets;     // every set read
  std::vector<float> column_sums;     // intra then inter, chunk after chunk
  std::vector<double> intra_totals;   // per chunk and head: sum of the intra column sums
  std::vector<std::int64_t> lengths;  // per chunk and head: number of queries

  /// Bits, so that equal means equal.
  [[nodiscard]] bool same_bits(const Result& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    return same(out, other.out) && same(scores, other.scores) && same(sets, other.sets) &&
           same(column_sums, other.column_sums);
  }
};

Result run(const Engine& engine, const Problem& p, const std::vector<Step>& steps) {
  const auto session = engine.open(p.shape, p.options);
  const Shape& s = p.shape;
  Result result;
  result.out.resize(static_cast<std::size_t>(p.n * s.n_head * s.d_value));
  session->set_observer([&](const ChunkRecord& record) {
    const std::int64_t length = record.chunk.end - record.chunk.begin;
    for (std::int64_t head = 0; head < s.n_head; ++head) {
      if (record.colsum_intra == nullptr) continue;
      const float* intra = record.colsum_intra + head * record.row_stride;
      const float* inter = record.colsum_inter + head * record.memory_stride;
      const std::int32_t* set = record.memory + head * record.memory_stride;
      double total = 0;
      for (std::int64_t i = 0; i < length; ++i) total += static_cast<double>(intra[i]);
      result.intra_totals.push_back(total);
      result.lengths.push_back(length);
      result.column_sums.insert(result.column_sums.end(), intra, intra + length);
      result.column_sums.insert(result.column_sums.end(), inter, inter + record.memory_count);
      result.sets.insert(result.sets.end(), set, set + record.memory_count);
    }
  });
  std::int64_t done = 0;
  for (const Step& step : steps) {
    session->begin(step);
    session->attend(
        0, Rows::token_major(p.q.data() + done * s.n_head * s.d_head, DType::f32, s.n_head, s.d_head),
        Rows::token_major(p.k.data() + done * s.n_head_kv * s.d_head, DType::f32, s.n_head_kv, s.d_head),
        Rows::token_major(p.v.data() + done * s.n_head_kv * s.d_value, DType::f32, s.n_head_kv, s.d_value),
        MutableRows::token_major(result.out.data() + done * s.n_head * s.d_value, DType::f32, s.n_head,
                                 s.d_value));
    session->end();
    done += step.n;
  }
  const ScoreView view = session->scores(0);
  for (std::int64_t head = 0; head < s.n_head; ++head) {
    for (std::int64_t t = 0; t < done; ++t) {
      const std::int64_t at = head * view.head_stride + t;
      std::uint32_t bits = 0;
      if (view.type == ScoreType::bf16) {
        bits = static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(view.data)[at]) << 16;
      } else {
        std::memcpy(&bits, static_cast<const float*>(view.data) + at, 4);
      }
      float score = 0;
      std::memcpy(&score, &bits, 4);
      result.scores.push_back(score);
    }
  }
  return result;
}

Result run(const Engine& engine, const Problem& p) { return run(engine, p, {Step::prefill(p.n)}); }

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst;
}

/// Inputs are at most 2 in size, rows at most 20 wide and 90 long: float arithmetic errs by less.
constexpr double kRounding = 1e-4;

template <typename Law>
void for_every_engine(const char* name, Law&& law) {
  for (const Engine* engine : engines()) {
    if (!engine->unavailable_because().empty()) continue;
    SCOPED_TRACE(std::string(engine->name()));
    EXPECT_TRUE(rc::check(std::string(name) + " on " + std::string(engine->name()), [&] { law(*engine); }));
  }
}

TEST(Laws, CausalityIsByteExact) {
  for_every_engine("changing token j leaves every output before j as it was", [](const Engine& engine) {
    Problem p = draw();
    const Result before = run(engine, p);
    const std::int64_t j = *rc::gen::inRange<std::int64_t>(0, p.n);
    const Shape& s = p.shape;
    for (auto [rows, heads, width] : {std::tuple{&p.q, s.n_head, s.d_head},
                                      {&p.k, s.n_head_kv, s.d_head},
                                      {&p.v, s.n_head_kv, s.d_value}}) {
      for (std::int64_t i = 0; i < heads * width; ++i) {
        (*rows)[static_cast<std::size_t>(j * heads * width + i)] += 1.5f;
      }
    }
    const Result after = run(engine, p);
    const auto untouched = static_cast<std::size_t>(j * s.n_head * s.d_value) * sizeof(float);
    RC_ASSERT(std::memcmp(before.out.data(), after.out.data(), untouched) == 0);
  });
}

TEST(Laws, PLAN_2_CallsMayBeCutAtMultiplesOfTheChunk) {
  for_every_engine("calls cut at multiples of S change nothing", [](const Engine& engine) {
    const Problem p = draw();
    std::vector<Step> steps;
    for (std::int64_t done = 0; done < p.n;) {
      const std::int64_t whole = p.options.chunk * *rc::gen::inRange<std::int64_t>(1, 4);
      const std::int64_t n = std::min(whole, p.n - done);
      steps.push_back(Step::prefill(n, done == 0 ? p.n : 0));
      done += n;
    }
    const bool sparse = engine.open(p.shape, p.options)->options().sparse;
    const Result whole = run(engine, p);
    const Result cut = run(engine, p, steps);
    if (sparse) {
      RC_ASSERT(whole.same_bits(cut));
    } else {
      RC_ASSERT(largest_difference(whole.out, cut.out) <= kRounding);
    }
  });
}

TEST(Laws, NUM_3_and_SCHED_2_ThreadsAndSchedulesGiveTheSameBits) {
  for_every_engine("threads and schedules", [](const Engine& engine) {
    Problem p = draw();
    const Result first = run(engine, p);
    p.options.threads = *rc::gen::element(1, 2, 3, 7);
    p.options.schedule =
        p.options.schedule == Schedule::layer_major ? Schedule::chunk_major : Schedule::layer_major;
    RC_ASSERT(first.same_bits(run(engine, p)));
  });
}

TEST(Laws, DenseLimit) {
  for_every_engine("a memory that holds all history is dense attention", [](const Engine& engine) {
    Problem p = draw();
    p.options.clamp = false;
    p.options.local = p.n;
    const Result sparse = run(engine, p);
    p.options.dense = true;
    RC_ASSERT(largest_difference(sparse.out, run(engine, p).out) <= kRounding);
  });
}

TEST(Laws, INTRA_2_ColumnSumsAddUpToTheQueries) {
  for_every_engine("partition of unity", [](const Engine& engine) {
    Problem p = draw();
    p.options.sinks.clear();
    const Result result = run(engine, p);
    for (std::size_t i = 0; i < result.lengths.size(); ++i) {
      const auto length = static_cast<double>(result.lengths[i]);
      RC_ASSERT(std::fabs(result.intra_totals[i] - length) <= kRounding * length);
    }
    for (const float score : result.scores) RC_ASSERT(std::isfinite(score) && score >= 0.0f);
  });
}

TEST(Laws, ValueLinearity) {
  for_every_engine("outputs are linear in V, scores do not change", [](const Engine& engine) {
    Problem p = draw();
    const Result one = run(engine, p);
    for (float& value : p.v) value *= 2.0f;  // exact
    const Result two = run(engine, p);
    for (std::size_t i = 0; i < one.out.size(); ++i) RC_ASSERT(two.out[i] == 2.0f * one.out[i]);
    RC_ASSERT(one.scores == two.scores);
    RC_ASSERT(one.sets == two.sets);
  });
}

TEST(Laws, HeadPermutation) {
  for_every_engine("swapping heads swaps results", [](const Engine& engine) {
    Problem p = draw();
    p.shape.n_head_kv = 2;
    p.shape.n_head = 2;
    p.options.sinks.clear();
    p.options.alibi.clear();
    p.q = random_rows(p.n * 2 * p.shape.d_head);
    p.k = random_rows(p.n * 2 * p.shape.d_head);
    p.v = random_rows(p.n * 2 * p.shape.d_value);
    const auto swapped = [&](const std::vector<float>& rows, std::int64_t width) {
      std::vector<float> other(rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto w = static_cast<std::size_t>(width);
        const std::size_t head = i / w % 2;
        other[head == 0 ? i + w : i - w] = rows[i];
      }
      return other;
    };
    const Result before = run(engine, p);
    Problem other = p;
    other.q = swapped(p.q, p.shape.d_head);
    other.k = swapped(p.k, p.shape.d_head);
    other.v = swapped(p.v, p.shape.d_value);
    RC_ASSERT(swapped(run(engine, other).out, p.shape.d_value) == before.out);
  });
}

TEST(Ops, STATE_1_to_5_AllEnginesLiveTheSameLife) {
  EXPECT_TRUE(rc::check("random calls on all engines side by side", [] {
    const auto bytes = *rc::gen::container<std::vector<std::uint8_t>>(*rc::gen::inRange<std::size_t>(20, 200),
                                                                      rc::gen::arbitrary<std::uint8_t>());
    const std::string problem = run_ops(bytes);
    if (!problem.empty()) RC_FAIL(problem);
  }));
}

}  // namespace
}  // namespace headwater::fuzz
