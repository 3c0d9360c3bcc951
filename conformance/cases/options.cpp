// CFG-5 at the boundary of every engine, and what must hold with pinned tokens, dense layers and dense turns together.

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "conformance/case.hpp"
#include "conformance/replay.hpp"
#include "conformance/run.hpp"
#include "conformance/session_checks.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostPositions = 2147483647;

struct Request {
  Shape shape{.n_layer = 3, .n_head = 2, .n_head_kv = 1, .d_head = 4, .d_value = 4, .capacity = 16};
  Options options;
};

void refused(Context& context) {
  const Engine& engine = *context.engine;
  for (const bool dense : {false, true}) {  // CFG-5 does not ask whether the path is on
    Request request;
    request.options.dense = dense;
    for (const std::int64_t value : {kLeast, std::int64_t{-1}, std::int64_t{257}, kMost}) {  // H is 256
      request.options.pinned = value;
      require_refused(engine, request.shape, request.options, "pinned", std::to_string(value));
    }
    request.options.heavy = 0;
    request.options.pinned = 1;
    require_refused(engine, request.shape, request.options, "pinned", std::to_string(1));
    request.options.pinned = 0;
    for (const std::int64_t value : {kLeast, std::int64_t{-1}, kMostPositions + 1, kMost}) {
      request.options.dense_below = value;
      require_refused(engine, request.shape, request.options, "dense_below", std::to_string(value));
    }
    request.options.dense_below = 0;
    const std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> layers{
        {{-1}, -1},  {{3}, 3},       {{kLeast}, kLeast}, {{kMost}, kMost}, {{0, 3}, 3},           {{1, 1}, 1},
        {{2, 0}, 0}, {{0, 2, 1}, 1}, {{0, 1, 2, 4}, 4},  {{0, 0}, 0},      {{0, 1, 65536}, 65536}};
    for (const auto& [named, wrong] : layers) {
      request.options.dense_layers = named;
      require_refused(engine, request.shape, request.options, "dense_layer", std::to_string(wrong));
    }
  }
}
const Register kRefused{{"options.refused", {"CFG-5", "CFG-1"}, "config", Lane::state, true, refused}};

void blocks_refused(Context& context) {
  require_rule_blocks(*context.engine);
  require_pinned(*context.engine);
  Request request;
  request.options.select = Select::blocks;  // K is 8, H 256
  for (const std::int64_t value : {std::int64_t{-8}, std::int64_t{-1}, std::int64_t{1}, std::int64_t{7},
                                   std::int64_t{12}, std::int64_t{255}, std::int64_t{264}, kMost}) {
    request.options.pinned = value;
    require_refused(*context.engine, request.shape, request.options, "pinned", std::to_string(value));
  }
  for (const std::int64_t value : {0, 8, 256}) {
    request.options.pinned = value;
    if (context.engine->open(request.shape, request.options)->options().pinned != value)
      throw Violation(fmt::format("pinned = {} became another", value));
  }
}
const Register kBlocksRefused{
    {"blocks.pinned_refused", {"CFG-5", "SEL-1"}, "config", Lane::state, true, blocks_refused}};

// The most of everything is accepted and works.
void limits(Context& context) {
  Random random(context.seed);
  Problem problem;
  problem.shape.n_layer = 65536;
  problem.shape.d_head = problem.shape.d_value = 1;
  problem.options.threads = 1;
  problem.options.dense_below = kMostPositions;
  problem.options.pinned = pins(*context.engine) ? problem.options.heavy : 0;
  problem.shape.capacity = 1;
  problem.options.dense_layers.resize(65536);
  std::iota(problem.options.dense_layers.begin(), problem.options.dense_layers.end(), 0);
  const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
  if (session->options().dense_layers != problem.options.dense_layers ||
      !session->options().dense_layer(65535))
    throw Violation("65536 dense layers became others");
  problem.shape.n_layer = 3;
  problem.options.dense_layers = {0, 1, 2};
  problem.steps = {Step::prefill(1)};
  problem.fill_normal(random);
  require_replay(problem, run(*context.engine, problem));
}
const Register kLimits{{"options.limits", {"CFG-5"}, "config", Lane::state, true, limits}};

