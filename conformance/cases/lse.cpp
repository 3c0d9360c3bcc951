// LSE-1: the log-sum-exps that a caller asks for.

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

// What was asked for has the bits of what the observer of the same run was shown.
void require_observed(const Trace& trace, const Problem& problem) {
  const std::int64_t heads = problem.shape.n_head;
  for (std::size_t layer = 0; layer < trace.layers.size(); ++layer) {
    const LayerTrace& said = trace.layers[layer];
    if (std::ssize(said.lse) != problem.tokens() * heads) broken("log-sum-exps are missing", problem);
    for (const ChunkTrace& chunk : said.chunks) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t t = 0; t < chunk.length(); ++t) {
          const float got = said.lse[static_cast<std::size_t>((chunk.chunk.begin + t) * heads + h)];
          const float seen = chunk.lse[static_cast<std::size_t>(h * chunk.length() + t)];
          if (same_bits(got, seen)) continue;
          broken(fmt::format("layer {} head {} token {}: log-sum-exp {:.9g}, the observer saw {:.9g}", layer,
                             h, chunk.chunk.begin + t, got, seen),
                 problem);
        }
      }
    }
  }
}

// Of one problem: with and without an observer, in any layout, and nothing else changes.
Trace require_lse(Context& context, const Problem& problem, Placement placement) {
  const Engine& engine = *context.engine;
  RunStyle style;
  style.placement = placement;
  style.lse = true;
  const Trace asked = replayed(engine, problem, style);
  require_observed(asked, problem);
  require_same(asked, run(engine, problem), "log-sum-exps asked for and not; " + problem.describe());
  style.observed = false;
  Trace bare = run(engine, problem, style);
  for (std::size_t layer = 0; layer < bare.layers.size(); ++layer)
    bare.layers[layer].chunks = asked.layers[layer].chunks;
  require_same(asked, bare, "log-sum-exps with an observer and without; " + problem.describe());
  return asked;
}

void observed(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::lse, "lse");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(40); ++round) {
      const bool large = round % 8 == 0 && !context.quick;
      Problem problem =
          session_problem(random, engine, rule,
                          {.max_chunk = large ? 150 : 24, .max_tokens = large ? 500 : 100, .max_layers = 2});
      const Trace trace =
          require_lse(context, problem,
                      random.pick(std::vector<Placement>{Placement::token_major, Placement::head_major,
                                                         Placement::strided, Placement::guarded}));
      if (!large) require_forced(context, problem, trace);
    }
  }
}
const Register kObserved{{"lse.observed", {"LSE-1", "FUSE-1"}, "fusion", Lane::bound, true, observed}};

// Rows that see no key: queries and keys whose logits are all -infinity (docs/spec.md 16, item 8).
void no_key(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::lse, "lse");
  Random random(context.seed);
  for (const bool sinks : {false, true}) {
    Problem problem;
    problem.shape.n_head = 2;
    problem.shape.d_head = problem.shape.d_value = 4;
    problem.options.chunk = problem.options.batch = 8;
    problem.options.local = problem.options.heavy = 2;
    problem.options.threads = 1;
    if (sinks) problem.options.sinks = {0.5f, -std::numeric_limits<float>::infinity()};
    problem.steps = {Step::prefill(20), Step::decode(2)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    for (float& x : problem.layers[0].q.values) x = 1.0f;
    for (float& x : problem.layers[0].k.values) x = -std::numeric_limits<float>::infinity();
    RunStyle style;
    style.lse = true;
    const Trace trace = run(engine, problem, style);
    require_observed(trace, problem);
    for (std::size_t i = 0; i < trace.layers[0].lse.size(); ++i) {
      const bool one_key = sinks && i % 2 == 0;  // the sink of head 0
      const float wanted = one_key ? 0.5f : -std::numeric_limits<float>::infinity();
      if (trace.layers[0].lse[i] != wanted)
        broken(fmt::format("log-sum-exp {} is {}, not {}", i, trace.layers[0].lse[i], wanted), problem);
    }
  }
}
const Register kNoKey{{"lse.no_key", {"LSE-1", "LOGIT-4"}, "fusion", Lane::exact, true, no_key}};

// More rows in a call, and more heads, than an engine may take at a time.
void sizes(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::lse, "lse");
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  struct Size {
    std::int64_t heads, heads_kv, tokens;
    std::vector<std::int64_t> dense_layers;
  };
  for (const Select rule : rules(engine)) {
    for (const DType type : context.types({DType::f32, DType::bf16})) {
      for (const Size& size : std::vector<Size>{{2, 1, 4200, {}}, {40, 8, 650, {1}}}) {
        Problem problem;
        problem.shape.n_layer = 2;
        problem.shape.n_head = size.heads;
        problem.shape.n_head_kv = size.heads_kv;
        problem.shape.d_head = problem.shape.d_value = 8;
        problem.shape.kv_type = problem.k_type = problem.v_type = problem.q_type = type;
        problem.options.select = rule;
        problem.options.chunk = 300;
        problem.options.local = problem.options.heavy = 64;
        problem.options.threads = context.threads;
        problem.options.dense_layers = size.dense_layers;
        for (std::int64_t h = 0; h < size.heads; ++h)
          problem.options.sinks.push_back(static_cast<float>(random.normal()));
        problem.steps = {Step::prefill(size.tokens), Step::decode(2)};
        problem.shape.capacity = problem.tokens();
        problem.fill_normal(random);
        (void)require_lse(context, problem, Placement::strided);
      }
    }
  }
}
const Register kSizes{{"lse.sizes", {"LSE-1"}, "fusion", Lane::shape, true, sizes}};

// More rows in a call than 15 bits count.
void far(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::lse, "lse");
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    Problem problem;
    problem.shape.d_head = problem.shape.d_value = 8;
    problem.options.select = rule;
    problem.options.chunk = 256;
    problem.options.local = problem.options.heavy = 64;
    problem.options.threads = context.threads;
    problem.steps = {Step::prefill(33000)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    RunStyle style;
    style.lse = true;
    style.placement = Placement::strided;
    require_observed(run(engine, problem, style), problem);
  }
}
const Register kFar{{"lse.far", {"LSE-1"}, "fusion", Lane::shape, true, far}};

}  // namespace
}  // namespace headwater::conformance
