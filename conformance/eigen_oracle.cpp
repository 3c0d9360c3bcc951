#include "conformance/eigen_oracle.hpp"

#include <algorithm>
#include <cmath>

#include "headwater/engine.hpp"

// How the bounds are counted. u is the unit round-off of the arithmetic; every bound is a sum of relative errors of
// the factors of a result, turned into a factor by expm1 so that it also holds when the sum is not small.
//
// Logit: d products and their sum, the scaling, the rounding of the scale: (d + 4) u |scale| sum |q||k| (SPEC 13),
// times the slope of the cap (at most 0.77/t steeper within that error: |tanh''| <= 0.77), plus the roundings of cap
// and bias themselves.
// Weight exp(s - m): the subtraction and the change of base cost 2 u |s - m| in the exponent; exp itself 4 u, or what
// Claims::bf16_weights grants, and then the rounding of the weight; an output may be divided by the sum of rounded
// weights, which is that far from l again. F16 rounds weights below 2^-14 to its subnormals, an absolute error relative
// to a maximum that the row has seen, 2^-25 at most; rescaling makes it smaller, and l is at least 1.
// Running maxima telescope: the |s - m| of all rescalings of one key add up to the |s - m| of the final maximum; every
// rescaling costs another kRescale u. A maximum that runs over tiles in either direction rises at most as often as it
// has strict records.
// A sum of n terms: n u in the worst case, and 8 sqrt(n) u except with probability 2 n exp(-32) for roundings to
// nearest (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019, Theorem 2.4, lambda = 8).
// The smaller of the two; truncated sums leave it, which is meant.
// Fusion by FUSE-1 normalises each part and undoes it: the part's row sum enters twice more.

