// Sizes that people run, crossed with every option and with every other way to the same bits: any two levels of two factors
// meet in at least one problem (a covering array of strength two, of which some engines take a part). The cases of shapes.cpp
// take such sizes with the options as they are by default, those of other files all options at small sizes.

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "conformance/cover_pairs.hpp"
#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/other_ways.hpp"
#include "conformance/replay.hpp"
#include "conformance/session_checks.hpp"
#include "conformance/session_files.hpp"

namespace headwater::conformance {
namespace {

/// A problem, and another way to its bits: what it is, and what throws where that way leads elsewhere.
struct Crossed {
  Problem problem;
  bool drawn = false;  ///< keys that draw most of the weight (draw_to)
  const char* way = "";
  std::function<void(Random&, const Engine&, const Problem&, const Trace& wanted)> take;
};

using Level = std::function<void(Crossed&)>;
using Factor = std::vector<Level>;

Level types(DType q, DType kv, DType k, DType out) {
  return [=](Crossed& crossed) {
    Problem& problem = crossed.problem;
    problem.q_type = q, problem.shape.kv_type = problem.v_type = kv, problem.k_type = k,
    problem.out_type = out;
  };
}

Level widths(std::int64_t d, std::int64_t dv) {
  return [=](Crossed& crossed) { crossed.problem.shape.d_head = d, crossed.problem.shape.d_value = dv; };
}

Level heads(std::int64_t query, std::int64_t kv) {
  return
      [=](Crossed& crossed) { crossed.problem.shape.n_head = query, crossed.problem.shape.n_head_kv = kv; };
}

Level budgets(std::int64_t local, std::int64_t heavy, bool clamp = true) {
  return [=](Crossed& crossed) {
    Options& options = crossed.problem.options;
    options.local = local, options.heavy = heavy, options.clamp = clamp;
  };
}

Level change(void (*how)(Problem&)) {
  return [how](Crossed& crossed) { how(crossed.problem); };
}

// Later factors read what earlier ones have chosen.
std::vector<Factor> problem_factors() {
  return {
      {types(DType::f32, DType::f32, DType::f32, DType::f32),
       types(DType::f16, DType::f16, DType::f16, DType::f16),
       types(DType::bf16, DType::bf16, DType::bf16, DType::bf16),
       types(DType::f32, DType::bf16, DType::f32, DType::f32)},
      {widths(128, 128), widths(96, 80), widths(192, 128), widths(256, 256)},
      {heads(2, 2), heads(3, 1), heads(4, 2), heads(8, 1)},
      {change([](Problem& problem) { problem.options.chunk = 256; }),
       change([](Problem& problem) { problem.options.chunk = 500; }),
       change([](Problem& problem) { problem.options.chunk = 1024; })},
      {change([](Problem& problem) { problem.options.batch = problem.options.chunk; }),
       change([](Problem& problem) { problem.options.batch = 2 * problem.options.chunk + 100; }),
       change([](Problem& problem) { problem.options.batch = 4096; })},
      {budgets(200, 304), budgets(0, 512), budgets(63, 136), budgets(300, 1000, false)},
      // Turns in one call and in several, a second turn, short turns, decode steps first and last.
      {change([](Problem& problem) {
         problem.steps = {Step::prefill(2 * problem.options.chunk + 77), Step::decode(1), Step::decode(3)};
       }),
       change([](Problem& problem) {
         const std::int64_t s = problem.options.chunk;
         problem.steps = {Step::prefill(s + 100, 2 * s + 333), Step::prefill(s + 233), Step::decode(1),
                          Step::prefill(s + 41), Step::decode(2)};
       }),
       change([](Problem& problem) {
         problem.steps = {Step::prefill(2 * problem.options.chunk + 31), Step::prefill(450), Step::decode(5),
                          Step::prefill(500), Step::decode(1)};
       }),
       change([](Problem& problem) {
         problem.steps = {Step::decode(700), Step::prefill(2 * problem.options.chunk + 200),
                          Step::decode(64)};
       })},
      {change([](Problem&) {}), change([](Problem& problem) { problem.options.softcap = 20.0; })},
      {change([](Problem&) {}), change([](Problem& problem) {
         for (std::int64_t h = 0; h < problem.shape.n_head; ++h)
           problem.options.alibi.push_back(0.004f / static_cast<float>(h + 1));
       })},
      {change([](Problem&) {}), change([](Problem& problem) {
         for (std::int64_t h = 0; h < problem.shape.n_head; ++h)
           problem.options.sinks.push_back(3.0f - static_cast<float>(h));
       })},
      {change([](Problem&) {}), change([](Problem& problem) { problem.options.scale = 0.0625; })},
      {change([](Problem&) {}),
       change([](Problem& problem) { problem.options.schedule = Schedule::chunk_major; })},
      {change([](Problem& problem) { problem.options.threads = 1; }),
       change([](Problem& problem) { problem.options.threads = 2; }),
       change([](Problem& problem) { problem.options.threads = 5; })},
      {change([](Problem&) {}), change([](Problem& problem) { problem.options.pinned = 8; }),
       change([](Problem& problem) { problem.options.pinned = 136; })},
      {change([](Problem&) {}), change([](Problem& problem) { problem.options.dense_below = 600; })},
      {change([](Problem&) {}), change([](Problem& problem) {
         problem.shape.n_layer = 2;
         problem.options.dense_layers = {1};
       }),
       change([](Problem& problem) {
         problem.shape.n_layer = 2;
         problem.options.layers.resize(2);
         problem.options.layers[0] = {
             .window = 700, .scale = 0.08, .softcap = 9.0, .sinks = std::vector<float>{}};
       }),
       change([](Problem& problem) {
         problem.shape.n_layer = 2;
         problem.options.layers.resize(2);
         problem.options.layers[1].d_head = 72, problem.options.layers[1].d_value = 160;
       })},
      {change([](Problem& problem) { problem.options.page = 256; }),
       change([](Problem& problem) { problem.options.page = 768; }), change([](Problem&) {})},
      {[](Crossed&) {}, [](Crossed& crossed) { crossed.drawn = true; }},
  };
}

Factor scores() {
  return {change([](Problem&) {}),
          change([](Problem& problem) { problem.options.score_type = ScoreType::f32; })};
}

Level blocks(std::int64_t key_block, std::int64_t query_block, std::int64_t pool, std::int64_t refine) {
  return [=](Crossed& crossed) {
    Options& options = crossed.problem.options;
    options.select = Select::blocks;
    options.key_block = key_block, options.query_block = query_block;
    options.pool = pool, options.refine = refine;
  };
}

// Key blocks that divide all budgets of problem_factors().
Factor block_sizes() {
  return {blocks(8, 32, 4, 1), blocks(8, 64, 4, 2), blocks(8, 128, 16, 3), blocks(4, 33, 3, 2)};
}

/// A step of the session, with rows of `from`, that is not closed.
void take_open(Session& session, const Problem& from, const Step& step) {
  session.begin(step);
  for (std::int64_t layer = 0; layer < from.shape.n_layer; ++layer)
    (void)attend_layer(session, from, layer, step.n);
}

/// The problem whose keys are handed in as they are stored (STATE-6).
Problem with_stored_keys(Problem problem) {
  if (problem.k_type == problem.shape.kv_type) return problem;
  problem.k_type = problem.shape.kv_type;
  for (LayerInput& layer : problem.layers) {
    layer.k.type = problem.k_type;
    for (float& x : layer.k.values) x = round_to(problem.k_type, x);
  }
  return problem;
}

Problem with_noise_from(Random& random, const Problem& problem, std::int64_t first) {
  Problem noise = problem;
  draw_rows_from(random, noise, first);
  return noise;
}

// Steps [at, end) on a session that should stand where `wanted` stood after the steps before.
void require_rest(Session& session, const Problem& problem, std::size_t at, const Trace& wanted,
                  const std::string& what) {
  const std::size_t end = problem.steps.size();
  require_same(trace_of_steps(wanted, problem, at, end), run_steps(session, problem, at, end), what);
}

void called_otherwise(Random& random, const Engine& engine, const Problem& problem, const Trace& wanted) {
  RunStyle style;
  style.placement = random.chance(0.5) ? Placement::strided : Placement::head_major;
  style.layer_order.resize(static_cast<std::size_t>(problem.shape.n_layer));
  std::iota(style.layer_order.rbegin(), style.layer_order.rend(), 0);
  style.observed = false;
  Trace trace = run(engine, problem, style);
  for (std::size_t l = 0; l < trace.layers.size(); ++l) trace.layers[l].chunks = wanted.layers[l].chunks;
  require_same(wanted, trace, "rows elsewhere, layers in another order, no observer");

  Problem other = problem;
  other.shape.capacity += random.integer(1, 3000);
  other.options.threads = problem.options.threads == 3 ? 4 : 3;
  if (!engine.claims().bitwise_threads) other.options.threads = problem.options.threads;
  require_same(wanted, run(engine, other), "another number of threads");
  other.options.schedule =
      problem.options.schedule == Schedule::layer_major ? Schedule::chunk_major : Schedule::layer_major;
  if (engine.claims().host_threads) {
    other.options.parallel_for = [](void*, std::int64_t n, void (*body)(void*, std::int64_t),
                                    void* argument) {
      for (std::int64_t i = n; i-- > 0;) body(argument, i);
    };
  }
  require_same(wanted, run(engine, other), "the other schedule, on the calling thread alone",
               engine.claims().bitwise_schedules);
}

void aborted(Random& random, const Engine& engine, const Problem& problem, const Trace& wanted) {
  if (!engine.claims().abort) return;
  const Problem noise = with_noise_from(random, problem, 0);
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  for (std::size_t s = 0; s < problem.steps.size(); ++s) {
    take_open(*session, noise, problem.steps[s]);
    session->abort();
    require_same(trace_of_steps(wanted, problem, s, s + 1), run_steps(*session, problem, s, s + 1),
                 fmt::format("step {} after it was aborted", s));
  }
}

/// The problem with checkpoints for all of its chunks, where the engine has them.
Problem with_checkpoints(const Engine& engine, Problem problem) {
  if (engine.claims().truncate) problem.options.checkpoints = problem.tokens() / problem.options.chunk + 16;
  return problem;
}

// All but the first step is taken back.
void truncated(Random& random, const Engine& engine, const Problem& problem, const Trace& wanted) {
  if (!engine.claims().truncate) return;
  const Problem bound = with_checkpoints(engine, problem);
  const std::unique_ptr<Session> session = engine.open(bound.shape, bound.options);
  (void)run_steps(*session, bound, 0, 1);
  const std::int64_t n = session->tokens();
  (void)run_steps(*session, with_noise_from(random, bound, n), 1, problem.steps.size());
  session->truncate(n);
  require_rest(*session, bound, 1, wanted, fmt::format("truncated to {} tokens", n));
}

// Forked twice before the last steps: of a fork and the parent one goes on with other rows, one with the problem's, step by
// step in turn; the other fork takes the step before it back and goes on from there.
void forked(Random& random, const Engine& engine, const Problem& problem, const Trace& wanted) {
  if (!engine.claims().fork) return;
  const Problem bound = with_checkpoints(engine, problem);
  const std::size_t end = problem.steps.size();
  const std::size_t at = std::max<std::size_t>(end, 4) - 3;
  std::unique_ptr<Session> sessions[3] = {engine.open(bound.shape, bound.options)};
  (void)run_steps(*sessions[0], bound, 0, at);
  for (const int fork : {1, 2}) sessions[fork] = sessions[0]->fork();
  const std::int64_t n = sessions[0]->tokens();
  const int other = random.chance(0.5) ? 1 : 0;
  const Problem noise = with_noise_from(random, bound, n);
  for (std::size_t s = at; s < end; ++s) {
    require_same(trace_of_steps(wanted, bound, s, s + 1), run_steps(*sessions[1 - other], bound, s, s + 1),
                 fmt::format("step {}, forked after {} tokens", s, n));
    (void)run_steps(*sessions[other], noise, s, s + 1);
  }
  if (!engine.claims().truncate) return;
  sessions[2]->truncate(n - problem.steps[at - 1].n);
  require_rest(*sessions[2], bound, at - 1, wanted, fmt::format("forked after {} tokens and truncated", n));
}

void saved(Random& random, const Engine& engine, const Problem& problem, const Trace& wanted) {
  if (!engine.claims().save) return;
  const auto at = static_cast<std::size_t>(random.integer(1, std::ssize(problem.steps) - 1));
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  (void)run_steps(*session, problem, 0, at);
  const TemporaryFolder folder;
  save_session(engine, *session, folder.file("session"), "");
  require_rest(*load_session(engine, problem.shape, problem.options, folder.file("session"), ""), problem, at,
               wanted, fmt::format("saved and loaded after {} steps", at));
}

void over_rows_of_the_caller(Random& random, const Engine& engine, const Problem& problem,
                             const Trace& wanted) {
  if (engine.claims().stored_rows) require_stored_rows(random, engine, with_stored_keys(problem), wanted);
}

// The problem beside itself, one step behind.
void beside_another(Random&, const Engine& engine, const Problem& problem, const Trace& wanted) {
  const std::unique_ptr<Session> leading = engine.open(problem.shape, problem.options);
  const std::unique_ptr<Session> following = engine.open(problem.shape, problem.options);
  for (std::size_t s = 0; s <= problem.steps.size(); ++s) {
    std::vector<Sequence> sequences;
    const auto take = [&](const std::unique_ptr<Session>& session, std::size_t at) {
      session->begin(problem.steps[at]);
      sequences.push_back({&problem, &wanted, session.get(), problem.steps[at]});
    };
    if (s < problem.steps.size()) take(leading, s);
    if (s > 0) take(following, s - 1);
    for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer)
      attend_layer_together(sequences, layer);
    for (const Sequence& one : sequences) one.session->end();
  }
}

// A way that an engine does not claim is not taken; reference and cpu-* claim all of them (mustpass.txt).
Factor ways() {
  const auto way = [](const char* name, void (*take)(Random&, const Engine&, const Problem&, const Trace&)) {
    return [=](Crossed& crossed) { crossed.way = name, crossed.take = take; };
  };
  return {way("called otherwise", called_otherwise),
          way("abort", aborted),
          way("truncate", truncated),
          way("fork", forked),
          way("save", saved),
          way("rows of the caller", over_rows_of_the_caller),
          way("sequences together", beside_another)};
}

void take_way(Random& random, const Engine& engine, const Crossed& crossed, const Trace& wanted) {
  try {
    crossed.take(random, engine, crossed.problem, wanted);
  } catch (const Violation& violation) {
    throw Violation(fmt::format("{}: {}; {}", crossed.way, violation.what(), crossed.problem.describe()));
  }
}

/// Ways to the bits of one problem: all, or those of the ways that are counted evenly or oddly.
enum class Ways { all, even, odd };
void take_ways(Random& random, const Engine& engine, const Problem& problem, const Trace& wanted,
               Ways which) {
  const Factor all = ways();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (which != Ways::all && (i % 2 == 0) != (which == Ways::even)) continue;
    Crossed crossed;
    all[i](crossed);
    crossed.problem = problem;
    take_way(random, engine, crossed, wanted);
  }
}

