// Rules `blocks` and `sketches`: what must hold whatever is computed. Laws, determinism, rows that no one should have to
// compute with.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

void same(const Trace& a, const Trace& b, const Problem& problem, const std::string& what,
          bool outputs = true) {
  try {
    require_same(a, b, what, outputs);
  } catch (const Violation& violation) {
    broken(violation.what(), problem);
  }
}

std::function<void(Context&)> under(Select rule, void (*law)(Context&, Select)) {
  return [rule, law](Context& context) { law(context, rule); };
}

const Variety kSmall{.max_chunk = 20, .max_tokens = 120, .max_layers = 2, .wide = false};

// Every third one is large enough to be split over several threads.
Problem problem_for(Random& random, int round, bool quick, Select rule) {
  const bool large = round % 3 == 0 && !quick;
  return with_rule(
      random,
      random_problem(
          random,
          {.max_chunk = large ? 150 : 24, .max_tokens = large ? 700 : 100, .max_layers = 2, .wide = false}),
      rule);
}

void redraw(Random& random, Tensor& tensor, std::int64_t token) {
  for (std::int64_t h = 0; h < tensor.heads; ++h) {
    for (std::int64_t x = 0; x < tensor.width; ++x) {
      tensor.row(token, h)[x] = round_to(tensor.type, static_cast<float>(4.0 * random.normal()));
    }
  }
}

// First position of the query block that token j is in; j itself outside of sparse chunks.
std::int64_t block_begin(const LayerTrace& layer, std::int64_t j) {
  for (const ChunkTrace& chunk : layer.chunks) {
    if (j < chunk.chunk.begin || j >= chunk.chunk.end || chunk.query_blocks == 0) continue;
    return j - (j - chunk.chunk.begin) % chunk.query_block;
  }
  return j;
}

// The outputs of tokens [first, last) have the same bits.
bool same_outputs(const Problem& problem, const LayerTrace& a, const LayerTrace& b, std::int64_t first,
                  std::int64_t last) {
  const std::int64_t row = problem.shape.n_head * problem.shape.d_value;
  return std::equal(a.out.begin() + first * row, a.out.begin() + last * row, b.out.begin() + first * row);
}

// Whether one query block of a chunk has the same votes and sets in both traces, all key/value heads.
bool same_sets(const ChunkTrace& a, const ChunkTrace& b, std::int64_t block) {
  const auto same_part = [&](const auto& x, const auto& y, std::int64_t width) {
    const std::int64_t sets = width == 0 ? 0 : static_cast<std::int64_t>(x.size()) / width;
    for (std::int64_t s = block; s < sets; s += a.query_blocks) {
      if (!std::equal(x.begin() + s * width, x.begin() + (s + 1) * width, y.begin() + s * width))
        return false;
    }
    return true;
  };
  return same_part(a.memory, b.memory, a.memory_count) &&
         same_part(a.block_votes, b.block_votes, a.candidate_blocks) &&
         same_part(a.token_votes, b.token_votes, a.voted_tokens);
}

// Changing token j leaves every output before its query block bit-identical, and the votes and sets up to it.
void causality(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(80); ++round) {
    const Problem problem = with_rule(random, random_problem(random, kSmall), rule);
    const std::int64_t n = problem.tokens();
    const std::int64_t j = random.integer(0, n - 1);
    Problem changed = problem;
    for (LayerInput& layer : changed.layers) {
      for (Tensor* tensor : {&layer.q, &layer.k, &layer.v}) redraw(random, *tensor, j);
    }
    const Trace a = run(*context.engine, problem);
    const Trace b = run(*context.engine, changed);
    bool differs = false;
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      const LayerTrace& x = a.layers[l];
      const LayerTrace& y = b.layers[l];
      const std::int64_t first = block_begin(x, j);
      for (std::int64_t t = 0; t < first; ++t) {
        if (!same_outputs(problem, x, y, t, t + 1)) {
          broken(fmt::format("changing token {} changed the output of token {}", j, t), problem);
        }
      }
      differs = differs || !same_outputs(problem, x, y, j, j + 1);
      for (std::size_t c = 0; c < x.chunks.size(); ++c) {
        for (std::int64_t block = 0; block < x.chunks[c].query_blocks; ++block) {
          if (x.chunks[c].chunk.begin + block * x.chunks[c].query_block >= first) break;
          if (!same_sets(x.chunks[c], y.chunks[c], block)) {
            broken(
                fmt::format("changing token {} changed the sets of query block {} of chunk {}", j, block, c),
                problem);
          }
        }
      }
    }
    if (!differs) broken(fmt::format("changing token {} changed nothing at all", j), problem);
  }
}
const Register kCausality{{"blocks.causality",
                           {"SEL-10", "SEL-9", "MASK-1", "DEC-1"},
                           "mask",
                           Lane::law,
                           true,
                           under(Select::blocks, causality)}};
