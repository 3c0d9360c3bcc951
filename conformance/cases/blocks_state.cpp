// SEL-1 at the boundary of every engine, and what a session under rule `blocks` shows (SEL-9).

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/replay.hpp"
#include "conformance/run.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

struct Request {
  Shape shape{.n_layer = 1,
              .n_head = 4,
              .n_head_kv = 2,
              .d_head = 4,
              .d_value = 4,
              .capacity = 16,
              .kv_type = DType::f32};
  Options options;

  Request() { options.select = Select::blocks; }
};

void refused(Context& context) {
  const Engine& engine = *context.engine;
  require_rule_blocks(engine);
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  struct Field {
    const char* name;
    std::int64_t Options::*member;
    std::vector<std::int64_t> bad;
  };
  const std::vector<Field> fields{
      {"key_block", &Options::key_block, {0, -1, kLeast, 257, 512, kMost}},
      {"query_block", &Options::query_block, {0, -1, kLeast, 1025, kMost}},  // S is 1024
      {"pool", &Options::pool, {0, -1, kLeast, 3, 5, 33, 64, kMost}},        // Q is 32
      {"refine", &Options::refine, {0, -1, kLeast, 17, kMost}},
  };
  for (const Field& field : fields) {
    for (const std::int64_t value : field.bad) {
      Request request;
      request.options.*field.member = value;
      require_refused(engine, request.shape, request.options, field.name, std::to_string(value));
      request.options.dense = true;  // SEL-1 does not ask whether the path is on
      require_refused(engine, request.shape, request.options, field.name, std::to_string(value));
    }
  }
  // Beyond a small chunk; at the chunk they are legal.
  for (const std::int64_t size : {16, 17}) {
    Request request;
    request.options.chunk = 16;
    request.options.heavy = 0;
    request.options.key_block = size;
    request.options.query_block = 16;
    if (size == 16) {
      (void)engine.open(request.shape, request.options);
    } else {
      require_refused(engine, request.shape, request.options, "key_block", std::to_string(size));
    }
    request.options.key_block = 8;
    request.options.query_block = request.options.pool = size;
    if (size == 16) {
      (void)engine.open(request.shape, request.options);
    } else {
      require_refused(engine, request.shape, request.options, "query_block", std::to_string(size));
    }
  }
  // Budgets of half a block.
  for (const std::int64_t heavy : {1, 7, 9, 255, 257}) {
    Request request;
    request.options.heavy = heavy;
    require_refused(engine, request.shape, request.options, "heavy", std::to_string(heavy));
    require_refused(engine, request.shape, request.options, "key_block", std::to_string(8));
  }
  for (const int select : {3, 255}) {
    Request request;
    request.options.select = static_cast<Select>(select);
    require_refused(engine, request.shape, request.options, "select", std::to_string(select));
  }
}
const Register kRefused{{"blocks.refused", {"SEL-1", "CFG-1"}, "config", Lane::state, true, refused}};

// The largest and the smallest sizes are legal, and with h2o the four are not read.
void limits(Context& context) {
  require_rule_blocks(*context.engine);
  Request request;
  request.options.key_block = 256;
  request.options.query_block = request.options.pool = 1024;
  request.options.refine = 16;
  request.options.heavy = 512;
  (void)context.engine->open(request.shape, request.options);
  request.options = {};
  request.options.select = Select::blocks;
  request.options.key_block = request.options.query_block = request.options.pool = request.options.refine = 1;
  (void)context.engine->open(request.shape, request.options);

  Random random(context.seed);
  Problem problem = random_problem(random, {.max_chunk = 12, .max_tokens = 60, .wide = false});
  const Trace plain = run(*context.engine, problem);
  problem.options.key_block = -7;
  problem.options.query_block = 0;
  problem.options.pool = std::numeric_limits<std::int64_t>::max();
  problem.options.refine = -1;
  require_same(plain, run(*context.engine, problem), "h2o with sizes that are not read");
  const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
  const EffectiveOptions& got = session->options();
  if (got.select != Select::h2o || got.key_block != 0 || got.query_block != 0 || got.pool != 0 ||
      got.refine != 0) {
    throw Violation("effective sizes of rule blocks are not 0 with h2o");
  }
}
const Register kLimits{{"blocks.limits", {"SEL-1"}, "config", Lane::state, true, limits}};

