#include "conformance/forced.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "conformance/formats.hpp"
#include "conformance/reference_oracle.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

// A ratio below this says nothing about rounding (an exact result); it spares the division of 0 by 0.
double ratio_of(double error, double bound) { return error == 0.0 ? 0.0 : error / bound; }

// Positions of a chunk on both sides of every multiple of `border` in it, its first and its last.
std::vector<std::int64_t> border_rows(const Chunk& chunk, std::int64_t border) {
  std::vector<std::int64_t> rows;
  const std::int64_t length = chunk.end - chunk.begin;
  for (std::int64_t i = 0; i < length; ++i) {
    if (i % border == 0 || i % border == border - 1 || i == length - 1) rows.push_back(chunk.begin + i);
  }
  return rows;
}

// Half of the distance from a number of a format to its neighbours: how far rounding to nearest can have moved it.
double half_unit(DType type, float value) {
  if (!std::isfinite(value)) return 0.0;
  const double unit = value == 0.0f ? 0.0 : std::ldexp(2.0 * unit_roundoff(type), std::ilogb(value));
  return std::max(unit, smallest(type)) / 2.0;
}

// A baseline is kept per stage and stored type; outputs of 16 bits are another stage, as their rounding is.
std::string stage_of_output(DType type) {
  return type == DType::f32 ? "out" : fmt::format("out_{}", dtype_name(type));
}

class Judge {
 public:
  Judge(Context& context, const Problem& problem, std::string where)
      : context_(context), problem_(problem), where_(std::move(where)) {}

  /// `rounding` is what the result's own rounding may add to the bound. The baseline is of the error beyond that
  /// rounding, so that twice the error before it is twice the baseline.
  void operator()(const std::string& stage, std::int64_t row, std::int64_t column, double got, double wanted,
                  double bound, double signal, double rounding = 0.0) {
    const double error = std::fabs(got - wanted);
    if (!(error <= bound + rounding)) {
      throw Violation(
          fmt::format("{}: {} [{}, {}] is {:.9g}, oracle {:.9g}, error {:.3g} above the bound {:.3g}; {}",
                      where_, stage, row, column, got, wanted, error, bound + rounding, problem_.describe()));
    }
    const double beyond = std::max(0.0, error - rounding);
    context_.measured(stage, dtype_name(problem_.shape.kv_type), ratio_of(beyond, bound), bound, signal);
  }

 private:
  Context& context_;
  const Problem& problem_;
  std::string where_;
};

}  // namespace

HeadChunk head_chunk(const Problem& problem, std::int64_t layer, const ChunkTrace& chunk, std::int64_t head,
                     const std::vector<std::int64_t>& rows, bool values) {
  const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
  const Shape& shape = problem.shape;
  const std::int64_t group = shape.n_head / shape.n_head_kv;
  HeadChunk result;
  result.queries = rows;
  result.memory = chunk.memory_count;
  for (std::int64_t i = 0; i < chunk.memory_count; ++i) {
    result.positions.push_back(chunk.memory[static_cast<std::size_t>(head * chunk.memory_count + i)]);
  }
  const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
  const std::int64_t end = rows.empty() ? chunk.chunk.begin : rows.back() + 1;
  for (std::int64_t p = sparse ? chunk.chunk.begin : 0; p < end; ++p) result.positions.push_back(p);

  result.q.resize(static_cast<Eigen::Index>(rows.size()), shape.d_head);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float* row = input.q.row(rows[i], head);
    for (std::int64_t x = 0; x < shape.d_head; ++x) result.q(static_cast<Eigen::Index>(i), x) = row[x];
  }
  const auto keys = static_cast<Eigen::Index>(result.positions.size());
  const std::int64_t d_value = values ? shape.d_value : 0;
  result.keys.resize(keys, shape.d_head);
  result.values.resize(keys, d_value);
  const auto copy = [&](const Tensor& from, Eigen::MatrixXd& to) {
    for (Eigen::Index x = 0; x < to.cols(); ++x) {
      for (Eigen::Index j = 0; j < keys; ++j) {
        const float value = from.row(result.positions[static_cast<std::size_t>(j)], head / group)[x];
        to(j, x) = from.type == shape.kv_type ? value : round_to(shape.kv_type, value);
      }
    }
  };
  copy(input.k, result.keys);
  copy(input.v, result.values);
  const Options& options = problem.options;
  result.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.d_head)));
  result.softcap = options.softcap;
  if (!options.alibi.empty()) result.slope = options.alibi[static_cast<std::size_t>(head)];
  if (!options.sinks.empty()) result.sink = options.sinks[static_cast<std::size_t>(head)];
  return result;
}

HeadChunk head_chunk(const Problem& problem, std::int64_t layer, const ChunkTrace& chunk, std::int64_t head) {
  return head_chunk(problem, layer, chunk, head, all_rows(chunk), true);
}

std::vector<std::int64_t> all_rows(const ChunkTrace& chunk) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(chunk.length()));
  std::iota(rows.begin(), rows.end(), chunk.chunk.begin);
  return rows;
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
  const OracleHead oracle = oracle_head(layer.rows, rule, chunk.chunk, head,
                                        {memory, static_cast<std::size_t>(chunk.memory_count)});
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

namespace {

/// Compares what one engine reported of one head and chunk with an oracle.
class HeadJudge {
 public:
  HeadJudge(Context& context, const Problem& problem, const LayerTrace& said, std::int64_t layer,
            const ChunkTrace& chunk, std::int64_t head)
      : problem_(problem),
        said_(said),
        chunk_(chunk),
        head_(head),
        judge_(
            context, problem,
            fmt::format("layer {} chunk [{}, {}) head {}", layer, chunk.chunk.begin, chunk.chunk.end, head)) {
  }

