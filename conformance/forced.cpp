#include "conformance/forced.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "conformance/formats.hpp"
#include "conformance/reference_oracle.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

constexpr std::int64_t kTileRows = 32;  // of a tile of the CPU engines

// A ratio below this says nothing about rounding (an exact result); it spares the division of 0 by 0.
double ratio_of(double error, double bound) { return error == 0.0 ? 0.0 : error / bound; }

// Positions of a chunk on both sides of `first` and of every `border` rows after it, its first and its last.
std::vector<std::int64_t> border_rows(const Chunk& chunk, std::int64_t border, std::int64_t first) {
  std::vector<std::int64_t> rows;
  const std::int64_t length = chunk.end - chunk.begin;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t behind = (i + border - first) % border;
    if (i == 0 || behind == 0 || behind == border - 1 || i == length - 1) rows.push_back(chunk.begin + i);
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
    const double error = require(stage, row, column, got, wanted, bound, rounding);
    const double beyond = std::max(0.0, error - rounding);
    context_.measured(stage, dtype_name(problem_.shape.kv_type), ratio_of(beyond, bound), bound, signal);
  }

  /// The same without a baseline, of a result whose bound is too wide for one. Returns the error.
  double require(const std::string& stage, std::int64_t row, std::int64_t column, double got, double wanted,
                 double bound, double rounding) const {
    const double error = got == wanted ? 0.0 : std::fabs(got - wanted);  // of equal infinities, too
    if (!(error <= bound + rounding)) {
      throw Violation(
          fmt::format("{}: {} [{}, {}] is {:.9g}, oracle {:.9g}, error {:.3g} above the bound {:.3g}; {}",
                      where_, stage, row, column, got, wanted, error, bound + rounding, problem_.describe()));
    }
    return error;
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
  const Shape shape = problem.layer_shape(layer);
  const std::int64_t group = shape.n_head / shape.n_head_kv;
  HeadChunk result;
  result.queries = rows;
  const std::int64_t first_row = rows.empty() ? chunk.chunk.begin : rows.front();
  const std::int64_t set = chunk.set_of(head, group, first_row);
  if (!rows.empty() && chunk.set_of(head, group, rows.back()) != set) {
    throw std::logic_error("head_chunk: rows of several sets");
  }
  const std::span<const std::int32_t> memory = chunk.entries(set);
  result.memory = std::ssize(memory);
  result.positions.assign(memory.begin(), memory.end());
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
  const auto copy = [&](const Tensor& from, RowMatrix& to) {
    for (Eigen::Index j = 0; j < keys; ++j) {
      const float* row = from.row(result.positions[static_cast<std::size_t>(j)], head / group);
      for (Eigen::Index x = 0; x < to.cols(); ++x) {
        const float value = row[x];
        to(j, x) = from.type == shape.kv_type ? value : round_to(shape.kv_type, value);
      }
    }
  };
  copy(input.k, result.keys);
  copy(input.v, result.values);
  const Options& options = problem.options;
  const LayerOptions own =
      options.layers.empty() ? LayerOptions{} : options.layers[static_cast<std::size_t>(layer)];
  const std::vector<float> sinks = own.sinks.value_or(options.sinks);
  result.window = own.window;
  result.scale =
      own.scale.value_or(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.d_head))));
  result.softcap = own.softcap.value_or(options.softcap);
  if (!options.alibi.empty()) result.slope = options.alibi[static_cast<std::size_t>(head)];
  if (!sinks.empty()) result.sink = sinks[static_cast<std::size_t>(head)];
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

std::vector<std::vector<std::int64_t>> rows_by_set(const ChunkTrace& chunk) {
  if (chunk.query_blocks == 0) return {all_rows(chunk)};
  std::vector<std::vector<std::int64_t>> blocks;
  for (const std::int64_t row : all_rows(chunk)) {
    if ((row - chunk.chunk.begin) % chunk.query_block == 0) blocks.emplace_back();
    blocks.back().push_back(row);
  }
  return blocks;
}