// What a session calls effective: the sizes as asked, a clamped H' rounded down to whole key blocks (CFG-3), and one warning
// of that with the numbers.
void effective(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(300); ++round) {
    Request request;
    Options& options = request.options;
    options.chunk = random.integer(1, 40);
    options.batch = options.chunk * random.integer(1, 3);
    options.key_block = random.integer(1, options.chunk);
    options.pool = random.integer(1, options.chunk);
    options.query_block = options.pool * random.integer(1, options.chunk / options.pool);
    options.refine = random.integer(1, 16);
    options.local = random.integer(0, 45);
    options.heavy = options.key_block * random.integer(0, 8);
    options.clamp = random.chance(0.7);
    options.dense = random.chance(0.1);
    const std::unique_ptr<Session> session = context.engine->open(request.shape, options);
    const EffectiveOptions& got = session->options();
    const EffectiveOptions wanted = expected_options(request.shape, options);
    const std::string asked = fmt::format(
        "S {} L {} H {} K {} Q {} P {} R {} clamp {} dense {}", options.chunk, options.local, options.heavy,
        options.key_block, options.query_block, options.pool, options.refine, options.clamp, options.dense);
    if (got.local != wanted.local || got.heavy != wanted.heavy || got.sparse != wanted.sparse) {
      throw Violation(fmt::format("{} became L {} H {} sparse {}, wanted L {} H {} sparse {}", asked,
                                  got.local, got.heavy, got.sparse, wanted.local, wanted.heavy,
                                  wanted.sparse));
    }
    if (got.select != Select::blocks || got.key_block != options.key_block ||
        got.query_block != options.query_block || got.pool != options.pool || got.refine != options.refine) {
      throw Violation(fmt::format("{} became K {} Q {} P {} R {}", asked, got.key_block, got.query_block,
                                  got.pool, got.refine));
    }
    const bool clamped = !options.dense && wanted.local + wanted.heavy < options.local + options.heavy;
    if (got.warnings.size() != (clamped ? 1u : 0u)) {
      throw Violation(fmt::format("{} warnings: {}", got.warnings.size(), asked));
    }
    if (!clamped) continue;
    const std::string& line = got.warnings.front();
    if (line.find(std::to_string(wanted.local)) == std::string::npos ||
        line.find(std::to_string(wanted.heavy)) == std::string::npos ||
        line.find('\n') != std::string::npos) {
      throw Violation(
          fmt::format("the warning names not L {} and H {}: {}", wanted.local, wanted.heavy, line));
    }
  }
}
const Register kEffective{{"blocks.effective", {"SEL-1", "CFG-3"}, "config", Lane::state, true, effective}};

// Between the steps of a session: scores 0, no set, whatever the step was; and its records say as much (SEL-9).
void nothing_kept(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    const Problem problem =
        with_blocks(random, random_problem(random, {.max_chunk = 16, .max_tokens = 90, .wide = false}));
    const Trace trace = run(*context.engine, problem);
    for (const LayerTrace& layer : trace.layers) {
      for (const Snapshot& shot : layer.snapshots) {
        const bool zero =
            std::all_of(shot.scores.begin(), shot.scores.end(), [](std::uint32_t bits) { return bits == 0; });
        if (!zero || shot.memory_count != 0 || !shot.memory.empty()) {
          throw Violation(
              fmt::format("{}: scores or sets are left after a step; {}", "SEL-9", problem.describe()));
        }
      }
      for (const ChunkTrace& chunk : layer.chunks) {
        if (!chunk.colsum_intra.empty() || !chunk.colsum_inter.empty())
          throw Violation("SEL-9: column sums are reported; " + problem.describe());
      }
    }
  }
}
const Register kNothingKept{
    {"blocks.nothing_kept", {"SEL-9", "SCORE-1"}, "session", Lane::state, true, nothing_kept}};

}  // namespace
}  // namespace headwater::conformance
