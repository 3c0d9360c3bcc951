// PLAN, MEM and SCORE on the same inputs: reference and optimized stage functions and the kit's own reading.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/random.hpp"
#include "conformance/replay.hpp"
#include "optimized/core/chunk_plan.hpp"
#include "optimized/core/config.hpp"
#include "optimized/core/memory_sets.hpp"
#include "optimized/core/score_store.hpp"
#include "optimized/core/selection.hpp"
#include "reference/chunk_plan.hpp"
#include "reference/config.hpp"
#include "reference/memory_set.hpp"
#include "reference/scores.hpp"
#include "reference/selection.hpp"

namespace headwater::conformance {
namespace {

// Scores, usual ones and ones that should not occur: ties, zeros of both signs, NaN, infinities, subnormals,
// negatives.
float any_score(Random& random, int flavour) {
  switch (flavour) {
    case 0: return static_cast<float>(random.uniform(0.0, 8.0));
    case 1: return static_cast<float>(random.integer(0, 3));
    case 2: return static_cast<float>(random.uniform(-2.0, 2.0));
    case 3: return std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()));
    case 4: return 1.0f;
    default: {
      const std::vector<float> odd{0.0f,
                                   -0.0f,
                                   std::numeric_limits<float>::quiet_NaN(),
                                   -std::numeric_limits<float>::quiet_NaN(),
                                   std::numeric_limits<float>::infinity(),
                                   -std::numeric_limits<float>::infinity(),
                                   1e-41f,
                                   -1e-41f,
                                   1.0f,
                                   256.0f};
      return random.pick(odd);
    }
  }
}

void selection(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(6000); ++round) {
    const bool bf16 = random.chance(0.5);
    const std::int64_t count = round % 50 == 0 ? random.integer(300, 3000) : random.integer(0, 70);
    const std::int64_t heavy = random.chance(0.1) ? count + random.integer(0, 3)
                                                  : random.integer(0, std::max<std::int64_t>(count, 1));
    const int flavour = static_cast<int>(random.integer(0, 5));
    std::vector<float> scores(static_cast<std::size_t>(count));
    std::vector<reference::Candidate> candidates;
    std::vector<std::uint32_t> keys;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] = any_score(random, flavour);
      if (bf16) scores[i] = bf16_value(bf16_bits(scores[i]));
      candidates.push_back({static_cast<std::int32_t>(i), scores[i]});
      keys.push_back(core::order_key(scores[i]));
    }
    const std::vector<std::int32_t> wanted = expected_set({}, 0, count, 0, heavy, scores);
    const std::vector<std::int32_t> reference = reference::select_heavy(candidates, heavy);
    std::vector<std::int32_t> optimized(static_cast<std::size_t>(std::min(heavy, count)) + 1, -7);
    const std::int64_t written =
        core::select_best(keys.data(), count, heavy, bf16 ? 16 : 32, optimized.data());
    const bool intact = optimized.back() == -7;
    optimized.resize(static_cast<std::size_t>(
        std::clamp<std::int64_t>(written, 0, static_cast<std::int64_t>(optimized.size()))));
    if (!intact || reference != wanted || optimized != wanted) {
      throw Violation(fmt::format("{} of {} ({}), scores [{}]: reference [{}], optimized [{}], wanted [{}]",
                                  heavy, count, bf16 ? "BF16" : "F32", fmt::join(scores, " "),
                                  fmt::join(reference, " "), fmt::join(optimized, " "),
                                  fmt::join(wanted, " ")));
    }
  }
}
const Register kSelection{{"stage.selection", {"MEM-3"}, "selection", Lane::exact, false, selection}};

// The order itself, pair by pair: keys of the optimized side, comparison of the reference.
void order(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(200000); ++round) {
    const float a = any_score(random, round % 6);
    const float b = any_score(random, round / 6 % 6);
    const bool nan_a = std::isnan(a);
    const bool nan_b = std::isnan(b);
    const bool better = nan_b ? !nan_a : !nan_a && a > b;
    const bool equal = (nan_a && nan_b) || a == b;
    const std::uint32_t x = core::order_key(a);
    const std::uint32_t y = core::order_key(b);
    const bool first = reference::ranks_before({3, a}, {9, b});
    const bool second = reference::ranks_before({9, a}, {3, b});
    if ((x > y) != better || (x == y) != equal || first != (better || equal) || second != better) {
      throw Violation(fmt::format("scores {:.9g} and {:.9g} are ordered wrongly", a, b));
    }
  }
}
const Register kOrder{{"stage.order", {"MEM-3"}, "selection", Lane::exact, false, order}};