const Register kCausalityOfSketches{{"sketches.causality",
                                     {"SEL-10", "SKE-3", "SKE-6"},
                                     "mask",
                                     Lane::law,
                                     true,
                                     under(Select::sketches, causality)}};

// A set is a function of the stored keys before its chunk and of its query block's own rows (by sketches also of the
// chunk's keys up to them): keys and values of a chunk change none of its sets, queries of a query block none of another's,
// and no output of another chunk.
void own_rows_alone(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(80); ++round) {
    const Problem problem = with_rule(random, random_problem(random, kSmall), rule);
    const std::int64_t j = random.integer(0, problem.tokens() - 1);
    const bool queries = random.chance(0.5);
    Problem changed = problem;
    LayerInput& layer = changed.layers[0];
    if (queries) {
      redraw(random, layer.q, j);
    } else {
      redraw(random, layer.k, j);
      redraw(random, layer.v, j);
    }
    const LayerTrace a = run(*context.engine, problem).layers[0];
    const LayerTrace b = run(*context.engine, changed).layers[0];
    for (std::size_t c = 0; c < a.chunks.size(); ++c) {
      const ChunkTrace& x = a.chunks[c];
      const bool holds = x.chunk.begin <= j && j < x.chunk.end;
      if (queries && !holds && !same_outputs(problem, a, b, x.chunk.begin, x.chunk.end)) {
        broken(fmt::format("the query of token {} changed outputs of chunk {}", j, c), problem);
      }
      for (std::int64_t block = 0; block < x.query_blocks; ++block) {
        const std::int64_t first = x.chunk.begin + block * x.query_block;
        const bool own = first <= j && j < first + x.query_block;
        // SKE-5: own weights know the keys of the chunk.
        const bool weighed = rule == Select::sketches && j < first + x.query_block;
        const bool may_change = queries ? own : x.chunk.begin > j || weighed;
        if (!may_change && !same_sets(x, b.chunks[c], block)) {
          broken(fmt::format("the {} of token {} changed the sets of query block {} of chunk {}",
                             queries ? "query" : "key", j, block, c),
                 problem);
        }
      }
    }
  }
}
const Register kOwnRows{{"blocks.own_rows_alone",
                         {"SEL-9", "SEL-4"},
                         "selection",
                         Lane::law,
                         true,
                         under(Select::blocks, own_rows_alone)}};
const Register kOwnRowsOfSketches{{"sketches.own_rows_alone",
                                   {"SEL-9", "SKE-2", "SKE-5"},
                                   "selection",
                                   Lane::law,
                                   true,
                                   under(Select::sketches, own_rows_alone)}};

// Nothing but stored rows carries over: the last turn has the same bits whether the tokens before it came in sparse
// chunks, in decode steps or both.
void history(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    Problem problem = with_rule(random, random_problem(random, kSmall), rule);
    Options& options = problem.options;
    options.dense = false;
    options.clamp = false;
    options.local = random.integer(1, 2 * options.chunk);
    options.heavy = options.key_block * random.integer(0, 4);
    const std::int64_t before = random.integer(2, 5 * options.chunk);
    const std::int64_t decoded = random.integer(1, before - 1);
    const std::int64_t last = options.chunk + random.integer(1, 2 * options.chunk);
    problem.steps = {Step::prefill(before - decoded), Step::decode(decoded), Step::prefill(last)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    const Trace chunks = replayed(*context.engine, problem);
    Problem other = problem;
    other.steps = {Step::decode(before), Step::prefill(last)};
    const Trace steps = replayed(*context.engine, other);
    for (std::size_t l = 0; l < chunks.layers.size(); ++l) {
      const LayerTrace& a = chunks.layers[l];
      const LayerTrace& b = steps.layers[l];
      const std::size_t count = chunks.plans.back().size();
      if (!same_outputs(problem, a, b, before, before + last)) {
        broken("how earlier tokens were stored changes outputs", problem);
      }
      for (std::size_t c = 1; c <= count; ++c) {
        const ChunkTrace& x = a.chunks[a.chunks.size() - c];
        const ChunkTrace& y = b.chunks[b.chunks.size() - c];
        if (x.memory != y.memory || x.block_votes != y.block_votes || x.token_votes != y.token_votes ||
            x.lse != y.lse) {
          broken("how earlier tokens were stored changes a set or a vote", problem);
        }
      }
    }
  }
}
const Register kHistory{{"blocks.history",
                         {"SEL-9", "SEL-2", "STATE-4"},
                         "turns",
                         Lane::law,
                         true,
                         under(Select::blocks, history)}};
