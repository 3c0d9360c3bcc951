// Rule `blocks` (SPEC 17): sets replayed from the engine's own votes without tolerance (SEL-11), votes and outputs within
// derived bounds.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

const std::vector<std::string> kVotes{"SEL-2", "SEL-3", "SEL-4", "SEL-5",  "SEL-6",
                                      "SEL-7", "SEL-8", "SEL-9", "SEL-11", "FUSE-2"};

Truth truth_of(int round) { return round % 2 == 0 ? Truth::eigen : Truth::reference; }

// Sets with candidates and with a second stage must be among what a case saw: else it judged nothing.
class Seen {
 public:
  void take(const Trace& trace) {
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      voted_ += chunk.candidate_blocks > 0 ? 1 : 0;
      refined_ += chunk.voted_tokens > 0 ? 1 : 0;
      unaligned_ += chunk.candidate_blocks > 0 && chunk.chunk.begin % chunk.query_block != 0 ? 1 : 0;
    }
  }
  void require() const {
    if (voted_ > 0 && refined_ > 0 && unaligned_ > 0) return;
    throw Violation(fmt::format("{} chunks with votes, {} with a second stage, {} begin anywhere: not enough",
                                voted_, refined_, unaligned_));
  }

 private:
  int voted_ = 0, refined_ = 0, unaligned_ = 0;
};

void repeat_replay(Context& context, int full, const Variety& variety,
                   const std::function<void(Random&, Problem&)>& change) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  Seen seen;
  for (int round = 0; round < context.rounds(full); ++round) {
    Problem problem = with_blocks(random, random_problem(random, variety));
    change(random, problem);
    seen.take(replayed(*context.engine, problem));
  }
  if (!context.quick) seen.require();
}

void replay(Context& context) {
  repeat_replay(context, 300, {.max_chunk = 30, .max_tokens = 200, .wide = false}, [](Random&, Problem&) {});
}
const Register kReplay{{"blocks.replay",
                        {"SEL-2", "SEL-4", "SEL-6", "SEL-7", "SEL-8", "SEL-9", "SEL-11"},
                        "selection",
                        Lane::replay,
                        true,
                        replay}};

void replay_layers(Context& context) {
  repeat_replay(context, 60, {.max_chunk = 16, .max_tokens = 100, .max_layers = 3, .wide = false},
                [](Random&, Problem&) {});
}
const Register kLayers{
    {"blocks.replay_layers", {"SEL-9", "SEL-11"}, "selection", Lane::replay, true, replay_layers}};

// Rows drawn from very few: many votes are equal, and the lower number wins.
void replay_ties(Context& context) {
  repeat_replay(context, 120,
                {.max_chunk = 20, .max_tokens = 160, .dtypes = false, .extras = false, .wide = false},
                [](Random& random, Problem& problem) {
                  if (random.chance(0.3)) problem.options.scale = 0.0;
                  for (LayerInput& layer : problem.layers) {
                    for (float& x : layer.q.values) x = 1.0f;
                    for (float& x : layer.k.values) x = static_cast<float>(random.integer(0, 1));
                  }
                });
}
const Register kTies{
    {"blocks.replay_ties", {"SEL-6", "SEL-7", "SEL-11"}, "selection", Lane::replay, true, replay_ties}};

// Several sparse turns with decode steps and dense turns between them: chunks begin anywhere in a key block, and what the
// steps between stored is a candidate.
void later_turns(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  Seen seen;
  for (int round = 0; round < context.rounds(80); ++round) {
    Problem problem =
        with_blocks(random, random_problem(random, {.max_chunk = 12, .max_tokens = 60, .wide = false}));
    Options& options = problem.options;
    const std::int64_t s = options.chunk;
    options.dense = false;
    options.clamp = false;
    options.local = random.integer(0, s);
    options.heavy = options.key_block * random.integer(1, 4);
    problem.steps = {Step::prefill(random.integer(1, 4 * s))};
    for (int turn = 0; turn < 3; ++turn) {
      problem.steps.push_back(Step::decode(random.integer(1, 6)));
      const std::int64_t length =
          std::max<std::int64_t>(1, random.pick(std::vector<std::int64_t>{s - 1, s, s + 1, 3 * s + 2}));
      problem.steps.push_back(Step::prefill(length));
    }
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    const Trace trace = replayed(*context.engine, problem);
    seen.take(trace);
    require_forced(context, problem, trace, truth_of(round));
  }
  if (!context.quick) seen.require();
}
const Register kLaterTurns{
    {"blocks.later_turns", {"SEL-2", "SEL-8", "SEL-9", "STATE-4"}, "turns", Lane::replay, true, later_turns}};

