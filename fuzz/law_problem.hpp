#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headwater/headwater.hpp"

/// What the laws of docs/spec.md 14 have in common: random problems of one layer, and the results of a run.
namespace headwater::fuzz {

/// One layer of random size and its inputs: q [n][Hq][d], k [n][Hkv][d], v [n][Hkv][dv], all in [-2, 2] and representable
/// in the KV type of the shape, which is the type that they are handed over in. Outputs are F32.
struct Problem {
  Shape shape;
  Options options;
  std::int64_t n = 1;
  std::vector<float> q, k, v;
};

/// `count` numbers in [-2, 2] of that type from a drawn seed.
std::vector<float> random_rows(std::int64_t count, DType type = DType::f32);
/// The same in steps of 1/16: sums of a few are exact in every type.
std::vector<float> coarse_rows(std::int64_t count);

/// Draws everything; n <= 89, chunks of at most 39 tokens, budgets of at most 11 each.
Problem draw();

/// Draws one of the engine's rules, and the sizes of rules blocks and sketches.
void draw_rule(const Engine& engine, Options& options);

/// Inputs for the sizes of a problem whose shape was changed.
void draw_rows(Problem& problem);

/// A chunk as the observer saw it; the arrays are those of ChunkRecord, without its strides.
struct SeenChunk {
  Chunk chunk;
  std::int64_t count = 0;  ///< |M|, of every set
  std::vector<std::vector<std::int32_t>>
      sets;  ///< per head; other rules than h2o: per key/value head and query block
  std::vector<std::vector<float>> inter;  ///< per head, one per entry of its set
  std::vector<std::vector<float>> intra;  ///< per head, one per token; empty in dense chunks
};

/// How far each number of a run may be from the exact one under the run's own sets, derived as in the kit's bound lane
/// (docs/verification.md), the rounding to F32 included.
struct Bounds {
  std::vector<double> out;  ///< [n][heads][dv]
  struct Chunk {
    std::vector<std::vector<double>> inter, intra;  ///< as in SeenChunk
  };
  std::vector<Chunk> chunks;
};

/// The results of a run.
struct Result {
  std::vector<float> out;                  ///< [n][heads][dv]
  std::vector<std::vector<float>> scores;  ///< per head, one per token
  std::vector<SeenChunk> chunks;

  /// Bits, so that equal means equal.
  [[nodiscard]] bool same_bits(const Result& other) const;
  /// The same sets in every chunk and head.
  [[nodiscard]] bool same_sets(const Result& other) const;
};

/// Scores as the session shows them: per head, one per token.
std::vector<std::vector<float>> scores_of(const Session& session);

/// Begins a step and attends its layer, with the problem's rows at the positions that it takes, or with all of them up to
/// there in pages where the caller keeps the rows (ROWS-1). `out`: [n][heads][dv] of the
/// whole problem, of which the step's rows are written.
void attend_step(Session& session, const Problem& problem, const Step& step, std::vector<float>& out);
/// The same, and ends it.
void take_step(Session& session, const Problem& problem, const Step& step, std::vector<float>& out);

/// Called between the steps of a run with the scores at that time and the number of tokens processed.
using AfterStep = std::function<void(const std::vector<std::vector<float>>& scores, std::int64_t tokens)>;

Result run(const Engine& engine, const Problem& problem, const std::vector<Step>& steps,
           const AfterStep& after_step = {}, bool observed = true);
Result run(const Engine& engine, const Problem& problem);

/// One prefill turn, a call a chunk: the observer and the scores can be looked at between chunks (PLAN-2).
std::vector<Step> call_per_chunk(const Problem& problem);

/// Of a run of that problem on that engine.
Bounds bounds_of(const Engine& engine, const Problem& problem, const Result& result);

/// Whether two runs differ by no more than both may be off; lists of the same length.
bool close(const std::vector<float>& a, const std::vector<double>& bound_a, const std::vector<float>& b,
           const std::vector<double>& bound_b);

/// A property for every engine of this machine, under its name.
template <typename Law>
void for_every_engine(const char* name, Law&& law) {
  for (const Engine* engine : engines()) {
    if (!engine->unavailable_because().empty()) continue;
    SCOPED_TRACE(std::string(engine->name()));
    EXPECT_TRUE(rc::check(std::string(name) + " on " + std::string(engine->name()), [&] { law(*engine); }));
  }
}

}  // namespace headwater::fuzz
