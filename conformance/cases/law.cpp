// Lane law: SPEC 14 on random inputs. Only the union law needs an oracle: it is the Eigen oracle itself.

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

DType random_type(Random& random) {
  return random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16});
}

// Changing token j leaves every output before j bit-identical, and the scores, sets and column sums of chunks before.
void causality(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const Problem problem =
        random_problem(random, {.max_chunk = 20, .max_tokens = 100, .max_layers = 2, .wide = false});
    const std::int64_t n = problem.tokens();
    const std::int64_t j = random.integer(0, n - 1);
    Problem changed = problem;
    for (LayerInput& layer : changed.layers) {
      for (Tensor* tensor : {&layer.q, &layer.k, &layer.v}) {
        for (std::int64_t h = 0; h < tensor->heads; ++h) {
          for (std::int64_t x = 0; x < tensor->width; ++x) {
            tensor->row(j, h)[x] = round_to(tensor->type, static_cast<float>(4.0 * random.normal()));
          }
        }
      }
    }
    const Trace a = run(*context.engine, problem);
    const Trace b = run(*context.engine, changed);
    const std::int64_t row = problem.shape.n_head * problem.shape.d_value;
    bool differs = false;
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      const LayerTrace& x = a.layers[l];
      const LayerTrace& y = b.layers[l];
      for (std::int64_t t = 0; t < n; ++t) {
        const auto* from = x.out.data() + t * row;
        const bool same = std::equal(from, from + row, y.out.data() + t * row);
        if (t < j && !same)
          broken(fmt::format("changing token {} changed the output of token {}", j, t), problem);
        differs = differs || (t == j && !same);
      }
      for (std::size_t c = 0; c < x.chunks.size() && x.chunks[c].chunk.end <= j; ++c) {
        if (x.chunks[c].memory != y.chunks[c].memory ||
            x.chunks[c].colsum_intra != y.chunks[c].colsum_intra ||
            x.chunks[c].colsum_inter != y.chunks[c].colsum_inter || x.chunks[c].lse != y.chunks[c].lse) {
          broken(fmt::format("changing token {} changed chunk {}, which ends before it", j, c), problem);
        }
      }
    }
    if (!differs) broken(fmt::format("changing token {} changed nothing at all", j), problem);
  }
}
const Register kCausality{
    {"law.causality", {"MASK-1", "DEC-1", "FUSE-2"}, "mask", Lane::law, true, causality}};

// The same where every row has an offset of its own for its exponentials: a later row whose maximum is far from where
// an engine may look for it first must not change the offset of the rows before it.
void causality_of_offsets(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(20); ++round) {
    Problem problem;
    problem.shape.n_head = 2;
    problem.shape.n_head_kv = 1;
    problem.shape.d_head = problem.shape.d_value = 16;
    problem.options.scale = 1.0;
    problem.options.chunk = random.integer(40, 90);
    problem.options.local = 6;
    problem.options.heavy = 12;
    problem.options.dense = round % 4 == 3;
    problem.steps = {Step::prefill(150)};
    problem.shape.capacity = 150;
    problem.fill_normal(random);
    // One early key with a huge logit in the changed row alone.
    const std::int64_t j = random.integer(1, 149);
    const std::int64_t first = problem.options.dense ? 0 : j / problem.options.chunk * problem.options.chunk;
    for (std::int64_t t = 0; t < 150; ++t) {
      problem.layers[0].k.row(t, 0)[0] = t == first ? 64.0f : 0.0f;
      for (std::int64_t h = 0; h < 2; ++h) problem.layers[0].q.row(t, h)[0] = 0.0f;
    }
    problem = in_type(problem, DType::bf16);
    Problem changed = problem;
    for (std::int64_t h = 0; h < 2; ++h) changed.layers[0].q.row(j, h)[0] = 64.0f;
    const Trace a = run(*context.engine, problem);
    const Trace b = run(*context.engine, changed);
    const auto before = static_cast<std::ptrdiff_t>(j * problem.shape.n_head * problem.shape.d_value);
    if (!std::equal(a.layers[0].out.begin(), a.layers[0].out.begin() + before, b.layers[0].out.begin()))
      broken(fmt::format("the maximum of token {} changed an output before it", j), problem);
    require_conforming(context, changed);
  }
}
const Register kCausalityOfOffsets{
    {"law.causality_of_offsets", {"MASK-1", "NUM-3"}, "softmax", Lane::law, true, causality_of_offsets}};

