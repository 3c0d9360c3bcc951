// Lane bound: random inputs, every element within the derived bound (docs/verification.md) under the engine's own
// memory sets; the replay of SCORE-6 runs along.

#include <algorithm>
#include <limits>

#include "conformance/forced.hpp"

namespace headwater::conformance {
namespace {

const std::vector<std::string> kAttention{"LOGIT-1", "INTRA-1", "INTRA-2", "INTER-1", "INTER-2", "INTER-3",
                                          "FUSE-1",  "FUSE-2",  "DEC-1",   "SCORE-6", "MASK-1"};

// Either oracle will do; oracles.* compares them with each other.
Truth truth_of(int round) { return round % 2 == 0 ? Truth::eigen : Truth::reference; }

void random_runs(Context& context, const Variety& variety, int full) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(full); ++round) {
    require_conforming(context, random_problem(random, variety), {}, truth_of(round));
  }
}

void plain_f32(Context& context) {
  random_runs(context, {.max_chunk = 24, .max_tokens = 120, .dtypes = false, .extras = false}, 100);
}
const Register kPlain{{"bound.plain_f32", kAttention, "attention", Lane::bound, true, plain_f32}};

// The bounds of an engine that claims double arithmetic use its unit round-off in every case; here it has to claim
// it.
void double_arithmetic(Context& context) {
  if (!context.engine->claims().double_arithmetic) {
    throw Skipped("the engine does not claim it (Claims::double_arithmetic)");
  }
  random_runs(context, {.max_chunk = 16, .max_tokens = 60, .dtypes = false}, 20);
}
const Register kDouble{
    {"bound.double_arithmetic", {"NUM-1"}, "attention", Lane::bound, true, double_arithmetic}};

void everything(Context& context) { random_runs(context, {.max_chunk = 24, .max_tokens = 120}, 250); }
const Register kEverything{{"bound.everything",
                            {"LOGIT-1", "LOGIT-2", "LOGIT-3", "LOGIT-4", "INTRA-1", "INTRA-2", "INTER-1",
                             "INTER-2", "FUSE-1", "FUSE-2", "DEC-1", "NUM-1", "STATE-6", "SCORE-6"},
                            "attention",
                            Lane::bound,
                            true,
                            everything}};

void layers(Context& context) {
  random_runs(context, {.max_chunk = 12, .max_tokens = 60, .max_layers = 3, .wide = false}, 40);
}
const Register kLayers{
    {"bound.layers", {"STATE-5", "MEM-6", "SCHED-3"}, "session", Lane::bound, true, layers}};

// A problem of one prefill turn and one decode step with given sizes.
Problem sized(Random& random, std::int64_t heads, std::int64_t heads_kv, std::int64_t d, std::int64_t dv,
              std::int64_t s, std::int64_t n) {
  Problem problem;
  problem.shape.n_head = heads;
  problem.shape.n_head_kv = heads_kv;
  problem.shape.d_head = d;
  problem.shape.d_value = dv;
  problem.options.chunk = s;
  problem.options.batch = s * 3;
  problem.options.local = s / 4;
  problem.options.heavy = s / 4;
  problem.options.threads = random.chance(0.75) ? 1 : static_cast<int>(random.integer(2, 3));
  problem.options.schedule = random.chance(0.5) ? Schedule::layer_major : Schedule::chunk_major;
  problem.steps = {Step::prefill(n), Step::decode(2)};
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random);
  return problem;
}

void head_sizes(Context& context) {
  Random random(context.seed);
  const std::vector<std::int64_t> widths{1, 3, 7, 8, 20, 31, 64, 65, 80, 96, 128, 192, 256};
  int round = 0;
  for (const std::int64_t d : widths) {
    for (const std::int64_t dv : widths) {
      // The diagonal, the neighbours and the pair 192/128; all pairs would show no more.
      const bool wanted = d == dv || (d == 192 && dv == 128) || random.chance(0.25);
      if (!wanted || (context.quick && d > 80)) continue;
      require_conforming(context, sized(random, 2, 1, d, dv, 17, 40), {}, truth_of(round++));
    }
  }
}
const Register kHeadSizes{
    {"bound.head_sizes", {"LOGIT-1", "CFG-1"}, "attention", Lane::bound, true, head_sizes}};