StoredLayer::StoredLayer(const Problem& problem, std::int64_t layer)
    : index(layer),
      k(problem.layers[static_cast<std::size_t>(layer)].k),
      v(problem.layers[static_cast<std::size_t>(layer)].v) {
  const Shape shape = problem.layer_shape(layer);
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
                          std::int64_t head, const std::vector<std::int64_t>& rows, HeadTruth& truth) {
  const Shape shape = problem.layer_shape(layer.index);
  const reference::LogitRule rule =
      reference::logit_rule(problem.options, expected_options(shape, problem.options), layer.index, head);
  const std::int64_t set = chunk.set_of(head, shape.n_head / shape.n_head_kv, rows.front());
  // The keys of a row are those from the chunk's begin on, whatever part of the chunk is asked for.
  const OracleHead oracle = oracle_head(
      layer.rows, rule, {chunk.chunk.begin, rows.back() + 1, chunk.chunk.mode}, head, chunk.entries(set));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto i = static_cast<Eigen::Index>(r);
    const auto at = static_cast<std::size_t>(rows[r] - chunk.chunk.begin);
    truth.lse[i] = oracle.lse[at];
    for (std::int64_t x = 0; x < shape.d_value; ++x) {
      truth.out(i, x) = oracle.output[at].o[static_cast<std::size_t>(x)];
    }
  }
  if (chunk.chunk.mode != ChunkMode::sparse || chunk.query_blocks > 0) return;
  for (std::size_t j = 0; j < oracle.colsum_intra.size(); ++j) {
    truth.intra[static_cast<Eigen::Index>(j)] = oracle.colsum_intra[j];
  }
  for (std::size_t j = 0; j < oracle.colsum_inter.size(); ++j) {
    truth.inter[static_cast<Eigen::Index>(j)] = oracle.colsum_inter[j];
  }
}

void use_reference_values(const Problem& problem, const StoredLayer& layer, const ChunkTrace& chunk,
                          std::int64_t head, HeadTruth& truth) {
  use_reference_values(problem, layer, chunk, head, all_rows(chunk), truth);
}

VoteOracle::VoteOracle(const VoteArithmetic& arithmetic, const Problem& problem, std::int64_t layer,
                       const ChunkTrace& chunk, std::int64_t head_kv)
    : problem_(problem),
      input_(problem.layers[static_cast<std::size_t>(layer)]),
      chunk_(chunk),
      head_kv_(head_kv),
      options_(expected_options(problem.shape, problem.options)),
      arithmetic_(arithmetic) {
  options_.scale = options_.scale_of(layer);
  options_.softcap = options_.softcap_of(layer);
  if (options_.select == Select::sketches) {
    take_sketches(layer);
    return;
  }
  std::vector<std::int32_t> before(static_cast<std::size_t>(chunk.candidate_blocks * options_.key_block));
  std::iota(before.begin(), before.end(), 0);
  summaries_ = summaries_of(key_rows(before), options_.key_block, arithmetic_);
  if (summaries_.mean.rows() > kCandidatesOfOneLevel) regions_ = region_summaries(summaries_, arithmetic_);
}

Eigen::MatrixXd VoteOracle::key_rows(const std::vector<std::int32_t>& positions) const {
  const DType stored = problem_.shape.kv_type;
  Eigen::MatrixXd keys(static_cast<Eigen::Index>(positions.size()), input_.k.width);
  for (std::size_t j = 0; j < positions.size(); ++j) {
    const float* row = input_.k.row(positions[j], head_kv_);
    for (Eigen::Index x = 0; x < keys.cols(); ++x) {
      keys(static_cast<Eigen::Index>(j), x) =
          input_.k.type == stored ? row[x] : round_to(stored, row[x]);  // STATE-6
    }
  }
  return keys;
}

void VoteOracle::take_sketches(std::int64_t layer) {
  const SketchedPast past = sketched_past(options_, chunk_.chunk.begin);
  candidates_ = past.candidates;
  if (candidates_.empty()) return;
  std::vector<std::int32_t> before(static_cast<std::size_t>(chunk_.chunk.begin));
  std::iota(before.begin(), before.end(), 0);
  columns_ = sketch_columns(key_rows(before));
  sketches_ = sketches_of(key_rows(candidates_), columns_);
  // SKE-5: log-sum-exps of the chunk where every head's set is the fixed part.
  ChunkTrace fixed;
  fixed.chunk = chunk_.chunk;
  fixed.memory_count = std::ssize(past.fixed);
  for (std::int64_t h = 0; h < problem_.shape.n_head; ++h) {
    fixed.memory.insert(fixed.memory.end(), past.fixed.begin(), past.fixed.end());
  }
  Arithmetic arithmetic;
  arithmetic.u = arithmetic_.u;
  arithmetic.exp = arithmetic_.exp;
  arithmetic.flushed = arithmetic_.flushed;
  const std::int64_t group = problem_.shape.n_head / problem_.shape.n_head_kv;
  for (std::int64_t h = head_kv_ * group; h < (head_kv_ + 1) * group; ++h) {
    const HeadTruth truth =
        eigen_oracle(head_chunk(problem_, layer, fixed, h, all_rows(fixed), false), arithmetic);
    own_.push_back({truth.lse, truth.lse_bound});
  }
}

