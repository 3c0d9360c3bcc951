// Dense layers (STATE-7) under both rules: each call is one dense chunk there, with nothing kept but rows, and the other
// layers do not see the difference.

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

bool is_dense(const Problem& problem, std::size_t layer) {
  const std::vector<std::int64_t>& dense = problem.options.dense_layers;
  return std::find(dense.begin(), dense.end(), static_cast<std::int64_t>(layer)) != dense.end();
}

void require_same_layer(const Trace& a, const Trace& b, std::size_t layer, const std::string& what) {
  require_same({a.plans, {a.layers[layer]}}, {b.plans, {b.layers[layer]}},
               fmt::format("layer {}: {}", layer, what));
}

Problem random_layers(Random& random, const Variety& variety, Select rule) {
  Problem problem = random_problem(random, variety);
  problem.options.dense = false;
  problem.options.heavy = random.integer(1, problem.options.chunk + 3);
  if (rule == Select::blocks) problem = with_blocks(random, std::move(problem));
  choose_dense_layers(random, problem);
  return problem;
}

void bound(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(16); ++round) {
    require_conforming(
        context,
        random_layers(random, {.max_chunk = 20, .max_tokens = 90, .max_layers = 4, .wide = false}, rule), {},
        round % 2 == 0 ? Truth::eigen : Truth::reference);
  }
}
const Register kBound{{"options.dense_layers_bound",
                       {"STATE-7", "SCORE-6", "DEC-1"},
                       "dense",
                       Lane::bound,
                       true,
                       [](Context& context) { bound(context, Select::h2o); }}};
const Register kBlocksBound{{"blocks.dense_layers_bound",
                             {"STATE-7", "SEL-9", "SEL-11"},
                             "dense",
                             Lane::bound,
                             true,
                             [](Context& context) { bound(context, Select::blocks); }}};

// Scores 0 and an empty set after every step, whatever it was.
void require_nothing_kept(const Problem& problem, const LayerTrace& layer, std::size_t number) {
  for (const Snapshot& shot : layer.snapshots) {
    const bool zero =
        std::all_of(shot.scores.begin(), shot.scores.end(), [](std::uint32_t bits) { return bits == 0; });
    if (zero && shot.memory_count == 0) continue;
    throw Violation(
        fmt::format("dense layer {} keeps scores or a set (STATE-7); {}", number, problem.describe()));
  }
}

// A dense layer has the bits of a dense session, every other layer those of a session without dense layers.
void law(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  int dense_chunks = 0;
  for (int round = 0; round < context.rounds(16); ++round) {
    const Problem problem =
        random_layers(random, {.max_chunk = 16, .max_tokens = 80, .max_layers = 5, .wide = false}, rule);
    Problem plain = problem;
    plain.options.dense_layers.clear();
    Problem dense = plain;
    dense.options.dense = true;
    const Trace some = run(*context.engine, problem);
    const Trace none = run(*context.engine, plain);
    const Trace all = run(*context.engine, dense);
    for (std::size_t layer = 0; layer < some.layers.size(); ++layer) {
      if (!is_dense(problem, layer)) {
        require_same_layer(some, none, layer, problem.describe() + "; with and without dense layers");
        continue;
      }
      require_same_layer(some, all, layer, problem.describe() + "; in a sparse and in a dense session");
      require_nothing_kept(problem, some.layers[layer], layer);
      for (const std::vector<Chunk>& plan : some.plans) {
        dense_chunks += plan.front().mode == ChunkMode::sparse && plan.size() > 1 ? 1 : 0;
      }
    }
  }
  if (dense_chunks < 5 && !context.quick)
    throw Violation("hardly a call of several chunks met a dense layer: the case judged nothing");
}
const Register kLaw{{"options.dense_layers_law",
                     {"STATE-7", "CFG-2", "SCORE-1"},
                     "dense",
                     Lane::law,
                     true,
                     [](Context& context) { law(context, Select::h2o); }}};
const Register kBlocksLaw{
    {"blocks.dense_layers_law", {"STATE-7", "SEL-9"}, "dense", Lane::law, true, [](Context& context) {
       law(context, Select::blocks);
     }}};

