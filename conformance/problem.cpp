#include "conformance/problem.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/formats.hpp"

namespace headwater::conformance {

Tensor::Tensor(DType type_, std::int64_t n_, std::int64_t heads_, std::int64_t width_)
    : type(type_),
      n(n_),
      heads(heads_),
      width(width_),
      values(static_cast<std::size_t>(n_ * heads_ * width_)) {}

std::int64_t Problem::tokens() const {
  std::int64_t total = 0;
  for (const Step& step : steps) total += step.n;
  return total;
}

std::string Problem::dtype() const {
  const std::string q = dtype_name(q_type);
  const std::string kv = dtype_name(shape.kv_type);
  return q == kv ? q : q + "/" + kv;
}

std::string Problem::describe() const {
  std::string text =
      fmt::format("layers {} heads {}/{} d {}/{} cap {} q {} k {} v {} kv {} out {} S {} B {} L {} H {}",
                  shape.n_layer, shape.n_head, shape.n_head_kv, shape.d_head, shape.d_value, shape.capacity,
                  dtype_name(q_type), dtype_name(k_type), dtype_name(v_type), dtype_name(shape.kv_type),
                  dtype_name(out_type), options.chunk, options.batch, options.local, options.heavy);
  if (options.select == Select::blocks) {
    text += fmt::format(" blocks K {} Q {} P {} R {}", options.key_block, options.query_block, options.pool,
                        options.refine);
  }
  if (options.select == Select::sketches) {
    text += fmt::format(" sketches Q {} W {}", options.query_block, options.least_weight);
  }
  if (options.pinned != 0) text += fmt::format(" A {}", options.pinned);
  if (options.dense_below != 0) text += fmt::format(" D {}", options.dense_below);
  if (!options.dense_layers.empty()) {
    text += fmt::format(" dense-layers {}", fmt::join(options.dense_layers, ","));
  }
  if (!options.layers.empty()) {
    text += " layers";
    for (const LayerOptions& layer : options.layers) {
      text += fmt::format(
          " w{}{}{}{}", layer.window, layer.scale ? fmt::format(" scale {}", *layer.scale) : "",
          layer.softcap ? fmt::format(" cap {}", *layer.softcap) : "", layer.sinks ? " sinks" : "");
      if (layer.d_head > 0) text += fmt::format(" d{}", layer.d_head);
      if (layer.d_value > 0) text += fmt::format(" dv{}", layer.d_value);
    }
  }
  if (options.page != Options().page) text += fmt::format(" page {}", options.page);
  if (options.kv_bits != 0) text += fmt::format(" kv-bits {}", options.kv_bits);
  if (!options.clamp) text += " no-clamp";
  if (options.dense) text += " dense";
  if (options.scale) text += fmt::format(" scale {}", *options.scale);
  if (options.softcap > 0) text += fmt::format(" cap {}", options.softcap);
  if (!options.sinks.empty()) text += " sinks";
  if (!options.alibi.empty()) text += " alibi";
  if (options.score_type == ScoreType::f32) text += " score-f32";
  text += options.schedule == Schedule::layer_major ? " layer-major" : " chunk-major";
  text += fmt::format(" threads {} steps ", options.threads);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (i > 0) text += ",";
    text += step.kind == Step::Kind::decode ? "d" : "p";
    text += std::to_string(step.n);
    if (step.turn_length != 0) text += fmt::format(":{}", step.turn_length);
  }
  return text;
}

void Problem::make_tensors() {
  const std::int64_t n = tokens();
  layers.clear();
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const Shape own = layer_shape(layer);
    layers.push_back({Tensor(q_type, n, own.n_head, own.d_head), Tensor(k_type, n, own.n_head_kv, own.d_head),
                      Tensor(v_type, n, own.n_head_kv, own.d_value)});
  }
}

void Problem::fill_normal(Random& random, double spread) {
  make_tensors();
  for (LayerInput& layer : layers) {
    const double root = std::sqrt(static_cast<double>(layer.q.width));
    // q . k has deviation sqrt(d) * dev_q; a vanishing or negative scale keeps plain normal rows.
    const double product = std::fabs(options.scale.value_or(1.0 / root)) * root;
    const double q_deviation = product > 1e-3 ? std::min(spread / product, 64.0) : 1.0;
    for (float& x : layer.q.values) x = round_to(q_type, static_cast<float>(q_deviation * random.normal()));
    for (float& x : layer.k.values) x = round_to(k_type, static_cast<float>(random.normal()));
    for (float& x : layer.v.values) x = round_to(v_type, static_cast<float>(random.normal()));
  }
}

namespace {

DType random_dtype(Random& random) {
  return random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16});
}

