// Rule `sketches` (SPEC 18): sets replayed from the engine's own votes without tolerance (SKE-9), votes and outputs within
// derived bounds.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

const std::vector<std::string> kVotes{"SKE-2", "SKE-3", "SKE-4", "SKE-5",  "SKE-6",
                                      "SKE-7", "SKE-8", "SKE-9", "FUSE-2", "SEL-9"};

Truth truth_of(int round) { return round % 2 == 0 ? Truth::eigen : Truth::reference; }

// Sets that the budget ends, sets that the least weight ends, and sets without a candidate that was chosen must be among
// what a case saw: else it judged little.
class Seen {
 public:
  void take(const Trace& trace) {
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      if (chunk.voted_tokens == 0) continue;
      for (std::int64_t s = 0; s * chunk.memory_count < std::ssize(chunk.memory); ++s) {
        const std::int64_t left = chunk.memory_count - std::ssize(chunk.entries(s));
        full_ += left == 0 ? 1 : 0;
        short_ += left > 0 ? 1 : 0;
      }
    }
  }
  void require() const {
    if (full_ > 0 && short_ > 0) return;
    throw Violation(fmt::format("{} full sets, {} short ones: not enough", full_, short_));
  }

 private:
  int full_ = 0, short_ = 0;
};

// Random problems under the rule; pinned tokens in some.
Problem sketched(Random& random, const Variety& variety) {
  Problem problem = with_rule(random, random_problem(random, variety), Select::sketches);
  if (random.chance(0.4)) choose_pinned(random, problem.options);
  return problem;
}

void repeat(Context& context, int full, const Variety& variety, bool forced,
            const std::function<void(Random&, Problem&)>& change) {
  require_rule_sketches(*context.engine);
  Random random(context.seed);
  Seen seen;
  for (int round = 0; round < context.rounds(full); ++round) {
    Problem problem = sketched(random, variety);
    change(random, problem);
    const Trace trace = replayed(*context.engine, problem);
    seen.take(trace);
    if (forced) require_forced(context, problem, trace, truth_of(round));
  }
  if (!context.quick) seen.require();
}

void as_it_is(Random&, Problem&) {}

void replay(Context& context) {
  repeat(context, 300, {.max_chunk = 30, .max_tokens = 200, .max_layers = 2, .wide = false}, false, as_it_is);
}
const Register kReplay{{"sketches.replay",
                        {"SKE-2", "SKE-6", "SKE-7", "SKE-8", "SKE-9", "SEL-9"},
                        "selection",
                        Lane::replay,
                        true,
                        replay}};

// Rows drawn from very few: most votes are equal, and the lower number wins.
void replay_ties(Context& context) {
  repeat(context, 120, {.max_chunk = 20, .max_tokens = 160, .dtypes = false, .extras = false, .wide = false},
         false, [](Random& random, Problem& problem) {
           if (random.chance(0.3)) problem.options.scale = 0.0;
           for (LayerInput& layer : problem.layers) {
             for (float& x : layer.q.values) x = 1.0f;
             for (float& x : layer.k.values) x = static_cast<float>(random.integer(0, 1));
           }
         });
}
const Register kTies{
    {"sketches.replay_ties", {"SKE-7", "SKE-9"}, "selection", Lane::replay, true, replay_ties}};

void bound_f32(Context& context) {
  repeat(context, 100, {.max_chunk = 24, .max_tokens = 120, .dtypes = false, .extras = false}, true,
         as_it_is);
}
const Register kBoundF32{{"sketches.bound_f32", kVotes, "votes", Lane::bound, true, bound_f32}};

// All types, several layers of which some are dense, soft cap, slopes, sinks and scales.
void bound_everything(Context& context) {
  repeat(context, 200, {.max_chunk = 24, .max_tokens = 120, .max_layers = 2}, true,
         [](Random& random, Problem& problem) {
           if (random.chance(0.3)) choose_dense_layers(random, problem);
           if (random.chance(0.2)) choose_dense_below(random, problem);
         });
}
const Register kBoundEverything{
    {"sketches.bound_everything", kVotes, "votes", Lane::bound, true, bound_everything}};

