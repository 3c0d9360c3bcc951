#include "cli/commands/bench/checked_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "conformance/case.hpp"
#include "conformance/eigen_oracle.hpp"
#include "conformance/formats.hpp"
#include "conformance/random.hpp"
#include "conformance/reference_oracle.hpp"
#include "conformance/replay.hpp"

namespace headwater::bench {

namespace {

using conformance::ChunkTrace;
using conformance::HeadChunk;
using conformance::HeadTruth;
using conformance::Random;

constexpr std::int64_t kHeads = 4;  ///< sampled query heads
constexpr std::int64_t kRows = 24;  ///< sampled rows
constexpr double kMostColumnPairs =
    2.0e6;  ///< pairs of a chunk whose column sums take the oracle about a second

std::vector<std::int64_t> sample_heads(std::int64_t n_head, Random& random) {
  std::vector<std::int64_t> heads(static_cast<std::size_t>(n_head));
  std::iota(heads.begin(), heads.end(), std::int64_t{0});
  const std::int64_t count = std::min(kHeads, n_head);
  for (std::int64_t i = 0; i < count; ++i) {
    std::swap(heads[static_cast<std::size_t>(i)],
              heads[static_cast<std::size_t>(random.integer(i, n_head - 1))]);
  }
  heads.resize(static_cast<std::size_t>(count));
  return heads;
}

template <typename Element>
void append(std::vector<Element>& to, const Element* from, std::int64_t count) {
  if (count > 0) to.insert(to.end(), from, from + count);
}

/// Sets and votes of the key/value heads of the sampled heads, packed as if each had one of its own.
void copy_sets(const ChunkRecord& record, const std::vector<std::int64_t>& heads, std::int64_t group,
               std::int64_t query_block, ChunkTrace& trace) {
  trace.query_block = query_block;
  trace.query_blocks = record.query_blocks;
  trace.candidate_blocks = record.candidate_blocks;
  trace.voted_tokens = record.voted_tokens;
  for (const std::int64_t h : heads) {
    const std::int64_t first = h / group * record.query_blocks;
    for (std::int64_t set = first; set < first + record.query_blocks; ++set) {
      append(trace.memory, record.memory + set * record.memory_stride, record.memory_count);
    }
    append(trace.block_votes, record.block_votes + first * record.candidate_blocks,
           record.query_blocks * record.candidate_blocks);
    append(trace.token_votes, record.token_votes + first * record.voted_tokens,
           record.query_blocks * record.voted_tokens);
  }
}

/// The sampled heads of a record, packed as if there were no others. `group` query heads share a key/value head.
ChunkTrace copy_heads(const ChunkRecord& record, const std::vector<std::int64_t>& heads, std::int64_t group,
                      const EffectiveOptions& options) {
  ChunkTrace trace;
  trace.chunk = record.chunk;
  trace.memory_count = record.memory_count;
  const std::int64_t n = trace.length();
  const bool blocks = options.select != Select::h2o;
  if (blocks && record.chunk.mode == ChunkMode::sparse) {
    copy_sets(record, heads, group, options.query_block, trace);
  }
  for (const std::int64_t h : heads) {
    append(trace.lse, record.lse + h * record.row_stride, n);
    if (record.colsum_intra != nullptr)
      append(trace.colsum_intra, record.colsum_intra + h * record.row_stride, n);
    if (record.memory_count == 0 || blocks) continue;
    append(trace.memory, record.memory + h * record.memory_stride, record.memory_count);
    append(trace.colsum_inter, record.colsum_inter + h * record.memory_stride, record.memory_count);
  }
  return trace;
}

/// Everything that the judges need of a run that was observed.
class Judge {
 public:
  Judge(const Engine& engine, const Workload& workload, const Options& options, const Session& session,
        std::vector<std::int64_t> heads)
      : engine_(engine),
        workload_(workload),
        options_(options),
        session_(session),
        heads_(std::move(heads)),
        replay_(session.options(), static_cast<std::int64_t>(heads_.size()),
                static_cast<std::int64_t>(heads_.size())) {
    const Shape& shape = workload.shape();
    layer_ = {workload.q(),    workload.k(), workload.v(), shape.n_head,
              shape.n_head_kv, shape.d_head, shape.d_value};
  }

