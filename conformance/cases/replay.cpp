// Lane replay: whole runs whose every score and memory set is recomputed bit for bit from the engine's own column
// sums (SCORE-6). Selection, order, ties, rounding and accumulation have no tolerance.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/replay.hpp"
#include "conformance/run.hpp"

namespace headwater::conformance {
namespace {

void repeat(Context& context, int full, const Variety& variety,
            const std::function<void(Random&, Problem&)>& change) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(full); ++round) {
    Problem problem = random_problem(random, variety);
    change(random, problem);
    (void)replayed(*context.engine, problem);
  }
}

void any(Context& context) {
  repeat(context, 300, {.max_chunk = 30, .max_tokens = 200, .wide = false}, [](Random&, Problem&) {});
}
const Register kAny{{"replay.random",
                     {"SCORE-6", "SCORE-1", "SCORE-2", "SCORE-3", "SCORE-5", "MEM-1", "MEM-2", "MEM-3",
                      "MEM-4", "MEM-5", "MEM-6", "PLAN-1", "STATE-3", "STATE-4"},
                     "memory_set",
                     Lane::replay,
                     true,
                     any}};

void layers(Context& context) {
  repeat(context, 60, {.max_chunk = 16, .max_tokens = 80, .max_layers = 4, .wide = false},
         [](Random&, Problem&) {});
}
const Register kLayers{{"replay.layers", {"MEM-6", "SCORE-1"}, "memory_set", Lane::replay, true, layers}};

// Rows drawn from very few: many scores tie.
void ties(Context& context) {
  repeat(context, 120, {.max_chunk = 20, .max_tokens = 160, .dtypes = false, .extras = false, .wide = false},
         [](Random& random, Problem& problem) {
           if (random.chance(0.3)) problem.options.scale = 0.0;
           for (LayerInput& layer : problem.layers) {
             for (float& x : layer.q.values) x = 1.0f;
             for (float& x : layer.k.values) x = static_cast<float>(random.integer(0, 1));
           }
         });
}
const Register kTies{{"replay.ties", {"MEM-3"}, "selection", Lane::replay, true, ties}};

void no_clamp(Context& context) {
  repeat(context, 80, {.max_chunk = 9, .max_tokens = 120, .wide = false},
         [](Random& random, Problem& problem) {
           problem.options.clamp = false;
           problem.options.local = random.integer(0, 60);
           problem.options.heavy = random.integer(0, 150);  // M >= S, often M >= N
         });
}
const Register kNoClamp{{"replay.no_clamp", {"CFG-3", "MEM-4"}, "memory_set", Lane::replay, true, no_clamp}};

void one_budget(Context& context) {
  repeat(context, 80, {.max_chunk = 16, .max_tokens = 120, .wide = false},
         [](Random& random, Problem& problem) {
           const bool local_only = random.chance(0.5);
           problem.options.local = local_only ? random.integer(1, 20) : 0;
           problem.options.heavy = local_only ? 0 : random.integer(1, 20);
         });
}
const Register kOneBudget{
    {"replay.one_budget", {"MEM-1", "MEM-3", "CFG-2"}, "memory_set", Lane::replay, true, one_budget}};

// Batches that are no multiple of the chunk: short chunks, Local reaching back over them.
void odd_batches(Context& context) {
  repeat(context, 80, {.max_chunk = 16, .max_tokens = 150, .wide = false},
         [](Random& random, Problem& problem) {
           const std::int64_t s = problem.options.chunk;
           problem.options.batch =
               s * random.integer(1, 3) + random.integer(1, std::max<std::int64_t>(1, s - 1));
           problem.options.local = random.integer(1, s);
         });
}
const Register kOddBatches{
    {"replay.odd_batches", {"CFG-4", "PLAN-1", "MEM-1"}, "plan", Lane::replay, true, odd_batches}};

// One query a chunk, and one key that gets nearly all of its weight: it gains a little less than 1 a chunk, so its
// BF16 score stops at 256 while an F32 score goes on (SCORE-5). It is never lost, and nothing overflows in 600
// chunks.
void stagnation(Context& context) {
  constexpr float kBf16Stops = 256.0f;
  constexpr std::int64_t kChunks = 600;
  Random random(context.seed);
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    Problem problem;
    problem.shape.n_head = 2;
    problem.shape.n_head_kv = 1;
    problem.shape.d_head = 4;
    problem.shape.d_value = 2;
    problem.options.clamp = false;
    problem.options.chunk = 1;
    problem.options.local = 2;
    problem.options.heavy = 4;
    problem.options.score_type = type;
    problem.options.threads = 1;
    problem.steps = {Step::prefill(kChunks), Step::decode(1)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random, 0.5);
    LayerInput& layer = problem.layers[0];
    for (std::int64_t t = 0; t < problem.tokens(); ++t) {
      for (std::int64_t h = 0; h < 2; ++h) layer.q.row(t, h)[0] = 2.0f;
      layer.k.row(t, 0)[0] = t == 1 ? 6.0f : 0.0f;
    }
    const Trace trace = replayed(*context.engine, problem);
    float highest = 0.0f;
    for (const std::uint32_t bits : trace.layers[0].snapshots.back().scores) {
      highest = std::max(highest, score_value(type, bits));
    }
    if (type == ScoreType::bf16 ? highest != kBf16Stops
                                : !(highest > 2.0f * kBf16Stops && highest < kChunks)) {
      throw Violation(fmt::format("the heaviest of {} tokens ends with score {}", kChunks, highest));
    }
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      if (chunk.memory_count == 0 || chunk.chunk.begin < 2) continue;
      for (std::int64_t h = 0; h < 2; ++h) {
        const auto* set = chunk.memory.data() + h * chunk.memory_count;
        if (!std::binary_search(set, set + chunk.memory_count, 1)) {
          throw Violation(
              fmt::format("the heavy hitter is lost at chunk [{}, {})", chunk.chunk.begin, chunk.chunk.end));
        }
      }
    }
  }
}
const Register kStagnation{
    {"replay.stagnation", {"SCORE-5", "SCORE-3", "MEM-5"}, "scores", Lane::replay, true, stagnation}};

