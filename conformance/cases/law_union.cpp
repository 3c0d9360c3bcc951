// Lane law, FUSE-2: a sparse chunk is one dense softmax over the union of its memory set and itself.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "conformance/forced.hpp"

namespace headwater::conformance {
namespace {

// One head of a sparse chunk as a dense problem of its own: its memory set is the prompt, the chunk the next call.
Problem union_of(const Problem& problem, const ChunkTrace& chunk, std::int64_t head) {
  const Shape& shape = problem.shape;
  Problem dense = problem;
  dense.options.dense = true;
  dense.shape.n_head = dense.shape.n_head_kv = 1;
  if (!problem.options.sinks.empty()) {
    dense.options.sinks = {problem.options.sinks[static_cast<std::size_t>(head)]};
  }
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < chunk.memory_count; ++i)
    tokens.push_back(chunk.memory[static_cast<std::size_t>(head * chunk.memory_count + i)]);
  for (std::int64_t t = chunk.chunk.begin; t < chunk.chunk.end; ++t) tokens.push_back(t);
  dense.steps.clear();
  if (chunk.memory_count > 0) dense.steps.push_back(Step::prefill(chunk.memory_count));
  dense.steps.push_back(Step::prefill(chunk.length()));
  dense.shape.capacity = dense.tokens();
  dense.make_tensors();
  const LayerInput& from = problem.layers[0];
  LayerInput& to = dense.layers[0];
  const std::int64_t head_kv = head * shape.n_head_kv / shape.n_head;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    std::copy_n(from.q.row(tokens[i], head), shape.d_head, to.q.row(at, 0));
    std::copy_n(from.k.row(tokens[i], head_kv), shape.d_head, to.k.row(at, 0));
    std::copy_n(from.v.row(tokens[i], head_kv), shape.d_value, to.v.row(at, 0));
  }
  return dense;
}

// FUSE-2: what a chunk reads of the memory and of itself is one dense softmax over both: the engine's own dense attention
// over the explicit union gives the same rows. (Without ALiBi, which looks at positions.)
void union_law(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 24, .max_tokens = 90, .later_turns = false, .wide = false});
    problem.options.alibi.clear();
    problem.out_type = DType::f32;
    const Shape& shape = problem.shape;
    const Trace sparse = run(*context.engine, problem);
    const std::vector<double> bounds = output_bounds(context, problem, sparse);
    for (const ChunkTrace& chunk : sparse.layers[0].chunks) {
      if (chunk.memory_count == 0) continue;
      const std::int64_t head = random.integer(0, shape.n_head - 1);
      const Problem whole = union_of(problem, chunk, head);
      const Trace dense = run(*context.engine, whole);
      const std::vector<double> whole_bounds = output_bounds(context, whole, dense);
      for (std::int64_t i = 0; i < chunk.length(); ++i) {
        const std::int64_t row = ((chunk.chunk.begin + i) * shape.n_head + head) * shape.d_value;
        for (std::int64_t x = 0; x < shape.d_value; ++x) {
          const auto at = static_cast<std::size_t>(row + x);
          const auto twin = static_cast<std::size_t>((chunk.memory_count + i) * shape.d_value + x);
          const double error =
              std::fabs(static_cast<double>(sparse.layers[0].out[at]) - dense.layers[0].out[twin]);
          if (!(error <= bounds[at] + whole_bounds[twin]))
            throw Violation(fmt::format("token {} head {} is not one softmax over memory and chunk; {}",
                                        chunk.chunk.begin + i, head, problem.describe()));
        }
      }
    }
  }
}
const Register kUnion{{"law.union", {"FUSE-2", "FUSE-1"}, "fusion", Lane::law, true, union_law}};

}  // namespace
}  // namespace headwater::conformance
