// CFG-1..4 at the boundary of every engine: what is refused, what is clamped, what is said.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/replay.hpp"
#include "conformance/run.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr std::int64_t kMostExtent = 65536;
constexpr std::int64_t kMostPositions = 2147483647;

struct Request {
  Shape shape{.n_layer = 1,
              .n_head = 4,
              .n_head_kv = 2,
              .d_head = 4,
              .d_value = 4,
              .capacity = 16,
              .kv_type = DType::f32};
  Options options;
};

struct SizeField {
  const char* name;
  std::int64_t Shape::*shape;
  std::int64_t Options::*option;
  std::int64_t least;
  std::int64_t most;  // 0: not tried here
};

constexpr SizeField kSizes[] = {
    {"n_layer", &Shape::n_layer, nullptr, 1, kMostExtent},
    {"n_head", &Shape::n_head, nullptr, 1, kMostExtent},
    {"n_head_kv", &Shape::n_head_kv, nullptr, 1, kMostExtent},
    {"d_head", &Shape::d_head, nullptr, 1, kMostExtent},
    {"d_value", &Shape::d_value, nullptr, 1, kMostExtent},
    {"capacity", &Shape::capacity, nullptr, 1, kMostPositions},
    {"batch", nullptr, &Options::batch, 1, 0},
    {"chunk", nullptr, &Options::chunk, 1, 0},
    {"local", nullptr, &Options::local, 0, 0},
    {"heavy", nullptr, &Options::heavy, 0, 0},
};

void refused(Context& context) {
  const Engine& engine = *context.engine;
  for (const SizeField& field : kSizes) {
    std::vector<std::int64_t> bad{field.least - 1, -1, -1000000, std::numeric_limits<std::int64_t>::min()};
    if (field.most > 0) {
      bad.push_back(field.most + 1);
      bad.push_back(std::numeric_limits<std::int64_t>::max());
    }
    for (const std::int64_t value : bad) {
      Request request;
      (field.shape != nullptr ? request.shape.*field.shape : request.options.*field.option) = value;
      require_refused(engine, request.shape, request.options, field.name, std::to_string(value));
    }
  }
  for (const auto& [heads, heads_kv] : {std::pair{4, 3}, std::pair{2, 4}, std::pair{7, 2}, std::pair{1, 2}}) {
    Request request;
    request.shape.n_head = heads;
    request.shape.n_head_kv = heads_kv;
    require_refused(engine, request.shape, request.options, "n_head", std::to_string(heads));
    require_refused(engine, request.shape, request.options, "n_head_kv", std::to_string(heads_kv));
  }
  for (const int threads : {-1, 513, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    Request request;
    request.options.threads = threads;
    require_refused(engine, request.shape, request.options, "threads", std::to_string(threads));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [value, text] :
       {std::pair{infinity, "inf"}, std::pair{-infinity, "inf"}, std::pair{nan, "nan"}}) {
    Request request;
    request.options.scale = value;
    require_refused(engine, request.shape, request.options, "scale", text);
    request = {};
    request.options.softcap = value;
    require_refused(engine, request.shape, request.options, "softcap", text);
    request = {};
    request.options.alibi.assign(4, 0.5f);
    request.options.alibi[2] = static_cast<float>(value);
    require_refused(engine, request.shape, request.options, "alibi", text);
  }
  Request request;
  request.options.softcap = -1.0;
  require_refused(engine, request.shape, request.options, "softcap", "-1");
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    request = {};
    request.options.sinks.assign(4, 0.5f);
    request.options.sinks[3] = value;
    require_refused(engine, request.shape, request.options, "sinks", std::isnan(value) ? "nan" : "inf");
  }
  for (const std::size_t size : {1u, 2u, 3u, 5u, 8u}) {
    request = {};
    request.options.sinks.assign(size, 0.5f);
    require_refused(engine, request.shape, request.options, "sinks", std::to_string(size));
    request = {};
    request.options.alibi.assign(size, 0.5f);
    require_refused(engine, request.shape, request.options, "alibi", std::to_string(size));
  }
  request = {};
  request.shape.kv_type = static_cast<DType>(3);
  require_refused(engine, request.shape, request.options, "kv_type", "3");
  request = {};
  request.options.score_type = static_cast<ScoreType>(2);
  require_refused(engine, request.shape, request.options, "score_type", "2");
  request = {};
  request.options.schedule = static_cast<Schedule>(2);
  require_refused(engine, request.shape, request.options, "schedule", "2");
}
const Register kRefused{{"config.refused", {"CFG-1"}, "config", Lane::state, true, refused}};

