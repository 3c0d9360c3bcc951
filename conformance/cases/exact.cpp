// Lane exact: inputs for which every correct order of summation gives the same bits.
//
// Keys are one-hot, scale is 1, and a query row holds 0 for the keys that it sees and -200 for the others: weights are
// exactly 1 / count or vanish (exp(-200) is below half an ulp of everything here). With counts that are powers of two
// and small integer values every weight, sum, column sum and output is a short binary fraction, so an engine may add up
// in any order, and still there is one right bit pattern. Rows differ, so a wrong key, head, row or count shows.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"
#include "conformance/run.hpp"

namespace headwater::conformance {
namespace {

constexpr float kHidden = -200.0f;

// A problem and everything that an engine must answer to it.
class ExactProblem {
 public:
  ExactProblem(Random& random, Problem problem) : random_(random), problem_(std::move(problem)) { build(); }

  [[nodiscard]] const Problem& problem() const { return problem_; }
  void require(const Trace& trace) const;

 private:
  void build();
  void build_chunk(const Chunk& chunk, std::int64_t head, ChunkTrace& expected);
  std::int64_t light(std::int64_t row, std::int64_t head, const std::vector<std::int64_t>& among,
                     std::int64_t count, const std::function<void(std::int64_t)>& each);
  [[nodiscard]] bool has_sink(std::int64_t head) const {
    return !problem_.options.sinks.empty() &&
           std::isfinite(problem_.options.sinks[static_cast<std::size_t>(head)]);
  }
  [[nodiscard]] float* q_row(std::int64_t token, std::int64_t head) {
    return problem_.layers[0].q.row(token, head);
  }