/// The rows first, first + stride, ... of the covering array.
struct Part {
  std::size_t first = 0, stride = 1;
};

bool amx_runs() {
  const auto all = engines();
  return std::any_of(all.begin(), all.end(), [](const Engine* engine) {
    return engine->name() == "cpu-amx" && engine->unavailable_because().empty();
  });
}

// All rows take an engine in double arithmetic or on an emulated device minutes. The cpu-* without kernels of their own for
// BF16 differ in the width of their lanes alone: each takes other rows. All rows are taken by cpu-amx and, where that does not
// run, by cpu-avx512bf16, which takes half of them beside it; on a machine that has neither, a sixth of them (with AVX2 alone
// half) is not run.
Part part_of(const Engine& engine) {
  if (engine.claims().double_arithmetic) return {0, 48};
  if (engine.name() == "cuda-emulated") return {0, 32};
  if (engine.name() == "cpu-portable") return {0, 6};
  if (engine.name() == "cpu-avx2") return {1, 3};
  if (engine.name() == "cpu-avx512") return {2, 3};
  if (engine.name() == "cpu-avx512bf16" && amx_runs()) return {0, 2};
  return {};
}

void require_crossed(Context& context, Factor of_the_rule) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  const Engine& engine = *context.engine;
  Random random(context.seed);
  std::vector<Factor> factors = problem_factors();
  factors.push_back(std::move(of_the_rule));
  factors.push_back(ways());
  std::vector<std::size_t> levels;
  for (const Factor& factor : factors) levels.push_back(factor.size());
  const PairRows rows = cover_pairs(levels, random);
  const Part part = part_of(engine);
  for (std::size_t i = part.first; i < rows.size(); i += part.stride) {
    const std::vector<std::size_t>& row = rows[i];
    Crossed crossed;
    for (std::size_t factor = 0; factor < factors.size(); ++factor) factors[factor][row[factor]](crossed);
    Problem& problem = crossed.problem;
    if (!pins(engine)) problem.options.pinned = 0;
    if (!engine.claims().layers) problem.options.layers.clear();
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    if (crossed.drawn) draw_to(problem, 200, 300);
    RunStyle style;
    style.lse = engine.claims().lse;
    const Trace trace = replayed(engine, problem, style);
    const auto some = [last = problem.shape.n_head - 1](std::int64_t head) {
      return head % 5 == 0 || head == last;
    };
    require_forced_in_part(context, with_stored_keys(problem), trace,
                           {.head = some, .whole_head_of = 16, .border = 64});
    take_way(random, engine, crossed, trace);
  }
}

