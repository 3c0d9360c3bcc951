// Options of single layers (LAYER-1) and windows (MASK-2), under both rules.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/forced.hpp"
#include "conformance/replay.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

constexpr float kNoSink = -std::numeric_limits<float>::infinity();

std::vector<float> random_sinks(Random& random, std::int64_t heads) {
  std::vector<float> sinks;
  for (std::int64_t h = 0; h < heads; ++h)
    sinks.push_back(random.chance(0.2) ? kNoSink : static_cast<float>(random.uniform(-4.0, 6.0)));
  return sinks;
}

// Every field said or not, windows from one key to more than there are; half of the problems have layers of several widths.
void choose_layers(Random& random, Problem& problem) {
  problem.options.layers.assign(static_cast<std::size_t>(problem.shape.n_layer), {});
  if (random.chance(0.5)) choose_widths(random, problem);
  for (LayerOptions& own : problem.options.layers) {
    if (random.chance(0.5)) own.window = random.integer(1, problem.tokens() + 3);
    if (random.chance(0.4)) own.scale = random.pick(std::vector<double>{0.5, -0.25, 0.125, 0.0});
    if (random.chance(0.4)) own.softcap = random.pick(std::vector<double>{0.0, 3.0, 30.0});
    if (random.chance(0.4)) own.sinks = random_sinks(random, random.chance(0.2) ? 0 : problem.shape.n_head);
  }
  problem.fill_normal(random);  // rows of other widths than before
}

Problem random_layers(Random& random, const Engine& engine, Select rule, const Variety& variety) {
  Problem problem = session_problem(random, engine, rule, variety);
  choose_layers(random, problem);
  return problem;
}

void require_layers(const Engine& engine) { require_claim(engine, &Claims::layers, "layers"); }

void bound(Context& context) {
  require_layers(*context.engine);
  Random random(context.seed);
  for (const Select rule : rules(*context.engine)) {
    for (int round = 0; round < context.rounds(30); ++round) {
      require_conforming(context,
                         random_layers(random, *context.engine, rule,
                                       {.max_chunk = 20, .max_tokens = 90, .max_layers = 4, .wide = false}),
                         {}, round % 2 == 0 ? Truth::eigen : Truth::reference);
    }
  }
}
const Register kBound{{"options.layers_bound",
                       {"LAYER-1", "MASK-2", "LOGIT-1", "LOGIT-2", "LOGIT-4"},
                       "logits",
                       Lane::bound,
                       true,
                       bound}};

// A layer whose scale, cap, sinks and widths are its own has the bits of a session where all layers have them.
void law(Context& context) {
  require_layers(*context.engine);
  Random random(context.seed);
  for (const Select rule : rules(*context.engine)) {
    for (int round = 0; round < context.rounds(12); ++round) {
      Problem problem =
          random_layers(random, *context.engine, rule, {.max_chunk = 16, .max_tokens = 80, .max_layers = 4});
      for (LayerOptions& own : problem.options.layers) own.window = 0;
      const Trace some = run(*context.engine, problem);
      for (std::size_t layer = 0; layer < some.layers.size(); ++layer) {
        const LayerOptions& own = problem.options.layers[layer];
        Problem alike = problem;
        alike.options.layers.clear();
        const auto index = static_cast<std::int64_t>(layer);
        alike.shape.d_head = problem.layer_shape(index).d_head;
        alike.shape.d_value = problem.layer_shape(index).d_value;
        alike.fill_normal(random);
        alike.layers[layer] = problem.layers[layer];
        if (own.scale) alike.options.scale = own.scale;
        if (own.softcap) alike.options.softcap = *own.softcap;
        if (own.sinks) alike.options.sinks = *own.sinks;
        const Trace all = run(*context.engine, alike);
        require_same(
            {some.plans, {some.layers[layer]}}, {all.plans, {all.layers[layer]}},
            fmt::format("layer {}, its own options and the session's; {}", layer, problem.describe()));
      }
    }
  }
}
const Register kLaw{{"options.layers_law", {"LAYER-1"}, "logits", Lane::law, true, law}};