namespace headwater::conformance {
namespace {

constexpr double kExp = 4.0;          // an exp of 2 ulp, in u
constexpr double kBf16Exp = 0x1p-17;  // Claims::bf16_weights
constexpr double kBf16Unit = 0x1p-8;
constexpr double kBf16Flushed = 0x1p-126;
constexpr double kF16Unit = 0x1p-11;  // Claims::f16_weights
constexpr double kF16HalfSubnormal = 0x1p-25;
constexpr double kRescale = 5.0;      // exp and multiply
constexpr double kDivide = 2.0;       // reciprocal and multiply
constexpr double kProduct = 1.0;      // weight times value
constexpr double kTanh = 4.0;         // absolute, of a tanh evaluated by way of exp
constexpr double kCapArgument = 3.0;  // t rounded, its reciprocal, the product
constexpr double kCapResult = 2.0;    // t rounded, the product
constexpr double kBias = 2.0;         // product and difference, each at most twice
constexpr double kTanhCurvature = 0.77;
constexpr double kConfidence = 8.0;
constexpr double kF32 = 0x1p-24;
constexpr Eigen::Index kRowBlock = 32;

double sum_error(double terms) { return std::min(terms, kConfidence * std::sqrt(terms)); }

// One row: which keys it sees is decided by `sees`, a range of columns [first, last) of the union.
struct Softmax {
  double m = -std::numeric_limits<double>::infinity();
  double l = 0.0;
  double mean_error = 0.0;  // sum_j w_j error_j: relative error of l from the exponents
  double count = 0.0;
};

struct RowTerms {
  Eigen::ArrayXd logit, error;  // error: delta of the logit alone
  bool flushed = false;         // some elements of the query may count as zero
};

// Of the keys [first, last). Leaves exp(logit - m) in `weights`. Of a part of the keys of a softmax, those of `whole` times
// exp(M - m) with its maximum M, unless M is so far above m that they may have underflowed.
Softmax softmax(const RowTerms& row, Eigen::Index first, Eigen::Index last, double sink, double u,
                Eigen::ArrayXd& weights, const Softmax* whole = nullptr,
                const Eigen::ArrayXd* of_whole = nullptr) {
  constexpr double kFar = 64.0;
  Softmax result;
  result.m = sink;
  for (Eigen::Index j = first; j < last; ++j) result.m = std::max(result.m, row.logit[j]);
  if (result.m == -std::numeric_limits<double>::infinity()) return result;
  double weighted = 0.0;
  if (sink != -std::numeric_limits<double>::infinity()) {
    const double w = std::exp(sink - result.m);
    result.l += w;
    weighted += w * 2.0 * u * (result.m - sink);
    result.count += 1.0;
  }
  if (whole != nullptr && whole->m - result.m < kFar) {
    weights.segment(first, last - first) =
        of_whole->segment(first, last - first) * std::exp(whole->m - result.m);
  } else {
    for (Eigen::Index j = first; j < last; ++j) weights[j] = std::exp(row.logit[j] - result.m);
  }
  for (Eigen::Index j = first; j < last; ++j) {
    const double w = weights[j];
    result.l += w;
    // A logit of -infinity is off by as much, and weighs nothing; but a flushed element times an infinity is a NaN.
    if (w > 0.0 || row.flushed) weighted += w * (row.error[j] + 2.0 * u * (result.m - row.logit[j]));
    result.count += 1.0;
  }
  result.mean_error = weighted / result.l;
  return result;
}

double strict_records(const Eigen::ArrayXd& logit, Eigen::Index visible) {
  double up = 0.0;
  double down = 0.0;
  double m = -std::numeric_limits<double>::infinity();
  for (Eigen::Index j = 0; j < visible; ++j) {
    if (logit[j] > m) {
      m = logit[j];
      up += 1.0;
    }
  }
  m = -std::numeric_limits<double>::infinity();
  for (Eigen::Index j = visible; j-- > 0;) {
    if (logit[j] > m) {
      m = logit[j];
      down += 1.0;
    }
  }
  return std::max(up, down);
}

// Column sums of a block of rows, to be added up over blocks in order.
struct ColumnSums {
  Eigen::VectorXd intra, intra_error, inter, inter_error;
};

}  // namespace

Arithmetic arithmetic_of(const Engine& engine, DType query, DType stored) {
  const Claims claims = engine.claims();
  if (claims.double_arithmetic) return {0x1p-53, 0x1p-1020, kExp * 0x1p-53};
  Arithmetic arithmetic;
  if (claims.bf16_weights && query == DType::bf16 && stored == DType::bf16) {
    arithmetic.exp = kBf16Exp;
    arithmetic.weight = kBf16Unit;
    arithmetic.column_weight = kBf16Unit;
    arithmetic.flushed = kBf16Flushed;
  }
  if (claims.f16_weights && query == DType::f16 && stored == DType::f16) {
    arithmetic.weight = kF16Unit;
    arithmetic.least_weight = kF16HalfSubnormal;
  }
  return arithmetic;
}

HeadTruth eigen_oracle(const HeadChunk& input, const Arithmetic& arithmetic, int threads) {
  const Eigen::Index n = input.q.rows();
  const Eigen::Index m = input.keys.rows();
  const Eigen::Index memory = input.memory;
  const Eigen::Index dv = input.values.cols();
  const auto d = static_cast<double>(input.q.cols());
  const double u = arithmetic.u;

  HeadTruth truth;
  truth.out.resize(n, dv);
  truth.out_bound.resize(n, dv);
  truth.out_size.resize(n, dv);
  truth.lse.resize(n);
  truth.lse_bound.resize(n);

  const RowMatrix abs_keys = input.keys.cwiseAbs();
  const RowMatrix abs_values = input.values.cwiseAbs();
  const Eigen::Index blocks = (n + kRowBlock - 1) / kRowBlock;
  std::vector<ColumnSums> sums(static_cast<std::size_t>(blocks));

#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (Eigen::Index block = 0; block < blocks; ++block) {
    const Eigen::Index first_row = block * kRowBlock;
    const Eigen::Index rows = std::min(kRowBlock, n - first_row);
    // Keys are ascending in each part, so what this block sees is a prefix of the union.
    Eigen::Index seen = memory;
    const std::int64_t last_query = input.queries[static_cast<std::size_t>(first_row + rows - 1)];
    while (seen < m && input.positions[static_cast<std::size_t>(seen)] <= last_query) ++seen;
    const RowMatrix q = input.q.middleRows(first_row, rows);
    const RowMatrix raw = input.scale * product_transposed(q, input.keys, seen);
    const RowMatrix size = std::fabs(input.scale) * product_transposed(q.cwiseAbs(), abs_keys, seen);

    RowMatrix weights = RowMatrix::Zero(rows, seen);
    RowMatrix weight_errors = RowMatrix::Zero(rows, seen);
    ColumnSums& sum = sums[static_cast<std::size_t>(block)];
    sum.intra = Eigen::VectorXd::Zero(m - memory);
    sum.intra_error = Eigen::VectorXd::Zero(m - memory);
    sum.inter = Eigen::VectorXd::Zero(memory);
    sum.inter_error = Eigen::VectorXd::Zero(memory);
    RowTerms row{Eigen::ArrayXd(seen), Eigen::ArrayXd(seen), false};
    Eigen::ArrayXd of_whole(seen), of_part(seen), growth_of_whole(seen), growth_of_part(seen);

    for (Eigen::Index r = 0; r < rows; ++r) {
      const std::int64_t i = input.queries[static_cast<std::size_t>(first_row + r)];
      Eigen::Index visible = memory;
      while (visible < seen && input.positions[static_cast<std::size_t>(visible)] <= i) ++visible;
      Eigen::Index first = 0;  // MASK-2
      while (input.window > 0 && i - input.positions[static_cast<std::size_t>(first)] >= input.window)
        ++first;
      row.logit.head(first) = -std::numeric_limits<double>::infinity();
      row.error.head(first) = 0;
      row.flushed = (q.row(r).array() != 0.0 && q.row(r).array().abs() < arithmetic.flushed).any();
      for (Eigen::Index j = first; j < visible; ++j) {
        double s = raw(r, j);
        double error = (d + 4.0) * u * size(r, j);
        if (input.softcap > 0.0) {
          const double t = input.softcap;
          const double tanh = std::tanh(s / t);
          const double slope = std::min(1.0, 1.0 - tanh * tanh + kTanhCurvature * error / t);
          error = slope * (error + kCapArgument * u * std::fabs(s)) + kTanh * u * t +
                  kCapResult * u * std::fabs(t * tanh);
          s = t * tanh;
        }
        if (input.slope != 0.0) {
          const double bias =
              input.slope * static_cast<double>(i - input.positions[static_cast<std::size_t>(j)]);
          s -= bias;
          error += kBias * u * (std::fabs(bias) + std::fabs(s));
        }
        row.logit[j] = s;
        row.error[j] = error;
      }
      const Softmax whole = softmax(row, first, visible, input.sink, u, of_whole);
      const Eigen::Index own = std::max(first, memory);  // first key that is not of the memory set
      const Softmax intra = softmax(row, own, visible, input.sink, u, of_part, &whole, &of_whole);
      const Softmax inter =
          softmax(row, 0, memory, -std::numeric_limits<double>::infinity(), u, of_part, &whole, &of_whole);
      const double rescales = kRescale * u * (strict_records(row.logit, visible) + 1.0);
      const double whole_sum = whole.mean_error + u * sum_error(whole.count) + arithmetic.exp + rescales;
      // The divisor is a sum of rounded weights, each that far off.
      const double divisor = whole.count * (arithmetic.least_weight / whole.l);
      const double of_weight = arithmetic.exp + 2.0 * arithmetic.weight +
                               u * (kProduct + sum_error(whole.count)) + rescales + whole_sum + kDivide * u +
                               divisor;
      const auto weigh_part = [&](Eigen::Index from, Eigen::Index to, const Softmax& part, double* columns,
                                  double* column_errors) {
        if (from == to) return;
        const double part_sum = part.mean_error + u * sum_error(part.count) + arithmetic.exp + rescales;
        const double fused = memory > 0 ? 2.0 * (part_sum + u * (kDivide + kProduct)) : 0.0;
        const double of_column =
            arithmetic.exp + arithmetic.column_weight + rescales + part_sum + kDivide * u;
        SeenPart keys{};
        keys.keys = to - from;
        keys.logit = &row.logit[from], keys.error = &row.error[from];
        keys.u2 = 2.0 * u;
        keys.whole = {whole.m, whole.l, &of_whole[from], of_weight + fused, &growth_of_whole[from]};
        keys.part = {part.m, part.l, &of_part[from], of_column, &growth_of_part[from]};
        keys.least = arithmetic.least_weight, keys.tiny = arithmetic.tiny;
        keys.weights = &weights(r, from), keys.weight_errors = &weight_errors(r, from);
        keys.columns = columns, keys.column_errors = column_errors;
        weigh(keys);
      };
      weigh_part(first, own, inter, sum.inter.data(), sum.inter_error.data());
      weigh_part(own, visible, intra, sum.intra.data() + (own - memory),
                 sum.intra_error.data() + (own - memory));
      const double log = std::log(whole.l);
      const double lse = whole.m + log;
      const double log_relative =
          whole.mean_error + u * (sum_error(whole.count) + kProduct) + 2.0 * arithmetic.exp + 2.0 * rescales;
      truth.lse[first_row + r] = lse;
      truth.lse_bound[first_row + r] = std::expm1(log_relative) + kF32 * std::fabs(lse) +
                                       2.0 * u * (std::fabs(whole.m) + std::fabs(log) + std::fabs(lse) + 1.0);
    }
    truth.out.middleRows(first_row, rows) = product(weights, input.values);
    truth.out_size.middleRows(first_row, rows) = product(weights, abs_values);
    truth.out_bound.middleRows(first_row, rows) = product(weight_errors, abs_values);
    truth.out_bound.middleRows(first_row, rows).array() += arithmetic.flushed * static_cast<double>(seen);
  }

  const auto finish = [&](Eigen::VectorXd& value, Eigen::VectorXd& bound, Eigen::Index size, bool inter) {
    value = Eigen::VectorXd::Zero(size);
    bound = Eigen::VectorXd::Zero(size);
    for (const ColumnSums& sum : sums) {
      value += inter ? sum.inter : sum.intra;
      bound += inter ? sum.inter_error : sum.intra_error;
    }
    // The sum over the queries, and the one rounding to F32 (half its smallest number where that underflows).
    bound += (u * sum_error(static_cast<double>(n)) + kF32) * value;
    bound.array() += 0x1p-150;
  };
  finish(truth.intra, truth.intra_bound, m - memory, false);
  finish(truth.inter, truth.inter_bound, memory, true);
  return truth;
}

}  // namespace headwater::conformance