void random_runs(Context& context, const Variety& variety, int full,
                 const std::function<Problem(Random&, Problem)>& change) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(full); ++round) {
    require_conforming(context, change(random, with_blocks(random, random_problem(random, variety))), {},
                       truth_of(round));
  }
}

Problem as_it_is(Random&, Problem problem) { return problem; }

void bound_f32(Context& context) {
  random_runs(context, {.max_chunk = 24, .max_tokens = 120, .dtypes = false, .extras = false}, 100, as_it_is);
}
const Register kBoundF32{{"blocks.bound_f32", kVotes, "votes", Lane::bound, true, bound_f32}};

void bound_everything(Context& context) {
  random_runs(context, {.max_chunk = 24, .max_tokens = 120, .max_layers = 2}, 200, as_it_is);
}
const Register kBoundEverything{
    {"blocks.bound_everything", kVotes, "votes", Lane::bound, true, bound_everything}};

// All rows of 16 bits: summaries of 16 bits, and products of BF16 where an engine has them.
void bound_16_bits(Context& context) {
  random_runs(context, {.max_chunk = 24, .max_tokens = 120, .dtypes = false}, 100,
              [](Random& random, Problem problem) {
                return in_type(std::move(problem), random.chance(0.3) ? DType::f16 : DType::bf16);
              });
}
const Register kBound16{{"blocks.bound_16_bits",
                         {"SEL-3", "SEL-5", "SEL-6", "SEL-7", "SEL-11", "NUM-1"},
                         "votes",
                         Lane::bound,
                         true,
                         bound_16_bits}};

// Soft cap, slopes and scale on estimates and token votes: positions are the last row of a pool and the last key of a block.
void bound_features(Context& context) {
  random_runs(context, {.max_chunk = 24, .max_tokens = 120, .dtypes = false, .wide = false}, 60,
              [](Random& random, Problem problem) {
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
                return problem;
              });
}
const Register kFeatures{{"blocks.bound_features",
                          {"SEL-5", "SEL-7", "LOGIT-2", "LOGIT-3", "LOGIT-4"},
                          "votes",
                          Lane::bound,
                          true,
                          bound_features}};

// Keys far from zero and close to each other: a variance formed as a difference of large squares has no correct digit.
void small_variances(Context& context) {
  random_runs(context, {.max_chunk = 20, .max_tokens = 120, .dtypes = false, .extras = false, .wide = false},
              40, [](Random& random, Problem problem) {
                // Queries whose elements cancel in q . mean leave the variances to decide.
                for (float& x : problem.layers[0].k.values) {
                  x = 64.0f + static_cast<float>(0.05 * random.normal());
                }
                for (float& x : problem.layers[0].q.values) x = static_cast<float>(random.normal());
                return problem;
              });
}
const Register kSmallVariances{
    {"blocks.small_variances", {"SEL-3", "SEL-5"}, "votes", Lane::adversarial, true, small_variances}};

struct Heads {
  std::int64_t query = 1;
  std::int64_t kv = 1;
  std::int64_t d = 64;
  std::int64_t dv = 64;
};

struct Rule {
  std::int64_t chunk = 1024;
  std::int64_t local = 64;
  std::int64_t heavy = 448;
  std::int64_t key_block = 8;
  std::int64_t query_block = 32;
  std::int64_t pool = 4;
  std::int64_t refine = 2;
};

