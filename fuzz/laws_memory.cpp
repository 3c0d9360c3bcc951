// Laws of docs/spec.md 14 about scores, memory sets and what a query sees; see laws.cpp.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "fuzz/law_problem.hpp"

namespace headwater::fuzz {
namespace {

TEST(MemoryLaws, SCORE_5_ScoresAreFiniteAndNeverFall) {
  for_every_engine("monotone scores", [](const Engine& engine) {
    const Problem p = draw();
    std::vector<std::vector<float>> before(static_cast<std::size_t>(p.shape.n_head));
    (void)run(engine, p, call_per_chunk(p), [&](const auto& scores, std::int64_t) {
      for (std::size_t h = 0; h < scores.size(); ++h) {
        for (std::size_t t = 0; t < scores[h].size(); ++t) {
          RC_ASSERT((std::isfinite(scores[h][t]) && scores[h][t] >= 0.0f));
          if (t < before[h].size()) RC_ASSERT(scores[h][t] >= before[h][t]);
        }
      }
      before = scores;
    });
  });
}

/// The best H of all tokens before Local, ascending: SPEC 14's own words, by a sort of them all.
std::vector<std::int32_t> best_of_all(const std::vector<float>& scores, std::int64_t end,
                                      const EffectiveOptions& options) {
  std::vector<std::int32_t> order;
  for (std::int64_t t = 0; t < std::max<std::int64_t>(0, end - options.local); ++t) {
    order.push_back(static_cast<std::int32_t>(t));
  }
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(options.heavy)));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(MemoryLaws, MEM_1_to_5_Sets) {
  for_every_engine("sets are sorted, in range, full, Local and the best of all", [](const Engine& engine) {
    const Problem p = draw();
    const EffectiveOptions options = engine.open(p.shape, p.options)->options();
    std::vector<std::vector<std::vector<float>>> history;  // scores after every call
    const Result result = run(engine, p, call_per_chunk(p),
                              [&](const auto& scores, std::int64_t) { history.push_back(scores); });
    RC_ASSERT(result.chunks.size() == history.size());
    for (std::size_t c = 0; c < result.chunks.size(); ++c) {
      const SeenChunk& chunk = result.chunks[c];
      if (chunk.chunk.mode != ChunkMode::sparse) continue;
      const std::int64_t end = chunk.chunk.begin;
      RC_ASSERT(chunk.count == std::min(options.memory(), end));
      for (std::size_t h = 0; h < chunk.sets.size(); ++h) {
        const std::vector<std::int32_t>& set = chunk.sets[h];
        const bool ascending =
            std::adjacent_find(set.begin(), set.end(), std::greater_equal<>()) == set.end();
        RC_ASSERT(ascending);
        RC_ASSERT((set.empty() || (set.front() >= 0 && set.back() < end)));
        std::vector<std::int32_t> wanted;
        if (c > 0) wanted = best_of_all(history[c - 1][h], end, options);
        for (std::int64_t t = std::max<std::int64_t>(0, end - options.local); t < end; ++t) {
          wanted.push_back(static_cast<std::int32_t>(t));  // Heavy and Local are disjoint
        }
        RC_ASSERT(set == wanted);
      }
    }
  });
}

/// One softmax over the keys at `positions` and the sink, in double (LOGIT-1..4): the output row of query i, head h.
std::vector<double> one_softmax(const Problem& p, double scale, std::int64_t i, std::int64_t h,
                                std::span<const std::int32_t> positions) {
  const Shape& s = p.shape;
  const auto head = static_cast<std::size_t>(h);
  const std::int64_t g = h * s.n_head_kv / s.n_head;
  const float* q = p.q.data() + (i * s.n_head + h) * s.d_head;
  double sink = -std::numeric_limits<double>::infinity();
  if (!p.options.sinks.empty()) sink = static_cast<double>(p.options.sinks[head]);
  std::vector<double> logits;
  double m = sink;
  for (const std::int32_t j : positions) {
    const float* k = p.k.data() + (j * s.n_head_kv + g) * s.d_head;
    double dot = 0.0;
    for (std::int64_t x = 0; x < s.d_head; ++x) dot += static_cast<double>(q[x]) * static_cast<double>(k[x]);
    double logit = scale * dot;
    if (p.options.softcap > 0.0) logit = p.options.softcap * std::tanh(logit / p.options.softcap);
    if (!p.options.alibi.empty())
      logit -= static_cast<double>(p.options.alibi[head]) * static_cast<double>(i - j);
    logits.push_back(logit);
    m = std::max(m, logit);
  }
  double l = std::exp(sink - m);
  std::vector<double> out(static_cast<std::size_t>(s.d_value), 0.0);
  for (std::size_t key = 0; key < logits.size(); ++key) {
    const double w = std::exp(logits[key] - m);
    l += w;
    const float* v = p.v.data() + (positions[key] * s.n_head_kv + g) * s.d_value;
    for (std::size_t x = 0; x < out.size(); ++x) out[x] += w * static_cast<double>(v[x]);
  }
  for (double& component : out) component /= l;
  return out;
}

TEST(MemoryLaws, FUSE_2_UnionIsOneSoftmax) {
  for_every_engine("outputs are one softmax over own chunk and memory set", [](const Engine& engine) {
    const Problem p = draw();
    const double scale = engine.open(p.shape, p.options)->options().scale;
    const Result result = run(engine, p);
    const std::vector<double> bounds = bounds_of(engine, p, result).out;
    for (const SeenChunk& chunk : result.chunks) {
      for (std::int64_t i = chunk.chunk.begin; i < chunk.chunk.end; ++i) {
        for (std::int64_t h = 0; h < p.shape.n_head; ++h) {
          std::vector<std::int32_t> seen;
          const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
          if (sparse) seen = chunk.sets[static_cast<std::size_t>(h)];
          for (std::int64_t j = sparse ? chunk.chunk.begin : 0; j <= i; ++j)
            seen.push_back(static_cast<std::int32_t>(j));
          const std::vector<double> wanted = one_softmax(p, scale, i, h, seen);
          const auto row = static_cast<std::size_t>((i * p.shape.n_head + h) * p.shape.d_value);
          for (std::size_t x = 0; x < wanted.size(); ++x) {
            RC_ASSERT(std::fabs(static_cast<double>(result.out[row + x]) - wanted[x]) <= bounds[row + x]);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace headwater::fuzz
