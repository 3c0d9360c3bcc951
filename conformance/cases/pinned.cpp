// Pinned tokens (MEM-7) under both rules: what is pinned is in every set that is built after it left Local, whatever its
// scores or votes are, and takes places of the H.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

void require_taken(const Engine& engine, Select rule) {
  require_rule(engine, rule);
  require_pinned(engine);
}

// What a chunk's sets must hold of the pinned tokens: those below the result (MEM-1, SEL-2).
std::int64_t held_below(const EffectiveOptions& options, const ChunkTrace& chunk) {
  const std::int64_t begin = chunk.chunk.begin;
  const std::int64_t left = options.select == Select::blocks
                                ? blocks_candidates(options, begin) * options.key_block
                                : std::max<std::int64_t>(0, begin - options.local);
  return std::min(options.pinned, left);
}

// The pins of whole runs, and whether a case saw enough of them: else it judged nothing.
class Pins {
 public:
  void take(const Problem& problem, const Trace& trace) {
    const EffectiveOptions options = expected_options(problem.shape, problem.options);
    for (const LayerTrace& layer : trace.layers) {
      for (const ChunkTrace& chunk : layer.chunks) {
        const std::int64_t held = held_below(options, chunk);
        const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
        const std::int64_t sets = chunk.memory_count == 0 ? 0 : std::ssize(chunk.memory) / chunk.memory_count;
        for (std::int64_t s = 0; s < sets; ++s) {
          // They are the first of all tokens, so their places are the first of the set.
          for (std::int64_t p = 0; p < held; ++p) {
            if (chunk.memory[static_cast<std::size_t>(s * chunk.memory_count + p)] == p) continue;
            broken(fmt::format("chunk [{}, {}) set {}: pinned token {} is missing (MEM-7)", chunk.chunk.begin,
                               chunk.chunk.end, s, p),
                   problem);
          }
          held_ += held > 0 ? 1 : 0;
        }
        in_local_ += sparse && chunk.chunk.begin > 0 && held < options.pinned ? 1 : 0;
      }
    }
  }
  // The same problem without pinned tokens.
  void compare(const Trace& pinned, const Trace& plain) {
    for (std::size_t l = 0; l < pinned.layers.size(); ++l) {
      for (std::size_t c = 0; c < pinned.layers[l].chunks.size(); ++c) {
        changed_ += pinned.layers[l].chunks[c].memory != plain.layers[l].chunks[c].memory ? 1 : 0;
      }
    }
  }
  void require() const {
    if (held_ > 50 && in_local_ > 5 && changed_ > 20) return;
    throw Violation(
        fmt::format("{} sets held pinned tokens, {} chunks had some in Local, {} were changed by them: "
                    "not enough",
                    held_, in_local_, changed_));
  }

 private:
  int held_ = 0, in_local_ = 0, changed_ = 0;
};

Problem random_pinned(Random& random, const Variety& variety, Select rule) {
  Problem problem = random_problem(random, variety);
  problem.options.dense = false;
  problem.options.heavy = random.integer(1, problem.options.chunk + 3);
  if (rule == Select::blocks) problem = with_blocks(random, std::move(problem));
  choose_pinned(random, problem.options);
  return problem;
}

// Turns, call cuts, decode steps and dense turns in any order, A from 0 to H.
void replay(Context& context, Select rule) {
  require_taken(*context.engine, rule);
  Random random(context.seed);
  Pins pins;
  for (int round = 0; round < context.rounds(120); ++round) {
    Problem problem =
        random_pinned(random, {.max_chunk = 20, .max_tokens = 150, .max_layers = 2, .wide = false}, rule);
    const Trace pinned = replayed(*context.engine, problem);
    pins.take(problem, pinned);
    if (problem.options.pinned == 0) continue;
    problem.options.pinned = 0;
    pins.compare(pinned, run(*context.engine, problem));
  }
  if (!context.quick) pins.require();
}
const Register kReplay{{"options.pinned_replay",
                        {"MEM-7", "MEM-3", "SCORE-6"},
                        "selection",
                        Lane::replay,
                        true,
                        [](Context& context) { replay(context, Select::h2o); }}};
const Register kBlocksReplay{{"blocks.pinned_replay",
                              {"MEM-7", "SEL-6", "SEL-7", "SEL-11"},
                              "selection",
                              Lane::replay,
                              true,
                              [](Context& context) { replay(context, Select::blocks); }}};