// Permuting heads permutes results, bit for bit.
void head_permutation(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 20, .max_tokens = 80, .wide = false});
    const Shape& shape = problem.shape;
    const std::int64_t group = shape.n_head / shape.n_head_kv;
    // Key/value heads move as a whole, query heads inside their group as well.
    std::vector<std::int64_t> kv(static_cast<std::size_t>(shape.n_head_kv));
    std::iota(kv.begin(), kv.end(), 0);
    const auto shuffle = [&](std::vector<std::int64_t>& list) {
      for (std::size_t i = list.size(); i > 1; --i) {
        std::swap(list[i - 1],
                  list[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
      }
    };
    shuffle(kv);
    std::vector<std::int64_t> from;  // query head h of the permuted run is head from[h] of the first
    for (const std::int64_t g : kv) {
      std::vector<std::int64_t> inside(static_cast<std::size_t>(group));
      std::iota(inside.begin(), inside.end(), g * group);
      shuffle(inside);
      from.insert(from.end(), inside.begin(), inside.end());
    }
    Problem permuted = problem;
    const auto permute = [](const Tensor& a, Tensor& b, const std::vector<std::int64_t>& order) {
      for (std::int64_t t = 0; t < a.n; ++t) {
        for (std::int64_t h = 0; h < a.heads; ++h) {
          std::copy_n(a.row(t, order[static_cast<std::size_t>(h)]), a.width, b.row(t, h));
        }
      }
    };
    permute(problem.layers[0].q, permuted.layers[0].q, from);
    permute(problem.layers[0].k, permuted.layers[0].k, kv);
    permute(problem.layers[0].v, permuted.layers[0].v, kv);
    for (std::size_t h = 0; h < from.size(); ++h) {
      const auto old = static_cast<std::size_t>(from[h]);
      if (!problem.options.sinks.empty()) permuted.options.sinks[h] = problem.options.sinks[old];
      if (!problem.options.alibi.empty()) permuted.options.alibi[h] = problem.options.alibi[old];
    }
    const Trace a = run(*context.engine, problem);
    const Trace b = run(*context.engine, permuted);
    for (std::int64_t t = 0; t < problem.tokens(); ++t) {
      for (std::int64_t h = 0; h < shape.n_head; ++h) {
        const auto* x =
            a.layers[0].out.data() + (t * shape.n_head + from[static_cast<std::size_t>(h)]) * shape.d_value;
        const auto* y = b.layers[0].out.data() + (t * shape.n_head + h) * shape.d_value;
        if (!std::equal(x, x + shape.d_value, y))
          broken(fmt::format("output of token {} head {} differs", t, h), problem);
      }
    }
    const auto tokens = static_cast<std::size_t>(problem.tokens());
    for (std::size_t h = 0; h < from.size(); ++h) {
      const auto* x = a.layers[0].snapshots.back().scores.data() + static_cast<std::size_t>(from[h]) * tokens;
      if (!std::equal(x, x + tokens, b.layers[0].snapshots.back().scores.data() + h * tokens)) {
        broken(fmt::format("scores of head {} differ", h), problem);
      }
    }
  }
}
const Register kHeadPermutation{
    {"law.head_permutation", {"LOGIT-1", "MEM-6"}, "logits", Lane::law, true, head_permutation}};