  Random& random_;
  Problem problem_;
  EffectiveOptions options_;
  std::vector<std::vector<float>> scores_;       // per head
  std::vector<std::vector<std::int32_t>> sets_;  // per head
  std::int64_t set_end_ = 0;
  std::vector<ChunkTrace> chunks_;
  std::vector<float> out_;
};

std::int64_t power_of_two_below(Random& random, std::int64_t most) {
  std::int64_t power = 1;
  while (power * 2 <= most && random.chance(0.7)) power *= 2;
  return power;
}

// Lets `row` see `count` random keys of `among`; calls `each` with the index of every one of them.
std::int64_t ExactProblem::light(std::int64_t row, std::int64_t head, const std::vector<std::int64_t>& among,
                                 std::int64_t count, const std::function<void(std::int64_t)>& each) {
  std::vector<std::int64_t> left(among.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = static_cast<std::int64_t>(i);
  for (std::int64_t k = 0; k < count; ++k) {
    const auto pick =
        static_cast<std::size_t>(random_.integer(0, static_cast<std::int64_t>(left.size()) - 1));
    q_row(row, head)[among[static_cast<std::size_t>(left[pick])]] = 0.0f;
    each(left[pick]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(pick));
  }
  return count;
}

void ExactProblem::build_chunk(const Chunk& chunk, std::int64_t head, ChunkTrace& expected) {
  const bool sparse = chunk.mode == ChunkMode::sparse;
  const std::int64_t sink = has_sink(head) ? 1 : 0;
  const std::int64_t group = problem_.shape.n_head / problem_.shape.n_head_kv;
  auto& set = sets_[static_cast<std::size_t>(head)];
  auto& scores = scores_[static_cast<std::size_t>(head)];
  if (sparse && chunk.begin > 0) {
    set = expected_set(set, set_end_, chunk.begin, options_.local, options_.heavy, scores);
  }
  const std::vector<std::int64_t> memory(expected.memory_count > 0 || (sparse && chunk.begin > 0)
                                             ? std::vector<std::int64_t>(set.begin(), set.end())
                                             : std::vector<std::int64_t>{});
  std::vector<double> inter(memory.size(), 0.0);
  std::vector<double> intra(static_cast<std::size_t>(chunk.end - chunk.begin), 0.0);
  for (std::int64_t i = chunk.begin; i < chunk.end; ++i) {
    std::vector<std::int64_t> own;
    for (std::int64_t j = sparse ? chunk.begin : 0; j <= i; ++j) own.push_back(j);
    const auto own_keys = static_cast<std::int64_t>(own.size());
    // The parts must have powers of two of terms each, and so must their union: equal parts, the sink in the own one.
    std::int64_t part =
        memory.empty() ? power_of_two_below(random_, own_keys + sink)
                       : power_of_two_below(
                             random_, std::min(own_keys + sink, static_cast<std::int64_t>(memory.size())));
    const std::int64_t total = memory.empty() ? part : 2 * part;
    std::vector<double> sum(static_cast<std::size_t>(problem_.shape.d_value), 0.0);
    const auto add_value = [&](std::int64_t position) {
      const float* value = problem_.layers[0].v.row(position, head / group);
      for (std::size_t x = 0; x < sum.size(); ++x) sum[x] += value[x];
    };
    light(i, head, own, part - sink, [&](std::int64_t j) {
      add_value(own[static_cast<std::size_t>(j)]);
      if (sparse) intra[static_cast<std::size_t>(j)] += 1.0 / static_cast<double>(part);
    });
    if (!memory.empty()) {
      light(i, head, memory, part, [&](std::int64_t j) {
        add_value(memory[static_cast<std::size_t>(j)]);
        inter[static_cast<std::size_t>(j)] += 1.0 / static_cast<double>(part);
      });
    }
    float* out = out_.data() + (i * problem_.shape.n_head + head) * problem_.shape.d_value;
    for (std::size_t x = 0; x < sum.size(); ++x) {
      out[x] = round_to(problem_.out_type, static_cast<float>(sum[x] / static_cast<double>(total)));
    }
    expected.lse.push_back(static_cast<float>(std::log(static_cast<double>(total))));
  }
  for (std::size_t i = 0; i < memory.size(); ++i) {
    expected.memory.push_back(static_cast<std::int32_t>(memory[i]));
    expected.colsum_inter.push_back(static_cast<float>(inter[i]));
    float& score = scores[static_cast<std::size_t>(memory[i])];
    score = score_value(options_.score_type,
                        score_bits(options_.score_type, score + expected.colsum_inter.back()));
  }
  for (const double x : intra) {
    const float rounded = sparse ? static_cast<float>(x) : 0.0f;
    scores.push_back(score_value(options_.score_type, score_bits(options_.score_type, rounded)));
    if (sparse) expected.colsum_intra.push_back(rounded);
  }
}

void ExactProblem::build() {
  const std::int64_t n = problem_.tokens();
  Shape& shape = problem_.shape;
  shape.d_head = n;
  problem_.options.scale = 1.0;
  options_ = expected_options(shape, problem_.options);
  problem_.make_tensors();
  LayerInput& layer = problem_.layers[0];
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t h = 0; h < shape.n_head_kv; ++h) {
      layer.k.row(t, h)[t] = 1.0f;
      for (std::int64_t x = 0; x < shape.d_value; ++x) {
        layer.v.row(t, h)[x] = static_cast<float>(random_.integer(1, 255));
      }
    }
  }
  for (float& x : layer.q.values) x = kHidden;
  scores_.resize(static_cast<std::size_t>(shape.n_head));
  sets_.resize(static_cast<std::size_t>(shape.n_head));
  out_.resize(static_cast<std::size_t>(n * shape.n_head * shape.d_value));
  for (const std::vector<Chunk>& plan : expected_plans(problem_)) {
    for (const Chunk& chunk : plan) {
      ChunkTrace expected;
      expected.chunk = chunk;
      for (std::int64_t h = 0; h < shape.n_head; ++h) build_chunk(chunk, h, expected);
      expected.memory_count = static_cast<std::int64_t>(expected.memory.size()) / shape.n_head;
      if (chunk.mode == ChunkMode::sparse && chunk.begin > 0) set_end_ = chunk.begin;
      chunks_.push_back(std::move(expected));
    }
  }
}

void require_bits(const std::vector<float>& got, const std::vector<float>& wanted, const std::string& what) {
  if (got.size() != wanted.size())
    throw Violation(fmt::format("{}: {} values, not {}", what, got.size(), wanted.size()));
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != wanted[i])
      throw Violation(fmt::format("{}: value {} is {:.9g}, not {:.9g}", what, i, got[i], wanted[i]));
  }
}