void bound_features(Context& context) {
  repeat(context, 60, {.max_chunk = 24, .max_tokens = 120, .dtypes = false, .wide = false}, true,
         [](Random& random, Problem& problem) {
           Options& options = problem.options;
           options.scale = random.pick(std::vector<double>{0.7, -0.4, 0.125, 1.0});
           options.softcap = random.pick(std::vector<double>{0.0, 2.0, 20.0});
           options.alibi.clear();
           options.sinks.clear();
           for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
             options.alibi.push_back(static_cast<float>(random.uniform(-0.1, 0.6)));
             options.sinks.push_back(static_cast<float>(random.normal()));
           }
           problem.fill_normal(random);
         });
}
const Register kFeatures{{"sketches.bound_features",
                          {"SKE-5", "SKE-6", "LOGIT-2", "LOGIT-3", "LOGIT-4"},
                          "votes",
                          Lane::bound,
                          true,
                          bound_features}};

// What a problem is made of; the rest is usual.
struct Sizes {
  DType type = DType::f32;
  std::int64_t heads = 2;
  std::int64_t heads_kv = 1;
  std::int64_t d = 64;
  std::int64_t chunk = 64;
  std::int64_t local = 8;
  std::int64_t heavy = 24;
  std::int64_t pinned = 0;
  std::int64_t query_block = 16;
  double least_weight = 0.002;
};

Problem of_sizes(Random& random, const Sizes& sizes, std::vector<Step> steps) {
  Problem problem;
  problem.shape.n_head = sizes.heads;
  problem.shape.n_head_kv = sizes.heads_kv;
  problem.shape.d_head = problem.shape.d_value = sizes.d;
  Options& options = problem.options;
  options.select = Select::sketches;
  options.chunk = sizes.chunk;
  options.batch = 4 * sizes.chunk;
  options.local = sizes.local;
  options.heavy = sizes.heavy;
  options.pinned = sizes.pinned;
  options.query_block = sizes.query_block;
  options.least_weight = sizes.least_weight;
  options.clamp = false;
  problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = sizes.type;
  problem.steps = std::move(steps);
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random);
  return problem;
}

// Sizes at their ends, one by one.
void sizes(Context& context) {
  require_rule_sketches(*context.engine);
  Random random(context.seed);
  const std::vector<Sizes> all{
      {},
      {.chunk = 70, .query_block = 32},               // S no multiple of Q
      {.query_block = 1},                             // a set for every row
      {.query_block = 64},                            // one set for the chunk
      {.chunk = 30, .query_block = 30},               // later chunks are shorter than Q
      {.local = 0},                                   // no Local
      {.local = 0, .heavy = 200},                     // every candidate fits
      {.local = 60, .heavy = 0},                      // a window
      {.local = 0, .heavy = 12, .pinned = 12},        // H = A: pinned tokens alone
      {.heavy = 20, .pinned = 19},                    // one token is chosen
      {.local = 70, .pinned = 4},                     // pinned tokens meet Local
      {.heavy = 40, .least_weight = 0.0},             // no least weight
      {.heavy = 200, .least_weight = 1e-300},         // too small for F32
      {.heavy = 200, .least_weight = 1.0 - 0x1p-53},  // as much as all that the row has
      {.heavy = 200, .pinned = 3, .least_weight = 0.999},
      {.chunk = 1, .local = 2, .heavy = 3, .query_block = 1},
  };
  int round = 0;
  for (Sizes sizes : all) {
    const std::int64_t s = sizes.chunk;
    sizes.d = 40;
    require_conforming(
        context,
        of_sizes(random, sizes,
                 {Step::prefill(3 * s + 5), Step::decode(2), Step::prefill(2 * s), Step::decode(1)}),
        {}, truth_of(round++));
    if (context.quick) continue;
    sizes.type = round % 4 == 1 ? DType::f16 : DType::bf16;
    require_conforming(context, of_sizes(random, sizes, {Step::prefill(3 * s + 5), Step::prefill(2 * s + 1)}),
                       {}, truth_of(round++));
  }
}
const Register kSizes{{"sketches.sizes", kVotes, "votes", Lane::bound, true, sizes}};

void groups(Context& context) {
  require_rule_sketches(*context.engine);
  Random random(context.seed);
  for (const std::int64_t group : {1, 3, 8, 17}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const std::int64_t kv = group == 3 ? 3 : 2;
      require_conforming(
          context, of_sizes(random, {.type = type, .heads = group * kv, .heads_kv = kv, .d = 36, .chunk = 48},
                            {Step::prefill(150), Step::decode(1)}));
    }
  }
}
const Register kGroups{
    {"sketches.groups", {"SKE-2", "SKE-6", "LOGIT-1"}, "votes", Lane::bound, true, groups}};

// Heads of all widths: which columns are taken, and which integers, shows in every vote. Columns that grow after position
// 256, columns of equal sums, and rows whose products with r lie between two integers.
enum class Columns { grow_late, equal, halves };

