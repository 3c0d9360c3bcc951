#include "conformance/replay.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"

namespace headwater::conformance {
namespace {

std::int64_t local_start(std::int64_t end, std::int64_t local) { return end > local ? end - local : 0; }

// SPEC 14: while scores are finite Heavy is the best H of *all* tokens before Local.
void require_best_of_all(const std::vector<std::int32_t>& set, const std::vector<float>& scores,
                         std::int64_t end, const EffectiveOptions& options, const std::string& where) {
  if (!std::all_of(scores.begin(), scores.end(), [](float score) { return std::isfinite(score); })) return;
  const std::vector<std::int32_t> best = expected_set({}, 0, end, options.local, options.heavy, scores);
  if (set != best) throw Violation(where + ": Heavy is not the best of all tokens before Local (SPEC 14)");
}

void require_set_laws(const std::vector<std::int32_t>& set, std::int64_t end, const EffectiveOptions& options,
                      const std::string& where) {
  const std::int64_t wanted = std::min(options.memory(), end);
  if (static_cast<std::int64_t>(set.size()) != wanted) {
    throw Violation(fmt::format("{}: |set| is {}, not min(M, tokens) = {}", where, set.size(), wanted));
  }
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (set[i] < 0 || set[i] >= end) throw Violation(fmt::format("{}: entry {} is {}", where, i, set[i]));
    if (i > 0 && set[i] <= set[i - 1])
      throw Violation(fmt::format("{}: not ascending at entry {}", where, i));
  }
  const std::int64_t first_local = local_start(end, options.local);
  for (std::int64_t p = first_local; p < end; ++p) {
    if (!std::binary_search(set.begin(), set.end(), static_cast<std::int32_t>(p))) {
      throw Violation(fmt::format("{}: local position {} is missing (MEM-1)", where, p));
    }
  }
}

}  // namespace

EffectiveOptions expected_options(const Shape& shape, const Options& options) {
  EffectiveOptions effective;
  effective.batch = std::max(options.batch, options.chunk);  // CFG-4
  effective.chunk = options.chunk;
  effective.local = options.dense ? 0 : options.local;
  effective.heavy = options.dense ? 0 : options.heavy;
  if (options.clamp && effective.local + effective.heavy >= options.chunk) {  // CFG-3
    effective.local = std::min(effective.local, options.chunk - 1);
    effective.heavy = std::min(effective.heavy, options.chunk - 1 - effective.local);
  }
  effective.sparse = effective.local + effective.heavy > 0;
  effective.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.d_head)));
  effective.softcap = options.softcap;
  effective.score_type = options.score_type;
  effective.schedule = options.schedule;
  return effective;
}

std::vector<std::vector<Chunk>> expected_plans(const Problem& problem) {
  const EffectiveOptions options = expected_options(problem.shape, problem.options);
  std::vector<std::vector<Chunk>> plans;
  std::int64_t base = 0;
  bool in_turn = false;
  bool sparse_turn = false;
  for (const Step& step : problem.steps) {
    std::vector<Chunk> plan;
    if (step.kind == Step::Kind::decode) {
      plan.push_back({base, base + step.n, ChunkMode::decode});
      in_turn = false;
    } else {
      if (!in_turn) {
        const std::int64_t turn = step.turn_length != 0 ? step.turn_length : step.n;
        sparse_turn = options.sparse && (base == 0 || turn > options.chunk);
        in_turn = true;
      }
      if (!sparse_turn) {
        plan.push_back({base, base + step.n, ChunkMode::dense});
      } else {
        // Token by token: a chunk ends where its batch, its own S tokens, or the call end.
        Chunk open{base, base, ChunkMode::sparse};
        for (std::int64_t t = 0; t < step.n; ++t) {
          open.end = base + t + 1;
          const bool batch_ends = (t + 1) % options.batch == 0;
          if (open.end - open.begin == options.chunk || batch_ends || t + 1 == step.n) {
            plan.push_back(open);
            open.begin = open.end;
          }
        }
      }
    }
    base += step.n;
    plans.push_back(plan);
  }
  return plans;
}

std::uint32_t score_bits(ScoreType type, float value) {
  return type == ScoreType::bf16 ? bf16_bits(value) : std::bit_cast<std::uint32_t>(value);
}

float score_value(ScoreType type, std::uint32_t bits) {
  return type == ScoreType::bf16 ? bf16_value(static_cast<std::uint16_t>(bits)) : std::bit_cast<float>(bits);
}

std::vector<std::int32_t> expected_set(const std::vector<std::int32_t>& previous, std::int64_t previous_end,
                                       std::int64_t end, std::int64_t local, std::int64_t heavy,
                                       const std::vector<float>& scores) {
  std::vector<std::int32_t> candidates = previous;
  for (std::int64_t p = previous_end; p < end; ++p) candidates.push_back(static_cast<std::int32_t>(p));
  const std::int64_t first_local = local_start(end, local);
  std::erase_if(candidates, [&](std::int32_t p) { return p >= first_local; });
  const auto kept = std::min<std::int64_t>(heavy, static_cast<std::int64_t>(candidates.size()));
  const auto last = candidates.begin() + kept;
  std::partial_sort(candidates.begin(), last, candidates.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);  // NaN ranks below every number
    if (!std::isnan(x) && x != y) return x > y;
    return a < b;
  });
  candidates.erase(last, candidates.end());
  for (std::int64_t p = first_local; p < end; ++p) candidates.push_back(static_cast<std::int32_t>(p));
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

Replay::Replay(const EffectiveOptions& options, std::int64_t heads)
    : options_(options), heads_(static_cast<std::size_t>(heads)) {}