// A prompt in several calls, and a second turn: layers that are not dense keep their bits (PLAN-2), dense ones their bound.
void calls(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(12); ++round) {
    Problem problem =
        random_layers(random, {.max_chunk = 12, .max_tokens = 60, .max_layers = 3, .wide = false}, rule);
    Options& options = problem.options;
    const std::int64_t s = options.chunk;
    options.batch = s * random.integer(1, 3);
    options.clamp = false;
    const std::int64_t n = s * random.integer(3, 5) + random.integer(1, s);
    problem.steps = {Step::prefill(n), Step::decode(2), Step::prefill(n), Step::decode(1)};
    problem.shape.capacity = problem.tokens() + random.integer(0, 5);
    problem.fill_normal(random);
    const Trace whole = run(*context.engine, problem);
    problem.steps.clear();
    for (int turn = 0; turn < 2; ++turn) {
      for (std::int64_t done = 0; done < n;) {
        const std::int64_t part = std::min(n - done, s * random.integer(1, 2));
        problem.steps.push_back(Step::prefill(part, done == 0 ? n : 0));
        done += part;
      }
      problem.steps.push_back(Step::decode(2 - turn));
    }
    const Trace cut = run(*context.engine, problem);
    require_replay(problem, cut);
    require_forced(context, problem, cut);
    for (std::size_t layer = 0; layer < cut.layers.size(); ++layer) {
      if (!is_dense(problem, layer))
        require_same_layer(whole, cut, layer, problem.describe() + "; one call and several");
    }
  }
}
const Register kCalls{
    {"options.dense_layers_calls", {"STATE-7", "PLAN-2"}, "plan", Lane::replay, true, [](Context& context) {
       calls(context, Select::h2o);
     }}};
const Register kBlocksCalls{
    {"blocks.dense_layers_calls", {"STATE-7", "PLAN-2"}, "plan", Lane::replay, true, [](Context& context) {
       calls(context, Select::blocks);
     }}};

// More layers, and more dense ones, than 8 bits count.
void many(Context& context) {
  Random random(context.seed);
  Problem problem;
  problem.shape.n_layer = 520;
  problem.shape.d_head = problem.shape.d_value = 2;
  problem.options.chunk = 5;
  problem.options.batch = 10;
  problem.options.local = 1;
  problem.options.heavy = 2;
  problem.options.threads = 1;
  for (std::int64_t layer = 0; layer < 520; ++layer) {
    if (layer % 7 >= 3 || layer == 17) problem.options.dense_layers.push_back(layer);
  }
  problem.steps = {Step::prefill(13), Step::decode(1), Step::prefill(11)};
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random);
  require_conforming(context, problem);
}
const Register kMany{{"options.dense_layers_many", {"STATE-7", "CFG-5"}, "dense", Lane::bound, true, many}};

// Calls and chunks longer than an engine may take at a time; a second turn, and decode steps after both.
void sizes(Context& context, Select rule) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  require_rule(*context.engine, rule);
  struct Round {
    DType type;
    std::int64_t layers, chunk;
    std::vector<std::int64_t> dense;
    std::vector<Step> steps;
  };
  const std::vector<Round> rounds{
      {DType::bf16, 3, 512, {1}, {Step::prefill(2100), Step::decode(2), Step::prefill(600), Step::decode(1)}},
      {DType::f32, 2, 2100, {0}, {Step::prefill(2150, 2200), Step::prefill(50), Step::decode(1)}},
  };
  for (const Round& round : rounds) {
    Problem problem;
    problem.shape.n_layer = round.layers;
    problem.shape.d_head = problem.shape.d_value = 16;
    Options& options = problem.options;
    options.select = rule;
    options.chunk = round.chunk;
    options.local = 64;
    options.heavy = 192;
    options.dense_layers = round.dense;
    options.threads = context.threads;
    problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = round.type;
    problem.steps = round.steps;
    problem.shape.capacity = problem.tokens();
    Random random(context.seed);
    problem.fill_normal(random);
    require_conforming_in_part(context, problem, {.border = 64});
  }
}
const Register kSizes{
    {"options.dense_layers_sizes", {"STATE-7", "DEC-1"}, "dense", Lane::shape, true, [](Context& context) {
       sizes(context, Select::h2o);
     }}};
const Register kBlocksSizes{
    {"blocks.dense_layers_sizes", {"STATE-7", "SEL-9"}, "dense", Lane::shape, true, [](Context& context) {
       sizes(context, Select::blocks);
     }}};

}  // namespace
}  // namespace headwater::conformance