const Register kHistoryOfSketches{{"sketches.history",
                                   {"SEL-9", "SKE-2", "STATE-4"},
                                   "turns",
                                   Lane::law,
                                   true,
                                   under(Select::sketches, history)}};

// Values change no set and no vote; outputs are linear in them, bit for bit under powers of two.
void values(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    Variety variety = kSmall;
    variety.dtypes = false;
    const Problem problem = with_blocks(random, random_problem(random, variety));
    Problem scaled = problem;
    for (LayerInput& layer : scaled.layers) {
      for (float& x : layer.v.values) x *= -4.0f;
    }
    const Trace a = run(*context.engine, problem);
    Trace b = run(*context.engine, scaled);
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      for (float& x : b.layers[l].out) x *= -0.25f;
    }
    same(a, b, problem, "values and -4 times the values");
  }
}
const Register kValues{{"blocks.values", {"SEL-9", "INTRA-1"}, "values", Lane::law, true, values}};

// Key/value heads move as a whole, query heads inside their group: outputs, sets and votes follow, bit for bit.
void head_permutation(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Variety variety = kSmall;
    variety.max_layers = 1;
    const Problem problem = with_rule(random, random_problem(random, variety), rule);
    const Shape& shape = problem.shape;
    const std::int64_t group = shape.n_head / shape.n_head_kv;
    const auto shuffled = [&](std::int64_t first, std::int64_t count) {
      std::vector<std::int64_t> list(static_cast<std::size_t>(count));
      std::iota(list.begin(), list.end(), first);
      for (std::size_t i = list.size(); i > 1; --i) {
        std::swap(list[i - 1],
                  list[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
      }
      return list;
    };
    const std::vector<std::int64_t> kv = shuffled(0, shape.n_head_kv);
    std::vector<std::int64_t> from;  // query head h of the permuted run is head from[h] of the first
    for (const std::int64_t g : kv) {
      const std::vector<std::int64_t> inside = shuffled(g * group, group);
      from.insert(from.end(), inside.begin(), inside.end());
    }
    Problem permuted = problem;
    const auto permute = [](const Tensor& a, Tensor& b, const std::vector<std::int64_t>& order) {
      for (std::int64_t t = 0; t < a.n; ++t) {
        for (std::int64_t h = 0; h < a.heads; ++h) {
          std::copy_n(a.row(t, order[static_cast<std::size_t>(h)]), a.width, b.row(t, h));
        }
      }
    };
    permute(problem.layers[0].q, permuted.layers[0].q, from);
    permute(problem.layers[0].k, permuted.layers[0].k, kv);
    permute(problem.layers[0].v, permuted.layers[0].v, kv);
    for (std::size_t h = 0; h < from.size(); ++h) {
      const auto old = static_cast<std::size_t>(from[h]);
      if (!problem.options.sinks.empty()) permuted.options.sinks[h] = problem.options.sinks[old];
      if (!problem.options.alibi.empty()) permuted.options.alibi[h] = problem.options.alibi[old];
    }
    const LayerTrace a = run(*context.engine, problem).layers[0];
    const LayerTrace b = run(*context.engine, permuted).layers[0];
    for (std::int64_t t = 0; t < problem.tokens(); ++t) {
      for (std::int64_t h = 0; h < shape.n_head; ++h) {
        const auto* x = a.out.data() + (t * shape.n_head + from[static_cast<std::size_t>(h)]) * shape.d_value;
        const auto* y = b.out.data() + (t * shape.n_head + h) * shape.d_value;
        if (!std::equal(x, x + shape.d_value, y))
          broken(fmt::format("output of token {} head {} differs", t, h), problem);
      }
    }
    for (std::size_t c = 0; c < a.chunks.size(); ++c) {
      const auto moved = [&](const char* what, const auto& x, const auto& y, std::int64_t width) {
        for (std::size_t g = 0; g < kv.size(); ++g) {
          const std::int64_t size = width * a.chunks[c].query_blocks;
          const auto first = x.begin() + kv[g] * size;
          if (!std::equal(first, first + size, y.begin() + static_cast<std::int64_t>(g) * size)) {
            broken(fmt::format("chunk {}: {} of key/value head {} differ", c, what, g), problem);
          }
        }
      };
      const ChunkTrace& x = a.chunks[c];
      const ChunkTrace& y = b.chunks[c];
      moved("sets", x.memory, y.memory, x.memory_count);
      moved("block votes", x.block_votes, y.block_votes, x.candidate_blocks);
      moved("token votes", x.token_votes, y.token_votes, x.voted_tokens);
    }
  }
}
const Register kHeadPermutation{{"blocks.head_permutation",
                                 {"SEL-4", "SEL-6", "SEL-7", "SEL-8", "LOGIT-1"},
                                 "votes",
                                 Lane::law,
                                 true,
                                 under(Select::blocks, head_permutation)}};
const Register kHeadPermutationOfSketches{{"sketches.head_permutation",
                                           {"SKE-3", "SKE-5", "SKE-6", "LOGIT-1"},
                                           "votes",
                                           Lane::law,
                                           true,
                                           under(Select::sketches, head_permutation)}};

// A memory that holds all history is dense causal attention (clamp off, M >= N).
void dense_limit(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = with_blocks(
        random,
        random_problem(random, {.max_chunk = 16, .max_tokens = 80, .later_turns = false, .wide = false}));
    problem.options.clamp = false;
    problem.options.dense = false;
    const std::int64_t n = problem.tokens();
    const std::int64_t k = problem.options.key_block;
    // What is between the last whole key block and Local is in no set: Local must reach over a key block.
    problem.options.local = random.integer(k - 1, n + k);
    problem.options.heavy = k * random.integer(n / k + 1, n / k + 3);
    const Trace sparse = replayed(*context.engine, problem);
    Problem whole = problem;
    whole.options.dense = true;
    whole.steps = {Step::prefill(n)};
    const Trace dense = run(*context.engine, whole);
    for (const ChunkTrace& chunk : sparse.layers[0].chunks) {
      if (chunk.memory_count != chunk.chunk.begin) broken("the sets do not hold all history", problem);
    }
    const std::vector<double> a = output_bounds(context, problem, sparse);
    const std::vector<double> b = output_bounds(context, whole, dense);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double error = std::fabs(static_cast<double>(sparse.layers[0].out[i]) - dense.layers[0].out[i]);
      if (!(error <= a[i] + b[i])) broken("sets of all history are not dense attention", problem);
    }
  }
}
const Register kDenseLimit{
    {"blocks.dense_limit", {"SEL-2", "SEL-8", "CFG-3", "FUSE-2"}, "fusion", Lane::law, true, dense_limit}};

