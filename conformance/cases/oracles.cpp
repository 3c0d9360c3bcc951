// The two oracles against each other: the reference's passes and fusion, and one softmax over an explicit union mask in
// Eigen matrices. They share no code; the other cases take what both say for true.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/reference_oracle.hpp"
#include "conformance/replay.hpp"
#include "reference/fusion.hpp"
#include "reference/logits.hpp"
#include "reference/mask.hpp"
#include "reference/softmax.hpp"

namespace headwater::conformance {
namespace {

constexpr Arithmetic kDouble{0x1p-53, 0x1p-1020, 4 * 0x1p-53};

[[noreturn]] void apart(const std::string& what, double a, double b, const Problem& problem) {
  throw Violation(fmt::format("{}: {:.17g} against {:.17g}; {}", what, a, b, problem.describe()));
}

reference::LogitRule rule_of(const Problem& problem, std::int64_t head) {
  return reference::logit_rule(problem.options, expected_options(problem.shape, problem.options), 0, head);
}

// Outputs and log-sum-exps of rows that read one set.
void require_same_rows(const Problem& problem, const HeadTruth& eigen, const HeadTruth& reference) {
  for (Eigen::Index i = 0; i < eigen.out.rows(); ++i) {
    for (Eigen::Index x = 0; x < eigen.out.cols(); ++x) {
      if (!(std::fabs(eigen.out(i, x) - reference.out(i, x)) <= 2.0 * eigen.out_bound(i, x))) {
        apart("out", eigen.out(i, x), reference.out(i, x), problem);
      }
    }
    // The bounds of lse and column sums hold a rounding to F32, which neither oracle has done.
    const double lse = 2.0 * (eigen.lse_bound[i] - 0x1p-24 * std::fabs(eigen.lse[i]));
    if (!(std::fabs(eigen.lse[i] - reference.lse[i]) <= lse))
      apart("lse", eigen.lse[i], reference.lse[i], problem);
  }
}

// Calls `each` for every head of every chunk of a run of the engine `reference`, which chooses the sets.
void each_head_chunk(
    Context& context, int full, const Variety& variety,
    const std::function<void(const Problem&, const StoredLayer&, const ChunkTrace&, std::int64_t)>& each) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(full); ++round) {
    const Problem problem = random_problem(random, variety);
    const Trace trace = run(engine("reference"), problem);
    const StoredLayer stored(problem, 0);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (std::int64_t h = 0; h < problem.shape.n_head; ++h) each(problem, stored, chunk, h);
    }
  }
}

void agree(Context& context) {
  each_head_chunk(
      context, 120, {.max_chunk = 24, .max_tokens = 100},
      [](const Problem& problem, const StoredLayer& stored, const ChunkTrace& chunk, std::int64_t head) {
        const HeadTruth eigen = eigen_oracle(head_chunk(problem, 0, chunk, head), kDouble);
        HeadTruth reference = eigen;
        use_reference_values(problem, stored, chunk, head, reference);
        require_same_rows(problem, eigen, reference);
        if (chunk.chunk.mode != ChunkMode::sparse) return;
        const auto compare = [&](const char* what, const Eigen::VectorXd& a, const Eigen::VectorXd& b,
                                 const Eigen::VectorXd& bound) {
          for (Eigen::Index j = 0; j < a.size(); ++j) {
            if (!(std::fabs(a[j] - b[j]) <= 2.0 * (bound[j] - 0x1p-24 * a[j])))
              apart(what, a[j], b[j], problem);
          }
        };
        compare("colsum_intra", eigen.intra, reference.intra, eigen.intra_bound);
        compare("colsum_inter", eigen.inter, reference.inter, eigen.inter_bound);
      });
}
const Register kAgree{{"oracles.agree",
                       {"LOGIT-1", "LOGIT-2", "LOGIT-3", "LOGIT-4", "MASK-1", "INTRA-1", "INTRA-2", "INTER-1",
                        "INTER-2", "INTER-3", "FUSE-1", "FUSE-2", "DEC-1"},
                       "oracle",
                       Lane::law,
                       false,
                       agree}};