// Sizes whose product overflows or that no machine holds: an Error, no crash, no attempt to take the memory.
void too_large(Context& context) {
  for (const std::int64_t capacity : {kMostPositions, kMostPositions / 2}) {
    Request request;
    request.shape = {.n_layer = kMostExtent,
                     .n_head = kMostExtent,
                     .n_head_kv = kMostExtent,
                     .d_head = kMostExtent,
                     .d_value = kMostExtent,
                     .capacity = capacity,
                     .kv_type = DType::f32};
    try {
      (void)context.engine->open(request.shape, request.options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory && error.code() != ErrorCode::invalid_argument) {
        throw Violation(
            fmt::format("refused with code {}: {}", static_cast<int>(error.code()), error.what()));
      }
      continue;
    }
    throw Violation("2^80 elements were accepted");
  }
}
const Register kTooLarge{{"config.too_large", {"CFG-1"}, "config", Lane::hostile, true, too_large}};

// Budgets beyond the chunk are clamped, never rejected (CFG-3), however large they are.
void huge_budgets(Context& context) {
  Request most;
  most.options.local = most.options.heavy = kMostPositions;
  most.options.clamp = false;  // no set holds that many 32-bit positions
  require_refused(*context.engine, most.shape, most.options, "local + heavy",
                  std::to_string(2 * kMostPositions));
  for (const std::int64_t local : {std::int64_t{0}, std::int64_t{100}, kMostPositions}) {
    for (const std::int64_t heavy : {std::int64_t{0}, std::int64_t{100}, kMostPositions}) {
      Request request;
      request.options.chunk = 10;
      request.options.batch = 20;
      request.options.local = local;
      request.options.heavy = heavy;
      const std::unique_ptr<Session> session = context.engine->open(request.shape, request.options);
      const EffectiveOptions wanted = expected_options(request.shape, request.options);
      const EffectiveOptions& got = session->options();
      if (got.local != wanted.local || got.heavy != wanted.heavy) {
        throw Violation(fmt::format("L {} H {} became L {} H {}", local, heavy, got.local, got.heavy));
      }
      request.options.dense = true;
      if (context.engine->open(request.shape, request.options)->options().sparse)
        throw Violation("dense is sparse");
    }
  }
}
const Register kHugeBudgets{
    {"config.huge_budgets", {"CFG-3", "CFG-2"}, "config", Lane::state, true, huge_budgets}};

void limits(Context& context) {
  // The largest extents, one at a time, are accepted.
  for (const SizeField& field : kSizes) {
    if (field.most == 0 || std::string(field.name) == "capacity") continue;
    Request request;
    request.shape.capacity = 1;
    request.shape.*field.shape = field.most;
    if (std::string(field.name) == "n_head_kv") request.shape.n_head = field.most;
    request.options.threads = 1;
    const std::unique_ptr<Session> session = context.engine->open(request.shape, request.options);
    if (session->shape().*field.shape != field.most)
      throw Violation(std::string(field.name) + ": shape() differs");
  }
  // The least of everything works, too.
  Problem least;
  least.shape = {.n_layer = 1,
                 .n_head = 1,
                 .n_head_kv = 1,
                 .d_head = 1,
                 .d_value = 1,
                 .capacity = 1,
                 .kv_type = DType::f32};
  least.options.batch = least.options.chunk = 1;
  least.options.local = least.options.heavy = 0;
  least.options.threads = 1;
  least.options.sinks = {-std::numeric_limits<float>::infinity()};
  least.options.alibi = {0.0f};
  least.steps = {Step::prefill(1)};
  Random random(context.seed);
  least.fill_normal(random);
  const Trace trace = run(*context.engine, least);
  require_replay(least, trace);
  Request request;
  request.options.threads = 512;
  (void)context.engine->open(request.shape, request.options);
}
const Register kLimits{{"config.limits", {"CFG-1"}, "config", Lane::state, true, limits}};