Problem blocks_problem(Random& random, DType type, const Heads& heads, const Rule& rule,
                       std::vector<Step> steps) {
  Problem problem;
  problem.shape.n_head = heads.query;
  problem.shape.n_head_kv = heads.kv;
  problem.shape.d_head = heads.d;
  problem.shape.d_value = heads.dv;
  Options& options = problem.options;
  options.select = Select::blocks;
  options.chunk = rule.chunk;
  options.batch = 4 * rule.chunk;
  options.local = rule.local;
  options.heavy = rule.heavy;
  options.key_block = rule.key_block;
  options.query_block = rule.query_block;
  options.pool = rule.pool;
  options.refine = rule.refine;
  options.clamp = false;
  problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = type;
  problem.steps = std::move(steps);
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random);
  return problem;
}

// Sizes that divide each other and sizes that do not, one by one.
void sizes(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  const Heads odd{.query = 2, .kv = 1, .d = 40, .dv = 24};
  const std::vector<Rule> rules{
      {.chunk = 64, .local = 16, .heavy = 32},                                     // the usual ones, small
      {.chunk = 70, .local = 16, .heavy = 32},                                     // S no multiple of Q
      {.chunk = 60, .local = 11, .heavy = 35, .key_block = 5, .query_block = 12},  // Q no multiple of K
      {.chunk = 50, .local = 9, .heavy = 20, .key_block = 5, .query_block = 7, .pool = 7},
      {.chunk = 64, .local = 16, .heavy = 32, .refine = 1},  // blocks alone
      {.chunk = 64, .local = 40, .heavy = 0},                // a window
      {.chunk = 64, .local = 0, .heavy = 40},                // no Local
      {.chunk = 64, .local = 3, .heavy = 8},                 // Local below a key block
      {.chunk = 48, .local = 8, .heavy = 16, .key_block = 1, .query_block = 1, .pool = 1},
      {.chunk = 48, .local = 8, .heavy = 48, .key_block = 48, .query_block = 48, .pool = 48},
      {.chunk = 64, .local = 10, .heavy = 24, .key_block = 8, .query_block = 64, .pool = 64, .refine = 16},
      {.chunk = 33, .local = 7, .heavy = 6, .key_block = 3, .query_block = 10, .pool = 5, .refine = 3},
      {.chunk = 140, .local = 10, .heavy = 65, .key_block = 65, .query_block = 20},  // large key blocks
      {.chunk = 300, .local = 20, .heavy = 256, .key_block = 256, .query_block = 30, .pool = 10},
  };
  int round = 0;
  for (const Rule& rule : rules) {
    const std::int64_t s = rule.chunk;
    Problem problem = blocks_problem(random, DType::f32, odd, rule,
                                     {Step::prefill(3 * s + 5), Step::decode(2), Step::prefill(s / 2),
                                      Step::prefill(2 * s), Step::decode(1)});
    require_conforming(context, problem, {}, truth_of(round++));
    if (context.quick) continue;
    problem = blocks_problem(random, DType::bf16, {.query = 2, .kv = 2, .d = 64, .dv = 64}, rule,
                             {Step::prefill(3 * s + 5), Step::decode(3), Step::prefill(2 * s + 1)});
    require_conforming(context, problem, {}, truth_of(round++));
  }
}
const Register kSizes{{"blocks.sizes", kVotes, "votes", Lane::bound, true, sizes}};

void groups(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (const std::int64_t group : {1, 2, 8, 16}) {
    for (const std::int64_t kv : {1, 3}) {
      if (context.quick && kv == 3) continue;
      for (const DType type : {DType::f32, DType::bf16}) {
        require_conforming(context,
                           blocks_problem(random, type, {.query = group * kv, .kv = kv, .d = 32, .dv = 16},
                                          {.chunk = 48, .local = 8, .heavy = 24, .query_block = 16},
                                          {Step::prefill(150), Step::decode(1)}));
      }
    }
  }
  // One pool a query head: one lane more than half a line of them.
  for (const DType type : {DType::f32, DType::bf16}) {
    require_conforming(context,
                       blocks_problem(random, type, {.query = 17, .kv = 1, .d = 32, .dv = 16},
                                      {.chunk = 48, .local = 8, .heavy = 24, .query_block = 16, .pool = 16},
                                      {Step::prefill(150)}));
  }
}
const Register kGroups{
    {"blocks.groups", {"SEL-4", "SEL-6", "SEL-7", "LOGIT-1"}, "votes", Lane::bound, true, groups}};