// Layers with a window (MASK-2), of which a run has dense chunks alone.
void agree_on_windows(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 24, .max_tokens = 100});
    problem.options.layers.assign(static_cast<std::size_t>(problem.shape.n_layer), {});
    problem.options.layers[0].window = random.integer(1, problem.tokens() + 1);
    const Trace trace = run(engine("reference"), problem);
    const StoredLayer stored(problem, 0);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (std::int64_t head = 0; head < problem.shape.n_head; ++head) {
        const HeadTruth eigen = eigen_oracle(head_chunk(problem, 0, chunk, head), kDouble);
        HeadTruth reference = eigen;
        use_reference_values(problem, stored, chunk, head, reference);
        require_same_rows(problem, eigen, reference);
      }
    }
  }
}
const Register kAgreeOnWindows{
    {"oracles.agree_on_windows", {"MASK-2"}, "oracle", Lane::law, false, agree_on_windows}};

// The same for the rows of each query block under its own set.
void agree_on_blocks(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const Problem problem = with_blocks(random, random_problem(random, {.max_chunk = 24, .max_tokens = 100}));
    const Trace trace = run(engine("reference"), problem);
    const StoredLayer stored(problem, 0);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (std::int64_t head = 0; head < problem.shape.n_head; ++head) {
        for (const std::vector<std::int64_t>& rows : rows_by_set(chunk)) {
          const HeadTruth eigen = eigen_oracle(head_chunk(problem, 0, chunk, head, rows, true), kDouble);
          HeadTruth reference = eigen;
          use_reference_values(problem, stored, chunk, head, rows, reference);
          require_same_rows(problem, eigen, reference);
        }
      }
    }
  }
}
const Register kAgreeOnBlocks{{"oracles.agree_on_blocks",
                               {"SEL-4", "SEL-8", "FUSE-2", "INTER-1"},
                               "oracle",
                               Lane::law,
                               false,
                               agree_on_blocks}};

// The passes apart, and the state (m, l) of each: the fused row alone would not show their errors.
void passes(Context& context) {
  each_head_chunk(
      context, 60, {.max_chunk = 20, .max_tokens = 80, .wide = false},
      [](const Problem& problem, const StoredLayer& stored, const ChunkTrace& chunk, std::int64_t head) {
        const auto* memory = chunk.memory.data() + head * chunk.memory_count;
        const OracleHead oracle = oracle_head(stored.rows, rule_of(problem, head), chunk.chunk, head,
                                              {memory, static_cast<std::size_t>(chunk.memory_count)});
        const HeadChunk whole = head_chunk(problem, 0, chunk, head);
        const auto part = [&](bool inter) {
          HeadChunk result = whole;
          const Eigen::Index keys = inter ? whole.memory : whole.keys.rows() - whole.memory;
          result.keys = inter ? RowMatrix(whole.keys.topRows(keys)) : RowMatrix(whole.keys.bottomRows(keys));
          result.values =
              inter ? RowMatrix(whole.values.topRows(keys)) : RowMatrix(whole.values.bottomRows(keys));
          result.positions.assign(inter ? whole.positions.begin() : whole.positions.begin() + whole.memory,
                                  inter ? whole.positions.begin() + whole.memory : whole.positions.end());
          result.memory = inter ? keys : 0;
          if (inter) result.sink = -std::numeric_limits<double>::infinity();
          return eigen_oracle(result, kDouble);
        };
        const auto compare = [&](const char* what, const HeadTruth& truth,
                                 const std::vector<reference::SoftmaxRow>& rows) {
          if (static_cast<Eigen::Index>(rows.size()) != truth.lse.size()) apart(what, 0.0, 0.0, problem);
          for (Eigen::Index i = 0; i < truth.lse.size(); ++i) {
            const reference::SoftmaxRow& row = rows[static_cast<std::size_t>(i)];
            const double lse = row.m + std::log(row.l);
            if (!(std::fabs(lse - truth.lse[i]) <= 2.0 * truth.lse_bound[i]))
              apart(what, lse, truth.lse[i], problem);
            if (!(row.l >= 1.0 - 0x1p-50)) apart("the largest term of l is 1", row.l, 1.0, problem);
            for (Eigen::Index x = 0; x < truth.out.cols(); ++x) {
              const double o = row.o[static_cast<std::size_t>(x)];
              if (!(std::fabs(o - truth.out(i, x)) <= 2.0 * truth.out_bound(i, x)))
                apart(what, o, truth.out(i, x), problem);
            }
          }
        };
        compare("intra", part(false), oracle.intra);
        if (chunk.memory_count > 0) {
          compare("inter", part(true), oracle.inter);
        } else {
          for (const reference::SoftmaxRow& row : oracle.inter) {  // INTER-3
            const bool zero = std::all_of(row.o.begin(), row.o.end(), [](double o) { return o == 0.0; });
            if (row.l != 0.0 || row.m != -std::numeric_limits<double>::infinity() || !zero)
              apart("INTER-3", row.m, row.l, problem);
          }
        }
      });
}
const Register kPasses{
    {"oracles.passes", {"INTRA-1", "INTER-1", "INTER-3", "LOGIT-4"}, "oracle", Lane::law, false, passes}};