void by_h2o(Context& context) { require_crossed(context, scores()); }
const Register kH2o{{"crossed.h2o",
                     {"LOGIT-1", "LOGIT-2", "LOGIT-3", "LOGIT-4", "INTRA-1", "INTRA-2", "INTER-1", "INTER-2",
                      "FUSE-1", "FUSE-2", "DEC-1", "SCORE-6", "MEM-7", "STATE-7", "MASK-2", "LAYER-1"},
                     "session",
                     Lane::shape,
                     true,
                     by_h2o}};

void by_blocks(Context& context) {
  require_rule_blocks(*context.engine);
  require_crossed(context, block_sizes());
}
const Register kBlocks{{"crossed.blocks",
                        {"SEL-4", "SEL-5", "SEL-6", "SEL-7", "SEL-8", "SEL-9", "SEL-11", "MEM-7", "STATE-7"},
                        "session",
                        Lane::shape,
                        true,
                        by_blocks}};

Problem of_one_type(const Engine& engine, DType type, Select rule) {
  Problem problem;
  problem.q_type = problem.k_type = problem.v_type = problem.out_type = problem.shape.kv_type = type;
  problem.options.select = rule;
  problem.options.key_block = problem.options.pool = 4;
  problem.options.query_block = 8;
  problem.options.pinned = pins(engine) ? 8 : 0;
  problem.options.page = 256;
  return problem;
}