/// All but one column of each group of eight are the same in all rows: no variance has more bits than that of one column.
void still_columns(Random& random, Tensor& tensor) {
  for (std::int64_t h = 0; h < tensor.heads; ++h) {
    for (std::int64_t group = 0; group < tensor.width; group += 8) {
      const std::int64_t end = std::min(group + 8, tensor.width);
      const std::int64_t moves = random.integer(group, end - 1);
      for (std::int64_t x = group; x < end; ++x) {
        for (std::int64_t t = 1; x != moves && t < tensor.n; ++t) tensor.row(t, h)[x] = tensor.row(0, h)[x];
      }
    }
  }
}

// Small integers, and sizes that are powers of two: every pooled query, mean, variance, product and sum is a short binary
// fraction, in BF16 too. Block votes have one right bit pattern, and with it the sets of blocks alone; most votes are equal.
void exact_votes(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const std::int64_t k = random.pick(std::vector<std::int64_t>{1, 2, 4, 8});
    const std::int64_t p = random.pick(std::vector<std::int64_t>{1, 2, 4});
    const Rule rule{.chunk = 32,
                    .local = random.integer(0, 9),
                    .heavy = k * random.integer(1, 3),
                    .key_block = k,
                    .query_block = random.pick(std::vector<std::int64_t>{p, 2 * p, 4 * p}),
                    .pool = p,
                    .refine = random.integer(1, 2)};
    const DType type = random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16});
    const Heads heads{.query = random.pick(std::vector<std::int64_t>{2, 4}),
                      .kv = 2,
                      .d = random.pick(std::vector<std::int64_t>{1, 2, 4, 8, 9, 10, 12, 16}),
                      .dv = 3};
    // Every length is a multiple of P: the mean of a shorter pool could be no binary fraction.
    Problem problem = blocks_problem(random, type, heads, rule,
                                     {Step::prefill(96), Step::decode(3), Step::prefill(32 + 4 * p)});
    problem.options.scale = random.pick(std::vector<double>{1.0, 0.5, -0.25});
    for (Tensor* tensor : {&problem.layers[0].q, &problem.layers[0].k}) {
      for (float& x : tensor->values) x = static_cast<float>(random.integer(-1, 1));
    }
    if (type != DType::f32) still_columns(random, problem.layers[0].k);
    const Trace trace = replayed(*context.engine, problem);
    const VoteArithmetic arithmetic = vote_arithmetic_of(*context.engine, type, type);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (std::int64_t set = 0; set < chunk.query_blocks * heads.kv; ++set) {
        const VoteOracle oracle(arithmetic, problem, 0, chunk, set / chunk.query_blocks);
        const SetVotes wanted = oracle.votes(set % chunk.query_blocks);
        for (Eigen::Index b = 0; b < wanted.blocks.vote.size(); ++b) {
          const float got = chunk.block_votes[static_cast<std::size_t>(set * chunk.candidate_blocks + b)];
          const auto right = static_cast<float>(wanted.blocks.vote[b]);
          if (got != right) {
            broken(fmt::format("chunk [{}, {}) set {}: block {} has the vote {:.9g}, not {:.9g}",
                               chunk.chunk.begin, chunk.chunk.end, set, b, got, right),
                   problem);
          }
        }
      }
    }
  }
}
const Register kExact{{"blocks.exact_votes",
                       {"SEL-2", "SEL-3", "SEL-4", "SEL-5", "SEL-6"},
                       "votes",
                       Lane::exact,
                       true,
                       exact_votes}};

void require_real_size(const Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  require_rule_blocks(*context.engine);
}