// ---- Determinism ----

void threads(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  if (!context.engine->claims().bitwise_threads)
    throw Skipped("the engine does not claim it (Claims::bitwise_threads)");
  Random random(context.seed);
  for (int round = 0; round < context.rounds(24); ++round) {
    Problem problem = problem_for(random, round, context.quick, rule);
    problem.options.threads = 1;
    const Trace one = run(*context.engine, problem);
    for (const int count : {2, 3, 7}) {
      problem.options.threads = count;
      same(one, run(*context.engine, problem), problem, "threads 1 and " + std::to_string(count));
    }
    // Without an observer an engine may take heads and chunks in another order, one for each number of threads.
    RunStyle style;
    style.observed = false;
    for (const int count : {1, 2, 4}) {
      problem.options.threads = count;
      Trace silent = run(*context.engine, problem, style);
      for (std::size_t l = 0; l < silent.layers.size(); ++l) silent.layers[l].chunks = one.layers[l].chunks;
      same(one, silent, problem, std::to_string(count) + " threads and no observer");
    }
  }
}
const Register kThreads{{"blocks.threads",
                         {"NUM-3", "SEL-6", "SEL-7"},
                         "session",
                         Lane::determinism,
                         true,
                         under(Select::blocks, threads)}};
const Register kThreadsOfSketches{{"sketches.threads",
                                   {"NUM-3", "SKE-6"},
                                   "session",
                                   Lane::determinism,
                                   true,
                                   under(Select::sketches, threads)}};

