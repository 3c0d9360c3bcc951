// Turns of fewer than D tokens are dense (STATE-3), under both rules.

#include <algorithm>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

Problem small(Select rule, std::int64_t chunk, std::int64_t dense_below) {
  Problem problem;
  problem.shape.n_head = 2;
  problem.shape.d_head = 6;
  problem.shape.d_value = 5;
  Options& options = problem.options;
  options.select = rule;
  options.chunk = chunk;
  options.batch = 4 * chunk;
  options.local = 2;
  options.heavy = 4;
  options.key_block = 2;
  options.query_block = options.pool = 4;
  options.dense_below = dense_below;
  options.threads = 1;
  return problem;
}

void require_sparse(const Problem& problem, const Trace& trace, std::size_t step, bool sparse) {
  const ChunkMode wanted = sparse ? ChunkMode::sparse : ChunkMode::dense;
  if (trace.plans[step].front().mode == wanted) return;
  throw Violation(
      fmt::format("step {} is {}sparse (STATE-3); {}", step, sparse ? "not " : "", problem.describe()));
}

// Turns of D - 1, D and D + 1 tokens: the first one of a session and a later one, in one call and in several, with chunks
// below, at and above D.
void turns(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  constexpr std::int64_t kBelow = 21;
  Random random(context.seed);
  for (const std::int64_t chunk : {std::int64_t{8}, kBelow, std::int64_t{30}}) {
    for (const std::int64_t length : {kBelow - 1, kBelow, kBelow + 1}) {
      for (const bool first : {true, false}) {
        for (const bool cut : {false, true}) {
          Problem problem = small(rule, chunk, kBelow);
          if (!first) problem.steps = {Step::prefill(kBelow + 9), Step::decode(2)};
          const std::size_t turn = problem.steps.size();
          if (cut) {
            problem.steps.push_back(Step::prefill(chunk, std::max(length, chunk)));
            problem.steps.push_back(Step::prefill(3));
          } else {
            problem.steps.push_back(Step::prefill(length));
          }
          problem.steps.push_back(Step::decode(1));
          problem.shape.capacity = problem.tokens();
          problem.fill_normal(random);
          const Trace trace = run(*context.engine, problem);
          require_replay(problem, trace);
          require_forced(context, problem, trace);
          const std::int64_t said = cut ? std::max(length, chunk) : length;
          const bool sparse = said >= kBelow && (first || said > chunk);
          require_sparse(problem, trace, turn, sparse);
          if (cut) require_sparse(problem, trace, turn + 1, sparse);
        }
      }
    }
  }
}
const Register kTurns{{"options.dense_below_turns",
                       {"STATE-3", "STATE-4", "CFG-5"},
                       "turns",
                       Lane::replay,
                       true,
                       [](Context& context) { turns(context, Select::h2o); }}};
const Register kBlocksTurns{
    {"blocks.dense_below_turns", {"STATE-3", "STATE-4"}, "turns", Lane::replay, true, [](Context& context) {
       turns(context, Select::blocks);
     }}};

// D above every turn: the bits of a dense session. D of 1 at most: those of a session without it.
void law(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(16); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 16, .max_tokens = 80, .max_layers = 2, .wide = false});
    problem.options.dense = false;
    problem.options.heavy += 1;
    if (rule == Select::blocks) problem = with_blocks(random, std::move(problem));
    const Trace plain = run(*context.engine, problem);
    Problem other = problem;
    other.options.dense_below = 1;
    require_same(plain, run(*context.engine, other), problem.describe() + "; D 0 and 1");
    other.options.dense_below = problem.tokens() + random.integer(1, 100000);
    const Trace below = run(*context.engine, other);
    problem.options.dense = true;
    require_same(run(*context.engine, problem), below, other.describe() + "; dense and D above all turns");
  }
}
const Register kLaw{
    {"options.dense_below_law", {"STATE-3", "CFG-2"}, "turns", Lane::law, true, [](Context& context) {
       law(context, Select::h2o);
     }}};
const Register kBlocksLaw{
    {"blocks.dense_below_law", {"STATE-3", "CFG-2"}, "turns", Lane::law, true, [](Context& context) {
       law(context, Select::blocks);
     }}};

// D and lengths beyond 16 and up to 31 bits. A turn says its length; how many tokens it really has does not matter.
void large_lengths(Context& context) {
  Random random(context.seed);
  for (const std::int64_t below : {std::int64_t{65535}, std::int64_t{65536}, std::int64_t{70000},
                                   std::int64_t{1} << 30, (std::int64_t{1} << 31) - 1}) {
    for (const std::int64_t length :
         {std::int64_t{40}, below - 1, below, below + 1, below + (std::int64_t{1} << 32)}) {
      Problem problem = small(Select::h2o, 8, below);
      problem.steps = {Step::prefill(40, length), Step::decode(1), Step::prefill(20, length)};
      problem.shape.capacity = problem.tokens();
      problem.fill_normal(random);
      const Trace trace = run(*context.engine, problem);
      require_replay(problem, trace);
      require_sparse(problem, trace, 0, length >= below);
      require_sparse(problem, trace, 2, length >= below);
    }
  }
}
const Register kLarge{
    {"options.dense_below_lengths", {"STATE-3", "CFG-5"}, "turns", Lane::state, true, large_lengths}};

void sizes(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  for (const DType type : {DType::f32, DType::bf16}) {
    Problem problem;
    problem.shape.d_head = problem.shape.d_value = 32;
    problem.options.chunk = 512;
    problem.options.local = 64;
    problem.options.heavy = 192;
    problem.options.dense_below = 1100;
    problem.options.threads = context.threads;
    problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = type;
    problem.steps = {Step::prefill(1099), Step::decode(1), Step::prefill(512, 1100), Step::prefill(588)};
    problem.shape.capacity = problem.tokens();
    Random random(context.seed);
    problem.fill_normal(random);
    require_conforming_in_part(context, problem, {.border = 64});
  }
}
const Register kSizes{
    {"options.dense_below_sizes", {"STATE-3", "STATE-4"}, "turns", Lane::shape, true, sizes}};

}  // namespace
}  // namespace headwater::conformance
