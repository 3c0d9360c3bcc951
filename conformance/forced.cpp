#include "conformance/forced.hpp"

#include <cmath>

#include <fmt/format.h>

#include "conformance/formats.hpp"
#include "conformance/replay.hpp"
#include "reference/oracle.hpp"

namespace headwater::conformance {
namespace {

// A mark below this says nothing about rounding (an exact result); it spares the division of 0 by 0.
double ratio_of(double error, double bound) { return error == 0.0 ? 0.0 : error / bound; }

// A ratchet mark is kept per stage and stored type; outputs of 16 bits are another stage, as their rounding is.
std::string stage_of_output(DType type) {
  return type == DType::f32 ? "out" : fmt::format("out_{}", dtype_name(type));
}

class Judge {
 public:
  Judge(Context& context, const Problem& problem, std::string where)
      : context_(context), problem_(problem), where_(std::move(where)) {}

  void operator()(const std::string& stage, std::int64_t row, std::int64_t column, double got, double wanted,
                  double bound, double signal) {
    const double error = std::fabs(got - wanted);
    context_.trust(bound, signal);
    if (!(error <= bound)) {
      throw Violation(
          fmt::format("{}: {} [{}, {}] is {:.9g}, oracle {:.9g}, error {:.3g} above the bound {:.3g}; {}",
                      where_, stage, row, column, got, wanted, error, bound, problem_.describe()));
    }
    context_.mark(stage, dtype_name(problem_.shape.kv_type), ratio_of(error, bound));
  }

 private:
  Context& context_;
  const Problem& problem_;
  std::string where_;
};

}  // namespace

HeadChunk head_chunk(const Problem& problem, std::int64_t layer, const ChunkTrace& chunk, std::int64_t head) {
  const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
  const Shape& shape = problem.shape;
  const std::int64_t group = shape.n_head / shape.n_head_kv;
  HeadChunk result;
  result.begin = chunk.chunk.begin;
  result.memory = chunk.memory_count;
  for (std::int64_t i = 0; i < chunk.memory_count; ++i) {
    result.positions.push_back(chunk.memory[static_cast<std::size_t>(head * chunk.memory_count + i)]);
  }
  const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
  for (std::int64_t p = sparse ? chunk.chunk.begin : 0; p < chunk.chunk.end; ++p)
    result.positions.push_back(p);

  result.q.resize(chunk.length(), shape.d_head);
  for (std::int64_t i = 0; i < chunk.length(); ++i) {
    const float* row = input.q.row(chunk.chunk.begin + i, head);
    for (std::int64_t x = 0; x < shape.d_head; ++x) result.q(i, x) = row[x];
  }
  const auto keys = static_cast<Eigen::Index>(result.positions.size());
  result.keys.resize(keys, shape.d_head);
  result.values.resize(keys, shape.d_value);
  for (Eigen::Index j = 0; j < keys; ++j) {
    const std::int64_t p = result.positions[static_cast<std::size_t>(j)];
    const float* key = input.k.row(p, head / group);
    const float* value = input.v.row(p, head / group);
    for (std::int64_t x = 0; x < shape.d_head; ++x) result.keys(j, x) = round_to(shape.kv_type, key[x]);
    for (std::int64_t x = 0; x < shape.d_value; ++x) result.values(j, x) = round_to(shape.kv_type, value[x]);
  }
  const Options& options = problem.options;
  result.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.d_head)));
  result.softcap = options.softcap;
  if (!options.alibi.empty()) result.slope = options.alibi[static_cast<std::size_t>(head)];
  if (!options.sinks.empty()) result.sink = options.sinks[static_cast<std::size_t>(head)];
  return result;
}

StoredLayer::StoredLayer(const Problem& problem, std::int64_t layer)
    : k(problem.layers[static_cast<std::size_t>(layer)].k),
      v(problem.layers[static_cast<std::size_t>(layer)].v) {
  const Shape& shape = problem.shape;
  for (float& x : k.values) x = round_to(shape.kv_type, x);
  for (float& x : v.values) x = round_to(shape.kv_type, x);
  const Tensor& q = problem.layers[static_cast<std::size_t>(layer)].q;
  rows.q = Rows::token_major(q.values.data(), DType::f32, shape.n_head, shape.d_head);
  rows.k = Rows::token_major(k.values.data(), DType::f32, shape.n_head_kv, shape.d_head);
  rows.v = Rows::token_major(v.values.data(), DType::f32, shape.n_head_kv, shape.d_value);
  rows.n_head = shape.n_head;
  rows.n_head_kv = shape.n_head_kv;
  rows.d_head = shape.d_head;
  rows.d_value = shape.d_value;
}