// Sizes around the edges of chunks: N in {1, S-1, S, S+1, 2S-1, 2S, 2S+1, kS+1} or anything.
std::int64_t random_tokens(Random& random, std::int64_t s, std::int64_t most) {
  const std::int64_t k = random.integer(1, 6);
  const std::int64_t n =
      random.pick(std::vector<std::int64_t>{1, s - 1, s, s + 1, 2 * s - 1, 2 * s, 2 * s + 1, k * s, k * s + 1,
                                            k * s + s / 2, random.integer(1, most)});
  return std::clamp<std::int64_t>(n, 1, most);
}

// A prefill turn of n tokens: one call, or cuts. With said = false no call says the turn's length.
void add_turn(Random& random, Problem& problem, std::int64_t n) {
  if (n < 2 || random.chance(0.5)) {
    problem.steps.push_back(Step::prefill(n, random.chance(0.3) ? n : 0));
    return;
  }
  const bool said = random.chance(0.7);
  std::int64_t done = 0;
  while (done < n) {
    const std::int64_t part = random.chance(0.3) ? n - done : random.integer(1, n - done);
    const bool repeat = done > 0 && said && random.chance(0.3);  // a later call may say the same length again
    problem.steps.push_back(Step::prefill(part, said && (done == 0 || repeat) ? n : 0));
    done += part;
  }
}

void random_steps(Random& random, Problem& problem, const Variety& variety) {
  const std::int64_t s = std::max<std::int64_t>(problem.options.chunk, 1);
  const bool decode_first = variety.later_turns && random.chance(0.1);
  if (decode_first) problem.steps.push_back(Step::decode(random.integer(1, 3)));
  add_turn(random, problem, random_tokens(random, s, variety.max_tokens * 2 / 3));
  if (!variety.later_turns) return;
  const std::int64_t turns = random.integer(0, 2);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (std::int64_t k = random.integer(1, 3); k > 0; --k) {
      problem.steps.push_back(Step::decode(random.chance(0.6) ? 1 : random.integer(2, 5)));
    }
    add_turn(random, problem, random_tokens(random, s, variety.max_tokens / 3));
  }
  if (random.chance(0.5)) problem.steps.push_back(Step::decode(random.integer(1, 4)));
}

}  // namespace

Problem random_problem(Random& random, const Variety& variety) {
  Problem problem;
  Shape& shape = problem.shape;
  Options& options = problem.options;
  shape.n_layer = random.integer(1, variety.max_layers);
  shape.n_head_kv = random.integer(1, 3);
  shape.n_head = shape.n_head_kv * random.pick(std::vector<std::int64_t>{1, 1, 2, 3, 4, 8});
  const std::vector<std::int64_t> narrow{1, 2, 3, 4, 5, 7, 8, 9};
  const std::vector<std::int64_t> wide{1, 3, 7, 8, 16, 20, 31, 32, 33, 64, 65, 80, 96, 128};
  shape.d_head = random.pick(variety.wide ? wide : narrow);
  shape.d_value = random.chance(0.5) ? shape.d_head : random.pick(variety.wide ? wide : narrow);

  options.chunk = random.integer(1, variety.max_chunk);
  const std::int64_t s = options.chunk;
  options.batch = random.pick(std::vector<std::int64_t>{
      s, 2 * s, 3 * s, 4096, std::max<std::int64_t>(1, s / 2), 2 * s + 1, random.integer(1, 4 * s)});
  options.clamp = random.chance(0.7);
  const std::int64_t most = options.clamp ? s : 3 * s;
  options.local = random.chance(0.15) ? 0 : random.integer(0, most);
  options.heavy = random.chance(0.15) ? 0 : random.integer(0, most);
  options.dense = random.chance(0.03);
  options.score_type = random.chance(0.3) ? ScoreType::f32 : ScoreType::bf16;
  options.schedule = random.chance(0.5) ? Schedule::layer_major : Schedule::chunk_major;
  // Mostly one: waking threads costs more than these problems; determinism.* asks for all numbers of them.
  options.threads = random.chance(0.75) ? 1 : static_cast<int>(random.integer(2, 3));

  if (variety.dtypes && random.chance(0.7)) {
    shape.kv_type = random_dtype(random);
    problem.q_type = random.chance(0.5) ? shape.kv_type : random_dtype(random);
    // What is handed in may differ from what is stored (STATE-6: rounded once).
    problem.k_type = random.chance(0.8) ? shape.kv_type : random_dtype(random);
    problem.v_type = random.chance(0.8) ? shape.kv_type : random_dtype(random);
    problem.out_type = random.chance(0.6) ? DType::f32 : random_dtype(random);
  }
  if (variety.extras) {
    if (random.chance(0.3)) options.scale = random.pick(std::vector<double>{0.125, 1.0, 0.3, -0.2, 0.0});
    if (random.chance(0.3)) options.softcap = random.pick(std::vector<double>{1.0, 5.0, 30.0, 50.0});
    if (random.chance(0.3)) {
      for (std::int64_t h = 0; h < shape.n_head; ++h) {
        options.sinks.push_back(random.chance(0.2) ? -std::numeric_limits<float>::infinity()
                                                   : static_cast<float>(3.0 * random.normal()));
      }
    }
    if (random.chance(0.3)) {
      for (std::int64_t h = 0; h < shape.n_head; ++h) {
        options.alibi.push_back(static_cast<float>(random.uniform(-0.02, 0.5)));
      }
    }
  }
  random_steps(random, problem, variety);
  shape.capacity = problem.tokens() + (random.chance(0.5) ? 0 : random.integer(1, 40));
  problem.fill_normal(random, random.pick(std::vector<double>{0.5, 2.0, 5.0}));
  return problem;
}