// What a session calls effective: A' = min(A, H') where H was clamped or the session is dense (CFG-2, CFG-3), the others as
// asked.
void effective(Context& context) {
  Random random(context.seed);
  const bool pinned = pins(*context.engine);
  for (int round = 0; round < context.rounds(200); ++round) {
    Problem problem;
    problem.shape.n_layer = random.integer(1, 20);
    problem.shape.d_head = problem.shape.d_value = 2;
    problem.shape.capacity = 9;
    problem.steps = {Step::prefill(random.integer(1, 100000))};
    Options& options = problem.options;
    options.chunk = random.integer(1, 20);
    options.local = random.integer(0, 25);
    options.heavy = random.integer(0, 400);
    options.clamp = random.chance(0.5);
    options.dense = random.chance(0.1);
    options.threads = 1;
    if (pinned) choose_pinned(random, options);
    choose_dense_below(random, problem);
    choose_dense_layers(random, problem);
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, options);
    const EffectiveOptions& got = session->options();
    const EffectiveOptions wanted = expected_options(problem.shape, options);
    if (got.pinned != wanted.pinned || got.dense_below != wanted.dense_below ||
        got.dense_layers != wanted.dense_layers) {
      throw Violation(fmt::format("{} became A {} D {} layers {}, wanted A {}", problem.describe(),
                                  got.pinned, got.dense_below, fmt::join(got.dense_layers, ","),
                                  wanted.pinned));
    }
  }
}
const Register kEffective{
    {"options.effective", {"CFG-5", "CFG-2", "CFG-3"}, "config", Lane::state, true, effective}};

// All of the options together: the same bits with any number of threads, in both schedules, after reset, with roomy
// capacity, layers in another order and without an observer.
void determinism(Context& context, Select rule) {
  require_rule(*context.engine, rule);
  const Claims& claims = context.engine->claims();
  const bool pinned = pins(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(6); ++round) {
    const std::int64_t most = round == 0 && !context.quick ? 60 : 16;  // one is split over threads
    Problem problem =
        random_problem(random, {.max_chunk = most, .max_tokens = 5 * most, .max_layers = 4, .wide = false});
    Options& options = problem.options;
    options.dense = false;
    options.heavy += 1;
    options.threads = 1;
    if (rule == Select::blocks) choose_blocks(random, options);
    if (pinned) choose_pinned(random, options);
    choose_dense_below(random, problem);
    choose_dense_layers(random, problem);
    const Trace plain = run(*context.engine, problem);
    require_replay(problem, plain);
    const auto same = [&](const Problem& other, const std::string& what, bool outputs,
                          const RunStyle& style = {}) {
      Trace trace = run(*context.engine, other, style);
      if (!style.observed) {
        for (std::size_t l = 0; l < trace.layers.size(); ++l) trace.layers[l].chunks = plain.layers[l].chunks;
      }
      require_same(plain, trace, problem.describe() + "; " + what, outputs);
    };
    Problem other = problem;
    for (const int count : {2, 3, 7}) {
      other.options.threads = count;
      if (claims.bitwise_threads) same(other, fmt::format("threads 1 and {}", count), true);
    }
    other = problem;
    other.options.schedule =
        options.schedule == Schedule::layer_major ? Schedule::chunk_major : Schedule::layer_major;
    same(other, "layer-major and chunk-major", claims.bitwise_schedules);
    other = problem;
    other.shape.capacity += random.integer(1, 3000);
    same(other, "tight and roomy capacity", true);
    RunStyle style;
    style.placement = Placement::strided;
    style.layer_order.resize(static_cast<std::size_t>(problem.shape.n_layer));
    std::iota(style.layer_order.rbegin(), style.layer_order.rend(), 0);
    style.observed = false;
    same(problem, "another order of layers, and no observer", true, style);
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    Problem earlier = problem;
    earlier.steps = {Step::prefill(random.integer(1, problem.shape.capacity))};
    earlier.fill_normal(random);
    (void)run(*session, earlier);
    session->reset();
    require_same(plain, run(*session, problem), problem.describe() + "; a run after reset");
  }
}
const Register kDeterminism{{"options.determinism",
                             {"NUM-3", "SCHED-2", "MEM-7", "STATE-7"},
                             "session",
                             Lane::determinism,
                             true,
                             [](Context& context) { determinism(context, Select::h2o); }}};
const Register kBlocksDeterminism{{"blocks.options_determinism",
                                   {"NUM-3", "SCHED-2", "MEM-7", "STATE-7"},
                                   "session",
                                   Lane::determinism,
                                   true,
                                   [](Context& context) { determinism(context, Select::blocks); }}};

}  // namespace
}  // namespace headwater::conformance