struct SetSizes {
  std::int64_t local, heavy, pinned, capacity, layers, heads;
  std::int64_t most = 20;  // tokens between two sets
};

// A sequence of sets under scores that change in between: optimized sets, the reference's, the kit's.
void sequence_of_sets(Random& random, const SetSizes& sizes) {
  const auto [local, heavy, pinned, capacity, layers, heads, most] = sizes;
  const ScoreType type = random.chance(0.5) ? ScoreType::bf16 : ScoreType::f32;
  core::ScoreStore store(layers, heads, capacity, type);
  core::MemorySets sets(layers, heads, local, heavy, capacity, pinned);
  const int flavour = static_cast<int>(random.integer(0, 5));
  const std::int64_t layer = random.integer(0, layers - 1);
  const std::int64_t head = random.integer(0, heads - 1);
  std::vector<float> scores;
  std::vector<std::int32_t> previous;
  std::int64_t previous_end = 0;
  std::vector<std::uint32_t> keys(static_cast<std::size_t>(capacity));
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(sets.width()));
  for (std::int64_t end = 0; end < capacity;) {
    const std::int64_t begin = end;
    end = std::min(capacity, end + random.integer(1, most));
    std::vector<float> sums;
    for (std::int64_t p = begin; p < end; ++p) sums.push_back(any_score(random, flavour));
    for (std::int64_t h = 0; h < heads; ++h) {
      std::vector<float> own = sums;
      if (h != head) std::fill(own.begin(), own.end(), 1.0f);
      store.initialise(layer, h, begin, end - begin, own.data());
    }
    for (const float sum : sums) scores.push_back(score_value(type, score_bits(type, sum)));
    const std::vector<std::int32_t> wanted =
        expected_set(previous, previous_end, end, local, heavy, scores, pinned);
    const std::vector<std::int32_t> reference = reference::build_memory_set(
        previous, previous_end, end, local, heavy,
        [&](std::int64_t p) { return scores[static_cast<std::size_t>(p)]; }, pinned);
    const std::int64_t count = sets.next_count(end);
    for (std::int64_t h = 0; h < heads; ++h)
      sets.build_head(layer, h, end, store, keys.data(), chosen.data());
    sets.finish(layer, end);
    const std::int32_t* entries = sets.entries(layer, head);
    const std::vector<std::int32_t> optimized(entries,
                                              entries + std::clamp<std::int64_t>(count, 0, sets.width()));
    if (reference != wanted || optimized != wanted || sets.count(layer) != count) {
      throw Violation(fmt::format("L {} H {} A {} end {}: reference [{}], optimized [{}], wanted [{}]", local,
                                  heavy, pinned, end, fmt::join(reference, " "), fmt::join(optimized, " "),
                                  fmt::join(wanted, " ")));
    }
    for (std::int64_t i = count; i < sets.width(); ++i) {
      if (entries[i] != -1) throw Violation(fmt::format("entry {} after the set is {}", i, entries[i]));
    }
    std::vector<std::int32_t> stored(wanted.size() + 3, 5);
    reference::store_memory_set(wanted, stored);
    if (!std::equal(wanted.begin(), wanted.end(), stored.begin()) ||
        std::any_of(stored.end() - 3, stored.end(), [](std::int32_t p) { return p != -1; })) {
      throw Violation("reference: a stored set is not the set and then -1");
    }
    const std::vector<std::int32_t> candidates = reference::candidates(previous, previous_end, end, local);
    if (!std::is_sorted(candidates.begin(), candidates.end()) ||
        (!candidates.empty() && candidates.back() >= reference::local_begin(end, local))) {
      throw Violation("reference: candidates are not ascending or overlap Local");
    }
    // Accumulation of F32 sums into the set's scores.
    std::vector<float> inter;
    for (const std::int32_t p : wanted) {
      inter.push_back(any_score(random, flavour));
      float& score = scores[static_cast<std::size_t>(p)];
      const float sum = score + inter.back();
      const float accumulated = reference::accumulated_score(type, score, inter.back());
      score = score_value(type, score_bits(type, sum));
      if (!same_bits(accumulated, score))
        throw Violation(fmt::format("reference: accumulated score {:.9g}", accumulated));
    }
    store.accumulate(layer, head, wanted.data(), static_cast<std::int64_t>(wanted.size()), inter.data());
    for (std::int64_t p = 0; p < end; ++p) {
      if (!same_bits(store.read(layer, head, p), scores[static_cast<std::size_t>(p)])) {
        throw Violation(fmt::format("optimized: score of {} is {:.9g}, not {:.9g}", p,
                                    store.read(layer, head, p), scores[static_cast<std::size_t>(p)]));
      }
    }
    previous = wanted;
    previous_end = end;
  }
  sets.reset();
  if (sets.count(layer) != 0) throw Violation("reset() leaves a set");
}