// What a session calls effective is what CFG-2..4 say, and every change is a warning that names the numbers.
void effective(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(400); ++round) {
    Request request;
    Options& options = request.options;
    options.chunk = random.integer(1, 12);
    options.batch = random.integer(1, 40);
    options.local = random.integer(0, 14);
    options.heavy = random.integer(0, 14);
    options.clamp = random.chance(0.6);
    options.dense = random.chance(0.1);
    options.schedule = random.chance(0.5) ? Schedule::layer_major : Schedule::chunk_major;
    options.score_type = random.chance(0.5) ? ScoreType::bf16 : ScoreType::f32;
    options.threads = static_cast<int>(random.integer(1, 3));
    options.softcap = random.chance(0.5) ? 0.0 : 12.5;
    if (random.chance(0.5)) options.scale = random.uniform(-2.0, 2.0);
    request.shape.d_head = random.integer(1, 9);
    const std::unique_ptr<Session> session = context.engine->open(request.shape, options);
    const EffectiveOptions got = session->options();
    const EffectiveOptions wanted = expected_options(request.shape, options);
    const std::string asked =
        fmt::format("S {} B {} L {} H {} clamp {} dense {}", options.chunk, options.batch, options.local,
                    options.heavy, options.clamp, options.dense);
    if (got.batch != wanted.batch || got.chunk != wanted.chunk || got.local != wanted.local ||
        got.heavy != wanted.heavy || got.sparse != wanted.sparse ||
        got.memory() != wanted.local + wanted.heavy) {
      throw Violation(fmt::format("{} became S {} B {} L {} H {} sparse {}", asked, got.chunk, got.batch,
                                  got.local, got.heavy, got.sparse));
    }
    if (got.scale != wanted.scale || got.softcap != wanted.softcap || got.score_type != wanted.score_type ||
        got.schedule != wanted.schedule) {
      throw Violation("scale, softcap, score type or schedule changed: " + asked);
    }
    if (got.threads != options.threads && got.threads != 1)
      throw Violation(fmt::format("threads became {}", got.threads));
    const auto says = [&](std::int64_t a, std::int64_t b) {
      return std::any_of(got.warnings.begin(), got.warnings.end(), [&](const std::string& line) {
        return line.find(std::to_string(a)) != std::string::npos &&
               line.find(std::to_string(b)) != std::string::npos && line.find('\n') == std::string::npos;
      });
    };
    std::size_t warnings = 0;
    if (options.batch < options.chunk || options.batch % options.chunk != 0) {
      ++warnings;
      if (!says(options.batch, options.chunk)) throw Violation("no warning of the batch: " + asked);
    }
    if (wanted.local + wanted.heavy < options.local + options.heavy && !options.dense) {
      ++warnings;
      if (!says(wanted.local, wanted.heavy)) throw Violation("no warning of the clamp: " + asked);
    }
    if (got.warnings.size() != warnings) {
      throw Violation(fmt::format("{} warnings, not {}: {}", got.warnings.size(), warnings, asked));
    }
  }
}
const Register kEffective{
    {"config.effective", {"CFG-2", "CFG-3", "CFG-4"}, "config", Lane::state, true, effective}};

// threads = 0 is what OpenMP would use, and the default scale is 1/sqrt(d) in double.
void defaults(Context& context) {
  Request request;
  request.options.threads = 0;
  const std::unique_ptr<Session> session = context.engine->open(request.shape, request.options);
  const int threads = session->options().threads;
  if (threads < 1 || threads > 512) throw Violation(fmt::format("threads = 0 became {}", threads));
  if (session->options().scale != 0.5) throw Violation("the default scale is not 1/sqrt(d)");
  if (session->state() != SessionState::empty || session->tokens() != 0 || !session->plan().empty()) {
    throw Violation("a new session is not empty");
  }
  if (session->options().batch != 4096 || session->options().chunk != 1024 ||
      session->options().local != 256 || session->options().heavy != 256) {
    throw Violation("the defaults are not B 4096, S 1024, L 256, H 256");
  }
}
const Register kDefaults{
    {"config.defaults", {"CFG-1", "LOGIT-1", "STATE-1"}, "config", Lane::state, true, defaults}};

}  // namespace
}  // namespace headwater::conformance