void runs(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  if (!context.engine->claims().bitwise_runs)
    throw Skipped("the engine does not claim it (Claims::bitwise_runs)");
  Random random(context.seed);
  for (int round = 0; round < context.rounds(24); ++round) {
    Problem problem = problem_for(random, round, context.quick, rule);
    problem.options.threads = context.threads;
    same(run(*context.engine, problem), run(*context.engine, problem), problem, "two runs");
  }
}
const Register kRuns{
    {"blocks.runs", {"NUM-3"}, "session", Lane::determinism, true, under(Select::blocks, runs)}};

void schedules(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = problem_for(random, round, context.quick, rule);
    problem.options.schedule = Schedule::layer_major;
    const Trace layer_major = run(*context.engine, problem);
    problem.options.schedule = Schedule::chunk_major;
    same(layer_major, run(*context.engine, problem), problem, "layer-major and chunk-major",
         context.engine->claims().bitwise_schedules);
  }
}
const Register kSchedules{{"blocks.schedules",
                           {"SCHED-1", "SCHED-2", "SEL-9"},
                           "schedule",
                           Lane::determinism,
                           true,
                           under(Select::blocks, schedules)}};

// One call, or any calls that cut it at multiples of S, the first saying the turn's length (PLAN-2).
void call_cuts(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = problem_for(random, round, context.quick, rule);
    const std::int64_t s = ++problem.options.chunk;
    problem.options.dense = false;  // a dense call is one chunk, wherever it is cut
    problem.options.heavy += problem.options.key_block;
    problem.options.clamp = false;
    problem.options.batch = s * random.integer(1, 4);
    const std::int64_t n = random.integer(2, 7) * s - random.integer(0, s - 1);
    problem.steps.clear();
    if (random.chance(0.4)) problem.steps = {Step::prefill(s + 1), Step::decode(2)};
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
const Register kCallCuts{{"blocks.call_cuts",
                          {"PLAN-2", "SEL-4", "SEL-9"},
                          "plan",
                          Lane::determinism,
                          true,
                          under(Select::blocks, call_cuts)}};
const Register kCallCutsOfSketches{{"sketches.call_cuts",
                                    {"PLAN-2", "SKE-2", "SEL-9"},
                                    "plan",
                                    Lane::determinism,
                                    true,
                                    under(Select::sketches, call_cuts)}};

// Layers attended in any order, rows laid out in any way, no observer, more capacity, after another run and reset.
void surroundings(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    Problem problem = with_blocks(
        random, random_problem(random, {.max_chunk = 20, .max_tokens = 90, .max_layers = 3, .wide = false}));
    Trace plain = run(*context.engine, problem);
    RunStyle style;
    style.placement = random.pick(std::vector<Placement>{Placement::head_major, Placement::strided,
                                                         Placement::unaligned, Placement::guarded});
    style.layer_order.resize(static_cast<std::size_t>(problem.shape.n_layer));
    std::iota(style.layer_order.rbegin(), style.layer_order.rend(), 0);
    same(plain, run(*context.engine, problem, style), problem, "another order of layers and layout of rows");

    Problem roomy = problem;
    roomy.shape.capacity += random.integer(1, 3000);
    same(plain, run(*context.engine, roomy), problem, "tight and roomy capacity");

    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    Problem other = problem;
    if (random.chance(0.5)) other.steps = {Step::prefill(random.integer(1, problem.shape.capacity))};
    other.fill_normal(random);
    (void)run(*session, other);
    session->reset();
    same(plain, run(*session, problem), problem, "a run after reset");

    style.observed = false;
    for (LayerTrace& layer : plain.layers) layer.chunks.clear();
    same(plain, run(*context.engine, problem, style), problem, "no observer");
  }
}
const Register kSurroundings{{"blocks.surroundings",
                              {"STATE-1", "STATE-5", "NUM-3", "SEL-9"},
                              "session",
                              Lane::determinism,
                              true,
                              surroundings}};

// ---- NaN and infinity ----

float bad_number(Random& random) {
  return random.pick(std::vector<float>{std::numeric_limits<float>::quiet_NaN(),
                                        std::numeric_limits<float>::infinity(),
                                        -std::numeric_limits<float>::infinity()});
}

