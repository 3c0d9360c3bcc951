// Lane determinism: the same bits whatever must not matter (NUM-3, SCHED-2, PLAN-2).

#include <numeric>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/run.hpp"

namespace headwater::conformance {
namespace {

Problem problem_for(Random& random, int round, bool quick) {
  // Every third one is large enough to be split over several threads.
  const bool large = round % 3 == 0 && !quick;
  return random_problem(
      random,
      {.max_chunk = large ? 150 : 24, .max_tokens = large ? 700 : 100, .max_layers = 2, .wide = false});
}

void same(const Trace& a, const Trace& b, const Problem& problem, const std::string& what,
          bool outputs = true) {
  try {
    require_same(a, b, what, outputs);
  } catch (const Violation& violation) {
    throw Violation(fmt::format("{}; {}", violation.what(), problem.describe()));
  }
}

void threads(Context& context) {
  if (!context.engine->claims().bitwise_threads)
    throw Skipped("the engine does not claim it (Claims::bitwise_threads)");
  Random random(context.seed);
  for (int round = 0; round < context.rounds(24); ++round) {
    Problem problem = problem_for(random, round, context.quick);
    problem.options.threads = 1;
    const Trace one = run(*context.engine, problem);
    for (const int count : {2, 3, 7}) {
      problem.options.threads = count;
      same(one, run(*context.engine, problem), problem, "threads 1 and " + std::to_string(count));
    }
  }
}
const Register kThreads{{"determinism.threads", {"NUM-3"}, "session", Lane::determinism, true, threads}};

void runs(Context& context) {
  if (!context.engine->claims().bitwise_runs)
    throw Skipped("the engine does not claim it (Claims::bitwise_runs)");
  Random random(context.seed);
  for (int round = 0; round < context.rounds(24); ++round) {
    Problem problem = problem_for(random, round, context.quick);
    problem.options.threads = context.threads;
    same(run(*context.engine, problem), run(*context.engine, problem), problem, "two runs");
  }
}
const Register kRuns{{"determinism.runs", {"NUM-3"}, "session", Lane::determinism, true, runs}};

void after_reset(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem first = problem_for(random, round, context.quick);
    // Another run on the same session before: other values, another number of tokens.
    Problem second = first;
    if (random.chance(0.5)) second.steps = {Step::prefill(random.integer(1, first.shape.capacity))};
    second.fill_normal(random);
    const std::unique_ptr<Session> session = context.engine->open(first.shape, first.options);
    const Trace fresh = run(*session, first);
    session->reset();
    if (session->tokens() != 0 || session->state() != SessionState::empty)
      throw Violation("reset() left tokens or a state");
    for (std::int64_t layer = 0; layer < first.shape.n_layer; ++layer) {
      if (session->memory(layer).count != 0) throw Violation("reset() left a memory set");
    }
    (void)run(*session, second);
    session->reset();
    same(fresh, run(*session, first), first, "a run after reset");
  }
}
const Register kAfterReset{{"determinism.after_reset",
                            {"STATE-1", "SCORE-1", "NUM-3"},
                            "session",
                            Lane::determinism,
                            true,
                            after_reset}};

// Column sums, scores and memory sets have the same bits in both schedules, in every engine.
void both_schedules(Context& context, bool outputs) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = problem_for(random, round, context.quick);
    problem.options.schedule = Schedule::layer_major;
    const Trace layer_major = run(*context.engine, problem);
    problem.options.schedule = Schedule::chunk_major;
    same(layer_major, run(*context.engine, problem), problem, "layer-major and chunk-major", outputs);
  }
}

void schedules(Context& context) { both_schedules(context, false); }
const Register kSchedules{{"determinism.schedules",
                           {"SCHED-1", "SCHED-2", "SCHED-3"},
                           "schedule",
                           Lane::determinism,
                           true,
                           schedules}};

// Outputs too, where the engine claims it.
void schedule_outputs(Context& context) {
  if (!context.engine->claims().bitwise_schedules) {
    throw Skipped("the engine does not claim it (Claims::bitwise_schedules)");
  }
  both_schedules(context, true);
}
const Register kScheduleOutputs{
    {"determinism.schedule_outputs", {"SCHED-2"}, "schedule", Lane::determinism, true, schedule_outputs}};