  /// Outputs and log-sum-exps of the rows `tokens`.
  void rows(const HeadTruth& truth, const std::vector<std::int64_t>& tokens) {
    const Shape& shape = problem_.shape;
    const std::string out_stage = stage_of_output(problem_.out_type);
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      const auto i = static_cast<Eigen::Index>(r);
      const std::int64_t token = tokens[r];
      const float* out = said_.out.data() + (token * shape.n_head + head_) * shape.d_value;
      for (Eigen::Index x = 0; x < truth.out.cols(); ++x) {
        judge_(out_stage, token, x, out[x], truth.out(i, x), truth.out_bound(i, x), truth.out_size(i, x),
               half_unit(problem_.out_type, out[x]));
      }
      const auto at = static_cast<std::size_t>(head_ * chunk_.length() + token - chunk_.chunk.begin);
      judge_("lse", token, 0, chunk_.lse[at], truth.lse[i], truth.lse_bound[i], 1.0);
    }
  }

  /// Both column sums; `truth` is of all rows of the chunk.
  void columns(const HeadTruth& truth) {
    for (std::int64_t i = 0; i < chunk_.length(); ++i) {
      const auto at = static_cast<std::size_t>(head_ * chunk_.length() + i);
      judge_("colsum_intra", chunk_.chunk.begin + i, 0, chunk_.colsum_intra[at], truth.intra[i],
             truth.intra_bound[i], truth.intra[i]);
    }
    for (std::int64_t j = 0; j < chunk_.memory_count; ++j) {
      const auto at = static_cast<std::size_t>(head_ * chunk_.memory_count + j);
      judge_("colsum_inter", chunk_.memory[at], 0, chunk_.colsum_inter[at], truth.inter[j],
             truth.inter_bound[j], truth.inter[j]);
    }
  }

 private:
  const Problem& problem_;
  const LayerTrace& said_;
  const ChunkTrace& chunk_;
  std::int64_t head_;
  Judge judge_;
};

}  // namespace

std::vector<double> output_bounds(const Context& context, const Problem& problem, const Trace& trace) {
  const Shape& shape = problem.shape;
  std::vector<double> bounds(trace.layers[0].out.size());
  for (const ChunkTrace& chunk : trace.layers[0].chunks) {
    for (std::int64_t h = 0; h < shape.n_head; ++h) {
      const HeadTruth truth =
          eigen_oracle(head_chunk(problem, 0, chunk, h),
                       arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type));
      for (std::int64_t i = 0; i < chunk.length(); ++i) {
        for (std::int64_t x = 0; x < shape.d_value; ++x) {
          const auto at =
              static_cast<std::size_t>(((chunk.chunk.begin + i) * shape.n_head + h) * shape.d_value + x);
          bounds[at] = truth.out_bound(i, x) + unit_roundoff(problem.out_type) * std::fabs(truth.out(i, x)) +
                       smallest(problem.out_type);
        }
      }
    }
  }
  return bounds;
}

void require_forced(Context& context, const Problem& problem, const Trace& trace, Truth whose) {
  const Arithmetic arithmetic = arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type);
  for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
    const LayerTrace& said = trace.layers[static_cast<std::size_t>(layer)];
    const StoredLayer stored(problem, layer);
    for (const ChunkTrace& chunk : said.chunks) {
      for (std::int64_t head = 0; head < problem.shape.n_head; ++head) {
        HeadTruth truth = eigen_oracle(head_chunk(problem, layer, chunk, head), arithmetic);
        if (whose == Truth::reference) use_reference_values(problem, stored, chunk, head, truth);
        HeadJudge judge(context, problem, said, layer, chunk, head);
        judge.rows(truth, all_rows(chunk));
        if (chunk.chunk.mode == ChunkMode::sparse) judge.columns(truth);
      }
    }
  }
}

void require_forced_in_part(Context& context, const Problem& problem, const Trace& trace, const Part& part) {
  const Arithmetic arithmetic = arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type);
  for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
    const LayerTrace& said = trace.layers[static_cast<std::size_t>(layer)];
    for (const ChunkTrace& chunk : said.chunks) {
      if (part.chunk && !part.chunk(chunk.chunk)) continue;
      const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
      for (std::int64_t head = 0; head < problem.shape.n_head; ++head) {
        HeadJudge judge(context, problem, said, layer, chunk, head);
        const bool whole = sparse && head % part.whole_head_of == layer % part.whole_head_of;
        if (sparse) {
          // Outputs of all rows cost as much again as the column sums.
          const std::vector<std::int64_t> rows = all_rows(chunk);
          const HeadTruth truth =
              eigen_oracle(head_chunk(problem, layer, chunk, head, rows, whole), arithmetic, context.threads);
          judge.rows(truth, rows);
          judge.columns(truth);
        }
        if (whole) continue;
        const std::vector<std::int64_t> rows = border_rows(chunk.chunk, part.border);
        judge.rows(
            eigen_oracle(head_chunk(problem, layer, chunk, head, rows, true), arithmetic, context.threads),
            rows);
      }
    }
  }
}

namespace {

Trace replayed(const Context& context, const Problem& problem, const RunStyle& style) {
  try {
    Trace trace = run(*context.engine, problem, style);
    require_replay(problem, trace);
    return trace;
  } catch (const Violation& violation) {
    throw Violation(fmt::format("{}; {}", violation.what(), problem.describe()));
  }
}

}  // namespace

void require_conforming(Context& context, const Problem& problem, const RunStyle& style, Truth truth) {
  require_forced(context, problem, replayed(context, problem, style), truth);
}

void require_conforming_in_part(Context& context, const Problem& problem, const Part& part) {
  require_forced_in_part(context, problem, replayed(context, problem, {}), part);
}

}  // namespace headwater::conformance