// The sizes beside the oracle are what their names say.
void bounds(Context& context) {
  each_head_chunk(
      context, 40, {.max_chunk = 16, .max_tokens = 60, .wide = false},
      [](const Problem& problem, const StoredLayer& stored, const ChunkTrace& chunk, std::int64_t head) {
        const reference::LogitRule rule = rule_of(problem, head);
        const auto* memory = chunk.memory.data() + head * chunk.memory_count;
        const std::span<const std::int32_t> set(memory, static_cast<std::size_t>(chunk.memory_count));
        const OracleBounds got = oracle_bounds(stored.rows, rule, chunk.chunk, head, set);
        const HeadChunk input = head_chunk(problem, 0, chunk, head);
        const HeadTruth truth = eigen_oracle(input, kDouble);
        const auto close = [&](const char* what, double a, double b) {
          if (!(std::fabs(a - b) <= 1e-9 * std::fabs(b) + 1e-300)) apart(what, a, b, problem);
        };
        const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
        std::vector<double> intra_errors(sparse ? static_cast<std::size_t>(chunk.length()) : 0, 0.0);
        std::vector<double> inter_errors(set.size(), 0.0);
        const auto row_of = [](const RowMatrix& matrix, Eigen::Index r) {
          std::vector<double> row(static_cast<std::size_t>(matrix.cols()));
          for (Eigen::Index x = 0; x < matrix.cols(); ++x) row[static_cast<std::size_t>(x)] = matrix(r, x);
          return row;
        };
        for (std::int64_t i = 0; i < chunk.length(); ++i) {
          const std::vector<double> q = row_of(input.q, i);
          const std::int64_t position = chunk.chunk.begin + i;
          std::vector<double> errors;
          std::vector<double> logits;
          double highest = rule.sink;
          for (std::size_t j = 0;
               j < input.positions.size() &&
               (static_cast<std::int64_t>(j) < input.memory || input.positions[j] <= position);
               ++j) {
            const std::vector<double> k = row_of(input.keys, static_cast<Eigen::Index>(j));
            errors.push_back(logit_error(rule, q, k, position, input.positions[j]));
            logits.push_back(reference::logit(rule, q, k, position, input.positions[j]));
            highest = std::max(highest, logits.back());
          }
          double l = std::exp(rule.sink - highest);
          for (const double s : logits) l += std::exp(s - highest);
          double intra = 0.0;
          double inter = 0.0;
          double mean = 0.0;
          double l_intra = std::exp(rule.sink - highest);
          double l_inter = 0.0;
          for (std::size_t j = 0; j < logits.size(); ++j) {
            const bool of_memory = static_cast<std::int64_t>(j) < input.memory;
            (of_memory ? inter : intra) = std::max(of_memory ? inter : intra, errors[j]);
            (of_memory ? l_inter : l_intra) += std::exp(logits[j] - highest);
            mean += errors[j] * std::exp(logits[j] - highest) / l;
          }
          const auto at = static_cast<std::size_t>(i);
          close("intra_ds", got.intra_ds[at], intra);
          close("inter_ds", got.inter_ds[at], inter);
          close("output_ds", got.output_ds[at], std::max(intra, inter));
          close("output_mean_ds", got.output_mean_ds[at], mean);
          for (std::int64_t x = 0; x < problem.shape.d_value; ++x) {
            double weighted = 0.0;
            for (std::size_t j = 0; j < logits.size(); ++j) {
              weighted += errors[j] * std::exp(logits[j] - highest) / l *
                          std::fabs(input.values(static_cast<Eigen::Index>(j), x));
            }
            const auto column = static_cast<std::size_t>(x);
            close("output_size", got.output_size.row(i)[column], truth.out_size(i, x));
            close("output_weighted_ds", got.output_weighted_ds.row(i)[column], weighted);
          }
          for (std::size_t j = 0; sparse && j < logits.size(); ++j) {
            const bool of_memory = static_cast<std::int64_t>(j) < input.memory;
            const double w = std::exp(logits[j] - highest) / (of_memory ? l_inter : l_intra);
            if (of_memory) {
              inter_errors[j] += w * 2.0 * inter;
            } else {
              intra_errors[j - static_cast<std::size_t>(input.memory)] += w * 2.0 * intra;
            }
          }
        }
        if (got.colsum_intra_ds.size() != intra_errors.size() ||
            got.colsum_inter_ds.size() != inter_errors.size()) {
          apart("sizes of column errors", 0.0, 0.0, problem);
        }
        for (std::size_t j = 0; j < intra_errors.size(); ++j)
          close("colsum_intra_ds", got.colsum_intra_ds[j], intra_errors[j]);
        for (std::size_t j = 0; j < inter_errors.size(); ++j)
          close("colsum_inter_ds", got.colsum_inter_ds[j], inter_errors[j]);
      });
}
const Register kBounds{
    {"oracles.bounds", {"LOGIT-1", "LOGIT-2", "LOGIT-3"}, "oracle", Lane::law, false, bounds}};