void bound(Context& context, Select rule) {
  require_taken(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(24); ++round) {
    require_conforming(context, random_pinned(random, {.max_chunk = 24, .max_tokens = 90}, rule), {},
                       round % 2 == 0 ? Truth::eigen : Truth::reference);
  }
}
const Register kBound{{"options.pinned_bound",
                       {"MEM-7", "INTER-1", "FUSE-2"},
                       "selection",
                       Lane::bound,
                       true,
                       [](Context& context) { bound(context, Select::h2o); }}};
const Register kBlocksBound{{"blocks.pinned_bound",
                             {"MEM-7", "SEL-6", "SEL-7", "SEL-8"},
                             "votes",
                             Lane::bound,
                             true,
                             [](Context& context) { bound(context, Select::blocks); }}};

// Pinned tokens with the scores and votes that lose: NaN and infinite ones of bad keys, and the zeros of decoded tokens and
// of a dense turn.
void bad_scores(Context& context, Select rule) {
  require_taken(*context.engine, rule);
  Random random(context.seed);
  Pins pins;
  for (int round = 0; round < context.rounds(48); ++round) {
    Problem problem = random_pinned(
        random, {.max_chunk = 16, .max_tokens = 90, .dtypes = round % 2 == 0, .extras = false, .wide = false},
        rule);
    Options& options = problem.options;
    const std::int64_t unit = rule == Select::blocks ? options.key_block : 1;
    options.pinned = std::max(options.pinned, unit);
    const int kind = round % 4;
    const std::int64_t s = options.chunk;
    problem.steps = {Step::prefill(4 * s + 3), Step::decode(2), Step::prefill(2 * s + 1)};
    if (kind == 2) problem.steps.insert(problem.steps.begin(), Step::decode(options.pinned));
    if (kind == 3) {
      options.dense_below = options.pinned + 1;
      problem.steps.insert(problem.steps.begin(), {Step::prefill(options.pinned), Step::decode(1)});
    }
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    Tensor& k = problem.layers[0].k;
    for (std::int64_t p = 0; kind < 2 && p < options.pinned && p < k.n; ++p) {
      const float infinity = std::numeric_limits<float>::infinity();
      const float bad = kind == 0 ? std::numeric_limits<float>::quiet_NaN()
                                  : random.pick(std::vector<float>{infinity, -infinity});
      k.row(p, random.integer(0, k.heads - 1))[random.integer(0, k.width - 1)] = bad;
    }
    pins.take(problem, replayed(*context.engine, problem));
  }
}
const Register kBadScores{{"options.pinned_bad_scores",
                           {"MEM-7", "MEM-3", "NUM-2"},
                           "selection",
                           Lane::hostile,
                           true,
                           [](Context& context) { bad_scores(context, Select::h2o); }}};
const Register kBadVotes{{"blocks.pinned_bad_votes",
                          {"MEM-7", "SEL-5", "SEL-6", "NUM-2"},
                          "votes",
                          Lane::hostile,
                          true,
                          [](Context& context) { bad_scores(context, Select::blocks); }}};

// Where every candidate is kept, and where nothing is sparse, pinned tokens change no bit.
void all_kept(Context& context, Select rule) {
  require_taken(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    Problem problem =
        random_pinned(random, {.max_chunk = 16, .max_tokens = 80, .max_layers = 2, .wide = false}, rule);
    Options& options = problem.options;
    if (round % 3 == 0) {
      options.dense = true;
    } else {
      options.clamp = false;
      const std::int64_t unit = rule == Select::blocks ? options.key_block : 1;
      options.heavy = (problem.tokens() + unit - 1) / unit * unit;
    }
    choose_pinned(random, options);
    const Trace pinned = run(*context.engine, problem);
    const std::string text = problem.describe();
    options.pinned = 0;
    require_same(pinned, run(*context.engine, problem), text + "; with and without pinned tokens");
  }
}
const Register kAllKept{
    {"options.pinned_all_kept", {"MEM-7", "CFG-2"}, "selection", Lane::law, true, [](Context& context) {
       all_kept(context, Select::h2o);
     }}};
const Register kBlocksAllKept{{"blocks.pinned_all_kept",
                               {"MEM-7", "SEL-6", "SEL-7"},
                               "selection",
                               Lane::law,
                               true,
                               [](Context& context) { all_kept(context, Select::blocks); }}};

struct Sizes {
  DType type = DType::bf16;
  std::int64_t d = 64;
  std::int64_t chunk = 512;
  std::int64_t local = 64;
  std::int64_t heavy = 320;
  std::int64_t pinned = 320;
  std::int64_t key_block = 8;
  std::int64_t query_block = 32;
  std::int64_t pool = 4;
};

