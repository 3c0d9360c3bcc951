// Laws of docs/spec.md 14 on random problems, shrunk to the smallest that fails: what must not change a result, or
// change it in a known way. (laws_memory.cpp: scores and memory sets.) Seeds are printed by rapidcheck;
// RC_PARAMS="seed=... max_success=1000" repeats them with more tries.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "conformance/formats.hpp"
#include "fuzz/law_problem.hpp"
#include "fuzz/ops.hpp"

namespace headwater::fuzz {
namespace {

// Of other rules than h2o: every output before the query block of token j (SEL-10).
TEST(Laws, CausalityIsByteExact) {
  for_every_engine("changing token j leaves every output before j as it was", [](const Engine& engine) {
    Problem p = draw();
    draw_rule(engine, p.options);
    const Result before = run(engine, p);
    const std::int64_t j = *rc::gen::inRange<std::int64_t>(0, p.n);
    const Shape& s = p.shape;
    for (auto [rows, heads, width] : {std::tuple{&p.q, s.n_head, s.d_head},
                                      {&p.k, s.n_head_kv, s.d_head},
                                      {&p.v, s.n_head_kv, s.d_value}}) {
      for (std::int64_t i = 0; i < heads * width; ++i) {
        float& x = (*rows)[static_cast<std::size_t>(j * heads * width + i)];
        x = conformance::round_to(s.kv_type, x + 1.5f);
      }
    }
    const Result after = run(engine, p);
    const std::int64_t in_chunk = j % p.options.chunk;
    const std::int64_t in_block = p.options.select != Select::h2o ? in_chunk % p.options.query_block : 0;
    const auto untouched = static_cast<std::size_t>((j - in_block) * s.n_head * s.d_value) * sizeof(float);
    RC_ASSERT(std::memcmp(before.out.data(), after.out.data(), untouched) == 0);
  });
}

TEST(Laws, PLAN_2_CallsMayBeCutAtMultiplesOfTheChunk) {
  for_every_engine("calls cut at multiples of S change nothing", [](const Engine& engine) {
    Problem p = draw();
    draw_rule(engine, p.options);
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
      RC_ASSERT(close(whole.out, bounds_of(engine, p, whole).out, cut.out, bounds_of(engine, p, cut).out));
    }
  });
}

TEST(Laws, NUM_3_and_SCHED_2_ThreadsAndSchedulesGiveTheSameBits) {
  for_every_engine("threads and schedules", [](const Engine& engine) {
    Problem p = draw();
    draw_rule(engine, p.options);
    const Result first = run(engine, p);
    p.options.threads = *rc::gen::element(1, 2, 3, 7);
    p.options.schedule =
        p.options.schedule == Schedule::layer_major ? Schedule::chunk_major : Schedule::layer_major;
    RC_ASSERT(first.same_bits(run(engine, p)));
    // Work may be dealt out otherwise where nobody observes it.
    Result silent = run(engine, p, {Step::prefill(p.n)}, {}, false);
    silent.chunks = first.chunks;
    RC_ASSERT(first.same_bits(silent));
  });
}

TEST(Laws, DenseLimit) {
  for_every_engine("a memory that holds all history is dense attention", [](const Engine& engine) {
    Problem p = draw();
    p.options.clamp = false;
    p.options.local = p.n;
    const Result sparse = run(engine, p);
    const std::vector<double> sparse_bounds = bounds_of(engine, p, sparse).out;
    p.options.dense = true;
    const Result dense = run(engine, p);
    RC_ASSERT(close(sparse.out, sparse_bounds, dense.out, bounds_of(engine, p, dense).out));
  });
}

TEST(Laws, INTRA_2_and_INTER_2_ColumnSumsAddUpToTheQueries) {
  for_every_engine("partition of unity", [](const Engine& engine) {
    Problem p = draw();
    p.options.sinks.clear();
    const Result result = run(engine, p);
    const Bounds bounds = bounds_of(engine, p, result);
    for (std::size_t c = 0; c < result.chunks.size(); ++c) {
      const SeenChunk& chunk = result.chunks[c];
      const auto length = static_cast<double>(chunk.chunk.end - chunk.chunk.begin);
      const auto adds_up = [&](const std::vector<float>& sums, const std::vector<double>& bound) {
        return std::fabs(std::accumulate(sums.begin(), sums.end(), 0.0) - length) <=
               std::accumulate(bound.begin(), bound.end(), 0.0);
      };
      for (std::size_t h = 0; h < chunk.intra.size(); ++h) {
        RC_ASSERT(adds_up(chunk.intra[h], bounds.chunks[c].intra[h]));
        RC_ASSERT((chunk.inter[h].empty() || adds_up(chunk.inter[h], bounds.chunks[c].inter[h])));  // INTER-2
      }
    }
  });
}

TEST(Laws, ValueLinearity) {
  for_every_engine("outputs are linear in V, scores and sets do not change", [](const Engine& engine) {
    Problem p = draw();
    p.v = coarse_rows(static_cast<std::int64_t>(p.v.size()));
    const Result one = run(engine, p);
    const std::vector<double> bound_one = bounds_of(engine, p, one).out;
    const std::vector<float> more = coarse_rows(static_cast<std::int64_t>(p.v.size()));
    Problem other = p;
    other.v = more;
    const Result two = run(engine, other);
    const std::vector<double> bound_two = bounds_of(engine, other, two).out;
    for (std::size_t i = 0; i < p.v.size(); ++i) other.v[i] = 2.0f * p.v[i] + more[i];
    const Result sum = run(engine, other);
    const std::vector<double> bound_sum = bounds_of(engine, other, sum).out;
    for (std::size_t i = 0; i < one.out.size(); ++i) {
      const double wanted = 2.0 * static_cast<double>(one.out[i]) + static_cast<double>(two.out[i]);
      RC_ASSERT(std::fabs(static_cast<double>(sum.out[i]) - wanted) <=
                2.0 * bound_one[i] + bound_two[i] + bound_sum[i]);
    }
    for (float& value : p.v) value *= 2.0f;  // exact
    const Result twice = run(engine, p);
    for (std::size_t i = 0; i < one.out.size(); ++i) RC_ASSERT(twice.out[i] == 2.0f * one.out[i]);
    for (const Result* result : {&two, &sum, &twice}) {
      RC_ASSERT(one.scores == result->scores);
      RC_ASSERT(one.same_sets(*result));
    }
  });
}

/// Rows of [n][heads][width] with head `order[h]` in the place of head h.
std::vector<float> with_heads(const std::vector<float>& rows, const std::vector<std::size_t>& order,
                              std::int64_t width) {
  const auto w = static_cast<std::size_t>(width);
  const std::size_t token = order.size() * w;
  std::vector<float> permuted(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    permuted[i] = rows[i / token * token + order[i % token / w] * w + i % w];
  }
  return permuted;
}

TEST(Laws, HeadPermutation) {
  for_every_engine("permuting heads permutes results", [](const Engine& engine) {
    Problem p = draw();
    p.shape.n_head_kv = *rc::gen::inRange<std::int64_t>(2, 4);
    const std::int64_t group = *rc::gen::inRange<std::int64_t>(1, 3);
    p.shape.n_head = p.shape.n_head_kv * group;
    p.options.sinks = random_rows(p.shape.n_head);
    p.options.alibi = random_rows(p.shape.n_head);
    draw_rows(p);
    // Key/value heads in any order, and with them their groups of query heads, which are permuted, too.
    std::vector<std::size_t> kv(static_cast<std::size_t>(p.shape.n_head_kv));
    std::iota(kv.begin(), kv.end(), std::size_t{0});
    const auto turn = *rc::gen::inRange<std::size_t>(1, kv.size());
    std::rotate(kv.begin(), kv.begin() + static_cast<std::ptrdiff_t>(turn), kv.end());
    const auto inner = *rc::gen::inRange<std::size_t>(0, static_cast<std::size_t>(group));
    std::vector<std::size_t> heads;
    for (const std::size_t head : kv) {
      for (std::size_t r = 0; r < static_cast<std::size_t>(group); ++r) {
        const auto g = static_cast<std::size_t>(group);
        heads.push_back(head * g + (r + inner) % g);
      }
    }
    const Result before = run(engine, p);
    Problem other = p;
    other.q = with_heads(p.q, heads, p.shape.d_head);
    other.k = with_heads(p.k, kv, p.shape.d_head);
    other.v = with_heads(p.v, kv, p.shape.d_value);
    other.options.sinks = with_heads(p.options.sinks, heads, 1);
    other.options.alibi = with_heads(p.options.alibi, heads, 1);
    const Result after = run(engine, other);
    RC_ASSERT(after.out == with_heads(before.out, heads, p.shape.d_value));
    for (std::size_t h = 0; h < heads.size(); ++h) {
      RC_ASSERT(after.scores[h] == before.scores[heads[h]]);
      for (std::size_t c = 0; c < before.chunks.size(); ++c) {
        if (before.chunks[c].sets.empty()) continue;
        RC_ASSERT(after.chunks[c].sets[h] == before.chunks[c].sets[heads[h]]);
        RC_ASSERT(after.chunks[c].inter[h] == before.chunks[c].inter[heads[h]]);
      }
    }
  });
}

TEST(Laws, LogitShift) {
  for_every_engine("a constant added to all logits of a row changes nothing", [](const Engine& engine) {
    Problem p = draw();
    p.options.softcap = 0.0;  // it is not linear: a shift before it is no shift after it
    p.options.sinks.clear();  // is one more logit, which would have to be shifted too
    p.options.heavy = 0;      // sets by position alone: rounding must not choose between near ties
    p.options.scale = 0.25;
    ++p.shape.d_head;
    draw_rows(p);
    const auto d = static_cast<std::size_t>(p.shape.d_head);
    for (std::size_t i = d - 1; i < p.k.size(); i += d) p.k[i] = 1.0f;
    for (std::size_t i = d - 1; i < p.q.size(); i += d) p.q[i] = 0.0f;
    const Result plain = run(engine, p);
    const Bounds a = bounds_of(engine, p, plain);
    const std::vector<float> shifts = random_rows(static_cast<std::int64_t>(p.q.size() / d));
    for (std::size_t row = 0; row < shifts.size(); ++row)
      p.q[row * d + d - 1] = conformance::round_to(p.shape.kv_type, 20.0f * shifts[row]);
    const Result shifted = run(engine, p);
    const Bounds b = bounds_of(engine, p, shifted);
    RC_ASSERT(close(plain.out, a.out, shifted.out, b.out));
    RC_ASSERT(plain.same_sets(shifted));
    for (std::size_t c = 0; c < plain.chunks.size(); ++c) {
      for (std::size_t h = 0; h < plain.chunks[c].sets.size(); ++h) {
        RC_ASSERT(close(plain.chunks[c].intra[h], a.chunks[c].intra[h], shifted.chunks[c].intra[h],
                        b.chunks[c].intra[h]));
        RC_ASSERT(close(plain.chunks[c].inter[h], a.chunks[c].inter[h], shifted.chunks[c].inter[h],
                        b.chunks[c].inter[h]));
      }
    }
  });
}

TEST(Laws, INTER_1_KeyOrder) {
  for_every_engine("the order of the keys in memory changes nothing", [](const Engine& engine) {
    Problem p = draw();
    const std::int64_t first = std::min(p.options.chunk, p.n - 1);
    RC_PRE(first >= 2);
    // Two chunks; the memory set of the second is the whole first one, whatever its scores are.
    p.options.chunk = p.options.batch = std::max(first, p.n - first);
    p.options.clamp = false;
    p.options.local = first;
    p.options.alibi.clear();  // looks at positions
    std::vector<Step> steps{Step::prefill(first, p.n), Step::prefill(p.n - first)};
    const Result before = run(engine, p, steps);
    const Bounds bounds_before = bounds_of(engine, p, before);
    const auto a = *rc::gen::inRange<std::int64_t>(0, first);
    const auto b = *rc::gen::inRange<std::int64_t>(0, first);
    for (auto [rows, width] : {std::tuple{&p.k, p.shape.n_head_kv * p.shape.d_head},
                               {&p.v, p.shape.n_head_kv * p.shape.d_value}}) {
      if (a != b)
        std::swap_ranges(rows->begin() + a * width, rows->begin() + (a + 1) * width,
                         rows->begin() + b * width);
    }
    const Result after = run(engine, p, steps);
    const Bounds bounds_after = bounds_of(engine, p, after);
    const auto second = [&](const auto& rows) {
      const auto begin = rows.begin() + first * p.shape.n_head * p.shape.d_value;
      return std::vector(begin, rows.end());
    };
    RC_ASSERT(
        close(second(before.out), second(bounds_before.out), second(after.out), second(bounds_after.out)));
    RC_ASSERT(after.chunks[1].count == first);
    for (std::size_t h = 0; h < after.chunks[1].inter.size(); ++h) {
      std::vector<float> sums = before.chunks[1].inter[h];
      std::vector<double> bounds = bounds_before.chunks[1].inter[h];
      std::swap(sums[static_cast<std::size_t>(a)], sums[static_cast<std::size_t>(b)]);
      std::swap(bounds[static_cast<std::size_t>(a)], bounds[static_cast<std::size_t>(b)]);
      RC_ASSERT(close(sums, bounds, after.chunks[1].inter[h], bounds_after.chunks[1].inter[h]));
    }
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