void columns(Context& context) {
  require_rule_sketches(*context.engine);
  Random random(context.seed);
  for (const std::int64_t d : {1, 7, 31, 32, 33, 64, 80, 128, 256}) {
    for (const Columns kind : {Columns::grow_late, Columns::equal, Columns::halves}) {
      for (const std::int64_t chunk : {40, 300}) {
        if (context.quick && chunk == 300) continue;
        Problem problem = of_sizes(random,
                                   {.type = kind == Columns::grow_late ? DType::f32 : DType::bf16,
                                    .heads = 2,
                                    .heads_kv = 2,
                                    .d = d,
                                    .chunk = chunk,
                                    .pinned = 2,
                                    .query_block = 20,
                                    .least_weight = 1e-4},
                                   {Step::prefill(2 * chunk + 30)});
        problem.shape.d_value = 8;
        problem.fill_normal(random, 4.0);
        LayerInput& layer = problem.layers[0];
        if (kind == Columns::halves) problem.options.scale = 0x1p-14;
        for (Tensor* tensor : {&layer.k, &layer.q}) {
          if (tensor == &layer.q && kind != Columns::halves) continue;
          for (std::size_t i = 0; i < tensor->values.size(); ++i) {
            const auto x = static_cast<std::int64_t>(i) % d;
            const auto t = static_cast<std::int64_t>(i) / d / tensor->heads;
            float& value = tensor->values[i];
            if (kind == Columns::grow_late && t > 256 && x % 3 == 0) value *= 4.0f;
            if (kind == Columns::equal) value = (value < 0.0f ? -1.0f : 1.0f) * (x % 5 == 0 ? 1.5f : 1.0f);
            // r is 1/2: odd numbers lie between two integers.
            if (kind == Columns::halves)
              value = x == 0 ? 254.0f : static_cast<float>(2 * random.integer(-60, 60) + 1);
          }
        }
        require_conforming(context, problem, {}, truth_of(static_cast<int>(d)));
      }
    }
  }
}
const Register kColumns{
    {"sketches.columns", {"SKE-3", "SKE-4", "SKE-6"}, "votes", Lane::adversarial, true, columns}};

// Several sparse turns with decode steps and dense turns between them: what these stored is a candidate, and chunks begin
// anywhere.
void later_turns(Context& context) {
  repeat(context, 60, {.max_chunk = 12, .max_tokens = 60, .wide = false}, true,
         [](Random& random, Problem& problem) {
           const std::int64_t s = problem.options.chunk;
           problem.options.dense = false;
           problem.steps = {Step::prefill(random.integer(1, 4 * s))};
           for (int turn = 0; turn < 3; ++turn) {
             problem.steps.push_back(Step::decode(random.integer(1, 6)));
             problem.steps.push_back(Step::prefill(std::max<std::int64_t>(
                 1, random.pick(std::vector<std::int64_t>{s - 1, s, s + 1, 3 * s + 2}))));
           }
           problem.shape.capacity = problem.tokens();
           problem.fill_normal(random);
         });
}
const Register kLaterTurns{{"sketches.later_turns",
                            {"SKE-2", "SKE-8", "SEL-9", "STATE-4"},
                            "turns",
                            Lane::replay,
                            true,
                            later_turns}};

// Rows with NaN and infinities, zeros and the smallest and largest numbers, in queries and keys: who has no sketch or no
// finite own weight has no part, and all other votes are as ever.
void bad_rows(Context& context) {
  require_rule_sketches(*context.engine);
  Random random(context.seed);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> bad{std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
  // 127 / 2^-122 is infinite in F32, 127 / 2^-120 is not.
  const std::vector<float> odd{0.0f, 0x1p-149f, 0x1p-126f, 0x1p-122f, 0x1p-120f, 0x1p-60f, 4.0f};
  std::int64_t finite = 0;
  std::int64_t none = 0;
  for (int round = 0; round < context.rounds(120); ++round) {
    Problem problem =
        sketched(random, {.max_chunk = 20, .max_tokens = 120, .extras = false, .wide = round % 2 == 0});
    LayerInput& layer = problem.layers[0];
    for (Tensor* tensor : {&layer.q, &layer.k}) {
      for (std::int64_t t = 0; t < tensor->n; ++t) {
        for (std::int64_t h = 0; h < tensor->heads; ++h) {
          float* row = tensor->row(t, h);
          if (random.chance(0.05)) row[random.integer(0, tensor->width - 1)] = random.pick(bad);
          if (random.chance(0.8)) continue;
          const float factor = round % 4 == 3 && random.chance(0.1) ? 0x1p120f : random.pick(odd);
          for (std::int64_t x = 0; x < tensor->width; ++x) row[x] = round_to(tensor->type, factor * row[x]);
        }
      }
    }
    const Trace trace = replayed(*context.engine, problem);
    require_votes(context, problem, trace);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (const float vote : chunk.token_votes) ++(std::isfinite(vote) ? finite : none);
    }
  }
  if (!context.quick && (finite == 0 || none == 0)) throw Violation("no finite vote, or only such");
}
const Register kBadRows{{"sketches.bad_rows",
                         {"SKE-4", "SKE-5", "SKE-6", "SKE-7", "NUM-2"},
                         "votes",
                         Lane::hostile,
                         true,
                         bad_rows}};