// A bad row at position j reaches no output of a chunk before c(j), in the reference none before its query block; sets stay
// valid and replay.
void nan_rows(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  const bool strict = context.engine->claims().double_arithmetic;
  const std::vector<Tensor LayerInput::*> tensors{&LayerInput::q, &LayerInput::k, &LayerInput::v};
  for (int round = 0; round < context.rounds(150); ++round) {
    const Problem clean =
        with_rule(random, random_problem(random, {.max_chunk = 16, .max_tokens = 90, .wide = false}), rule);
    Problem problem = clean;
    const std::int64_t j = random.integer(0, problem.tokens() - 1);
    Tensor& tensor = problem.layers[0].*random.pick(tensors);
    const std::int64_t h = random.integer(0, tensor.heads - 1);
    const std::int64_t one = random.integer(0, tensor.width - 1);
    const bool whole = random.chance(0.5);
    const float bad = bad_number(random);
    for (std::int64_t x = 0; x < tensor.width; ++x) {
      if (whole || x == one) tensor.row(j, h)[x] = bad;
    }
    const Trace a = run(*context.engine, clean);
    const Trace b = run(*context.engine, problem, {.placement = Placement::guarded, .layer_order = {}});
    try {
      require_replay(problem, b);
    } catch (const Violation& violation) {
      broken(violation.what(), problem);
    }
    std::int64_t safe = block_begin(b.layers[0], j);
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
const Register kNanRows{{"blocks.nan_rows",
                         {"NUM-2", "SEL-5", "SEL-6", "SEL-8", "SEL-10"},
                         "memory",
                         Lane::hostile,
                         true,
                         under(Select::blocks, nan_rows)}};
const Register kNanRowsOfSketches{{"sketches.nan_rows",
                                   {"NUM-2", "SKE-4", "SKE-6", "SEL-10"},
                                   "memory",
                                   Lane::hostile,
                                   true,
                                   under(Select::sketches, nan_rows)}};

// What a bad row does to votes is defined: a key block with a NaN or an infinity has no estimate, the vote -infinity and no
// place in a set while there are others; a pool with a NaN query has no estimate at all, its differences are 0 and the
// candidates follow by number.
void nan_votes(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const std::int64_t k = random.pick(std::vector<std::int64_t>{2, 3, 8});
    Problem problem;
    problem.shape.n_head = 4;
    problem.shape.n_head_kv = 2;
    problem.shape.d_head = random.integer(1, 20);
    problem.shape.d_value = 3;
    Options& options = problem.options;
    options.select = Select::blocks;
    options.chunk = 32;
    options.local = 4;
    options.heavy = 2 * k;
    options.clamp = false;
    options.key_block = k;
    options.query_block = 8;
    options.pool = 4;
    options.refine = random.integer(1, 2);
    problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type =
        random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16});
    problem.steps = {Step::prefill(96)};
    problem.shape.capacity = 96;
    problem.fill_normal(random);
    const std::int64_t bad_block = random.integer(0, 32 / k - 2);  // before the Local of the second chunk
    const std::int64_t bad_head = random.integer(0, 1);
    const std::int64_t key = bad_block * k + random.integer(0, k - 1);
    problem.layers[0].k.row(key, bad_head)[random.integer(0, problem.shape.d_head - 1)] = bad_number(random);
    const std::int64_t query = random.integer(32, 95);
    const std::int64_t query_head = random.integer(0, 3);
    problem.layers[0].q.row(query, query_head)[0] = std::numeric_limits<float>::quiet_NaN();
    const Trace trace = replayed(*context.engine, problem);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (std::int64_t set = 0; set < 2 * chunk.query_blocks && chunk.candidate_blocks > 0; ++set) {
        const std::int64_t head_kv = set / chunk.query_blocks;
        const std::int64_t first = chunk.chunk.begin + set % chunk.query_blocks * 8;
        const bool blind = query >= first && query < first + 8 && query_head / 2 == head_kv;
        for (std::int64_t b = 0; b < chunk.candidate_blocks; ++b) {
          const float vote = chunk.block_votes[static_cast<std::size_t>(set * chunk.candidate_blocks + b)];
          const bool none = head_kv == bad_head && b == bad_block;
          const bool right = blind  ? vote == 0.0f
                             : none ? vote == -std::numeric_limits<float>::infinity()
                                    : std::isfinite(vote);
          if (!right) {
            broken(fmt::format("chunk [{}, {}) set {} block {}: vote {}{}{}", chunk.chunk.begin,
                               chunk.chunk.end, set, b, vote, blind ? ", a NaN query in the block" : "",
                               none ? ", a bad key in the block" : ""),
                   problem);
          }
        }
      }
    }
  }
}
const Register kNanVotes{
    {"blocks.nan_votes", {"SEL-5", "SEL-6", "NUM-2"}, "votes", Lane::hostile, true, nan_votes}};

