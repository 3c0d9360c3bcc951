// The absolute figures at the end of SPEC 13, for F32 inputs of the source plan's sizes. The derived bounds are stricter
// on most elements; these must hold as well.

#include <fmt/format.h>
#include <cmath>

#include "conformance/forced.hpp"

namespace headwater::conformance {
namespace {

constexpr double kOutput = 1e-5;
constexpr double kColumnSum = 1e-4;
constexpr double kRowSum = 1e-5;

void require_absolute(const Context& context, const Problem& problem, bool row_sums) {
  const Trace trace = run(*context.engine, problem);
  for (const ChunkTrace& chunk : trace.layers[0].chunks) {
    for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
      const HeadTruth truth =
          eigen_oracle(head_chunk(problem, 0, chunk, h),
                       arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type));
      const auto require = [&](const char* what, double got, double wanted, double most) {
        if (std::fabs(got - wanted) <= most) return;
        throw Violation(fmt::format("{} is {:.9g}, oracle {:.9g}: more than {} apart; {}", what, got, wanted,
                                    most, problem.describe()));
      };
      for (std::int64_t i = 0; i < chunk.length(); ++i) {
        const auto row = ((chunk.chunk.begin + i) * problem.shape.n_head + h) * problem.shape.d_value;
        for (std::int64_t x = 0; x < problem.shape.d_value; ++x) {
          const double got = trace.layers[0].out[static_cast<std::size_t>(row + x)];
          require("out", got, truth.out(i, x), kOutput);
          if (row_sums) require("row sum", got, 1.0, kRowSum);
        }
        if (chunk.chunk.mode != ChunkMode::sparse) continue;
        require("colsum_intra", chunk.colsum_intra[static_cast<std::size_t>(h * chunk.length() + i)],
                truth.intra[i], kColumnSum);
      }
      for (std::int64_t j = 0; j < chunk.memory_count; ++j) {
        require("colsum_inter", chunk.colsum_inter[static_cast<std::size_t>(h * chunk.memory_count + j)],
                truth.inter[j], kColumnSum);
      }
    }
  }
}

void plan_sizes(Context& context) {
  Random random(context.seed);
  for (const std::int64_t d : {64, 128}) {
    for (const bool row_sums : {false, true}) {
      Problem problem;
      problem.shape.n_head = 2;
      problem.shape.n_head_kv = 1;
      problem.shape.d_head = d;
      problem.shape.d_value = d;
      problem.options.chunk = context.quick ? 64 : 256;
      problem.options.local = problem.options.heavy = problem.options.chunk / 4;
      problem.options.threads = context.threads;
      problem.steps = {Step::prefill(problem.options.chunk * 5 / 2), Step::decode(1)};
      problem.shape.capacity = problem.tokens();
      problem.fill_normal(random, 1.0);
      if (row_sums) {
        for (float& x : problem.layers[0].v.values) x = 1.0f;
      }
      require_absolute(context, problem, row_sums);
    }
  }
}
const Register kPlanSizes{
    {"bound.absolute_f32", {"INTRA-1", "INTRA-2", "FUSE-2"}, "attention", Lane::bound, true, plan_sizes}};

// Logits spread over [-100, 100]: outputs stay within the absolute bounds too, as q . k is exact here.
void hundred(Context& context) {
  Random random(context.seed);
  Problem problem;
  problem.shape.d_head = 2;
  problem.shape.d_value = 16;
  problem.options.scale = 1.0;
  problem.options.chunk = 64;
  problem.options.local = problem.options.heavy = 16;
  problem.options.threads = context.threads;
  problem.steps = {Step::prefill(200)};
  problem.shape.capacity = 200;
  problem.fill_normal(random);
  for (std::int64_t t = 0; t < 200; ++t) {
    problem.layers[0].q.row(t, 0)[0] = 1.0f;
    problem.layers[0].q.row(t, 0)[1] = 0.0f;
    problem.layers[0].k.row(t, 0)[0] = static_cast<float>(random.integer(-6400, 6400)) / 64.0f;
    for (std::int64_t x = 0; x < 16; ++x)
      problem.layers[0].v.row(t, 0)[x] = static_cast<float>(random.uniform(-1.0, 1.0));
  }
  require_absolute(context, problem, false);
}
const Register kHundred{{"bound.logits_of_100", {"NUM-2", "INTRA-1"}, "softmax", Lane::bound, true, hundred}};

}  // namespace
}  // namespace headwater::conformance