  void add(const ChunkRecord& record) {
    const Shape& shape = workload_.shape();
    ChunkTrace& chunk =
        chunks_.emplace_back(copy_heads(record, heads_, shape.n_head / shape.n_head_kv, session_.options()));
    replay_.take(chunk, where(chunk));
    chunk.block_votes = {};  // many, and no longer needed
    chunk.token_votes = {};
  }

  Checked judge(Random& random) {
    require_scores();
    if (session_.options().kv_bits != 0) take_stored_rows();
    const auto last = static_cast<std::int64_t>(chunks_.size()) - 1;
    judge_row(0, 0, 0);
    judge_row(last, chunks_.back().length() - 1, 0);
    for (std::int64_t i = 2; i < kRows; ++i) {
      const std::int64_t chunk = random.integer(0, last);
      const std::int64_t length = chunks_[static_cast<std::size_t>(chunk)].length();
      judge_row(chunk, random.integer(0, length - 1),
                random.integer(0, static_cast<std::int64_t>(heads_.size()) - 1));
    }
    judge_some_column_sums(random);
    return checked_;
  }

 private:
  /// SCORE-6, SEL-9: no tolerance.
  void require_scores() {
    const ScoreView scores = session_.scores(0);
    std::vector<std::uint32_t> bits;
    for (const std::int64_t head : heads_) {
      for (std::int64_t p = 0; p < session_.tokens(); ++p) bits.push_back(score_bits(scores, head, p));
    }
    replay_.require_scores(bits, "final scores of the sampled heads");
    if (session_.options().sparse) checked_.heads_replayed = static_cast<std::int64_t>(heads_.size());
  }

  /// STATE-13: what is attended is what the session restores.
  void take_stored_rows() {
    const Shape& shape = workload_.shape();
    const auto d = static_cast<std::size_t>(shape.d_head), dv = static_cast<std::size_t>(shape.d_value);
    const auto rows = static_cast<std::size_t>(session_.tokens() * shape.n_head_kv);
    keys_.resize(rows * d);
    values_.resize(rows * dv);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto at = static_cast<std::int64_t>(r);
      const std::int64_t position = at / shape.n_head_kv, head = at % shape.n_head_kv;
      session_.read_key(0, head, position, {keys_.data() + r * d, d});
      session_.read_value(0, head, position, {values_.data() + r * dv, dv});
    }
    layer_.k = Rows::token_major(keys_.data(), DType::f32, shape.n_head_kv, shape.d_head);
    layer_.v = Rows::token_major(values_.data(), DType::f32, shape.n_head_kv, shape.d_value);
  }

  static std::uint32_t score_bits(const ScoreView& scores, std::int64_t head, std::int64_t position) {
    const std::int64_t at = head * scores.head_stride + position;
    if (scores.type == ScoreType::bf16) return static_cast<const std::uint16_t*>(scores.data)[at];
    std::uint32_t bits = 0;
    std::memcpy(&bits, static_cast<const float*>(scores.data) + at, sizeof bits);
    return bits;
  }

  static std::string where(const ChunkTrace& chunk) {
    return fmt::format("chunk [{}, {})", chunk.chunk.begin, chunk.chunk.end);
  }

  /// First entry of the set that a row reads.
  static const std::int32_t* set_of(const ChunkTrace& chunk, std::int64_t sample, std::int64_t row) {
    return chunk.memory.data() + chunk.set_of(sample, 1, chunk.chunk.begin + row) * chunk.memory_count;
  }

  /// After the last token of a set (SKE-8).
  static const std::int32_t* end_of(const std::int32_t* set, std::int64_t count) {
    return std::find(set, set + count, -1);
  }

  /// Rows [first, last) of a chunk for one sampled head, all of which read the same set.
  [[nodiscard]] HeadChunk head_chunk(const ChunkTrace& chunk, std::int64_t sample, std::int64_t first,
                                     std::int64_t last) const {
    const Shape& shape = workload_.shape();
    const std::int64_t head = heads_[static_cast<std::size_t>(sample)];
    const std::int64_t head_kv = reference::key_value_head(head, shape.n_head, shape.n_head_kv);
    HeadChunk input;
    for (std::int64_t r = first; r < last; ++r) input.queries.push_back(chunk.chunk.begin + r);
    input.scale = session_.options().scale;
    const std::int32_t* set = set_of(chunk, sample, first);
    input.positions.assign(set, end_of(set, chunk.memory_count));
    input.memory = std::ssize(input.positions);
    const std::int64_t first_key = chunk.chunk.mode == ChunkMode::sparse ? chunk.chunk.begin : 0;
    for (std::int64_t p = first_key; p < chunk.chunk.begin + last; ++p) input.positions.push_back(p);
    input.q = matrix(layer_.q, input.queries, head, shape.d_head);
    input.keys = matrix(layer_.k, input.positions, head_kv, shape.d_head);
    input.values = matrix(layer_.v, input.positions, head_kv, shape.d_value);
    return input;
  }