// A value row of NaN changes no vote, and no output of a query block whose set does not hold it.
void evicted_rows(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  int judged = 0;
  for (int round = 0; round < context.rounds(60); ++round) {
    Problem clean = with_blocks(
        random,
        random_problem(random, {.max_chunk = 10, .max_tokens = 90, .later_turns = false, .wide = false}));
    clean.options.dense = false;
    clean.options.clamp = false;
    clean.options.local = random.integer(1, 3);
    clean.options.heavy = clean.options.key_block * random.integer(0, 1);
    Problem problem = clean;
    const std::int64_t j = random.integer(0, problem.tokens() - 1);
    Tensor& v = problem.layers[0].v;
    for (std::int64_t h = 0; h < v.heads; ++h) {
      std::fill_n(v.row(j, h), v.width, std::numeric_limits<float>::quiet_NaN());
    }
    const LayerTrace a = run(*context.engine, clean).layers[0];
    const LayerTrace b = run(*context.engine, problem).layers[0];
    const std::int64_t group = problem.shape.n_head / problem.shape.n_head_kv;
    for (std::size_t c = 0; c < a.chunks.size(); ++c) {
      const ChunkTrace& chunk = b.chunks[c];
      if (chunk.memory != a.chunks[c].memory || chunk.block_votes != a.chunks[c].block_votes ||
          chunk.token_votes != a.chunks[c].token_votes) {
        broken("NaN in V changes a vote or a set", problem);
      }
      if (chunk.chunk.mode != ChunkMode::sparse || chunk.chunk.begin <= j) continue;
      for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
        for (std::int64_t t = chunk.chunk.begin; t < chunk.chunk.end; ++t) {
          const auto* set = chunk.memory.data() + chunk.set_of(h, group, t) * chunk.memory_count;
          if (std::binary_search(set, set + chunk.memory_count, static_cast<std::int32_t>(j))) continue;
          ++judged;
          const auto at = (t * problem.shape.n_head + h) * problem.shape.d_value;
          const auto* x = a.out.data() + at;
          if (!std::equal(x, x + problem.shape.d_value, b.out.data() + at)) {
            broken(fmt::format("token {} is not in the set, yet it reached token {} head {}", j, t, h),
                   problem);
          }
        }
      }
    }
  }
  if (judged == 0) throw Violation("no token was ever left out: the case judged nothing");
}
const Register kEvicted{
    {"blocks.evicted_rows", {"SEL-8", "FUSE-2", "NUM-2"}, "memory", Lane::hostile, true, evicted_rows}};

// Everything NaN, infinite or near the end of the range: valid sets, exact replay, no crash. Then the session is reset, and
// nothing of it is left.
void all_bad(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const Problem clean =
        with_rule(random, random_problem(random, {.max_chunk = 12, .max_tokens = 80, .wide = false}), rule);
    Problem problem = clean;
    const float bad = random.chance(0.3) ? 1e30f : bad_number(random);
    for (Tensor* tensor : {&problem.layers[0].q, &problem.layers[0].k, &problem.layers[0].v}) {
      if (random.chance(0.3)) continue;
      for (float& x : tensor->values) {
        if (random.chance(0.7)) x = round_to(tensor->type, random.chance(0.5) ? bad : -bad);
      }
    }
    const std::unique_ptr<Session> session = context.engine->open(clean.shape, clean.options);
    try {
      require_replay(problem, run(*session, problem));
    } catch (const Violation& violation) {
      broken(violation.what(), problem);
    }
    session->reset();
    same(run(*context.engine, clean), run(*session, clean), clean, "after a run of bad numbers and reset");
  }
}
const Register kAllBad{{"blocks.all_bad",
                        {"NUM-2", "SEL-6", "SEL-7", "SEL-8"},
                        "memory",
                        Lane::hostile,
                        true,
                        under(Select::blocks, all_bad)}};
const Register kAllBadOfSketches{{"sketches.all_bad",
                                  {"NUM-2", "SKE-6", "SKE-7", "SKE-8"},
                                  "memory",
                                  Lane::hostile,
                                  true,
                                  under(Select::sketches, all_bad)}};

}  // namespace
}  // namespace headwater::conformance
