// Lane hostile: memory in which every wrong access shows. Gaps and surroundings of every tensor hold NaN poison and
// canaries, the last row ends at a page that faults, NaN and infinity come in rows, storage keeps what an earlier run
// left (NUM-2).

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

void placed(Context& context, Placement placement) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const Problem problem = random_problem(random, {.max_chunk = 20, .max_tokens = 80, .max_layers = 2});
    RunStyle style;
    style.placement = placement;
    require_conforming(context, problem, style);
  }
}

void strided(Context& context) { placed(context, Placement::strided); }
const Register kStrided{{"hostile.strided", {"NUM-1", "NUM-2"}, "memory", Lane::hostile, true, strided}};

void head_major(Context& context) { placed(context, Placement::head_major); }
const Register kHeadMajor{{"hostile.head_major", {"NUM-1"}, "memory", Lane::hostile, true, head_major}};

void unaligned(Context& context) { placed(context, Placement::unaligned); }
const Register kUnaligned{
    {"hostile.unaligned", {"NUM-1", "NUM-2"}, "memory", Lane::hostile, true, unaligned}};

void guarded(Context& context) { placed(context, Placement::guarded); }
const Register kGuarded{{"hostile.guarded", {"NUM-2"}, "memory", Lane::hostile, true, guarded}};

// Writes what no one should have to compute with into one row of Q, K or V of token j.
void poison_row(Random& random, Problem& problem, std::int64_t j, Tensor LayerInput::*which) {
  Tensor& tensor = problem.layers[0].*which;
  const std::int64_t h = random.integer(0, tensor.heads - 1);
  const bool whole = random.chance(0.5);
  const std::int64_t one = random.integer(0, tensor.width - 1);
  const float bad = random.pick(std::vector<float>{std::numeric_limits<float>::quiet_NaN(),
                                                   std::numeric_limits<float>::infinity(),
                                                   -std::numeric_limits<float>::infinity()});
  for (std::int64_t x = 0; x < tensor.width; ++x) {
    if (whole || x == one) tensor.row(j, h)[x] = bad;
  }
}

// NaN and infinity at position j reach no output of a chunk before c(j); in the reference, none before j. The rest of
// the run stays within bounds, sets stay valid and replay exactly.
void nan_rows(Context& context) {
  Random random(context.seed);
  const bool strict = context.engine->claims().double_arithmetic;
  const std::vector<Tensor LayerInput::*> tensors{&LayerInput::q, &LayerInput::k, &LayerInput::v};
  for (int round = 0; round < context.rounds(150); ++round) {
    const Problem clean = random_problem(random, {.max_chunk = 16, .max_tokens = 90, .wide = false});
    Problem problem = clean;
    const std::int64_t j = random.integer(0, problem.tokens() - 1);
    poison_row(random, problem, j, random.pick(tensors));
    const Trace a = run(*context.engine, clean);
    const Trace b = run(*context.engine, problem,
                        {.placement = Placement::guarded, .layer_order = {}, .snapshots = true});
    try {
      require_replay(problem, b);
    } catch (const Violation& violation) {
      broken(violation.what(), problem);
    }
    std::int64_t safe = j;
    for (const ChunkTrace& chunk : b.layers[0].chunks) {
      if (!strict && chunk.chunk.begin <= j && j < chunk.chunk.end) safe = chunk.chunk.begin;
    }
    const auto row = static_cast<std::size_t>(problem.shape.n_head * problem.shape.d_value);
    for (std::size_t i = 0; i < static_cast<std::size_t>(safe) * row; ++i) {
      if (!same_bits(a.layers[0].out[i], b.layers[0].out[i])) {
        broken(fmt::format("a bad row at {} reached the output of token {}", j, i / row), problem);
      }
    }
  }
}
const Register kNanRows{
    {"hostile.nan_rows", {"NUM-2", "MEM-3", "MEM-4"}, "memory", Lane::hostile, true, nan_rows}};