void real_sizes(Context& context) {
  require_real_size(context);
  Random random(context.seed);
  const std::vector<Step> prompt{Step::prefill(4096 + 40), Step::decode(3), Step::prefill(1100)};
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    const std::int64_t d = type == DType::f32 ? 64 : 128;
    Problem problem = blocks_problem(random, type, {.query = 4, .kv = 2, .d = d, .dv = d}, {}, prompt);
    problem.options.threads = context.threads;
    problem.options.schedule = type == DType::f32 ? Schedule::layer_major : Schedule::chunk_major;
    require_conforming_in_part(context, problem);
  }
  Problem problem = blocks_problem(
      random, DType::f16, {.query = 2, .kv = 1, .d = 128, .dv = 128},
      {.chunk = 512, .local = 128, .heavy = 384, .query_block = 128, .refine = 1}, {Step::prefill(2100)});
  problem.options.threads = 1;
  require_conforming_in_part(context, problem);
  problem = blocks_problem(random, DType::bf16, {.query = 16, .kv = 1, .d = 64, .dv = 64},
                           {.chunk = 256, .local = 32, .heavy = 96, .refine = 16}, {Step::prefill(2100)});
  problem.options.threads = 3;
  problem.options.softcap = 20.0;
  problem.options.alibi.assign(16, 0.001f);
  require_conforming_in_part(context, problem);
  // More voted tokens than 2^12, and sets of several segments.
  for (const DType type : context.types({DType::bf16, DType::f32})) {
    problem =
        blocks_problem(random, type, {.query = 2, .kv = 1, .d = 32, .dv = 32},
                       {.chunk = 512, .local = 64, .heavy = 2056, .query_block = 128}, {Step::prefill(5200)});
    problem.options.clamp = false;
    problem.options.threads = context.threads;
    require_conforming_in_part(context, problem,
                               {.chunk = [](const Chunk& chunk) { return chunk.begin > 4500; }});
  }
}
const Register kRealSizes{{"blocks.real_sizes", kVotes, "votes", Lane::shape, true, real_sizes}};

// Without an observer an engine need not take all heads of a chunk before the next chunk.
void require_same_unobserved(const Context& context, Problem problem, std::initializer_list<int> threads) {
  problem.options.threads = 1;
  const Trace observed = run(*context.engine, problem);
  RunStyle style;
  style.observed = false;
  for (const int count : threads) {
    problem.options.threads = count;
    Trace silent = run(*context.engine, problem, style);
    for (std::size_t l = 0; l < silent.layers.size(); ++l) {
      silent.layers[l].chunks = observed.layers[l].chunks;
    }
    require_same(observed, silent, fmt::format("{} threads and no observer; {}", count, problem.describe()));
  }
}

void require_threads_claimed(const Context& context) {
  require_rule_blocks(*context.engine);
  if (!context.engine->claims().bitwise_threads)
    throw Skipped("the engine does not claim it (Claims::bitwise_threads)");
}

// More key/value heads than threads, and than any number of them; more chunks than a byte counts.
void many_heads(Context& context) {
  require_threads_claimed(context);
  context.require_fast_or_full();
  Random random(context.seed);
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    for (const std::int64_t heads_kv : {9, 16}) {
      require_same_unobserved(
          context,
          blocks_problem(random, type, {.query = 2 * heads_kv, .kv = heads_kv, .d = 16, .dv = 16},
                         {.chunk = 64, .local = 16, .heavy = 32},
                         {Step::prefill(300), Step::decode(2), Step::prefill(90)}),
          {1, 2, 3, 4, 8, 16});
    }
    require_same_unobserved(
        context,
        blocks_problem(random, type, {.query = 4, .kv = 2, .d = 16, .dv = 16},
                       {.chunk = 8, .local = 2, .heavy = 4, .key_block = 2, .query_block = 4},
                       {Step::prefill(2100)}),
        {1, 2});
  }
}
const Register kManyHeads{
    {"blocks.many_heads", {"NUM-3", "SEL-9"}, "session", Lane::determinism, true, many_heads}};