  static Eigen::MatrixXd matrix(const Rows& rows, const std::vector<std::int64_t>& positions,
                                std::int64_t head, std::int64_t width) {
    Eigen::MatrixXd result(static_cast<Eigen::Index>(positions.size()), width);
    std::vector<double> row(static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < positions.size(); ++i) {
      reference::read_row(rows, positions[i], head, row);
      for (std::int64_t x = 0; x < width; ++x) {
        result(static_cast<Eigen::Index>(i), x) = row[static_cast<std::size_t>(x)];
      }
    }
    return result;
  }

  /// One row of the reference oracle: what it sees besides itself is handed over as its memory set, which FUSE-2 allows.
  [[nodiscard]] conformance::OracleHead reference_row(const ChunkTrace& chunk, std::int64_t sample,
                                                      std::int64_t token) const {
    const std::int64_t head = heads_[static_cast<std::size_t>(sample)];
    const reference::LogitRule rule = reference::logit_rule(options_, session_.options(), 0, head);
    if (chunk.chunk.mode != ChunkMode::sparse) {
      return conformance::oracle_head(layer_, rule, {token, token + 1, ChunkMode::dense}, head, {});
    }
    const std::int32_t* set = set_of(chunk, sample, token - chunk.chunk.begin);
    std::vector<std::int32_t> seen(set, end_of(set, chunk.memory_count));
    for (std::int64_t p = chunk.chunk.begin; p < token; ++p) seen.push_back(static_cast<std::int32_t>(p));
    return conformance::oracle_head(layer_, rule, {token, token + 1, ChunkMode::sparse}, head, seen);
  }

  void judge_row(std::int64_t index, std::int64_t row, std::int64_t sample) {
    const ChunkTrace& chunk = chunks_[static_cast<std::size_t>(index)];
    const std::int64_t token = chunk.chunk.begin + row;
    const std::int64_t head = heads_[static_cast<std::size_t>(sample)];
    const HeadTruth bounds = conformance::eigen_oracle(
        head_chunk(chunk, sample, row, row + 1),
        conformance::arithmetic_of(engine_, workload_.shape().kv_type, workload_.shape().kv_type));
    const conformance::OracleHead truth = reference_row(chunk, sample, token);
    const std::string at = fmt::format("{} token {} head {}", where(chunk), token, head);
    const float* out = workload_.out_row(token, head);
    for (std::int64_t x = 0; x < workload_.shape().d_value; ++x) {
      const double wanted = truth.output.front().o[static_cast<std::size_t>(x)];
      const double bound = bounds.out_bound(0, x);
      const double rounding = conformance::unit_roundoff(DType::f32) * (std::fabs(wanted) + bound) +
                              conformance::smallest(DType::f32) / 2.0;
      judge_value(at + " out", static_cast<double>(out[x]), wanted, bound + rounding, checked_.worst_row);
    }
    judge_value(at + " lse",
                static_cast<double>(chunk.lse[static_cast<std::size_t>(sample * chunk.length() + row)]),
                truth.lse.front(), bounds.lse_bound[0], checked_.worst_row);
    ++checked_.rows;
  }