void memory_sets(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(1500); ++round) {
    SetSizes sizes{};
    sizes.local = random.integer(0, 12);
    sizes.heavy = random.integer(sizes.local == 0 ? 1 : 0, 14);
    sizes.capacity = random.integer(1, 90);
    sizes.layers = random.integer(1, 2);
    sizes.heads = random.integer(1, 3);
    sequence_of_sets(random, sizes);
  }
}
const Register kSets{{"stage.memory_sets",
                      {"MEM-1", "MEM-2", "MEM-3", "MEM-4", "MEM-5", "SCORE-2", "SCORE-3"},
                      "memory_set",
                      Lane::exact,
                      false,
                      memory_sets}};

// Pinned tokens (MEM-7), with scores of every kind: NaN, infinities and zeros too. Then more of them than 16 bits count.
void pinned_sets(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(1500); ++round) {
    SetSizes sizes{};
    sizes.local = random.integer(0, 12);
    sizes.heavy = random.integer(1, 14);
    sizes.pinned = random.pick(std::vector<std::int64_t>{1, sizes.heavy, random.integer(0, sizes.heavy)});
    sizes.capacity = random.integer(1, 90);
    sizes.layers = random.integer(1, 2);
    sizes.heads = random.integer(1, 3);
    sequence_of_sets(random, sizes);
  }
  if (context.quick) return;
  sequence_of_sets(random, {.local = 500,
                            .heavy = 66000,
                            .pinned = 65900,
                            .capacity = 70000,
                            .layers = 1,
                            .heads = 1,
                            .most = 20000});
}
const Register kPinned{
    {"stage.pinned_sets", {"MEM-7", "MEM-3"}, "memory_set", Lane::exact, false, pinned_sets}};

void initial_scores(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(100000); ++round) {
    const float sum = any_score(random, round % 6);
    if (!same_bits(reference::initial_score(ScoreType::bf16, sum), bf16_value(bf16_bits(sum))) ||
        !same_bits(reference::initial_score(ScoreType::f32, sum), sum)) {
      throw Violation(fmt::format("initial score of {:.9g}", sum));
    }
  }
}
const Register kInitial{
    {"stage.initial_scores", {"SCORE-2", "SCORE-4"}, "scores", Lane::exact, false, initial_scores}};

void chunk_plans(Context& context) {
  const std::int64_t most = context.quick ? 14 : 30;
  for (std::int64_t s = 1; s <= 9; ++s) {
    for (std::int64_t batch = s; batch <= 3 * s + 1; ++batch) {
      for (std::int64_t n = 1; n <= most; ++n) {
        for (const std::int64_t base : {std::int64_t{0}, std::int64_t{1}, s, 3 * s + 1}) {
          Problem problem;
          problem.options.chunk = s;
          problem.options.batch = batch;
          problem.options.local = 1;
          problem.options.clamp = false;
          problem.steps = {Step::prefill(n)};
          std::vector<Chunk> wanted = expected_plans(problem)[0];
          for (Chunk& chunk : wanted) {
            chunk.begin += base;
            chunk.end += base;
          }
          const auto same = [](const Chunk& a, const Chunk& b) {
            return a.begin == b.begin && a.end == b.end && a.mode == b.mode;
          };
          const std::vector<Chunk> reference = reference::chunk_plan(base, n, ChunkMode::sparse, batch, s);
          core::List<Chunk> optimized;
          core::append_sparse_chunks(base, n, batch, s, optimized);
          if (!std::equal(wanted.begin(), wanted.end(), reference.begin(), reference.end(), same) ||
              !std::equal(wanted.begin(), wanted.end(), optimized.begin(), optimized.end(), same)) {
            throw Violation(fmt::format("plan of {} tokens at {}, B {} S {}", n, base, batch, s));
          }
          for (const ChunkMode mode : {ChunkMode::dense, ChunkMode::decode}) {
            const std::vector<Chunk> whole = reference::chunk_plan(base, n, mode, batch, s);
            if (whole.size() != 1 || whole[0].begin != base || whole[0].end != base + n ||
                whole[0].mode != mode) {
              throw Violation("a dense call or a decode step is not one chunk");
            }
          }
        }
      }
    }
  }
}
const Register kPlans{{"stage.chunk_plans", {"PLAN-1", "PLAN-2"}, "plan", Lane::exact, false, chunk_plans}};