void use_reference_values(const Problem& problem, const StoredLayer& layer, const ChunkTrace& chunk,
                          std::int64_t head, HeadTruth& truth) {
  const Shape& shape = problem.shape;
  const reference::LogitRule rule =
      reference::logit_rule(problem.options, expected_options(shape, problem.options), head);
  const auto* memory = chunk.memory.data() + head * chunk.memory_count;
  const reference::OracleHead oracle = reference::oracle_head(
      layer.rows, rule, chunk.chunk, head, {memory, static_cast<std::size_t>(chunk.memory_count)});
  for (std::int64_t i = 0; i < chunk.length(); ++i) {
    truth.lse[i] = oracle.lse[static_cast<std::size_t>(i)];
    for (std::int64_t x = 0; x < shape.d_value; ++x) {
      truth.out(i, x) = oracle.output[static_cast<std::size_t>(i)].o[static_cast<std::size_t>(x)];
    }
  }
  if (chunk.chunk.mode != ChunkMode::sparse) return;
  for (std::size_t j = 0; j < oracle.colsum_intra.size(); ++j) {
    truth.intra[static_cast<Eigen::Index>(j)] = oracle.colsum_intra[j];
  }
  for (std::size_t j = 0; j < oracle.colsum_inter.size(); ++j) {
    truth.inter[static_cast<Eigen::Index>(j)] = oracle.colsum_inter[j];
  }
}

void require_forced(Context& context, const Problem& problem, const Trace& trace, Truth whose) {
  const Arithmetic arithmetic = arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type);
  const Shape& shape = problem.shape;
  const double u_out = unit_roundoff(problem.out_type);
  const std::string out_stage = stage_of_output(problem.out_type);
  const double half_smallest = smallest(problem.out_type) / 2.0;
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const LayerTrace& said = trace.layers[static_cast<std::size_t>(layer)];
    const StoredLayer stored(problem, layer);
    for (const ChunkTrace& chunk : said.chunks) {
      for (std::int64_t head = 0; head < shape.n_head; ++head) {
        const HeadChunk input = head_chunk(problem, layer, chunk, head);
        HeadTruth truth = eigen_oracle(input, arithmetic);
        if (whose == Truth::reference) use_reference_values(problem, stored, chunk, head, truth);
        Judge judge(
            context, problem,
            fmt::format("layer {} chunk [{}, {}) head {}", layer, chunk.chunk.begin, chunk.chunk.end, head));
        for (std::int64_t i = 0; i < chunk.length(); ++i) {
          const std::int64_t token = chunk.chunk.begin + i;
          const float* out = said.out.data() + (token * shape.n_head + head) * shape.d_value;
          for (std::int64_t x = 0; x < shape.d_value; ++x) {
            // Before rounding to the output type |o| <= |o*| + bound; then at most half an ulp of that.
            const double bound = truth.out_bound(i, x);
            const double rounding = u_out * (std::fabs(truth.out(i, x)) + bound) + half_smallest;
            judge(out_stage, token, x, out[x], truth.out(i, x), bound + rounding, truth.out_size(i, x));
          }
          const auto at = static_cast<std::size_t>(head * chunk.length() + i);
          judge("lse", token, 0, chunk.lse[at], truth.lse[i], truth.lse_bound[i], 1.0);
          if (chunk.colsum_intra.empty()) continue;
          judge("colsum_intra", token, 0, chunk.colsum_intra[at], truth.intra[i], truth.intra_bound[i],
                truth.intra[i]);
        }
        for (std::int64_t j = 0; j < chunk.memory_count; ++j) {
          const auto at = static_cast<std::size_t>(head * chunk.memory_count + j);
          judge("colsum_inter", chunk.memory[at], 0, chunk.colsum_inter[at], truth.inter[j],
                truth.inter_bound[j], truth.inter[j]);
        }
      }
    }
  }
}

void require_conforming(Context& context, const Problem& problem, const RunStyle& style, Truth truth) {
  Trace trace;
  try {
    trace = run(*context.engine, problem, style);
    require_replay(problem, trace);
  } catch (const Violation& violation) {
    throw Violation(fmt::format("{}; {}", violation.what(), problem.describe()));
  }
  require_forced(context, problem, trace, truth);
}

}  // namespace headwater::conformance