SetVotes VoteOracle::votes(std::int64_t query_block) const {
  const Shape& shape = problem_.shape;
  const std::int64_t group = shape.n_head / shape.n_head_kv;
  QueryBlock block;
  block.begin = chunk_.chunk.begin + query_block * options_.query_block;
  const std::int64_t end = std::min(chunk_.chunk.end, block.begin + options_.query_block);
  block.pool = options_.pool;
  block.scale = options_.scale;
  block.softcap = options_.softcap;
  for (std::int64_t h = head_kv_ * group; h < (head_kv_ + 1) * group; ++h) {
    Eigen::MatrixXd& q = block.q.emplace_back(end - block.begin, input_.q.width);
    for (std::int64_t i = block.begin; i < end; ++i) {
      const float* row = input_.q.row(i, h);
      for (std::int64_t x = 0; x < input_.q.width; ++x) q(i - block.begin, x) = row[x];
    }
    const std::vector<float>& slopes = problem_.options.alibi;
    if (!slopes.empty()) block.slope.push_back(slopes[static_cast<std::size_t>(h)]);
  }
  SetVotes votes;
  if (!candidates_.empty()) {
    std::vector<OwnWeights> own;
    for (const OwnWeights& head : own_) {
      const Eigen::Index first = block.begin - chunk_.chunk.begin;
      own.push_back(
          {head.value.segment(first, end - block.begin), head.bound.segment(first, end - block.begin)});
    }
    votes.tokens = candidates_;
    votes.of_tokens = sketch_votes(block, own, columns_, sketches_, candidates_, arithmetic_);
  }
  if (chunk_.candidate_blocks == 0) return votes;
  const std::int64_t set = head_kv_ * chunk_.query_blocks + query_block;
  const std::span<const float> said(chunk_.block_votes.data() + set * chunk_.candidate_blocks,
                                    static_cast<std::size_t>(chunk_.candidate_blocks));
  votes.region_searched = searched_regions(said);
  for (Eigen::Index b = 0; b < chunk_.candidate_blocks; ++b) {
    const auto region = static_cast<std::size_t>(b / kBlocksOfRegion);
    if (region >= votes.region_searched.size() || votes.region_searched[region]) votes.searched.push_back(b);
  }
  if (votes.region_searched.empty()) {
    votes.blocks = block_votes(block, summaries_, options_.key_block, arithmetic_);
  } else {
    votes.regions = block_votes(block, regions_, options_.key_block * kBlocksOfRegion, arithmetic_);
    votes.blocks = block_votes(block, rows_of(summaries_, votes.searched), votes.searched, options_.key_block,
                               arithmetic_);
  }
  if (chunk_.voted_tokens == 0) return votes;
  votes.tokens = kept_tokens(options_, chunk_.chunk.begin, said);
  votes.of_tokens = token_votes(block, key_rows(votes.tokens), votes.tokens, arithmetic_);
  return votes;
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
    const std::string out_stage = stage_of_output(problem_.out_type);
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      const auto i = static_cast<Eigen::Index>(r);
      const std::int64_t token = tokens[r];
      const float* out = said_.out.data() + (token * problem_.shape.n_head + head_) * truth.out.cols();
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

constexpr double kLogUnit =
    1.0;  // votes on blocks, regions and sketches are logarithms of weights, as log-sum-exps are

/// SEL-12: as many regions are searched as must be, and no vote of one that is not can be above that of one that is.
void judge_regions(Context& context, const Problem& problem, const SetVotes& votes, std::int64_t candidates,
                   const std::string& where) {
  const std::int64_t wanted = regions_searched(expected_options(problem.shape, problem.options), candidates);
  const auto count = std::count(votes.region_searched.begin(), votes.region_searched.end(), true);
  if (count != wanted) {
    throw Violation(fmt::format("{}: {} of {} regions are searched, not {} (SEL-12); {}", where, count,
                                votes.region_searched.size(), wanted, problem.describe()));
  }
  const auto searched = [&](Eigen::Index r) { return votes.region_searched[static_cast<std::size_t>(r)]; };
  const Eigen::VectorXd& vote = votes.regions.vote;
  const Eigen::VectorXd& bound = votes.regions.bound;
  Eigen::Index best = -1;  // of those not searched, the one with the highest least vote
  for (Eigen::Index r = 0; r < vote.size(); ++r) {
    if (!searched(r) && (best < 0 || vote[r] - bound[r] > vote[best] - bound[best])) best = r;
  }
  for (Eigen::Index r = 0; r < vote.size() && best >= 0; ++r) {
    if (!searched(r)) continue;
    const double apart = bound[r] + bound[best];
    if (!(vote[r] + apart >= vote[best])) {
      throw Violation(fmt::format(
          "{}: region {} with the vote {:.9g} is searched, region {} with {:.9g} is not; bound {:.3g} "
          "(SEL-12); {}",
          where, r, vote[r], best, vote[best], apart, problem.describe()));
    }
    // No ratio: the votes are not reported, only their order shows.
    context.measured("region_votes", dtype_name(problem.shape.kv_type), 0.0, apart, kLogUnit);
  }
}

/// Compares the votes of a chunk with the oracle's: every searched candidate of every set, and every token that its kept
/// blocks hold; with rule `sketches` every candidate.
void judge_votes(Context& context, const Problem& problem, std::int64_t layer, const ChunkTrace& chunk) {
  const VoteArithmetic arithmetic =
      vote_arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type);
  for (std::int64_t g = 0; g < problem.shape.n_head_kv; ++g) {
    const VoteOracle oracle(arithmetic, problem, layer, chunk, g);
    for (std::int64_t block = 0; block < chunk.query_blocks; ++block) {
      const std::string where = fmt::format("layer {} chunk [{}, {}) key/value head {} query block {}", layer,
                                            chunk.chunk.begin, chunk.chunk.end, g, block);
      Judge judge(context, problem, where);
      const SetVotes votes = oracle.votes(block);
      if (!votes.region_searched.empty()) {
        judge_regions(context, problem, votes, chunk.candidate_blocks, where);
      }
      const std::int64_t set = g * chunk.query_blocks + block;
      for (Eigen::Index i = 0; i < votes.blocks.vote.size(); ++i) {
        const Eigen::Index b = votes.searched[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(set * chunk.candidate_blocks + b);
        judge("block_votes", b, 0, chunk.block_votes[at], votes.blocks.vote[i], votes.blocks.bound[i],
              kLogUnit);
      }
      const bool sketched = chunk.candidate_blocks == 0;
      for (Eigen::Index j = 0; j < votes.of_tokens.vote.size(); ++j) {
        const std::int64_t token = votes.tokens[static_cast<std::size_t>(j)];
        const float got = chunk.token_votes[static_cast<std::size_t>(set * chunk.voted_tokens + j)];
        const double wanted = votes.of_tokens.vote[j];
        const double bound = votes.of_tokens.bound[j];
        if (!sketched) {
          judge("token_votes", token, 0, got, wanted, bound, wanted);
        } else if (bound < kLogUnit) {
          judge("sketch_votes", token, 0, got, wanted, bound, kLogUnit);
        } else {  // next to rows of huge logits; beyond the range of F32 any vote is right (SKE-9)
          const double infinite = std::numeric_limits<double>::infinity();
          (void)judge.require("sketch_votes", token, 0, got, wanted, std::isnan(bound) ? infinite : bound,
                              0.0);
        }
      }
    }
  }
}

/// Truths of several sets of rows of one head and chunk.
std::vector<HeadTruth> truths_of(const Problem& problem, std::int64_t layer, const ChunkTrace& chunk,
                                 std::int64_t head, const std::vector<std::vector<std::int64_t>>& sets,
                                 const Arithmetic& arithmetic, int threads) {
  std::vector<HeadTruth> truths(sets.size());
  const auto count = static_cast<std::int64_t>(sets.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && count > 1)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    truths[at] = eigen_oracle(head_chunk(problem, layer, chunk, head, sets[at], true), arithmetic,
                              count > 1 ? 1 : threads);
  }
  return truths;
}

}  // namespace