// The same at the sizes that people run: more votes of a head in a chunk, and more units of query blocks, than 16 bits and a
// byte count.
void unobserved_sizes(Context& context) {
  require_real_size(context);
  require_threads_claimed(context);
  Random random(context.seed);
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    Problem problem = blocks_problem(random, type, {.query = 2, .kv = 2, .d = 16, .dv = 16},
                                     {.chunk = 1024, .local = 32, .heavy = 480}, {Step::prefill(18500)});
    problem.options.threads = context.threads;
    // Of a whole chunk, in which one head's votes end where the other's may begin.
    const auto late = [](const Chunk& chunk) { return chunk.begin == 17408; };
    require_conforming_in_part(context, problem, {.chunk = late});
    require_same_unobserved(context, problem, {2});
    require_same_unobserved(
        context,
        blocks_problem(random, type, {.query = 16, .kv = 2, .d = 16, .dv = 16},
                       {.chunk = 2100, .local = 32, .heavy = 64, .query_block = 8, .pool = 2},
                       {Step::prefill(4300)}),
        {2});
  }
}
const Register kUnobservedSizes{
    {"blocks.unobserved_sizes", {"NUM-3", "SEL-9"}, "session", Lane::shape, true, unobserved_sizes}};

// More positions than 16 bits count, and more key blocks than any segment holds.
void positions_beyond_2_16(Context& context) {
  require_real_size(context);
  Random random(context.seed);
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    Problem problem = blocks_problem(
        random, type, {.query = 1, .kv = 1, .d = 16, .dv = 16},
        {.chunk = 128, .local = 32, .heavy = 96, .key_block = 4, .query_block = 64, .pool = 16},
        {Step::prefill(65001), Step::prefill(800), Step::decode(3)});
    problem.options.threads = context.threads;
    problem.options.alibi = {2e-5f};
    const auto late = [](const Chunk& chunk) { return chunk.end > 65536; };
    require_conforming_in_part(context, problem, {.chunk = late});
  }
}
const Register k2To16{{"blocks.positions_beyond_65536",
                       {"SEL-2", "SEL-6", "SEL-8", "SEL-11"},
                       "votes",
                       Lane::shape,
                       true,
                       positions_beyond_2_16}};