  /// INTRA-2, INTER-2 of one chunk and head.
  void judge_some_column_sums(Random& random) {
    if (session_.options().select != Select::h2o) return;  // SEL-9: there are none
    std::vector<const ChunkTrace*> judged;
    for (const ChunkTrace& chunk : chunks_) {
      const auto n = static_cast<double>(chunk.length());
      const double pairs = n * (n + 1.0) / 2.0 + n * static_cast<double>(chunk.memory_count);
      if (chunk.chunk.mode == ChunkMode::sparse && pairs <= kMostColumnPairs) judged.push_back(&chunk);
    }
    if (judged.empty()) return;
    // A chunk without a set is the first one only; the others say more.
    const ChunkTrace& chunk = judged.size() == 1 ? *judged.front()
                                                 : *judged[static_cast<std::size_t>(random.integer(
                                                       1, static_cast<std::int64_t>(judged.size()) - 1))];
    const std::int64_t sample = random.integer(0, static_cast<std::int64_t>(heads_.size()) - 1);
    const HeadTruth truth = conformance::eigen_oracle(
        head_chunk(chunk, sample, 0, chunk.length()),
        conformance::arithmetic_of(engine_, workload_.shape().kv_type, workload_.shape().kv_type),
        session_.options().threads);
    const std::string at =
        fmt::format("{} head {} column sum", where(chunk), heads_[static_cast<std::size_t>(sample)]);
    for (std::int64_t j = 0; j < chunk.length(); ++j) {
      judge_value(
          at, static_cast<double>(chunk.colsum_intra[static_cast<std::size_t>(sample * chunk.length() + j)]),
          truth.intra[j], truth.intra_bound[j], checked_.worst_column_sum);
    }
    for (std::int64_t j = 0; j < chunk.memory_count; ++j) {
      judge_value(
          at,
          static_cast<double>(chunk.colsum_inter[static_cast<std::size_t>(sample * chunk.memory_count + j)]),
          truth.inter[j], truth.inter_bound[j], checked_.worst_column_sum);
    }
    checked_.column_sums += chunk.length() + chunk.memory_count;
  }

  void judge_value(const std::string& what, double got, double wanted, double bound, double& worst) {
    const double error = std::fabs(got - wanted);
    if (!(error <= bound)) {
      throw conformance::Violation(
          fmt::format("engine {}: {} is {:.9g}, oracle {:.9g}, error {:.3g} above the bound {:.3g}",
                      engine_.name(), what, got, wanted, error, bound));
    }
    if (error > 0.0) worst = std::max(worst, error / bound);
  }

  const Engine& engine_;
  const Workload& workload_;
  const Options& options_;
  const Session& session_;
  std::vector<std::int64_t> heads_;
  conformance::LayerRows layer_;
  std::vector<float> keys_, values_;  // with kv_bits
  std::vector<ChunkTrace> chunks_;
  conformance::Replay replay_;
  Checked checked_;
};

}  // namespace

AttentionRun::AttentionRun(const Engine& engine, Workload& workload, const Options& options)
    : engine_(engine),
      workload_(workload),
      options_(options),
      session_(engine.open(workload.shape(), options)) {}

Checked AttentionRun::check(std::int64_t prefilled, std::int64_t decoded, std::uint64_t seed) {
  Random random(seed);
  Judge judge(engine_, workload_, options_, *session_, sample_heads(workload_.shape().n_head, random));
  // An output that is not written must not pass because an earlier run left the right one there.
  std::fill_n(static_cast<float*>(workload_.out().data),
              (prefilled + decoded) * workload_.shape().n_head * workload_.shape().d_value,
              std::numeric_limits<float>::quiet_NaN());
  session_->set_observer([&](const ChunkRecord& record) { judge.add(record); });
  prefill(prefilled);
  for (std::int64_t i = 0; i < decoded; ++i) decode();
  session_->set_observer({});
  return judge.judge(random);
}

Seconds AttentionRun::prefill(std::int64_t tokens) {
  session_->reset();
  return take(Step::prefill(tokens));
}

Seconds AttentionRun::decode() { return take(Step::decode(1)); }

Seconds AttentionRun::take(const Step& step) {
  const std::int64_t base = session_->tokens();
  const Seconds begin = seconds_now();
  session_->begin(step);
  session_->attend(0, workload_.q(base), workload_.k(base), workload_.v(base), workload_.out(base));
  session_->end();
  return seconds_now() - begin;
}

double session_bytes(const Shape& shape) {
  const auto tokens = static_cast<double>(shape.capacity);
  const auto element = static_cast<double>(dtype_size(shape.kv_type));
  return tokens *
         (element * static_cast<double>(shape.n_head_kv) * static_cast<double>(shape.d_head + shape.d_value) +
          sizeof(std::uint16_t) * static_cast<double>(shape.n_head));
}

}  // namespace headwater::bench