std::vector<double> output_bounds(const Context& context, const Problem& problem, const Trace& trace,
                                  std::int64_t layer) {
  const Shape shape = problem.layer_shape(layer);
  const Arithmetic arithmetic = arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type);
  const LayerTrace& said = trace.layers[static_cast<std::size_t>(layer)];
  std::vector<double> bounds(said.out.size());
  for (const ChunkTrace& chunk : said.chunks) {
    for (std::int64_t h = 0; h < shape.n_head; ++h) {
      for (const std::vector<std::int64_t>& rows : rows_by_set(chunk)) {
        const HeadTruth truth = eigen_oracle(head_chunk(problem, layer, chunk, h, rows, true), arithmetic);
        for (std::size_t r = 0; r < rows.size(); ++r) {
          const auto i = static_cast<Eigen::Index>(r);
          for (std::int64_t x = 0; x < shape.d_value; ++x) {
            const auto at = static_cast<std::size_t>((rows[r] * shape.n_head + h) * shape.d_value + x);
            bounds[at] = truth.out_bound(i, x) +
                         unit_roundoff(problem.out_type) * std::fabs(truth.out(i, x)) +
                         smallest(problem.out_type);
          }
        }
      }
    }
  }
  return bounds;
}

void require_votes(Context& context, const Problem& problem, const Trace& trace) {
  for (std::size_t layer = 0; layer < trace.layers.size(); ++layer) {
    for (const ChunkTrace& chunk : trace.layers[layer].chunks) {
      judge_votes(context, problem, static_cast<std::int64_t>(layer), chunk);
    }
  }
}