void ExactProblem::require(const Trace& trace) const {
  const LayerTrace& said = trace.layers[0];
  if (said.chunks.size() != chunks_.size()) throw Violation("wrong number of chunks");
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const ChunkTrace& got = said.chunks[c];
    const ChunkTrace& wanted = chunks_[c];
    const std::string where = fmt::format("chunk [{}, {})", wanted.chunk.begin, wanted.chunk.end);
    if (got.chunk.begin != wanted.chunk.begin || got.chunk.end != wanted.chunk.end)
      throw Violation(where + ": not it");
    if (got.memory_count != wanted.memory_count || got.memory != wanted.memory) {
      throw Violation(where + ": memory sets of a free run differ");
    }
    require_bits(got.colsum_intra, wanted.colsum_intra, where + " colsum_intra");
    require_bits(got.colsum_inter, wanted.colsum_inter, where + " colsum_inter");
    for (std::size_t i = 0; i < got.lse.size(); ++i) {
      // ln of a power of two is irrational but for ln 1: one ulp of a logarithm, none for a single key.
      if (!(std::fabs(got.lse[i] - wanted.lse[i]) <= 0x1p-23f * wanted.lse[i])) {
        throw Violation(fmt::format("{}: lse {} is {:.9g}, not {:.9g}", where, i, got.lse[i], wanted.lse[i]));
      }
    }
  }
  require_bits(said.out, out_, "out");
  for (std::size_t h = 0; h < scores_.size(); ++h) {
    for (std::size_t p = 0; p < scores_[h].size(); ++p) {
      const std::uint32_t got = said.snapshots.back().scores[h * scores_[h].size() + p];
      if (got != score_bits(options_.score_type, scores_[h][p])) {
        throw Violation(fmt::format("score of head {} position {} is {:#x}", h, p, got));
      }
    }
  }
}

void run_exact(Context& context, Random& random, Problem problem) {
  const ExactProblem exact(random, std::move(problem));
  try {
    exact.require(run(*context.engine, exact.problem()));
  } catch (const Violation& violation) {
    throw Violation(fmt::format("{}; {}", violation.what(), exact.problem().describe()));
  }
}

void powers_of_two(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(120); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 16, .max_tokens = 60, .extras = false, .wide = false});
    problem.options.score_type = round % 3 == 0 ? ScoreType::f32 : ScoreType::bf16;
    if (random.chance(0.4)) {
      for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
        problem.options.sinks.push_back(random.chance(0.5) ? 0.0f : -std::numeric_limits<float>::infinity());
      }
    }
    run_exact(context, random, std::move(problem));
  }
}
const Register kPowers{{"exact.powers_of_two",
                        {"INTRA-1", "INTRA-2", "INTER-1", "INTER-2", "FUSE-1", "FUSE-2", "LOGIT-1", "LOGIT-4",
                         "MASK-1", "MEM-6", "SCORE-2", "SCORE-3", "DEC-1"},
                        "attention",
                        Lane::exact,
                        true,
                        powers_of_two}};

// More rows and keys than any row group or register tile: blocks of 32 and 128 rows, tails in each.
void powers_of_two_large(Context& context) {
  Random random(context.seed);
  for (const std::int64_t s : {131, 200}) {
    if (context.quick && s > 131) break;
    Problem problem;
    problem.shape.n_head = 2;
    problem.shape.n_head_kv = 1;
    problem.shape.d_value = 9;
    problem.options.chunk = s;
    problem.options.local = 40;
    problem.options.heavy = 70;
    problem.options.threads = 2;
    problem.steps = {Step::prefill(2 * s + 30), Step::decode(3)};
    problem.shape.capacity = problem.tokens();
    run_exact(context, random, std::move(problem));
  }
}
const Register kPowersLarge{{"exact.powers_of_two_large",
                             {"INTRA-2", "INTER-2"},
                             "attention",
                             Lane::exact,
                             true,
                             powers_of_two_large}};