void grouped_heads(Context& context) {
  Random random(context.seed);
  int round = 0;
  for (std::int64_t group = 1; group <= 8; ++group) {
    for (const std::int64_t heads_kv : {1, 2, 3, 5}) {
      require_conforming(context, sized(random, group * heads_kv, heads_kv, 8, 5, 16, 37), {},
                         truth_of(round++));
      if (context.quick && heads_kv == 2) break;
    }
  }
}
const Register kGroupedHeads{
    {"bound.grouped_heads", {"LOGIT-1", "MEM-6"}, "logits", Lane::bound, true, grouped_heads}};

// Every ragged tail: chunk lengths, memory sizes and prompt lengths 1 .. 70 around whatever tiles an engine has.
void ragged(Context& context) {
  Random random(context.seed);
  const int step = context.quick ? 9 : 1;
  for (int n = 1; n <= 70; n += step) {
    Problem one_chunk = sized(random, 1, 1, 5, 3, 70, n);
    require_conforming(context, one_chunk, {}, truth_of(n));
    Problem chunks = sized(random, 1, 1, 4, 9, n, 3 * n + n / 2);
    chunks.options.clamp = false;
    chunks.options.local = n / 2;
    chunks.options.heavy = n;
    require_conforming(context, chunks, {}, truth_of(n));
    // A chunk of n queries after a memory of every size from 1 to 70.
    Problem memory = sized(random, 1, 1, 3, 4, 71, 71 + n);
    memory.options.local = n % 3 == 0 ? 0 : n / 2;
    memory.options.heavy = n - memory.options.local;
    require_conforming(context, memory, {}, truth_of(n));
  }
}
const Register kRagged{
    {"bound.ragged", {"MASK-1", "INTER-1", "MEM-4"}, "attention", Lane::bound, true, ragged}};

void prompt_lengths(Context& context) {
  Random random(context.seed);
  for (const std::int64_t s : {1, 2, 3, 8, 16, 33}) {
    for (const std::int64_t n : {std::int64_t{1}, s - 1, s, s + 1, 2 * s - 1, 2 * s, 2 * s + 1, 5 * s + 1}) {
      if (n < 1) continue;
      Problem problem = sized(random, 2, 2, 6, 6, s, n);
      problem.options.batch = random.pick(std::vector<std::int64_t>{s, 2 * s, 2 * s + 1, 4096});
      problem.options.clamp = random.chance(0.5);
      problem.options.local = random.integer(0, s);
      problem.options.heavy = random.integer(0, s);
      require_conforming(context, problem, {}, truth_of(static_cast<int>(n)));
    }
  }
}
const Register kPromptLengths{
    {"bound.prompt_lengths", {"PLAN-1", "STATE-2", "MEM-1"}, "plan", Lane::bound, true, prompt_lengths}};

// One feature at a time, with every element type, so that a failure names it.
void feature(Context& context, const std::function<void(Random&, Options&, std::int64_t)>& set, int full) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(full); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 20, .max_tokens = 90, .extras = false});
    set(random, problem.options, problem.shape.n_head);
    problem.fill_normal(random, 3.0);
    require_conforming(context, problem, {}, truth_of(round));
  }
}

void soft_cap(Context& context) {
  feature(
      context,
      [](Random& random, Options& options, std::int64_t) {
        options.softcap = random.pick(std::vector<double>{0.5, 1.0, 4.0, 30.0, 1000.0});
      },
      40);
}
const Register kSoftCap{{"bound.soft_cap", {"LOGIT-2"}, "logits", Lane::bound, true, soft_cap}};

void alibi(Context& context) {
  feature(
      context,
      [](Random& random, Options& options, std::int64_t heads) {
        options.alibi.clear();
        for (std::int64_t h = 0; h < heads; ++h)
          options.alibi.push_back(static_cast<float>(random.uniform(-0.3, 1.0)));
        if (random.chance(0.3)) options.alibi[0] = 0.0f;
      },
      40);
}
const Register kAlibi{{"bound.alibi", {"LOGIT-3"}, "logits", Lane::bound, true, alibi}};

void sinks(Context& context) {
  feature(
      context,
      [](Random& random, Options& options, std::int64_t heads) {
        options.sinks.clear();
        for (std::int64_t h = 0; h < heads; ++h) {
          options.sinks.push_back(random.chance(0.2) ? -std::numeric_limits<float>::infinity()
                                                     : static_cast<float>(random.uniform(-6.0, 9.0)));
        }
      },
      40);
}
const Register kSinks{{"bound.sinks", {"LOGIT-4"}, "logits", Lane::bound, true, sinks}};