void require_forced(Context& context, const Problem& problem, const Trace& trace, Truth whose) {
  const Arithmetic arithmetic = arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type);
  for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
    const LayerTrace& said = trace.layers[static_cast<std::size_t>(layer)];
    const StoredLayer stored(problem, layer);
    for (const ChunkTrace& chunk : said.chunks) {
      for (std::int64_t head = 0; head < problem.shape.n_head; ++head) {
        HeadJudge judge(context, problem, said, layer, chunk, head);
        for (const std::vector<std::int64_t>& rows : rows_by_set(chunk)) {
          HeadTruth truth = eigen_oracle(head_chunk(problem, layer, chunk, head, rows, true), arithmetic);
          if (whose == Truth::reference) use_reference_values(problem, stored, chunk, head, rows, truth);
          judge.rows(truth, rows);
          if (chunk.chunk.mode == ChunkMode::sparse && chunk.query_blocks == 0) judge.columns(truth);
        }
      }
      if (chunk.query_blocks > 0) judge_votes(context, problem, layer, chunk);
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
      const bool summed = sparse && chunk.query_blocks == 0;
      for (std::int64_t head = 0; head < problem.shape.n_head; ++head) {
        if (part.head && !part.head(head)) continue;
        HeadJudge judge(context, problem, said, layer, chunk, head);
        const bool whole = sparse && head % part.whole_head_of == layer % part.whole_head_of;
        if (summed) {
          // Outputs of all rows cost as much again as the column sums.
          const std::vector<std::int64_t> rows = all_rows(chunk);
          const HeadTruth truth =
              eigen_oracle(head_chunk(problem, layer, chunk, head, rows, whole), arithmetic, context.threads);
          judge.rows(truth, rows);
          judge.columns(truth);
          if (whole) continue;
        }
        std::vector<std::vector<std::int64_t>> sets = rows_by_set(chunk);
        if (!whole) {
          const std::int64_t turn = (head + layer) % std::max<std::int64_t>(1, part.border / kTileRows);
          const std::vector<std::int64_t> borders = border_rows(chunk.chunk, part.border, turn * kTileRows);
          for (std::vector<std::int64_t>& rows : sets) {
            std::erase_if(rows, [&](std::int64_t row) {
              return !std::binary_search(borders.begin(), borders.end(), row);
            });
          }
          std::erase_if(sets, [](const std::vector<std::int64_t>& rows) { return rows.empty(); });
        }
        const std::vector<HeadTruth> truths =
            truths_of(problem, layer, chunk, head, sets, arithmetic, context.threads);
        for (std::size_t i = 0; i < sets.size(); ++i) judge.rows(truths[i], sets[i]);
      }
      if (chunk.query_blocks > 0) judge_votes(context, problem, layer, chunk);
    }
  }
}

void require_conforming(Context& context, const Problem& problem, const RunStyle& style, Truth truth) {
  require_forced(context, problem, replayed(*context.engine, problem, style), truth);
}

void require_conforming_in_part(Context& context, const Problem& problem, const Part& part) {
  require_forced_in_part(context, problem, replayed(*context.engine, problem), part);
}

}  // namespace headwater::conformance