// One key in 64 tokens gets most of the weight: without a pin the first tokens would lose their places.
Problem of_size(Context& context, Select rule, const Sizes& sizes, std::vector<Step> steps) {
  Problem problem;
  problem.shape.n_head = sizes.d == 64 ? 2 : 1;
  problem.shape.d_head = problem.shape.d_value = sizes.d;
  Options& options = problem.options;
  options.select = rule;
  options.chunk = sizes.chunk;
  options.batch = 4 * sizes.chunk;
  options.local = sizes.local;
  options.heavy = sizes.heavy;
  options.pinned = sizes.pinned;
  options.key_block = sizes.key_block;
  options.query_block = sizes.query_block;
  options.pool = sizes.pool;
  options.clamp = false;
  options.threads = context.threads;
  problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = sizes.type;
  problem.steps = std::move(steps);
  problem.shape.capacity = problem.tokens();
  Random random(context.seed + static_cast<std::uint64_t>(sizes.pinned));
  problem.fill_normal(random);
  LayerInput& layer = problem.layers[0];
  const float drawn = 1.5f * std::sqrt(static_cast<float>(sizes.d));
  for (std::int64_t t = 0; t < problem.tokens(); ++t) {
    for (std::int64_t h = 0; h < layer.q.heads; ++h) layer.q.row(t, h)[0] = 4.0f;
    layer.k.row(t, 0)[0] = t % 64 == 37 ? round_to(sizes.type, drawn) : 0.0f;
  }
  return problem;
}

void require_large(Context& context, Select rule) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  require_taken(*context.engine, rule);
}

void require_pins(Context& context, const Problem& problem, const Part& part) {
  const Trace trace = replayed(*context.engine, problem);
  Pins().take(problem, trace);
  require_forced_in_part(context, problem, trace, part);
}

void sizes(Context& context, Select rule) {
  require_large(context, rule);
  const std::vector<Step> steps{Step::prefill(1024, 1200), Step::prefill(176), Step::decode(3),
                                Step::prefill(600)};
  for (const Sizes& sizes : {Sizes{.pinned = 8}, Sizes{.type = DType::f32}}) {
    require_pins(context, of_size(context, rule, sizes, steps), {});
  }
}
const Register kSizes{
    {"options.pinned_sizes", {"MEM-7", "CFG-5"}, "selection", Lane::shape, true, [](Context& context) {
       sizes(context, Select::h2o);
     }}};
const Register kBlocksSizes{
    {"blocks.pinned_sizes", {"MEM-7", "SEL-6", "SEL-7"}, "votes", Lane::shape, true, [](Context& context) {
       sizes(context, Select::blocks);
     }}};

Part late() {
  return {.chunk = [](const Chunk& chunk) { return chunk.end > 65536; }};
}

// The first tokens, from more than 65536 positions on.
void beyond_2_16(Context& context) {
  require_large(context, Select::h2o);
  const Sizes sizes{.d = 16, .chunk = 128, .local = 32, .heavy = 64, .pinned = 50};
  require_pins(
      context,
      of_size(context, Select::h2o, sizes, {Step::prefill(65300), Step::decode(2), Step::prefill(400)}),
      late());
}
const Register kBeyond{{"options.pinned_beyond_65536",
                        {"MEM-7", "MEM-2", "CFG-5"},
                        "selection",
                        Lane::shape,
                        true,
                        beyond_2_16}};

// Key blocks of 32 tokens: more than 2048 candidates lie before the chunks that are judged (SEL-12), and the keys of the
// first region are alike, so it is not searched. What is pinned lies there.
void blocks_beyond_2_16(Context& context) {
  require_large(context, Select::blocks);
  const Sizes sizes{.d = 8,
                    .chunk = 512,
                    .local = 32,
                    .heavy = 64,
                    .pinned = 32,
                    .key_block = 32,
                    .query_block = 256,
                    .pool = 256};
  Problem problem =
      of_size(context, Select::blocks, sizes, {Step::prefill(65500), Step::decode(2), Step::prefill(400)});
  std::fill_n(problem.layers[0].k.values.begin(), 32 * sizes.key_block * sizes.d, 0.0f);
  require_pins(context, problem, late());
}
const Register kBlocksBeyond{{"blocks.pinned_beyond_65536",
                              {"MEM-7", "SEL-6", "SEL-8", "SEL-12"},
                              "votes",
                              Lane::shape,
                              true,
                              blocks_beyond_2_16}};

}  // namespace
}  // namespace headwater::conformance