// o is linear in V with Q and K fixed, and V does not touch scores. Scaling by powers of two is exact: bits.
void value_linearity(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem =
        in_type(random_problem(random, {.max_chunk = 20, .max_tokens = 80, .dtypes = false, .wide = false}),
                random_type(random));
    Problem doubled = problem;
    for (float& x : doubled.layers[0].v.values) x *= -4.0f;
    const Trace a = run(*context.engine, problem);
    const Trace b = run(*context.engine, doubled);
    for (std::size_t i = 0; i < a.layers[0].out.size(); ++i) {
      if (a.layers[0].out[i] * -4.0f != b.layers[0].out[i]) broken("outputs do not scale with V", problem);
    }
    if (a.layers[0].snapshots.back().scores != b.layers[0].snapshots.back().scores)
      broken("V changes scores", problem);

    // Additivity, within the bounds of the three runs.
    Problem other = problem;
    Problem sum = problem;
    for (std::size_t i = 0; i < sum.layers[0].v.values.size(); ++i) {
      // On a grid of 2^-5 the sum of two values is exact in every type.
      float& x = problem.layers[0].v.values[i];
      x = static_cast<float>(random.integer(-64, 64)) * 0x1p-5f;
      other.layers[0].v.values[i] = static_cast<float>(random.integer(-64, 64)) * 0x1p-5f;
      sum.layers[0].v.values[i] = x + other.layers[0].v.values[i];
    }
    const Trace first = run(*context.engine, problem);
    const Trace second = run(*context.engine, other);
    const Trace both = run(*context.engine, sum);
    const std::vector<double> bound_first = output_bounds(context, problem, first);
    const std::vector<double> bound_second = output_bounds(context, other, second);
    const std::vector<double> bound_both = output_bounds(context, sum, both);
    for (std::size_t i = 0; i < bound_first.size(); ++i) {
      const double error = std::fabs(static_cast<double>(first.layers[0].out[i]) + second.layers[0].out[i] -
                                     static_cast<double>(both.layers[0].out[i]));
      if (!(error <= bound_first[i] + bound_second[i] + bound_both[i]))
        broken("outputs are not additive in V", problem);
    }
  }
}
const Register kLinearity{
    {"law.value_linearity", {"INTRA-1", "SCORE-2"}, "values", Lane::law, true, value_linearity}};

// Both log-sum-exps and column sums of two runs of one layer are within the bounds of both, log-sum-exps once they were
// moved by `shift` of their token and head.
void require_close(const Context& context, const Problem& a, const Trace& ran_a, const Problem& b,
                   const Trace& ran_b, const std::function<double(std::int64_t, std::int64_t)>& shift) {
  const Arithmetic arithmetic = arithmetic_of(*context.engine, a.q_type, a.shape.kv_type);
  for (std::size_t c = 0; c < ran_a.layers[0].chunks.size(); ++c) {
    const ChunkTrace& x = ran_a.layers[0].chunks[c];
    const ChunkTrace& y = ran_b.layers[0].chunks[c];
    if (x.memory != y.memory) broken("memory sets differ", b);
    for (std::int64_t h = 0; h < a.shape.n_head; ++h) {
      const HeadTruth bound_x = eigen_oracle(head_chunk(a, 0, x, h), arithmetic);
      const HeadTruth bound_y = eigen_oracle(head_chunk(b, 0, y, h), arithmetic);
      const auto close = [&](const char* what, double moved, double got, double bound) {
        if (!(std::fabs(moved - got) <= bound))
          broken(fmt::format("{} moves from {} to {}", what, moved, got), b);
      };
      for (std::int64_t i = 0; i < x.length(); ++i) {
        const auto at = static_cast<std::size_t>(h * x.length() + i);
        close("lse", x.lse[at] + shift(x.chunk.begin + i, h), y.lse[at],
              bound_x.lse_bound[i] + bound_y.lse_bound[i]);
        if (x.chunk.mode != ChunkMode::sparse) continue;
        close("colsum_intra", x.colsum_intra[at], y.colsum_intra[at],
              bound_x.intra_bound[i] + bound_y.intra_bound[i]);
      }
      for (std::int64_t j = 0; j < x.memory_count; ++j) {
        const auto at = static_cast<std::size_t>(h * x.memory_count + j);
        close("colsum_inter", x.colsum_inter[at], y.colsum_inter[at],
              bound_x.inter_bound[j] + bound_y.inter_bound[j]);
      }
    }
  }
}