// A value row of NaN leaves scores alone. Later chunks whose set does not hold the token must not read it.
void evicted_rows(Context& context) {
  Random random(context.seed);
  int judged = 0;
  for (int round = 0; round < context.rounds(80); ++round) {
    Problem clean =
        random_problem(random, {.max_chunk = 10, .max_tokens = 90, .later_turns = false, .wide = false});
    clean.options.dense = false;
    clean.options.heavy = random.integer(0, 3);
    clean.options.local = random.integer(1, 3);
    Problem problem = clean;
    const std::int64_t j = random.integer(0, problem.tokens() - 1);
    Tensor& v = problem.layers[0].v;
    for (std::int64_t h = 0; h < v.heads; ++h) {
      std::fill_n(v.row(j, h), v.width, std::numeric_limits<float>::quiet_NaN());
    }
    const Trace a = run(*context.engine, clean);
    const Trace b = run(*context.engine, problem);
    if (a.layers[0].snapshots.back().scores != b.layers[0].snapshots.back().scores)
      broken("NaN in V changes scores", problem);
    for (const ChunkTrace& chunk : b.layers[0].chunks) {
      if (chunk.chunk.mode != ChunkMode::sparse || chunk.chunk.begin <= j) continue;
      for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
        const auto* set = chunk.memory.data() + h * chunk.memory_count;
        if (std::binary_search(set, set + chunk.memory_count, static_cast<std::int32_t>(j))) continue;
        ++judged;
        for (std::int64_t t = chunk.chunk.begin; t < chunk.chunk.end; ++t) {
          const auto at = (t * problem.shape.n_head + h) * problem.shape.d_value;
          const auto* x = a.layers[0].out.data() + at;
          if (!std::equal(x, x + problem.shape.d_value, b.layers[0].out.data() + at)) {
            broken(fmt::format("token {} is not in the set, yet it reached token {} head {}", j, t, h),
                   problem);
          }
        }
      }
    }
  }
  if (judged == 0) throw Violation("no token was ever evicted: the case judged nothing");
}
const Register kEvicted{
    {"hostile.evicted_rows", {"FUSE-2", "INTER-1", "NUM-2"}, "memory", Lane::hostile, true, evicted_rows}};

// Storage after the last row never reaches a result: a long run of NaN, reset, then a shorter clean run.
void stale_storage(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    Problem clean =
        random_problem(random, {.max_chunk = 16, .max_tokens = 80, .max_layers = 2, .wide = false});
    clean.shape.capacity += 40;
    Problem bad = clean;
    bad.steps = {Step::prefill(clean.shape.capacity - 3), Step::decode(3)};
    bad.make_tensors();
    for (LayerInput& layer : bad.layers) {
      for (Tensor* tensor : {&layer.q, &layer.k, &layer.v}) {
        std::fill(tensor->values.begin(), tensor->values.end(), std::numeric_limits<float>::quiet_NaN());
      }
    }
    const Trace fresh = run(*context.engine, clean);
    const std::unique_ptr<Session> session = context.engine->open(clean.shape, clean.options);
    (void)run(*session, bad);
    session->reset();
    try {
      require_same(fresh, run(*session, clean), "after a run of NaN and reset");
    } catch (const Violation& violation) {
      broken(violation.what(), clean);
    }
  }
}
const Register kStale{
    {"hostile.stale_storage", {"NUM-2", "STATE-1", "SCORE-1"}, "memory", Lane::hostile, true, stale_storage}};

// Everything NaN, everything infinite, logits that overflow F32: valid sets, exact replay, no crash.
void all_bad(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 12, .max_tokens = 60, .wide = false});
    const float bad = random.pick(std::vector<float>{std::numeric_limits<float>::quiet_NaN(),
                                                     std::numeric_limits<float>::infinity(),
                                                     -std::numeric_limits<float>::infinity(), 1e30f});
    LayerInput& layer = problem.layers[0];
    for (Tensor* tensor : {&layer.q, &layer.k, &layer.v}) {
      if (random.chance(0.3)) continue;
      for (float& x : tensor->values) {
        if (random.chance(0.7)) x = round_to(tensor->type, random.chance(0.5) ? bad : -bad);
      }
    }
    try {
      require_replay(problem, run(*context.engine, problem));
    } catch (const Violation& violation) {
      broken(violation.what(), problem);
    }
  }
}
const Register kAllBad{{"hostile.all_bad", {"NUM-2", "MEM-3"}, "memory", Lane::hostile, true, all_bad}};

// Logits in [-1e4, 1e4] give no NaN or infinity, whatever the other options are.
void finite(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 16, .max_tokens = 80, .wide = false});
    problem.out_type = DType::f32;
    // Every logit is scale * q0 * k0 with |q0| = |k0| = 100 or less.
    problem.options.scale = 1.0;
    LayerInput& layer = problem.layers[0];
    for (Tensor* tensor : {&layer.q, &layer.k}) {
      for (std::int64_t t = 0; t < tensor->n; ++t) {
        for (std::int64_t h = 0; h < tensor->heads; ++h) {
          std::fill_n(tensor->row(t, h), tensor->width, 0.0f);
          tensor->row(t, h)[0] = round_to(tensor->type, static_cast<float>(random.uniform(-100.0, 100.0)));
        }
      }
    }
    const Trace trace = run(*context.engine, problem);
    const auto require_finite = [&](const std::vector<float>& values, const char* what) {
      for (const float x : values) {
        if (!std::isfinite(x)) broken(fmt::format("{} holds {}", what, x), problem);
      }
    };
    require_finite(trace.layers[0].out, "out");
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      require_finite(chunk.lse, "lse");
      require_finite(chunk.colsum_intra, "colsum_intra");
      require_finite(chunk.colsum_inter, "colsum_inter");
    }
  }
}
const Register kFinite{
    {"hostile.finite_logits", {"NUM-2", "SCORE-5"}, "memory", Lane::hostile, true, finite}};

}  // namespace
}  // namespace headwater::conformance