// Rows far outside a window are not even read: a NaN there reaches nothing.
void unread(Context& context) {
  require_layers(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(12); ++round) {
    Problem problem = session_problem(random, *context.engine, Select::h2o,
                                      {.max_chunk = 20, .max_tokens = 90, .max_layers = 1, .wide = false});
    const std::int64_t window = random.integer(1, 20);
    const std::int64_t tail = random.integer(1, 12);
    const std::int64_t before = window + 255 + random.integer(1, 50);
    problem.options.layers = {{.window = window}};
    problem.steps = {Step::prefill(before), random.chance(0.5) ? Step::decode(tail) : Step::prefill(tail)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    const Trace clean = run(*context.engine, problem);
    Problem spoiled = problem;
    for (Tensor* rows : {&spoiled.layers[0].k, &spoiled.layers[0].v}) {
      const auto lost =
          static_cast<std::ptrdiff_t>(rows->values.size()) / problem.tokens() * (before - window - 255);
      std::fill_n(rows->values.begin(), lost, std::numeric_limits<float>::quiet_NaN());
    }
    const Trace some = run(*context.engine, spoiled);
    const std::int64_t row = problem.out_row(0);
    if (!std::equal(clean.layers[0].out.begin() + before * row, clean.layers[0].out.end(),
                    some.layers[0].out.begin() + before * row, some.layers[0].out.end())) {
      throw Violation(
          fmt::format("rows before a window of {} reach an output; {}", window, problem.describe()));
    }
  }
}
const Register kUnread{{"options.window_unread", {"MASK-2", "NUM-2"}, "mask", Lane::hostile, true, unread}};

// Windows around the sizes at which engines take keys: tiles, segments, groups and splits.
void sizes(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  require_layers(*context.engine);
  const std::vector<std::int64_t> windows{31, 32, 33, 127, 129, 255, 256, 257, 1023, 1025, 4095, 4097};
  Random random(context.seed);
  for (const DType type : {DType::f32, DType::bf16}) {
    Problem problem;
    problem.shape.n_layer = std::ssize(windows);
    problem.shape.d_head = problem.shape.d_value = 16;
    problem.shape.kv_type = problem.q_type = problem.k_type = problem.v_type = type;
    for (const std::int64_t window : windows) problem.options.layers.push_back({.window = window});
    problem.options.threads = context.threads;
    problem.steps = {Step::prefill(4200), Step::decode(1), Step::prefill(131), Step::decode(5)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    require_conforming_in_part(context, problem, {.border = 64});
  }
}
const Register kSizes{{"options.window_sizes", {"MASK-2", "DEC-1"}, "mask", Lane::shape, true, sizes}};

// Layers of the widths that models have, in one session: narrower and wider than the shape's, odd multiples of what kernels
// take, a layer with a window and a dense one among them.
void widths(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  require_layers(*context.engine);
  Random random(context.seed);
  for (const Select rule : rules(*context.engine)) {
    // Each rule with two types.
    for (const DType type : context.types({rule == Select::h2o ? DType::f32 : DType::f16, DType::bf16})) {
      Problem problem;
      const std::int64_t heads = type == DType::f32 ? 4 : 2;  // query heads
      problem.shape = {.n_layer = 6, .n_head = heads, .n_head_kv = 2, .d_head = 128, .d_value = 128};
      problem.shape.kv_type = problem.q_type = problem.k_type = problem.v_type = type;
      problem.options.layers = {{.d_head = 64, .d_value = 64},
                                {.d_head = 256, .d_value = 256},
                                {},
                                {.window = 300, .d_head = 256},
                                {.d_head = 192},
                                {.d_head = 80, .d_value = 96}};
      problem.options.dense_layers = {4};
      problem.options.select = rule;
      problem.options.chunk = 512;
      problem.options.local = problem.options.heavy = 128;
      problem.options.threads = context.threads;
      problem.steps = {Step::prefill(1200), Step::decode(1), Step::prefill(600), Step::decode(5)};
      problem.shape.capacity = problem.tokens();
      problem.fill_normal(random);
      require_conforming_in_part(context, problem, {.border = 32});
    }
  }
}
const Register kWidths{
    {"options.layer_widths", {"LAYER-1", "LOGIT-1", "SEL-3"}, "logits", Lane::shape, true, widths}};

void refusals(Context& context) {
  require_layers(*context.engine);
  const Shape shape{.n_layer = 3, .n_head = 2, .n_head_kv = 1, .d_head = 4, .d_value = 4, .capacity = 16};
  const auto refuse = [&](const std::vector<LayerOptions>& layers, const std::string& field,
                          const char* text) {
    Options options;
    options.layers = layers;
    require_refused(*context.engine, shape, options, field, text);
  };
  for (const std::size_t size : {1u, 2u, 4u, 70000u})
    refuse(std::vector<LayerOptions>(size), "layer", std::to_string(size).c_str());  // C: layer_count
  const auto last = [&](const LayerOptions& own) { return std::vector<LayerOptions>{{}, {}, own}; };
  refuse(last({.window = -1}), "layers[2].window", "-1");
  refuse(last({.window = std::int64_t{1} << 31}), "layers[2].window", "2147483648");
  for (const auto& [value, text] :
       {std::pair{std::nan(""), "nan"}, std::pair{std::numeric_limits<double>::infinity(), "inf"}}) {
    refuse(last({.scale = value}), "layers[2].scale", text);
    refuse(last({.softcap = value}), "layers[2].softcap", text);
  }
  refuse(last({.softcap = -1.0}), "layers[2].softcap", "-1");
  for (const auto& [value, text] : {std::pair{-1, "-1"}, std::pair{65537, "65537"}}) {
    refuse(last({.d_head = value}), "layers[2].d_head", text);
    refuse(last({.d_value = value}), "layers[2].d_value", text);
  }
  refuse(last({.sinks = std::vector<float>(3)}), "layers[2].sinks", "3");
  refuse(last({.sinks = std::vector<float>{0.0f, std::nanf("")}}), "layers[2].sinks[1]", "nan");
  Options most;
  most.layers.assign(3, {.window = (std::int64_t{1} << 31) - 1, .sinks = std::vector<float>(2, kNoSink)});
  (void)context.engine->open(shape, most);
}
const Register kRefusals{
    {"options.layers_refused", {"LAYER-1", "CFG-1"}, "config", Lane::state, true, refusals}};

}  // namespace
}  // namespace headwater::conformance