// One call, or any calls that cut it at multiples of S, the first saying the turn's length (PLAN-2).
void call_cuts(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = problem_for(random, round, context.quick);
    const std::int64_t s = ++problem.options.chunk;
    problem.options.dense = false;  // a dense call is one chunk, wherever it is cut
    problem.options.heavy += 1;
    problem.options.batch = s * random.integer(1, 4);
    const std::int64_t chunks = random.integer(2, 7);
    const std::int64_t n = chunks * s - random.integer(0, s - 1);
    const bool later = random.chance(0.4);
    problem.steps.clear();
    if (later) problem.steps = {Step::prefill(s + 1), Step::decode(2)};
    const std::vector<Step> before = problem.steps;
    problem.steps.push_back(Step::prefill(n));
    problem.shape.capacity = problem.tokens() + 5;
    problem.fill_normal(random);
    const Trace one_call = run(*context.engine, problem);
    problem.steps = before;
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t part = std::min(n - done, s * random.integer(1, 3));
      problem.steps.push_back(Step::prefill(part, done == 0 || random.chance(0.3) ? n : 0));
      done += part;
    }
    same(one_call, run(*context.engine, problem), problem, "one call and several");
  }
}
const Register kCallCuts{
    {"determinism.call_cuts", {"PLAN-2", "STATE-3"}, "plan", Lane::determinism, true, call_cuts}};

void require_dense_bits(Context& context, Problem problem) {
  const Trace sparse = run(*context.engine, problem);
  problem.options.dense = true;
  const Trace dense = run(*context.engine, problem);
  for (std::size_t layer = 0; layer < sparse.layers.size(); ++layer) {
    const LayerTrace& a = sparse.layers[layer];
    const LayerTrace& b = dense.layers[layer];
    if (a.chunks.size() != 1 || b.chunks.size() != 1) throw Violation("not one chunk; " + problem.describe());
    if (a.out != b.out)
      throw Violation("outputs of one sparse chunk and of dense attention differ; " + problem.describe());
    if (a.chunks[0].lse != b.chunks[0].lse)
      throw Violation("lse of one sparse chunk and of dense attention differ; " + problem.describe());
  }
}

// A prompt of at most S tokens is plain causal attention: the same bits with the sparse path on and off.
void one_chunk_is_dense(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = problem_for(random, round, context.quick);
    problem.options.dense = false;
    problem.options.chunk += 1;
    problem.options.local = std::max<std::int64_t>(1, problem.options.local);
    problem.steps = {Step::prefill(random.integer(1, problem.options.chunk))};
    problem.shape.capacity = problem.tokens() + 3;
    problem.fill_normal(random);
    require_dense_bits(context, problem);
    if (round != 0 || context.quick) continue;
    // Longer than any run of keys that an engine may take at a time.
    problem.options.chunk = 2600;
    problem.options.batch = 2600;
    problem.steps = {Step::prefill(2300)};
    problem.shape.capacity = 2300;
    problem.fill_normal(random);
    require_dense_bits(context, problem);
    require_dense_bits(context, in_type(problem, DType::bf16));
  }
}
const Register kOneChunk{{"determinism.one_chunk_is_dense",
                          {"STATE-3", "CFG-2"},
                          "dense",
                          Lane::determinism,
                          true,
                          one_chunk_is_dense}};

// Layers attended in any order, rows laid out in any way, an observer or none: the same bits.
void surroundings(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 20, .max_tokens = 80, .max_layers = 4, .wide = false});
    Trace plain = run(*context.engine, problem);
    RunStyle style;
    style.placement =
        random.pick(std::vector<Placement>{Placement::head_major, Placement::strided, Placement::unaligned});
    style.layer_order.resize(static_cast<std::size_t>(problem.shape.n_layer));
    std::iota(style.layer_order.rbegin(), style.layer_order.rend(), 0);
    same(plain, run(*context.engine, problem, style), problem, "another order of layers and layout of rows");
    // Without an observer an engine may take another path.
    style.observed = false;
    for (LayerTrace& layer : plain.layers) layer.chunks.clear();
    same(plain, run(*context.engine, problem, style), problem, "no observer");
  }
}
const Register kSurroundings{
    {"determinism.surroundings", {"STATE-5", "NUM-3"}, "session", Lane::determinism, true, surroundings}};

// A step's results do not depend on what a session may still take: capacity changes strides, never bits.
void capacity(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    Problem problem = problem_for(random, round, true);
    problem.shape.capacity = problem.tokens();
    const Trace tight = run(*context.engine, problem);
    problem.shape.capacity += random.integer(1, 3000);
    same(tight, run(*context.engine, problem), problem, "tight and roomy capacity");
  }
}
const Register kCapacity{
    {"determinism.capacity", {"NUM-2", "STATE-6"}, "session", Lane::determinism, true, capacity}};

}  // namespace
}  // namespace headwater::conformance