// A component that all keys share shifts all logits of a row equally: outputs and column sums stay, to rounding, and
// log-sum-exps move by it.
void logit_shift(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = random_problem(
        random, {.max_chunk = 20, .max_tokens = 80, .dtypes = false, .extras = false, .wide = false});
    problem = in_type(problem, random_type(random));
    problem.shape.d_head += 1;
    problem.options.scale = 1.0;
    problem.fill_normal(random, 1.0);
    const std::int64_t last = problem.shape.d_head - 1;
    LayerInput& layer = problem.layers[0];
    const auto set_last = [&](Tensor& tensor, float value) {
      for (std::int64_t t = 0; t < tensor.n; ++t) {
        for (std::int64_t h = 0; h < tensor.heads; ++h) tensor.row(t, h)[last] = value;
      }
    };
    set_last(layer.k, 1.0f);
    set_last(layer.q, 0.0f);
    problem.options.sinks.clear();
    // Sets by position alone: selection may depend on the last bit of a column sum.
    problem.options.heavy = 0;
    problem.options.local = random.integer(1, problem.options.chunk);
    const Trace plain = run(*context.engine, problem);
    Problem shifted = problem;
    for (std::int64_t t = 0; t < layer.q.n; ++t) {
      for (std::int64_t h = 0; h < layer.q.heads; ++h) {
        shifted.layers[0].q.row(t, h)[last] =
            round_to(layer.q.type, static_cast<float>(random.uniform(-30.0, 30.0)));
      }
    }
    const Trace moved = run(*context.engine, shifted);
    const std::vector<double> a = output_bounds(context, problem, plain);
    const std::vector<double> b = output_bounds(context, shifted, moved);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double error = std::fabs(static_cast<double>(plain.layers[0].out[i]) - moved.layers[0].out[i]);
      if (!(error <= a[i] + b[i])) broken("a shift of all logits of a row changes its output", problem);
    }
    require_close(context, problem, plain, shifted, moved, [&](std::int64_t t, std::int64_t h) {
      return static_cast<double>(shifted.layers[0].q.row(t, h)[last]);
    });
  }
}
const Register kShift{{"law.logit_shift", {"INTRA-1", "LOGIT-1"}, "softmax", Lane::law, true, logit_shift}};

// The memory is a set: its keys count the same wherever they stand. Two tokens of chunk 0 swap places; every query of
// chunk 1 reads both, so its outputs stay within rounding and their inter column sums change places.
void key_order(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem;
    const std::int64_t s = random.integer(4, 24);
    problem.shape.n_head = 2;
    problem.shape.d_head = 6;
    problem.shape.d_value = 5;
    problem.options.clamp = false;
    problem.options.chunk = s;
    problem.options.local = s;
    problem.options.heavy = 0;
    problem.options.threads = 1;
    problem.steps = {Step::prefill(2 * s)};
    problem.shape.capacity = 2 * s;
    problem = in_type(problem, random_type(random));
    problem.fill_normal(random);
    Problem swapped = problem;
    const std::int64_t i = random.integer(0, s - 1);
    const std::int64_t j = (i + random.integer(1, s - 1)) % s;
    for (Tensor* tensor : {&swapped.layers[0].k, &swapped.layers[0].v}) {
      std::swap_ranges(tensor->row(i, 0), tensor->row(i, 0) + tensor->width, tensor->row(j, 0));
    }
    const Trace a = run(*context.engine, problem);
    const Trace b = run(*context.engine, swapped);
    const std::vector<double> bounds = output_bounds(context, problem, a);
    for (auto at = static_cast<std::size_t>(s * 2 * 5); at < bounds.size(); ++at) {
      const double error = std::fabs(static_cast<double>(a.layers[0].out[at]) - b.layers[0].out[at]);
      if (!(error <= 2.0 * bounds[at])) broken("the order of memory keys changes an output", problem);
    }
    for (std::int64_t h = 0; h < 2; ++h) {
      const HeadChunk chunk = head_chunk(problem, 0, a.layers[0].chunks[1], h);
      const HeadTruth truth =
          eigen_oracle(chunk, arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type));
      const auto at = [&](std::int64_t p) { return static_cast<std::size_t>(h * s + p); };
      const double error = std::fabs(static_cast<double>(a.layers[0].chunks[1].colsum_inter[at(i)]) -
                                     b.layers[0].chunks[1].colsum_inter[at(j)]);
      if (!(error <= 2.0 * truth.inter_bound[i]))
        broken("inter column sums do not follow their keys", problem);
    }
  }
}
const Register kKeyOrder{
    {"law.key_order", {"INTER-1", "INTER-2", "FUSE-1"}, "inter", Lane::law, true, key_order}};

