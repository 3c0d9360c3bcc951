// STATE-6 and MEM-6: what a session keeps, row by row and layer by layer.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"
#include "conformance/run.hpp"

namespace headwater::conformance {
namespace {

// Every K and V row stays stored, rounded once to the KV type, readable at its global position (STATE-6), also from
// the open step once its layer was attended.
void stored_rows(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 10, .max_tokens = 50, .max_layers = 2});
    for (LayerInput& layer : problem.layers) {
      for (Tensor* tensor : {&layer.k, &layer.v}) {
        for (float& x : tensor->values) {
          if (!random.chance(0.15)) continue;
          x = round_to(tensor->type,
                       random.pick(std::vector<float>{
                           0.0f, -0.0f, 1e-40f, -1e-7f, 65504.0f, 65520.0f, 1e38f, -3.4e38f, 5.9604645e-08f,
                           std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}));
        }
      }
    }
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    const Shape& s = problem.shape;
    (void)run(*session, problem);
    std::vector<float> key(static_cast<std::size_t>(s.d_head));
    std::vector<float> value(static_cast<std::size_t>(s.d_value));
    for (std::int64_t layer = 0; layer < s.n_layer; ++layer) {
      const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
      for (std::int64_t h = 0; h < s.n_head_kv; ++h) {
        for (std::int64_t p = 0; p < problem.tokens(); ++p) {
          session->read_key(layer, h, p, key);
          session->read_value(layer, h, p, value);
          for (std::size_t x = 0; x < key.size(); ++x) {
            const float wanted = round_to(s.kv_type, input.k.row(p, h)[x]);
            if (!same_bits(key[x], wanted)) {
              throw Violation(fmt::format("key row {} of head {}: {:.9g}, not {:.9g}; {}", p, h, key[x],
                                          wanted, problem.describe()));
            }
          }
          for (std::size_t x = 0; x < value.size(); ++x) {
            const float wanted = round_to(s.kv_type, input.v.row(p, h)[x]);
            if (!same_bits(value[x], wanted)) {
              throw Violation(fmt::format("value row {} of head {}: {:.9g}, not {:.9g}; {}", p, h, value[x],
                                          wanted, problem.describe()));
            }
          }
        }
      }
    }
  }
}
const Register kStoredRows{
    {"state.stored_rows", {"STATE-6", "NUM-1"}, "storage", Lane::exact, true, stored_rows}};

// Layers are apart: with different rows in each they build different sets, each from its own scores (P4.3, P3.4).
void layers_apart(Context& context) {
  Random random(context.seed);
  Problem problem;
  problem.shape.n_layer = 3;
  problem.shape.n_head = 4;
  problem.shape.n_head_kv = 2;
  problem.shape.d_head = 8;
  problem.shape.d_value = 4;
  problem.options.chunk = 20;
  problem.options.local = 3;
  problem.options.heavy = 5;
  problem.options.threads = 1;
  problem.steps = {Step::prefill(100)};
  problem.shape.capacity = 100;
  problem.fill_normal(random, 4.0);
  const Trace trace = run(*context.engine, problem);
  require_replay(problem, trace);
  const auto& sets = trace.layers[0].chunks.back().memory;
  for (const std::size_t layer : {std::size_t{1}, std::size_t{2}}) {
    if (trace.layers[layer].chunks.back().memory == sets)
      throw Violation("layers with different rows have the same sets");
  }
  const auto width = static_cast<std::ptrdiff_t>(sets.size() / 4);
  bool differ = false;
  for (std::ptrdiff_t h = 1; h < 4; ++h) {
    differ = differ || !std::equal(sets.begin(), sets.begin() + width, sets.begin() + h * width);
  }
  if (!differ) throw Violation("all heads have the same set");
  // One layer's run alone is the same as beside the others (SCHED-3).
  for (std::size_t layer = 0; layer < 3; ++layer) {
    Problem alone = problem;
    alone.shape.n_layer = 1;
    alone.layers = {problem.layers[layer]};
    const Trace single = run(*context.engine, alone);
    if (single.layers[0].out != trace.layers[layer].out)
      throw Violation(fmt::format("layer {} differs when alone", layer));
  }
}
const Register kLayersApart{
    {"state.layers_apart", {"MEM-6", "SCHED-3", "SCORE-1"}, "session", Lane::state, true, layers_apart}};

}  // namespace
}  // namespace headwater::conformance