// One visible key has weight 1: the output is the stored value row, rounded once.
void one_key(Context& context) {
  Random random(context.seed);
  const std::vector<DType> types{DType::f32, DType::f16, DType::bf16};
  for (const DType in : types) {
    for (const DType kv : types) {
      for (const DType out : types) {
        Problem problem;
        problem.shape.kv_type = kv;
        problem.q_type = problem.k_type = problem.v_type = in;
        problem.out_type = out;
        problem.shape.d_head = 2;
        problem.shape.d_value = 300;
        problem.steps = {Step::prefill(1)};
        problem.shape.capacity = 1;
        problem.options.threads = 1;
        problem.fill_normal(random);
        for (float& x : problem.layers[0].v.values) {
          const double magnitude =
              std::ldexp(1.0 + random.uniform(), static_cast<int>(random.integer(-30, 17)));
          x = round_to(in, static_cast<float>(random.chance(0.5) ? magnitude : -magnitude));
          // Halves and exact ties between neighbours of the 16-bit formats.
          if (random.chance(0.3))
            x = round_to(in, std::ldexp(static_cast<float>(2 * random.integer(128, 4096) + 1), -9));
        }
        const Trace trace = run(*context.engine, problem);
        for (std::size_t i = 0; i < trace.layers[0].out.size(); ++i) {
          const float v = problem.layers[0].v.values[i];
          const float wanted = round_to(out, round_to(kv, v));
          if (trace.layers[0].out[i] != wanted) {
            throw Violation(fmt::format("value {:.9g} comes out as {:.9g}, not {:.9g}; {}", v,
                                        trace.layers[0].out[i], wanted, problem.describe()));
          }
        }
      }
    }
  }
}
const Register kOneKey{
    {"exact.one_key", {"NUM-1", "STATE-6", "INTRA-1"}, "formats", Lane::exact, true, one_key}};

// Smallest relative distance between the last kept and the first dropped candidate of any selection in a run.
double smallest_margin(const Problem& problem, const Trace& trace) {
  const EffectiveOptions options = expected_options(problem.shape, problem.options);
  double margin = 1.0;
  for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
    std::vector<float> scores;
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      const auto count = static_cast<std::size_t>(chunk.memory_count);
      const auto* set = chunk.memory.data() + static_cast<std::size_t>(h) * count;
      const std::int64_t first_local = chunk.chunk.begin - options.local;
      float kept = std::numeric_limits<float>::infinity();
      for (std::size_t i = 0; i < count; ++i) {
        if (set[i] < first_local) kept = std::min(kept, scores[static_cast<std::size_t>(set[i])]);
      }
      for (std::int64_t p = 0; count > 0 && p < first_local; ++p) {
        if (std::binary_search(set, set + count, static_cast<std::int32_t>(p))) continue;
        margin = std::min(margin, (kept - scores[static_cast<std::size_t>(p)]) / static_cast<double>(kept));
      }
      for (std::size_t i = 0; i < count; ++i) {
        scores[static_cast<std::size_t>(set[i])] +=
            chunk.colsum_inter[static_cast<std::size_t>(h) * count + i];
      }
      const auto length = static_cast<std::size_t>(chunk.length());
      const auto* sums = chunk.colsum_intra.data() + static_cast<std::size_t>(h) * length;
      scores.insert(scores.end(), sums, sums + length);
    }
  }
  return margin;
}

// Free runs, not teacher-forced: where every selection of the reference has a clear margin, the sets must agree.
void free_run(Context& context) {
  // Two BF16 roundings of 2^-8 on either side leave this margin clear.
  constexpr double kClear = 4.0 * 0x1p-8;
  Random random(context.seed);
  int judged = 0;
  for (int round = 0; round < context.rounds(300); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 12, .max_tokens = 40, .dtypes = false, .later_turns = false});
    problem.options.score_type = ScoreType::f32;
    problem.fill_normal(random, 4.0);
    if (!expected_options(problem.shape, problem.options).sparse) continue;
    const Trace reference = run(engine("reference"), problem);
    if (smallest_margin(problem, reference) < kClear) continue;
    const Trace trace = run(*context.engine, problem);
    for (std::size_t c = 0; c < trace.layers[0].chunks.size(); ++c) {
      if (trace.layers[0].chunks[c].memory != reference.layers[0].chunks[c].memory) {
        throw Violation(fmt::format("chunk {}: another memory set than the reference's, margin {:.2g}; {}", c,
                                    smallest_margin(problem, reference), problem.describe()));
      }
      if (trace.layers[0].chunks[c].memory_count > 0) ++judged;
    }
  }
  if (judged == 0) throw Violation("no selection had a clear margin: the case judged nothing");
}
const Register kFreeRun{
    {"exact.free_run", {"MEM-3", "MEM-5", "SCORE-3"}, "memory_set", Lane::exact, true, free_run}};

}  // namespace
}  // namespace headwater::conformance