void scale(Context& context) {
  feature(
      context,
      [](Random& random, Options& options, std::int64_t) {
        options.scale = random.pick(std::vector<double>{0.0, 1.0, 0.0625, -0.4, 0.1, 1.7});
      },
      30);
}
const Register kScale{{"bound.scale", {"LOGIT-1"}, "logits", Lane::bound, true, scale}};

void feature_combinations(Context& context) {
  feature(
      context,
      [](Random& random, Options& options, std::int64_t heads) {
        options.scale = 0.7;
        options.softcap = random.pick(std::vector<double>{2.0, 20.0});
        for (std::int64_t h = 0; h < heads; ++h) {
          options.alibi.push_back(static_cast<float>(random.uniform(0.0, 0.4)));
          options.sinks.push_back(static_cast<float>(random.normal()));
        }
      },
      40);
}
const Register kCombinations{{"bound.feature_combinations",
                              {"LOGIT-1", "LOGIT-2", "LOGIT-3", "LOGIT-4"},
                              "logits",
                              Lane::bound,
                              true,
                              feature_combinations}};

// Sizes beyond every blocking constant: several row groups, key segments, score partials, windows of chunks.
Problem large(Random& random, std::int64_t s, std::int64_t batch, std::int64_t local, std::int64_t heavy,
              std::int64_t n, Schedule schedule) {
  Problem problem = sized(random, 1, 1, 4, 3, s, n);
  problem.options.batch = batch;
  problem.options.local = local;
  problem.options.heavy = heavy;
  problem.options.clamp = false;
  problem.options.schedule = schedule;
  problem.options.threads = 2;
  problem.fill_normal(random, 1.5);
  return problem;
}

void large_chunks(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  require_conforming(context, large(random, 300, 900, 70, 90, 1150, Schedule::layer_major));
  require_conforming(context, large(random, 1300, 1300, 200, 300, 2900, Schedule::chunk_major));
  require_conforming(context, large(random, 2100, 4200, 0, 5, 2300, Schedule::layer_major), {},
                     Truth::reference);
  require_conforming(context,
                     in_type(large(random, 1300, 2600, 200, 300, 2900, Schedule::layer_major), DType::bf16));
}
const Register kLargeChunks{
    {"bound.large_chunks", {"INTRA-1", "INTRA-2", "SCHED-1"}, "attention", Lane::bound, true, large_chunks}};

void large_memory(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  require_conforming(context, large(random, 150, 4096, 600, 900, 2300, Schedule::layer_major));
  require_conforming(context, large(random, 64, 128, 1, 1090, 1500, Schedule::chunk_major), {},
                     Truth::reference);
  require_conforming(context,
                     in_type(large(random, 150, 4096, 600, 900, 2300, Schedule::layer_major), DType::bf16));
}
const Register kLargeMemory{
    {"bound.large_memory", {"CFG-3", "INTER-1", "INTER-2"}, "attention", Lane::bound, true, large_memory}};

void many_windows(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  Problem problem = large(random, 250, 8192, 20, 30, 8700, Schedule::layer_major);
  problem.steps = {Step::prefill(8700), Step::decode(1), Step::prefill(300), Step::decode(1)};
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random, 1.5);
  require_conforming(context, problem);
}
const Register kManyWindows{
    {"bound.many_windows", {"SCHED-1", "PLAN-1"}, "schedule", Lane::bound, true, many_windows}};

void large_dense(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  Problem problem = large(random, 300, 900, 70, 90, 2300, Schedule::layer_major);
  problem.options.dense = true;
  problem.shape.kv_type = DType::f16;
  problem.k_type = DType::f16;
  problem.v_type = DType::f16;
  problem.steps = {Step::prefill(1100), Step::prefill(1030), Step::decode(150), Step::decode(1)};
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random, 1.5);
  require_conforming(context, problem);
  require_conforming(context, in_type(problem, DType::bf16));
}
const Register kLargeDense{
    {"bound.large_dense", {"DEC-1", "CFG-2"}, "dense", Lane::bound, true, large_dense}};

}  // namespace
}  // namespace headwater::conformance