// A memory that holds all history is dense causal attention (clamp off, M >= N): the dense oracle's bound, the sets all.
void dense_limit(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 16, .max_tokens = 80, .later_turns = false, .wide = false});
    problem.options.clamp = false;
    problem.options.dense = false;
    const std::int64_t n = problem.tokens();
    problem.options.local = random.integer(0, n);
    problem.options.heavy = n - problem.options.local + random.integer(0, 5);
    const Trace sparse = run(*context.engine, problem);
    Problem whole = problem;
    whole.options.dense = true;
    whole.steps = {Step::prefill(n)};
    const Trace dense = run(*context.engine, whole);
    const std::vector<double> a = output_bounds(context, problem, sparse);
    const std::vector<double> b = output_bounds(context, whole, dense);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double error = std::fabs(static_cast<double>(sparse.layers[0].out[i]) - dense.layers[0].out[i]);
      if (!(error <= a[i] + b[i])) broken("a memory of all history is not dense attention", problem);
    }
    for (const ChunkTrace& chunk : sparse.layers[0].chunks) {
      if (chunk.memory_count != chunk.chunk.begin) broken("the memory does not hold all history", problem);
    }
  }
}
const Register kDenseLimit{
    {"law.dense_limit", {"CFG-3", "FUSE-2", "DEC-1"}, "fusion", Lane::law, true, dense_limit}};

// Row sums are 1 (values all 1), column sums add up to the number of queries, both passes.
void partition_of_unity(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 40, .max_tokens = 160, .wide = false});
    problem.options.sinks.clear();
    problem.out_type = DType::f32;
    for (float& x : problem.layers[0].v.values) x = 1.0f;
    const Trace trace = run(*context.engine, problem);
    const std::vector<double> bounds = output_bounds(context, problem, trace);
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      const double error = std::fabs(static_cast<double>(trace.layers[0].out[i]) - 1.0);
      if (!(error <= bounds[i]) || !(error <= 1e-5))
        broken(fmt::format("a row sum is {:.9g}", trace.layers[0].out[i]), problem);
    }
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      if (chunk.chunk.mode != ChunkMode::sparse) continue;
      const auto queries = static_cast<double>(chunk.length());
      for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
        const auto* intra = chunk.colsum_intra.data() + h * chunk.length();
        const auto* inter = chunk.colsum_inter.data() + h * chunk.memory_count;
        const HeadTruth truth =
            eigen_oracle(head_chunk(problem, 0, chunk, h),
                         arithmetic_of(*context.engine, problem.q_type, problem.shape.kv_type));
        const double a = std::accumulate(intra, intra + chunk.length(), 0.0);
        const double b = std::accumulate(inter, inter + chunk.memory_count, 0.0);
        if (!(std::fabs(a - queries) <= truth.intra_bound.sum()))
          broken(fmt::format("intra column sums add up to {}", a), problem);
        if (chunk.memory_count > 0 && !(std::fabs(b - queries) <= truth.inter_bound.sum())) {
          broken(fmt::format("inter column sums add up to {}", b), problem);
        }
      }
    }
  }
}
const Register kUnity{{"law.partition_of_unity",
                       {"INTRA-2", "INTER-2", "INTRA-1"},
                       "softmax",
                       Lane::law,
                       true,
                       partition_of_unity}};

// Scores never fall, are finite and not negative; tokens of dense and decode chunks keep 0.
void monotone_scores(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const Problem problem = random_problem(random, {.max_chunk = 12, .max_tokens = 150, .wide = false});
    const Trace trace = run(*context.engine, problem);
    const LayerTrace& layer = trace.layers[0];
    const auto type = problem.options.score_type;
    std::int64_t before = 0;
    for (std::size_t s = 0; s < layer.snapshots.size(); ++s) {
      const std::int64_t tokens = before + problem.steps[s].n;
      const bool scored = trace.plans[s].front().mode == ChunkMode::sparse;
      for (std::int64_t h = 0; h < problem.shape.n_head; ++h) {
        for (std::int64_t p = 0; p < tokens; ++p) {
          const float now =
              score_value(type, layer.snapshots[s].scores[static_cast<std::size_t>(h * tokens + p)]);
          if (!std::isfinite(now) || now < 0.0f || std::signbit(now))
            broken(fmt::format("score {}", now), problem);
          if (p >= before) {
            if (!scored && now != 0.0f) broken("a token of a dense or decode chunk has a score", problem);
            continue;
          }
          const float then =
              score_value(type, layer.snapshots[s - 1].scores[static_cast<std::size_t>(h * before + p)]);
          if (now < then) broken("a score fell", problem);
          if (!scored && now != then) broken("a dense or decode step changed a score", problem);
        }
      }
      before = tokens;
    }
  }
}
const Register kMonotone{
    {"law.monotone_scores", {"SCORE-5", "SCORE-1", "DEC-1"}, "scores", Lane::law, true, monotone_scores}};

}  // namespace
}  // namespace headwater::conformance