// At the sizes that people run; outputs and votes in part.
void real_size(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  require_rule_sketches(*context.engine);
  Random random(context.seed);
  Problem problem = of_sizes(random,
                             {.type = DType::bf16,
                              .chunk = 1024,
                              .local = 128,
                              .heavy = 384,
                              .pinned = 4,
                              .query_block = 32,
                              .least_weight = 0.02},
                             {Step::prefill(4096 + 40), Step::decode(2), Step::prefill(1100)});
  problem.options.threads = context.threads;
  Seen seen;
  const Trace trace = replayed(*context.engine, problem);
  seen.take(trace);
  seen.require();
  require_forced_in_part(context, problem, trace,
                         {.chunk = [](const Chunk& chunk) { return chunk.begin > 4000; }});
}
const Register kRealSize{{"sketches.real_size", kVotes, "votes", Lane::shape, true, real_size}};

// More positions than 16 bits count.
void positions_beyond_2_16(Context& context) {
  if (context.quick || context.engine->claims().double_arithmetic)
    throw Skipped("so many tokens run without --quick only, and not in double arithmetic");
  require_rule_sketches(*context.engine);
  Random random(context.seed);
  // Bytes or floats are multiplied, the latter for slopes, too.
  const bool bytes = context.engine->claims().bf16_weights;
  Problem problem = of_sizes(random,
                             {.type = bytes ? DType::bf16 : DType::f32,
                              .heads = 1,
                              .d = 16,
                              .chunk = 256,
                              .local = 32,
                              .heavy = 96,
                              .pinned = 4,
                              .query_block = 64,
                              .least_weight = 0.01},
                             {Step::prefill(65001), Step::prefill(800), Step::decode(3)});
  problem.options.threads = context.threads;
  if (!bytes) problem.options.alibi = {2e-5f};
  const auto late = [](const Chunk& chunk) { return chunk.end > 65536; };
  require_conforming_in_part(context, problem, {.chunk = late});
}
const Register k2To16{{"sketches.positions_beyond_65536",
                       {"SKE-6", "SKE-7", "SKE-8", "SKE-9"},
                       "votes",
                       Lane::shape,
                       true,
                       positions_beyond_2_16}};

// SKE-1 at the boundary, and what a session calls effective.
void config(Context& context) {
  const Engine& engine = *context.engine;
  require_rule_sketches(engine);
  Shape shape;
  shape.capacity = 16;
  for (const bool dense : {false, true}) {  // SKE-1 does not ask whether the path is on
    Options options;
    options.select = Select::sketches;
    options.dense = dense;
    for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{-1}, options.chunk + 1}) {
      options.query_block = rows;
      require_refused(engine, shape, options, "query_block", std::to_string(rows));
    }
    options.query_block = options.chunk;
    for (const char* text : {"1", "-0.5", "nan", "inf"}) {
      options.least_weight = std::strtod(text, nullptr);
      require_refused(engine, shape, options, "least_weight", text);
    }
    for (const double weight : {0.0, 0x1p-1074, 0.002, 1.0 - 0x1p-53}) {
      options.least_weight = weight;
      options.key_block = options.pool = options.refine = -1;  // not read
      const EffectiveOptions got = engine.open(shape, options)->options();
      if (got.select != Select::sketches || got.query_block != options.query_block ||
          got.least_weight != weight || got.key_block != 0 || got.pool != 0 || got.refine != 0) {
        throw Violation(fmt::format("W {} Q {} became W {} Q {}", weight, options.query_block,
                                    got.least_weight, got.query_block));
      }
    }
  }
  Options other;  // W is not read
  other.least_weight = -1.0;
  if (engine.open(shape, other)->options().least_weight != 0.0) {
    throw Violation("an effective least weight with rule h2o");
  }
}
const Register kConfig{{"sketches.config", {"SKE-1", "CFG-1"}, "config", Lane::state, true, config}};

}  // namespace
}  // namespace headwater::conformance