// ds bounds what F32 arithmetic does to a logit, and by no more than SPEC 13 says.
void logit_errors(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(20000); ++round) {
    const auto d = static_cast<std::size_t>(random.integer(1, 96));
    std::vector<double> q(d);
    std::vector<double> k(d);
    double size = 0.0;
    float sum = 0.0f;
    const double spread = random.pick(std::vector<double>{0.1, 1.0, 5.0});
    for (std::size_t x = 0; x < d; ++x) {
      q[x] = static_cast<float>(spread * random.normal());
      k[x] = static_cast<float>(spread * random.normal());
      size += std::fabs(q[x]) * std::fabs(k[x]);
      sum += static_cast<float>(q[x]) * static_cast<float>(k[x]);
    }
    reference::LogitRule rule;
    rule.scale = random.uniform(-1.0, 1.0);
    const std::int64_t i = random.integer(0, 100000);
    const std::int64_t j = random.integer(0, i);
    const double base = (static_cast<double>(d) + 4.0) * 0x1p-24 * std::fabs(rule.scale) * size;
    const double plain = logit_error(rule, q, k, i, j);
    if (!(std::fabs(plain - base) <= 1e-12 * base))
      throw Violation(fmt::format("ds of {} terms is {}, not {}", d, plain, base));
    if (random.chance(0.5)) rule.softcap = random.pick(std::vector<double>{0.5, 3.0, 30.0});
    if (random.chance(0.5)) rule.slope = static_cast<float>(random.uniform(-1.0, 1.0));
    float s = sum * static_cast<float>(rule.scale);
    if (rule.softcap > 0.0)
      s = static_cast<float>(rule.softcap) * std::tanh(s / static_cast<float>(rule.softcap));
    s -= static_cast<float>(rule.slope) * static_cast<float>(i - j);
    const double exact = reference::logit(rule, q, k, i, j);
    const double error = logit_error(rule, q, k, i, j);
    if (!(std::fabs(s - exact) <= error)) {
      throw Violation(fmt::format("a logit in F32 is {:.3g} off, ds says {:.3g} (cap {}, slope {})",
                                  std::fabs(s - exact), error, rule.softcap, rule.slope));
    }
    // Its terms, one by one: the plain term under the steepest slope of the cap within it, a quotient, tanh and a product
    // of the cap; two roundings of the bias and one of the difference.
    double wanted = base;
    if (rule.softcap > 0.0) {
      const double uncapped = rule.scale * reference::dot(q, k);
      const double flattest = std::max(0.0, std::fabs(uncapped) - base) / rule.softcap;
      const double slope = 1.0 - std::tanh(flattest) * std::tanh(flattest);
      const double capped = rule.softcap * std::tanh(uncapped / rule.softcap);
      wanted = slope * (base + 0x1p-24 * std::fabs(uncapped)) + 5.0 * 0x1p-24 * std::fabs(capped);
    }
    if (rule.slope != 0.0) {
      wanted += 0x1p-24 * (2.0 * std::fabs(rule.slope) * static_cast<double>(i - j) + std::fabs(exact));
    }
    if (!(std::fabs(error - wanted) <= 1e-9 * wanted)) {
      throw Violation(fmt::format("ds is {:.9g}, its roundings add up to {:.9g}", error, wanted));
    }
  }
}
const Register kLogitErrors{
    {"oracles.logit_errors", {"LOGIT-1", "LOGIT-2", "LOGIT-3"}, "oracle", Lane::bound, false, logit_errors}};