void Replay::take(const ChunkTrace& chunk, const std::string& where) {
  const ScoreType type = options_.score_type;
  const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
  const bool reads = sparse && chunk.chunk.begin > 0;
  if (!reads && chunk.memory_count != 0) throw Violation(where + " reads a memory set");
  const auto count = static_cast<std::size_t>(chunk.memory_count);
  const auto length = static_cast<std::size_t>(chunk.length());
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    const std::string at = fmt::format("{} head {}", where, h);
    if (reads) {  // MEM-5: built when the chunk starts, from all tokens before it
      head.set =
          expected_set(head.set, set_end_, chunk.chunk.begin, options_.local, options_.heavy, head.scores);
      const auto* first = chunk.memory.data() + h * count;
      const std::vector<std::int32_t> got(first, first + count);
      if (got != head.set) {
        throw Violation(fmt::format("{}: memory set [{}], replay gives [{}]", at, fmt::join(got, " "),
                                    fmt::join(head.set, " ")));
      }
      require_set_laws(got, chunk.chunk.begin, options_, at);
      require_best_of_all(got, head.scores, chunk.chunk.begin, options_, at);
      for (std::size_t i = 0; i < count; ++i) {  // SCORE-3: once per chunk, the sum in F32
        float& score = head.scores[static_cast<std::size_t>(got[i])];
        const float before = score;
        const float sum = score + chunk.colsum_inter[h * count + i];
        score = score_value(type, score_bits(type, sum));
        if (std::isfinite(score) && score < before) {
          throw Violation(fmt::format("{}: the score of {} falls (SCORE-5)", at, got[i]));
        }
      }
    }
    for (std::size_t t = 0; t < length; ++t) {  // SCORE-2 in sparse chunks, else 0
      const float sum = sparse ? chunk.colsum_intra[h * length + t] : 0.0f;
      head.scores.push_back(score_value(type, score_bits(type, sum)));
    }
  }
  if (reads) set_end_ = chunk.chunk.begin;
}

void Replay::require_scores(const std::vector<std::uint32_t>& bits, const std::string& where) const {
  const ScoreType type = options_.score_type;
  std::size_t at = 0;
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    for (std::size_t p = 0; p < heads_[h].scores.size(); ++p, ++at) {
      const std::uint32_t wanted = score_bits(type, heads_[h].scores[p]);
      if (at < bits.size() && bits[at] == wanted) continue;
      // F32 scores may hold any NaN.
      if (at < bits.size() && type == ScoreType::f32 && std::isnan(score_value(type, wanted)) &&
          std::isnan(score_value(type, bits[at]))) {
        continue;
      }
      throw Violation(fmt::format("{}: score of head {} position {} is {:#x}, replay gives {:#x}", where, h,
                                  p, at < bits.size() ? bits[at] : 0u, wanted));
    }
  }
  if (at != bits.size()) throw Violation(fmt::format("{}: {} scores, replay has {}", where, bits.size(), at));
}

std::vector<std::int32_t> Replay::sets() const {
  std::vector<std::int32_t> all;
  for (const Head& head : heads_) all.insert(all.end(), head.set.begin(), head.set.end());
  return all;
}

void require_replay(const Problem& problem, const Trace& trace) {
  const EffectiveOptions options = expected_options(problem.shape, problem.options);
  const std::vector<std::vector<Chunk>> plans = expected_plans(problem);
  if (trace.plans.size() != plans.size()) throw Violation("PLAN: wrong number of steps");
  for (std::size_t s = 0; s < plans.size(); ++s) {
    const auto same = [](const Chunk& a, const Chunk& b) {
      return a.begin == b.begin && a.end == b.end && a.mode == b.mode;
    };
    if (!std::equal(plans[s].begin(), plans[s].end(), trace.plans[s].begin(), trace.plans[s].end(), same)) {
      std::string text;
      for (const Chunk& chunk : trace.plans[s]) {
        text += fmt::format(" [{}, {}) mode {}", chunk.begin, chunk.end, static_cast<int>(chunk.mode));
      }
      throw Violation(fmt::format("PLAN-1: step {} was cut into{}", s, text));
    }
  }

  for (std::size_t l = 0; l < trace.layers.size(); ++l) {
    const LayerTrace& said = trace.layers[l];
    if (said.snapshots.size() != plans.size()) throw Violation("replay needs a snapshot after every step");
    Replay replay(options, problem.shape.n_head);
    std::size_t next = 0;
    for (std::size_t s = 0; s < plans.size(); ++s) {
      for (const Chunk& planned : plans[s]) {
        const std::string where = fmt::format("layer {} chunk [{}, {})", l, planned.begin, planned.end);
        if (next == said.chunks.size()) throw Violation(where + " was never reported");
        const ChunkTrace& chunk = said.chunks[next++];
        if (chunk.chunk.begin != planned.begin || chunk.chunk.end != planned.end ||
            chunk.chunk.mode != planned.mode) {
          throw Violation(fmt::format("{}: reported as [{}, {}) mode {}", where, chunk.chunk.begin,
                                      chunk.chunk.end, static_cast<int>(chunk.chunk.mode)));
        }
        replay.take(chunk, where);
      }
      const std::string where = fmt::format("layer {} after step {}", l, s);
      replay.require_scores(said.snapshots[s].scores, where);
      if (said.snapshots[s].memory != replay.sets()) {
        throw Violation(where + ": memory() is not the set that was built last");
      }
    }
    if (next != said.chunks.size())
      throw Violation(fmt::format("layer {}: more chunks reported than planned", l));
  }
}

}  // namespace headwater::conformance