// The votes of the Eigen oracle against SEL-3 to SEL-7 written out as loops over single numbers, in double.
void votes_by_loops(Context& context) {
  Random random(context.seed);
  const VoteArithmetic exact{0x1p-53, 4 * 0x1p-53, 0x1p-1020, 0x1p-53, 0.0};
  for (int round = 0; round < context.rounds(80); ++round) {
    const std::int64_t d = random.integer(1, 9);
    const std::int64_t k = random.integer(1, 6);
    const std::int64_t blocks = random.integer(1, 9);
    const std::int64_t rows = random.integer(1, 11);
    const std::int64_t heads = random.integer(1, 3);
    QueryBlock input;
    input.begin = blocks * k + random.integer(0, 20);
    input.pool = random.integer(1, rows);
    input.scale = random.uniform(-1.0, 1.0);
    input.softcap = random.chance(0.5) ? 0.0 : random.uniform(1.0, 9.0);
    const auto matrix = [&](std::int64_t n) -> Eigen::MatrixXd {
      return Eigen::MatrixXd::NullaryExpr(n, d, [&] { return random.normal(); });
    };
    for (std::int64_t h = 0; h < heads; ++h) {
      input.q.push_back(matrix(rows));
    }
    if (random.chance(0.5)) {
      for (std::int64_t h = 0; h < heads; ++h) input.slope.push_back(random.uniform(-0.2, 0.5));
    }
    const Eigen::MatrixXd keys = matrix(blocks * k);
    std::vector<double> block_vote(static_cast<std::size_t>(blocks),
                                   -std::numeric_limits<double>::infinity());
    std::vector<double> token_vote(static_cast<std::size_t>(blocks * k), 0.0);
    for (std::int64_t h = 0; h < heads; ++h) {
      const Eigen::MatrixXd& q = input.q[static_cast<std::size_t>(h)];
      const double slope = input.slope.empty() ? 0.0 : input.slope[static_cast<std::size_t>(h)];
      const auto finish = [&](double s, std::int64_t i, std::int64_t j) {
        if (input.softcap > 0.0) s = input.softcap * std::tanh(s / input.softcap);
        return s - slope * static_cast<double>(i - j);
      };
      const auto mean_query = [&](std::int64_t first, std::int64_t last) {
        std::vector<double> pooled;
        for (std::int64_t x = 0; x < d; ++x) {
          double sum = 0.0;
          for (std::int64_t r = first; r <= last; ++r) sum += q(r, x);
          pooled.push_back(sum / static_cast<double>(last - first + 1));
        }
        return pooled;
      };
      for (std::int64_t first = 0; first < rows; first += input.pool) {
        const std::int64_t last = std::min(rows, first + input.pool) - 1;
        const std::vector<double> pooled = mean_query(first, last);
        const std::int64_t i = input.begin + last;
        std::vector<double> estimate;
        for (std::int64_t b = 0; b < blocks; ++b) {
          double linear = 0.0;
          double square = 0.0;
          for (std::int64_t x = 0; x < d; ++x) {
            double mean = 0.0;
            for (std::int64_t j = 0; j < k; ++j) mean += keys(b * k + j, x) / static_cast<double>(k);
            double variance = 0.0;  // of this column; those of a group of eight share their mean
            for (std::int64_t j = 0; j < k; ++j) {
              variance += (keys(b * k + j, x) - mean) * (keys(b * k + j, x) - mean) / static_cast<double>(k);
            }
            const std::int64_t columns = std::min<std::int64_t>(8, d - x / 8 * 8);
            double queries = 0.0;
            for (std::int64_t y = x / 8 * 8; y < x / 8 * 8 + columns; ++y) {
              queries += pooled[static_cast<std::size_t>(y)] * pooled[static_cast<std::size_t>(y)];
            }
            linear += pooled[static_cast<std::size_t>(x)] * mean;
            square += queries * variance / static_cast<double>(columns);
          }
          estimate.push_back(
              finish(input.scale * linear + input.scale * input.scale / 2.0 * square, i, (b + 1) * k - 1));
        }
        const double largest = *std::max_element(estimate.begin(), estimate.end());
        for (std::size_t b = 0; b < estimate.size(); ++b) {
          block_vote[b] = std::max(block_vote[b], estimate[b] - largest);
        }
      }
      const std::int64_t half = (input.pool + 1) / 2;
      for (std::int64_t first = 0; first < rows; first += half) {
        const std::int64_t last = std::min(rows, first + half) - 1;
        const std::vector<double> pooled = mean_query(first, last);
        const std::int64_t i = input.begin + last;
        std::vector<double> weight;
        double sum = 0.0;
        for (std::int64_t j = 0; j < blocks * k; ++j) {
          double dot = 0.0;
          for (std::int64_t x = 0; x < d; ++x) dot += pooled[static_cast<std::size_t>(x)] * keys(j, x);
          weight.push_back(std::exp(finish(input.scale * dot, i, j)));
          sum += weight.back();
        }
        for (std::size_t j = 0; j < weight.size(); ++j) {
          token_vote[j] = std::max(token_vote[j], weight[j] / sum);
        }
      }
    }
    std::vector<std::int32_t> positions;
    for (std::int32_t j = 0; j < blocks * k; ++j) positions.push_back(j);
    const auto compare = [&](const char* what, const VoteTruth& oracle, const std::vector<double>& wanted) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto at = static_cast<Eigen::Index>(i);
        // The oracle's bounds hold a rounding to F32, which it has not done.
        const double bound = oracle.bound[at] - 0x1p-24 * std::fabs(oracle.vote[at]);
        if (!(std::fabs(oracle.vote[at] - wanted[i]) <= 4.0 * bound + 0x1p-50)) {
          throw Violation(
              fmt::format("{} {}: {:.17g}, by loops {:.17g}; d {} K {} blocks {} rows {} heads {}", what, i,
                          oracle.vote[at], wanted[i], d, k, blocks, rows, heads));
        }
      }
    };
    compare("block vote", block_votes(input, summaries_of(keys, k, exact), k, exact), block_vote);
    compare("token vote", token_votes(input, keys, positions, exact), token_vote);
  }
}
const Register kByLoops{{"oracles.votes",
                         {"SEL-3", "SEL-4", "SEL-5", "SEL-6", "SEL-7"},
                         "oracle",
                         Lane::law,
                         false,
                         votes_by_loops}};

}  // namespace
}  // namespace headwater::conformance