// Scores change once per chunk, never per query: a sum of many small terms, each of which BF16 would round away.
void once_per_chunk(Context& context) {
  repeat(context, 20, {.max_chunk = 40, .max_tokens = 400, .later_turns = false, .wide = false},
         [](Random&, Problem& problem) {
           problem.options.chunk = 40;
           problem.options.score_type = ScoreType::bf16;
           problem.options.local = 1;
           problem.options.heavy = 3;
         });
}
const Register kOncePerChunk{
    {"replay.once_per_chunk", {"SCORE-3"}, "scores", Lane::replay, true, once_per_chunk}};

// Two sparse turns with decoded tokens in between, which are candidates with score 0.
void later_turns(Context& context) {
  repeat(context, 80, {.max_chunk = 10, .max_tokens = 60, .wide = false},
         [](Random& random, Problem& problem) {
           const std::int64_t s = problem.options.chunk;
           problem.options.local = random.integer(0, s / 2);
           problem.options.heavy = random.integer(1, s + 3);
           problem.options.dense = false;
           problem.steps = {Step::prefill(random.integer(1, 4 * s))};
           for (int turn = 0; turn < 3; ++turn) {
             problem.steps.push_back(Step::decode(random.integer(1, 6)));
             // Around T = S, where a later turn changes from dense to sparse.
             const std::int64_t length =
                 std::max<std::int64_t>(1, random.pick(std::vector<std::int64_t>{s - 1, s, s + 1, 3 * s}));
             if (length > 1 && random.chance(0.5)) {
               const std::int64_t first = random.integer(1, length - 1);
               problem.steps.push_back(Step::prefill(first, length));
               problem.steps.push_back(Step::prefill(length - first));
             } else {
               problem.steps.push_back(Step::prefill(length));
             }
           }
           problem.shape.capacity = problem.tokens();
           problem.fill_normal(random);
         });
}
const Register kLaterTurns{{"replay.later_turns",
                            {"STATE-3", "STATE-4", "MEM-5", "STATE-2"},
                            "turns",
                            Lane::replay,
                            true,
                            later_turns}};

// Sessions that went through decode steps before any prefill: the first turn of a session that is not empty.
void decode_first(Context& context) {
  repeat(context, 30, {.max_chunk = 8, .max_tokens = 60, .wide = false},
         [](Random& random, Problem& problem) {
           const std::int64_t s = problem.options.chunk;
           problem.steps = {Step::decode(random.integer(1, 5)),
                            Step::prefill(random.pick(std::vector<std::int64_t>{s, s + 1, 4 * s})),
                            Step::decode(1)};
           problem.shape.capacity = problem.tokens() + 3;
           problem.fill_normal(random);
         });
}
const Register kDecodeFirst{
    {"replay.decode_first", {"STATE-1", "STATE-3", "DEC-1"}, "turns", Lane::replay, true, decode_first}};

void dense(Context& context) {
  repeat(context, 30, {.max_chunk = 12, .max_tokens = 60, .wide = false},
         [](Random& random, Problem& problem) {
           // With option `dense`, or without any budget: scores stay zero, no sets, one chunk per call (CFG-2).
           if (random.chance(0.5)) {
             problem.options.dense = true;
           } else {
             problem.options.local = problem.options.heavy = 0;
           }
         });
}
const Register kDense{{"replay.dense", {"CFG-2", "SCORE-1"}, "dense", Lane::replay, true, dense}};

// S = 1: L + H is clamped to 0, so the sparse path is off.
void chunk_of_one(Context& context) {
  repeat(context, 20, {.max_chunk = 1, .max_tokens = 30, .wide = false},
         [](Random& random, Problem& problem) {
           problem.options.local = random.integer(0, 4);
           problem.options.heavy = random.integer(0, 4);
         });
}
const Register kChunkOfOne{
    {"replay.chunk_of_one", {"CFG-3", "CFG-2"}, "plan", Lane::replay, true, chunk_of_one}};

}  // namespace
}  // namespace headwater::conformance
