// Lane bias: the signed mean error over positive inputs. Rounding to nearest errs to both sides alike; truncation, in a
// sum or at its end, makes every result smaller. A small bias is within the bounds of lane bound.

#include <fmt/format.h>
#include <cmath>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"

namespace headwater::conformance {
namespace {

// Mean of (got - wanted) / wanted over many values, and how many there were.
struct Bias {
  double sum = 0.0;
  double count = 0.0;
  void add(double got, double wanted) {
    sum += (got - wanted) / wanted;
    count += 1.0;
  }
  [[nodiscard]] double mean() const { return sum / count; }
};

// What the mean may be off. The rounding of one result to a format of unit round-off u is within +-u and has a mean of 0;
// over n independent ones the mean stays below 6 u / sqrt(3 n) but once in 5e8. Roundings on the way to it (weights,
// sums, the division; about 2 sqrt(terms) of them add up) share their inputs along rows and columns, so of n results
// only sqrt(n) are taken as independent. A systematic part remains: an exp may be one-sided by one unit in the last
// place, which the quotient of two sums of it cancels to second order, and which column sums keep not at all.
// Truncation has a mean of u/2 per result and, inside sums of m positive terms, about m u / 4.
double allowed(double u, double u_inner, double terms, double n) {
  return 6.0 * u / std::sqrt(3.0 * n) +
         6.0 * u_inner * 2.0 * std::sqrt(terms) / std::sqrt(3.0 * std::sqrt(n));
}

// The same for softmax weights that are rounded one by one to a format of unit round-off u (Claims::bf16_weights). A result
// is a mean of weights that no other of `n` results has a part in (a column of them, or a row), so its relative error has a
// variance of at most u^2/3, and results are independent. The divisor, a row's sum of rounded weights, is another such
// mean. An exponential that errs to one side cancels between both.
double allowed_of_weights(double u, double rows, double n) {
  return 6.0 * u / std::sqrt(3.0 * n) + 6.0 * u / std::sqrt(3.0 * rows);
}

void signed_mean_error(Context& context) {
  Random random(context.seed);
  for (const DType out : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType kv : {DType::f32, DType::f16, DType::bf16}) {
      Problem problem;
      problem.shape.n_head = 4;
      problem.shape.n_head_kv = 2;
      problem.shape.d_head = 16;
      problem.shape.d_value = 32;
      problem.shape.kv_type = kv;
      problem.q_type = problem.k_type = problem.v_type = kv;
      problem.out_type = out;
      problem.options.chunk = 96;
      problem.options.local = 16;
      problem.options.heavy = 48;
      problem.options.threads = context.threads;
      problem.steps = {Step::prefill(context.quick ? 200 : 480), Step::decode(2)};
      problem.shape.capacity = problem.tokens();
      problem.fill_normal(random, 1.0);
      for (float& x : problem.layers[0].v.values)
        x = round_to(problem.v_type, static_cast<float>(random.uniform(0.5, 1.5)));
      const Arithmetic arithmetic = arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type);
      const Trace trace = run(*context.engine, problem);
      Bias outputs;
      Bias sums;
      for (const ChunkTrace& chunk : trace.layers[0].chunks) {
        for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
          const HeadTruth truth = eigen_oracle(head_chunk(problem, 0, chunk, h), arithmetic);
          for (std::int64_t i = 0; i < chunk.length(); ++i) {
            const auto row = ((chunk.chunk.begin + i) * problem.shape.n_head + h) * problem.shape.d_value;
            for (std::int64_t x = 0; x < problem.shape.d_value; ++x) {
              outputs.add(trace.layers[0].out[static_cast<std::size_t>(row + x)], truth.out(i, x));
            }
            if (chunk.chunk.mode != ChunkMode::sparse) continue;
            sums.add(chunk.colsum_intra[static_cast<std::size_t>(h * chunk.length() + i)], truth.intra[i]);
          }
          for (std::int64_t j = 0; j < chunk.memory_count; ++j) {
            sums.add(chunk.colsum_inter[static_cast<std::size_t>(h * chunk.memory_count + j)],
                     truth.inter[j]);
          }
        }
      }
      const double terms =
          static_cast<double>(problem.options.chunk + problem.options.local + problem.options.heavy);
      const double rows = outputs.count / static_cast<double>(problem.shape.d_value);
      const double limit = allowed(unit_roundoff(out), arithmetic.u, terms, outputs.count) +
                           allowed_of_weights(arithmetic.weight, rows, rows);
      if (!(std::fabs(outputs.mean()) <= limit)) {
        throw Violation(fmt::format("out: mean signed error {:.3g} of {} values, allowed {:.3g}; {}",
                                    outputs.mean(), outputs.count, limit, problem.describe()));
      }
      const double sum_limit = allowed(unit_roundoff(DType::f32), arithmetic.u, terms, sums.count) +
                               allowed_of_weights(arithmetic.column_weight, rows, sums.count);
      if (!(std::fabs(sums.mean()) <= sum_limit)) {
        throw Violation(fmt::format("column sums: mean signed error {:.3g} of {} values, allowed {:.3g}; {}",
                                    sums.mean(), sums.count, sum_limit, problem.describe()));
      }
      context.measured(out == DType::f32 ? "bias_out" : fmt::format("bias_out_{}", dtype_name(out)),
                       dtype_name(kv), std::fabs(outputs.mean()) / limit);
      context.measured("bias_colsum", dtype_name(kv), std::fabs(sums.mean()) / sum_limit);
    }
  }
}
const Register kBias{{"bias.signed_mean_error",
                      {"NUM-1", "INTRA-1", "INTRA-2"},
                      "attention",
                      Lane::bias,
                      true,
                      signed_mean_error}};

// K and V of another type are rounded to nearest when stored: the stored rows have no bias either (STATE-6).
void stored_rows(Context& context) {
  Random random(context.seed);
  for (const DType kv : {DType::f16, DType::bf16}) {
    Problem problem;
    problem.shape.d_head = 64;
    problem.shape.d_value = 64;
    problem.shape.kv_type = kv;
    problem.options.threads = 1;
    problem.steps = {Step::prefill(200)};
    problem.shape.capacity = 200;
    problem.fill_normal(random);
    for (float& x : problem.layers[0].k.values) x = static_cast<float>(random.uniform(0.5, 4.0));
    for (float& x : problem.layers[0].v.values) x = static_cast<float>(random.uniform(0.5, 4.0));
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    (void)run(*session, problem);
    Bias bias;
    std::vector<float> row(64);
    for (std::int64_t p = 0; p < 200; ++p) {
      session->read_key(0, 0, p, row);
      for (std::int64_t x = 0; x < 64; ++x)
        bias.add(row[static_cast<std::size_t>(x)], problem.layers[0].k.row(p, 0)[x]);
      session->read_value(0, 0, p, row);
      for (std::int64_t x = 0; x < 64; ++x)
        bias.add(row[static_cast<std::size_t>(x)], problem.layers[0].v.row(p, 0)[x]);
    }
    const double limit = allowed(unit_roundoff(kv), 0.0, 1.0, bias.count);
    if (!(std::fabs(bias.mean()) <= limit)) {
      throw Violation(fmt::format("stored {} rows: mean signed error {:.3g}, allowed {:.3g}", dtype_name(kv),
                                  bias.mean(), limit));
    }
  }
}
const Register kStored{{"bias.stored_rows", {"STATE-6", "NUM-1"}, "formats", Lane::bias, true, stored_rows}};

}  // namespace
}  // namespace headwater::conformance