// More layers times heads than 256, more entries of all their sets than 2^16, groups of 72 heads, 70 threads.
void many(Context& context) {
  if (context.quick) throw Skipped("hundreds of heads run without --quick only");
  const Engine& engine = *context.engine;
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (const DType type : context.types({DType::f32, DType::bf16})) {
      Problem problem = of_one_type(engine, type, rule);
      problem.shape.n_layer = 5;
      problem.shape.n_head = 72;
      problem.shape.n_head_kv = type == DType::f32 ? 72 : 1;
      problem.shape.d_head = problem.shape.d_value = 4;
      problem.options.chunk = 64;
      problem.options.batch = 128;
      problem.options.local = 60;
      problem.options.heavy = 180;
      problem.options.clamp = false;
      problem.options.threads = type == DType::f32 ? 3 : 70;
      for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
        problem.options.sinks.push_back(2.0f - 0.05f * static_cast<float>(h));
        problem.options.alibi.push_back(0.001f * static_cast<float>(h));
      }
      problem.steps = {Step::prefill(260), Step::decode(1), Step::prefill(70), Step::decode(2)};
      problem.shape.capacity = problem.tokens();
      problem.fill_normal(random);
      const Trace trace = replayed(engine, problem);
      const auto some = [](std::int64_t head) { return head % 7 == 1; };
      require_forced_in_part(context, problem, trace, {.head = some, .whole_head_of = 8});
      take_ways(random, engine, problem, trace, type == DType::f32 ? Ways::even : Ways::odd);
    }
  }
}
const Register kMany{{"crossed.many_heads_and_layers",
                      {"LOGIT-3", "LOGIT-4", "MEM-6", "STATE-6", "SCORE-6"},
                      "session",
                      Lane::shape,
                      true,
                      many}};