// MASK-1, the head map of LOGIT-1 and FUSE-1's algebra, by their definitions.
void definitions(Context& context) {
  for (std::int64_t begin = 0; begin < 6; ++begin) {
    for (std::int64_t i = begin; i < 9; ++i) {
      for (std::int64_t j = 0; j < 12; ++j) {
        if (reference::visible(begin, i, j) != (j >= begin && j <= i)) throw Violation("MASK-1");
      }
    }
  }
  for (std::int64_t heads_kv = 1; heads_kv <= 8; ++heads_kv) {
    for (std::int64_t group = 1; group <= 8; ++group) {
      for (std::int64_t h = 0; h < heads_kv * group; ++h) {
        if (reference::key_value_head(h, heads_kv * group, heads_kv) != h / group)
          throw Violation("LOGIT-1: the head map");
      }
    }
  }
  Random random(context.seed);
  for (int round = 0; round < context.rounds(2000); ++round) {
    const auto any_row = [&] {
      reference::SoftmaxRow row;
      row.m = random.uniform(-300.0, 300.0);
      row.l = random.uniform(1.0, 50.0);
      row.o = {random.normal(), random.normal()};
      return row;
    };
    const reference::SoftmaxRow a = any_row();
    const reference::SoftmaxRow b = any_row();
    const reference::SoftmaxRow ab = reference::fuse(a, b);
    const reference::SoftmaxRow ba = reference::fuse(b, a);
    const double m = std::max(a.m, b.m);
    const double x = a.l * std::exp(a.m - m);
    const double y = b.l * std::exp(b.m - m);
    for (std::size_t c = 0; c < 2; ++c) {
      const double o = (a.o[c] * x + b.o[c] * y) / (x + y);
      if (!(std::fabs(ab.o[c] - o) <= 1e-14) || !(std::fabs(ba.o[c] - o) <= 1e-14))
        throw Violation("FUSE-1: o");
    }
    const double lse = m + std::log(x + y);
    if (!(std::fabs(reference::log_sum_exp(ab) - lse) <= 1e-12) ||
        !(std::fabs(reference::log_sum_exp(ba) - lse) <= 1e-12)) {
      throw Violation("FUSE-1: m + ln l");
    }
    const reference::SoftmaxRow neutral = reference::neutral_row(2);
    for (const reference::SoftmaxRow& same : {reference::fuse(a, neutral), reference::fuse(neutral, a)}) {
      if (same.m != a.m || !(std::fabs(same.l - a.l) <= 1e-14 * a.l) ||
          !(std::fabs(same.o[0] - a.o[0]) <= 1e-14)) {
        throw Violation("FUSE-1: (-inf, 0) is not neutral");
      }
    }
    if (reference::weight(neutral, 1.0) != 0.0) throw Violation("INTER-3: a neutral row gives a key weight");
    const reference::SoftmaxRow none = reference::fuse(neutral, neutral);
    if (none.l != 0.0 || none.o[0] != 0.0 || none.o[1] != 0.0) throw Violation("FUSE-1: two neutrals");
  }
}
const Register kDefinitions{{"oracles.definitions",
                             {"MASK-1", "LOGIT-1", "FUSE-1", "INTER-3"},
                             "oracle",
                             Lane::exact,
                             false,
                             definitions}};

}  // namespace
}  // namespace headwater::conformance
