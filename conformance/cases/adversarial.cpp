// Lane adversarial: inputs that are hard for a softmax over blocks. The bounds are those of lane bound.

#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"

namespace headwater::conformance {
namespace {

// q = (1, 0, ...): the logit of key j is its first element, whatever the scale, so logits can be set one by one.
Problem with_logits(Random& random, std::int64_t n, std::int64_t s, std::int64_t local, std::int64_t heavy,
                    const std::function<double(std::int64_t)>& logit, std::int64_t heads = 1) {
  Problem problem;
  problem.shape.n_head = heads;
  problem.shape.n_head_kv = 1;
  problem.shape.d_head = 3;
  problem.shape.d_value = 5;
  problem.options.scale = 1.0;
  problem.options.chunk = s;
  problem.options.local = local;
  problem.options.heavy = heavy;
  problem.options.threads = 2;
  problem.steps = {Step::prefill(n), Step::decode(1)};
  problem.shape.capacity = n + 1;
  problem.fill_normal(random);
  for (std::int64_t t = 0; t < problem.tokens(); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      float* q = problem.layers[0].q.row(t, h);
      q[0] = 1.0f;
      q[1] = q[2] = 0.0f;
    }
    problem.layers[0].k.row(t, 0)[0] = static_cast<float>(logit(t));
  }
  return problem;
}

/// The problem as it is, and with every row rounded to BF16: an engine may have another arithmetic for that.
void conform(Context& context, const Problem& problem) {
  require_conforming(context, problem);
  require_conforming(context, in_type(problem, DType::bf16));
}

void rising_maxima(Context& context) {
  Random random(context.seed);
  for (const double step : {0.1, 1.0, 7.0, 40.0, 90.0}) {
    for (const std::int64_t tile : {1, 3, 8, 16, 64}) {
      const auto rising = [&](std::int64_t t) { return step * static_cast<double>(t / tile); };
      const auto falling = [&](std::int64_t t) { return -step * static_cast<double>(t / tile); };
      conform(context, with_logits(random, 150, 70, 5, 20, rising));
      conform(context, with_logits(random, 150, 70, 5, 20, falling));
      if (context.quick) break;
    }
  }
}
const Register kRising{
    {"adversarial.rising_maxima", {"INTRA-1", "FUSE-1"}, "softmax", Lane::adversarial, true, rising_maxima}};

// Logits of thousands: finite, and as accurate as their roundings allow (NUM-2). Powers of two make them exact, so the
// whole error is the engine's own.
void huge_logits(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(20); ++round) {
    const auto any = [&](std::int64_t) { return static_cast<double>(random.integer(-10000, 10000)); };
    conform(context, with_logits(random, 90, 32, 4, 9, any));
    const auto near_top = [&](std::int64_t) {
      return 9990.0 + 0.25 * static_cast<double>(random.integer(0, 40));
    };
    conform(context, with_logits(random, 90, 32, 4, 9, near_top));
    const auto hundred = [&](std::int64_t) { return random.uniform(-100.0, 100.0); };
    conform(context, with_logits(random, 90, 32, 4, 9, hundred));
  }
}
const Register kHuge{
    {"adversarial.huge_logits", {"NUM-2", "INTRA-1"}, "softmax", Lane::adversarial, true, huge_logits}};

// Keys with nearly all of the weight have values of zero: what is left are weights down to 2^-30, which F16 has as
// subnormals or not at all.
void small_weights(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(20); ++round) {
    const auto heavy = [](std::int64_t t) { return t % 16 == 5; };
    Problem problem = with_logits(
        random, 90, 32, 4, 9, [&](std::int64_t t) { return heavy(t) ? 0.0 : -random.uniform(4.0, 21.0); });
    for (std::int64_t t = 0; t < problem.tokens(); ++t) {
      float* v = problem.layers[0].v.row(t, 0);
      if (heavy(t)) std::fill_n(v, problem.shape.d_value, 0.0f);
    }
    require_conforming(context, problem);
    require_conforming(context, in_type(problem, DType::f16));
  }
}
const Register kSmall{
    {"adversarial.small_weights", {"INTRA-1", "NUM-1"}, "softmax", Lane::adversarial, true, small_weights}};

// Parts of a softmax that differ by more than an exponential can span: chunk far below memory and the reverse.
void far_apart_parts(Context& context) {
  Random random(context.seed);
  for (const double gap : {1.0, 20.0, 60.0, 88.0, 95.0, 104.0, 150.0, 500.0, 5000.0}) {
    for (const double sign : {1.0, -1.0}) {
      const auto parts = [&](std::int64_t t) {
        return sign * gap * static_cast<double>(t / 32 % 2) + random.normal();
      };
      conform(context, with_logits(random, 100, 32, 6, 10, parts));
      // One key far above all others, at every place of a chunk in turn.
      const std::int64_t spike = random.integer(0, 99);
      const auto spiked = [&](std::int64_t t) { return t == spike ? sign * gap : random.normal(); };
      conform(context, with_logits(random, 100, 32, 6, 10, spiked));
    }
  }
}
const Register kFarApart{{"adversarial.far_apart_parts",
                          {"FUSE-1", "INTER-2", "INTRA-2"},
                          "fusion",
                          Lane::adversarial,
                          true,
                          far_apart_parts}};