// Prompts of more than 256 chunks; for most rules of more than 2^16 tokens, 256 pages and 512 regions of summaries (SEL-12).
// With sketches every row votes on every earlier token, so they take a quarter of the tokens, on one engine; positions beyond
// 2^16 are in sketches.positions_beyond_65536.
void long_prompts(Context& context) {
  const Engine& engine = *context.engine;
  if (context.quick || engine.claims().double_arithmetic)
    throw Skipped("so many tokens run without --quick only, and not in double arithmetic");
  Random random(context.seed);
  const Part part = part_of(engine);
  for (const Select rule : rules(engine)) {
    if (rule == Select::sketches && part.stride != 1) continue;
    const std::int64_t part_of_length = rule == Select::sketches ? 4 : 1;
    Problem problem = of_one_type(engine, rule == Select::h2o ? DType::bf16 : DType::f32, rule);
    problem.shape.d_head = problem.shape.d_value = 8;
    problem.options.chunk = 256 / part_of_length;
    problem.options.local = 32 / part_of_length;
    problem.options.heavy = 64 / part_of_length;
    problem.options.softcap = 20.0;
    problem.options.alibi = {1e-5f};
    problem.options.threads = context.threads;
    if (engine.claims().layers) {
      problem.shape.n_layer = 2;
      problem.options.layers = {{}, {.window = 300}};
    }
    problem.steps = {Step::prefill(30000 / part_of_length, 66000 / part_of_length),
                     Step::prefill(36000 / part_of_length),
                     Step::decode(3),
                     Step::prefill(700),
                     Step::decode(1),
                     Step::prefill(300)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    draw_to(problem, 100, 4096);
    const Trace trace = replayed(engine, problem);
    const auto late = [=](const Chunk& chunk) { return chunk.begin >= 65000 / part_of_length; };
    require_forced_in_part(context, problem, trace, {.chunk = late});
    take_ways(random, engine, problem, trace,
              part.stride == 1      ? Ways::all
              : part.first % 2 == 0 ? Ways::even
                                    : Ways::odd);
  }
}
const Register kLong{
    {"crossed.long_prompts",
     {"SCORE-6", "STATE-6", "STATE-8", "STATE-10", "STATE-11", "STATE-12", "ROWS-1", "SEQ-1"},
     "session",
     Lane::shape,
     true,
     long_prompts}};

}  // namespace
}  // namespace headwater::conformance