void configurations(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(5000); ++round) {
    Shape shape;
    shape.n_head = shape.n_head_kv = random.integer(1, 4);
    shape.d_head = random.integer(1, 200);
    shape.capacity = random.integer(1, 1000);
    Options options;
    options.chunk = random.integer(1, 20);
    options.batch = random.integer(1, 50);
    options.local = random.integer(0, 25);
    options.heavy = random.integer(0, 25);
    options.clamp = random.chance(0.5);
    options.dense = random.chance(0.1);
    options.threads = static_cast<int>(random.integer(0, 4));
    if (random.chance(0.5)) choose_blocks(random, options);
    const EffectiveOptions wanted = expected_options(shape, options);
    const EffectiveOptions a = reference::resolve(shape, options);
    const EffectiveOptions b = core::resolve(shape, options, 3);
    for (const EffectiveOptions* got : {&a, &b}) {
      if (got->batch != wanted.batch || got->chunk != wanted.chunk || got->local != wanted.local ||
          got->heavy != wanted.heavy || got->sparse != wanted.sparse || got->scale != wanted.scale) {
        throw Violation(fmt::format("S {} B {} L {} H {} clamp {} dense {} is read wrongly", options.chunk,
                                    options.batch, options.local, options.heavy, options.clamp,
                                    options.dense));
      }
      if (got->select != wanted.select || got->key_block != wanted.key_block ||
          got->query_block != wanted.query_block || got->pool != wanted.pool ||
          got->refine != wanted.refine) {
        throw Violation(fmt::format("K {} Q {} P {} R {} are read wrongly", options.key_block,
                                    options.query_block, options.pool, options.refine));
      }
    }
    if (a.threads != 1 || b.threads != (options.threads == 0 ? 3 : options.threads))
      throw Violation("threads are read wrongly");
    if (a.warnings.size() != b.warnings.size()) throw Violation("different numbers of warnings");
  }
}
const Register kConfigurations{{"stage.configurations",
                                {"CFG-2", "CFG-3", "CFG-4", "SEL-1"},
                                "config",
                                Lane::exact,
                                false,
                                configurations}};

// CFG-5: both readings of the options that pin tokens and make turns and layers dense, of which A follows H'.
void dense_and_pinned(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(2000); ++round) {
    Shape shape;
    shape.n_layer = random.integer(1, 40);
    shape.capacity = 1;
    Problem problem;
    problem.shape = shape;
    problem.steps = {Step::prefill(random.integer(1, 5000))};
    Options& options = problem.options;
    options.chunk = random.integer(1, 20);
    options.local = random.integer(0, 25);
    options.heavy = random.integer(0, 25);
    options.clamp = random.chance(0.5);
    options.dense = random.chance(0.1);
    if (random.chance(0.5)) choose_blocks(random, options);
    choose_pinned(random, options);
    choose_dense_below(random, problem);
    choose_dense_layers(random, problem);
    const EffectiveOptions wanted = expected_options(shape, options);
    const EffectiveOptions a = reference::resolve(shape, options);
    const EffectiveOptions b = core::resolve(shape, options, 3);
    for (const EffectiveOptions* got : {&a, &b}) {
      if (got->pinned == wanted.pinned && got->dense_below == wanted.dense_below &&
          got->dense_layers == wanted.dense_layers) {
        continue;
      }
      throw Violation(fmt::format("{}: A {} D {} layers {}, wanted A {}", problem.describe(), got->pinned,
                                  got->dense_below, fmt::join(got->dense_layers, ","), wanted.pinned));
    }
  }
}
const Register kDenseAndPinned{
    {"stage.dense_and_pinned", {"CFG-5"}, "config", Lane::exact, false, dense_and_pinned}};

}  // namespace
}  // namespace headwater::conformance