void tiny_logits_and_uniform_rows(Context& context) {
  Random random(context.seed);
  for (const double size : {0.0, 1e-30, 1e-6, 1e-3}) {
    for (const std::int64_t n : {64, 100, 130}) {
      const auto tiny = [&](std::int64_t) { return size * random.normal(); };
      conform(context, with_logits(random, n, 33, 8, 8, tiny));
      const auto equal = [&](std::int64_t) { return size; };
      conform(context, with_logits(random, n, 33, 8, 8, equal));
    }
  }
}
const Register kTiny{{"adversarial.uniform_rows",
                      {"MEM-3", "INTRA-1", "INTER-1"},
                      "softmax",
                      Lane::adversarial,
                      true,
                      tiny_logits_and_uniform_rows}};

void heavy_ties(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    const auto levels = static_cast<double>(random.integer(1, 3));
    const auto few = [&](std::int64_t) { return std::floor(random.uniform(0.0, levels)) * 3.0; };
    Problem problem = with_logits(random, random.integer(30, 120), random.integer(4, 40),
                                  random.integer(0, 9), random.integer(1, 12), few, 2);
    problem.options.score_type = round % 2 == 0 ? ScoreType::bf16 : ScoreType::f32;
    conform(context, problem);
  }
}
const Register kTies{
    {"adversarial.heavy_ties", {"MEM-3", "SCORE-6"}, "selection", Lane::adversarial, true, heavy_ties}};

void dominating_sinks(Context& context) {
  Random random(context.seed);
  for (const float sink : {-200.0f, -30.0f, 0.0f, 15.0f, 80.0f, 100.0f, 300.0f, 10000.0f}) {
    const auto any = [&](std::int64_t) { return 2.0 * random.normal(); };
    Problem problem = with_logits(random, 80, 32, 5, 7, any, 2);
    problem.options.sinks = {sink, -std::numeric_limits<float>::infinity()};
    conform(context, problem);
    // Beside a sink far above the whole chunk the column sums are tiny, not wrong; the inter pass has no sink.
    problem.options.sinks = {-sink, sink};
    conform(context, problem);
  }
}
const Register kDominating{{"adversarial.dominating_sinks",
                            {"LOGIT-4", "INTER-1"},
                            "logits",
                            Lane::adversarial,
                            true,
                            dominating_sinks}};

// Values over 60 orders of magnitude, of both signs: a bound relative to sum w|v| column by column.
void value_magnitudes(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(20); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 24, .max_tokens = 100, .dtypes = false});
    for (float& x : problem.layers[0].v.values) {
      x = static_cast<float>(random.normal() * std::pow(10.0, random.uniform(-30.0, 30.0)));
    }
    conform(context, problem);
  }
}
const Register kMagnitudes{{"adversarial.value_magnitudes",
                            {"INTRA-1", "FUSE-2"},
                            "attention",
                            Lane::adversarial,
                            true,
                            value_magnitudes}};

// One head of several has huge rows, which must not change the others.
void one_head_spikes(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(15); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 20, .max_tokens = 80, .dtypes = false});
    const std::int64_t head = random.integer(0, problem.shape.n_head_kv - 1);
    LayerInput& layer = problem.layers[0];
    for (std::int64_t t = 0; t < problem.tokens(); ++t) {
      for (std::int64_t x = 0; x < problem.shape.d_head; ++x) layer.k.row(t, head)[x] *= 8.0f;
      for (std::int64_t x = 0; x < problem.shape.d_value; ++x) layer.v.row(t, head)[x] *= 1e6f;
    }
    conform(context, problem);
  }
}
const Register kSpikes{{"adversarial.one_head_spikes",
                        {"MEM-6", "NUM-2"},
                        "attention",
                        Lane::adversarial,
                        true,
                        one_head_spikes}};

// Far positions of ALiBi: the bias is large and of both signs while logits are small.
void steep_alibi(Context& context) {
  Random random(context.seed);
  for (const float slope : {-1.0f, 1.0f, 8.0f, 50.0f, -8.0f}) {
    const auto any = [&](std::int64_t) { return random.normal(); };
    Problem problem = with_logits(random, 120, 40, 6, 10, any, 2);
    problem.options.alibi = {slope, -slope / 2};
    conform(context, problem);
    problem.options.softcap = 3.0;
    conform(context, problem);
  }
}
const Register kSteep{
    {"adversarial.steep_alibi", {"LOGIT-3", "LOGIT-2"}, "logits", Lane::adversarial, true, steep_alibi}};

// Saturated caps: logits far beyond +-t, and close to 0 where tanh is linear.
void saturated_caps(Context& context) {
  Random random(context.seed);
  for (const double cap : {0.25, 5.0, 50.0}) {
    for (const double size : {1e-4, 0.3, 1.0, 4.0, 30.0, 1000.0}) {
      const auto any = [&](std::int64_t) { return cap * size * random.normal(); };
      Problem problem = with_logits(random, 70, 24, 5, 6, any);
      problem.options.softcap = cap;
      conform(context, problem);
    }
  }
}
const Register kSaturated{
    {"adversarial.saturated_caps", {"LOGIT-2"}, "logits", Lane::adversarial, true, saturated_caps}};

}  // namespace
}  // namespace headwater::conformance