void choose_blocks(Random& random, Options& options) {
  const std::int64_t s = options.chunk;
  options.select = Select::blocks;
  options.key_block =
      std::min(s, random.pick(std::vector<std::int64_t>{1, 2, 3, 4, 5, 8, random.integer(1, s)}));
  options.pool = std::min(s, random.pick(std::vector<std::int64_t>{1, 2, 3, 4, 7}));
  options.query_block = options.pool * random.integer(1, s / options.pool);
  options.refine = random.pick(std::vector<std::int64_t>{1, 2, 2, 3, 16});
  // Rounded up where there was a budget: the small ones of random_problem would often be none.
  options.heavy = (options.heavy + options.key_block - 1) / options.key_block * options.key_block;
}

Problem with_blocks(Random& random, Problem problem) {
  return with_rule(random, std::move(problem), Select::blocks);
}

void choose_sketches(Random& random, Options& options) {
  const std::int64_t s = options.chunk;
  options.select = Select::sketches;
  options.query_block = std::min(s, random.pick(std::vector<std::int64_t>{1, 2, 5, s, random.integer(1, s)}));
  options.least_weight = random.pick(std::vector<double>{0.0, 0.002, 0.002, 0.05, 0.5, 1e-30, 1.0 - 0x1p-53});
}

Problem with_rule(Random& random, Problem problem, Select rule) {
  if (rule == Select::blocks) choose_blocks(random, problem.options);
  if (rule == Select::sketches) choose_sketches(random, problem.options);
  return problem;
}

void choose_pinned(Random& random, Options& options) {
  const std::int64_t unit = options.select == Select::blocks ? options.key_block : 1;
  const std::int64_t most = options.heavy / unit;
  options.pinned = unit * random.pick(std::vector<std::int64_t>{0, std::min<std::int64_t>(1, most), most,
                                                                random.integer(0, most)});
}

void choose_dense_below(Random& random, Problem& problem) {
  const Step& step =
      problem.steps[static_cast<std::size_t>(random.integer(0, std::ssize(problem.steps) - 1))];
  const std::int64_t length = std::max(step.n, step.turn_length);
  problem.options.dense_below = std::max<std::int64_t>(0, length + random.integer(-1, 1));
}

void choose_widths(Random& random, Problem& problem) {
  const std::vector<std::int64_t> widths{1, 3, 8, 15, 16, 17, 31, 33, 64};
  problem.options.layers.resize(static_cast<std::size_t>(problem.shape.n_layer));
  for (LayerOptions& own : problem.options.layers) {
    own.d_head = random.chance(0.6) ? random.pick(widths) : 0;
    own.d_value = random.chance(0.6) ? random.pick(widths) : 0;
  }
  problem.fill_normal(random);
}

void choose_dense_layers(Random& random, Problem& problem) {
  const std::int64_t layers = problem.shape.n_layer;
  const std::int64_t kind = random.integer(0, 4);
  const bool odd = random.chance(0.5);
  problem.options.dense_layers.clear();
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const bool named[] = {layer == 0, layer == layers - 1, true, layer % 2 == (odd ? 1 : 0),
                          random.chance(0.5)};
    if (named[kind]) problem.options.dense_layers.push_back(layer);
  }
}

void draw_to(Problem& problem, std::int64_t first, std::int64_t period, float logit) {
  for (LayerInput& layer : problem.layers) {
    const float drawn = logit / 4.0f * std::sqrt(static_cast<float>(layer.q.width));
    for (std::int64_t t = 0; t < problem.tokens(); ++t) {
      for (std::int64_t h = 0; h < layer.q.heads; ++h) layer.q.row(t, h)[0] = 4.0f;
      for (std::int64_t h = 0; h < layer.k.heads; ++h)
        layer.k.row(t, h)[0] = t % period == first ? round_to(layer.k.type, drawn) : 0.0f;
    }
  }
}

Problem in_type(Problem problem, DType type) {
  problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = type;
  for (LayerInput& layer : problem.layers) {
    for (Tensor* tensor : {&layer.q, &layer.k, &layer.v}) {
      tensor->type = type;
      for (float& x : tensor->values) x = round_to(type, x);
    }
  }
  return problem;
}

}  // namespace headwater::conformance
