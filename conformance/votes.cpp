#include "conformance/votes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

// How the bounds are counted: absolute errors of each step, worst case throughout, u the unit round-off of the arithmetic.
//
// Pooled query: a sum of n rows, its product with 1/n and the rounding of that: (n + 1) u mean|q|, then what the type of a
// matrix product costs.
// Mean of K keys: (K + 1) u mean|k|, then the rounding to the type that summaries are kept in.
// Variance of a group of c columns by the mean of squared differences from the engine's own means: the true differences from
// a mean that is off by delta have the mean square var + delta^2; forming, squaring and adding up c K of them costs
// (c K + 5) u of it. A mean of squares less the squared mean loses up to |mean|^2 u instead, which is no bound of the
// variance: it leaves this one, which is meant.
// Summaries of a region of n blocks are made of the kept ones: a mean is off by the mean error of theirs, (n + 1) u and the
// rounding of the kept mean. With D the difference of a block's mean from that of the region, e the errors of both, of which
// that of the region's mean is the same for all blocks and so meets a sum of D that is 0: the mean of D^2 is off by that
// of 2 |D| times the block's error and of e^2. Forming, squaring and adding up n + c n numbers costs (n + c n + 5) u.
// Estimate: what its factors are off by; then d products and one for each group and their sums, the scale, its square and
// its half, the squares of a query and their sum over a group of c columns, and the sum of both parts: (d + groups + c + 8) u
// of the absolute terms. In a matrix product of a narrow type the sum of squares is rounded as the query is: once more,
// beside the two roundings that it inherits.
// Cap and bias as in eigen_oracle.cpp.
// Votes are differences and maxima of numbers that are each somewhere in an interval: the bound is the farther end of the
// vote's own interval. Only rows and blocks that can be the largest widen it.
// Vote by sketches: the scale's rounding and three products, 4 u |v|, and half the smallest subnormal where one of them is
// below it, which the factors after it enlarge; cap and bias; what D is off by; the difference.
// Weight of a token: its logit as in eigen_oracle.cpp and what the pooled query adds, |scale| sum dq|k|; exponent, exp, sum
// and division as there.

namespace headwater::conformance {
namespace {

constexpr double kBf16Unit = 0x1p-8;
constexpr double kF32 = 0x1p-24;
constexpr double kF32HalfSmallest = 0x1p-150;
constexpr double kEstimateRoundings = 8.0;
constexpr double kLogitRoundings = 4.0;
constexpr double kSketchRoundings = 4.0;
constexpr double kVarianceRoundings = 5.0;
constexpr double kTanh = 4.0;  // these five as in eigen_oracle.cpp
constexpr double kCapArgument = 3.0;
constexpr double kCapResult = 2.0;
constexpr double kBias = 2.0;
constexpr double kTanhCurvature = 0.77;
constexpr double kRescale = 5.0;
constexpr double kDivide = 2.0;
constexpr double kConfidence = 8.0;

constexpr double kRange = 0x1p100;  // far from where F32 ends

constexpr double kNever = -std::numeric_limits<double>::infinity();

double sum_error(double terms) { return std::min(terms, kConfidence * std::sqrt(terms)); }

// SEL-3.
constexpr Eigen::Index kGroupColumns = 8;

// SKE-3, SKE-4.
constexpr Eigen::Index kColumnChoosers = 256;
constexpr std::size_t kColumnsOfLot = 32;
constexpr std::size_t kMostColumns = 256;
constexpr double kLargestInteger = 127.0;

Eigen::Index groups_of(Eigen::Index columns) { return (columns + kGroupColumns - 1) / kGroupColumns; }

// Columns of the widest group.
double group_columns(Eigen::Index columns) { return static_cast<double>(std::min(kGroupColumns, columns)); }

// The sums, or means, of a vector's column groups.
Eigen::VectorXd group_sums(const Eigen::VectorXd& columns, bool means) {
  Eigen::VectorXd sums(groups_of(columns.size()));
  for (Eigen::Index g = 0; g < sums.size(); ++g) {
    const auto group =
        columns.segment(g * kGroupColumns, std::min(kGroupColumns, columns.size() - g * kGroupColumns));
    sums[g] = means ? group.mean() : group.sum();
  }
  return sums;
}

// Mean queries of some rows each, head after head.
struct Pools {
  RowMatrix q, error;  // [pools][d]
  struct Of {
    std::size_t head = 0;
    std::int64_t last = 0;  // position of its last row
  };
  std::vector<Of> of;
};

Pools pools_of(const QueryBlock& block, std::int64_t pool_rows, const VoteArithmetic& arithmetic) {
  Pools pools;
  const Eigen::Index each = (block.q.front().rows() + pool_rows - 1) / pool_rows;
  const Eigen::Index all = std::ssize(block.q) * each;
  pools.q.resize(all, block.q.front().cols());
  pools.error.resize(all, block.q.front().cols());
  for (std::size_t h = 0; h < block.q.size(); ++h) {
    for (Eigen::Index first = 0; first < block.q[h].rows(); first += pool_rows) {
      const auto rows =
          block.q[h].middleRows(first, std::min<Eigen::Index>(pool_rows, block.q[h].rows() - first));
      const auto n = static_cast<double>(rows.rows());
      auto q = pools.q.row(std::ssize(pools.of));
      auto error = pools.error.row(std::ssize(pools.of));
      q = rows.colwise().sum() / n;
      error = (n + 1.0) * arithmetic.u * rows.cwiseAbs().colwise().sum() / n;
      error += arithmetic.query * (q.cwiseAbs() + error);
      pools.of.push_back({h, block.begin + first + rows.rows() - 1});
    }
  }
  return pools;
}

// Of every row.
RowMatrix group_sums_of_squares(const RowMatrix& rows) {
  RowMatrix sums(rows.rows(), groups_of(rows.cols()));
  for (Eigen::Index i = 0; i < rows.rows(); ++i)
    sums.row(i) = group_sums(rows.row(i).cwiseAbs2().transpose(), false).transpose();
  return sums;
}

// LOGIT-2 and LOGIT-3 on a number that is off by `error`; both are changed.
void cap_and_bias(const QueryBlock& block, double slope, double distance, double u, double& s,
                  double& error) {
  if (block.softcap > 0.0) {
    const double t = block.softcap;
    const double tanh = std::tanh(s / t);
    const double steepness = std::min(1.0, 1.0 - tanh * tanh + kTanhCurvature * error / t);
    error = steepness * (error + kCapArgument * u * std::fabs(s)) + kTanh * u * t +
            kCapResult * u * std::fabs(t * tanh);
    s = t * tanh;
  }
  if (slope != 0.0) {
    const double bias = slope * distance;
    s -= bias;
    error += kBias * u * (std::fabs(bias) + std::fabs(s));
  }
}

double slope_of(const QueryBlock& block, std::size_t head) {
  return block.slope.empty() ? 0.0 : block.slope[head];
}

// The largest of numbers that lie in intervals.
struct Largest {
  Eigen::VectorXd value, low, high;

  explicit Largest(Eigen::Index n) : value(Eigen::VectorXd::Constant(n, kNever)), low(value), high(value) {}
  void take(Eigen::Index i, double v, double at_least, double at_most) {
    value[i] = std::max(value[i], v);
    low[i] = std::max(low[i], at_least);
    high[i] = std::max(high[i], at_most);
  }
  // With one rounding to F32.
  [[nodiscard]] VoteTruth rounded() const {
    VoteTruth truth{value, Eigen::VectorXd::Zero(value.size())};
    for (Eigen::Index i = 0; i < value.size(); ++i) {
      if (high[i] == kNever) continue;  // the maximum of nothing
      const double off = std::max(high[i] - value[i], value[i] - low[i]);
      truth.bound[i] = off + kF32 * (std::fabs(value[i]) + off) + kF32HalfSmallest;
    }
    return truth;
  }
};

}  // namespace

VoteArithmetic vote_arithmetic_of(const Engine& engine, DType query, DType stored) {
  const Arithmetic base = arithmetic_of(engine, query, stored);
  VoteArithmetic arithmetic;
  arithmetic.u = base.u;
  arithmetic.exp = base.exp;
  arithmetic.tiny = base.tiny;
  arithmetic.flushed = base.flushed;
  arithmetic.summary = base.u;
  if (engine.claims().double_arithmetic) return arithmetic;
  if (stored != DType::f32) arithmetic.summary = kBf16Unit;
  if (engine.claims().bf16_weights && query == DType::bf16 && stored == DType::bf16) {
    arithmetic.query = kBf16Unit;
  }
  return arithmetic;
}

Summaries summaries_of(const Eigen::MatrixXd& keys, std::int64_t key_block,
                       const VoteArithmetic& arithmetic) {
  const auto k = static_cast<double>(key_block);
  const Eigen::Index blocks = keys.rows() / key_block;
  Summaries result;
  result.mean.resize(blocks, keys.cols());
  result.mean_error.resize(blocks, keys.cols());
  result.variance.resize(blocks, groups_of(keys.cols()));
  result.variance_error.resize(blocks, groups_of(keys.cols()));
  for (Eigen::Index b = 0; b < blocks; ++b) {
    const auto rows = keys.middleRows(b * key_block, key_block);
    const Eigen::RowVectorXd mean = rows.colwise().sum() / k;
    const Eigen::RowVectorXd squares = (rows.rowwise() - mean).array().square().colwise().sum() / k;
    const Eigen::RowVectorXd variance = group_sums(squares, true).transpose();
    const Eigen::RowVectorXd size = rows.cwiseAbs().colwise().sum() / k;
    const Eigen::RowVectorXd delta = (k + 1.0) * arithmetic.u * size;
    const Eigen::RowVectorXd delta_squared = group_sums(delta.array().square().matrix(), true).transpose();
    const double terms = k * group_columns(keys.cols());
    const Eigen::RowVectorXd formed =
        delta_squared + (terms + kVarianceRoundings) * arithmetic.u * (variance + delta_squared);
    result.mean.row(b) = mean;
    result.variance.row(b) = variance;
    result.mean_error.row(b) = delta + arithmetic.summary * (mean.cwiseAbs() + delta);
    result.variance_error.row(b) = formed + arithmetic.summary * (variance + formed);
  }
  return result;
}

Summaries region_summaries(const Summaries& blocks, const VoteArithmetic& arithmetic) {
  const double u = arithmetic.u;
  const auto n = static_cast<double>(kBlocksOfRegion);
  const Eigen::Index regions = blocks.mean.rows() / kBlocksOfRegion;
  const Eigen::Index d = blocks.mean.cols();
  Summaries result;
  for (Eigen::MatrixXd* part : {&result.mean, &result.mean_error}) part->resize(regions, d);
  for (Eigen::MatrixXd* part : {&result.variance, &result.variance_error})
    part->resize(regions, groups_of(d));
  for (Eigen::Index r = 0; r < regions; ++r) {
    const auto of = [&](const Eigen::MatrixXd& all) -> Eigen::ArrayXXd {
      return all.middleRows(r * kBlocksOfRegion, kBlocksOfRegion).array();
    };
    const Eigen::ArrayXXd error = of(blocks.mean_error);
    const Eigen::RowVectorXd mean = of(blocks.mean).colwise().sum() / n;
    const Eigen::RowVectorXd size = (of(blocks.mean).abs() + error).colwise().sum() / n;
    const Eigen::RowVectorXd added = (error.colwise().sum() / n).matrix() + (n + 1.0) * u * size;
    const Eigen::RowVectorXd mean_error = added + arithmetic.summary * (mean.cwiseAbs() + added);

    const Eigen::ArrayXXd difference = of(blocks.mean).rowwise() - mean.array();
    const auto with_between = [&](const Eigen::MatrixXd& within,
                                  const Eigen::ArrayXXd& between) -> Eigen::RowVectorXd {
      const Eigen::RowVectorXd columns = between.colwise().sum() / n;
      return of(within).colwise().sum().matrix() / n + group_sums(columns, true).transpose();
    };
    const Eigen::RowVectorXd variance = with_between(blocks.variance, difference.square());
    const Eigen::RowVectorXd inherited =
        with_between(blocks.variance_error,
                     2.0 * difference.abs() * error + (error.rowwise() + mean_error.array()).square());
    const double terms = n + n * group_columns(d);
    const Eigen::RowVectorXd formed = inherited + (terms + kVarianceRoundings) * u * (variance + inherited);
    result.mean.row(r) = mean;
    result.mean_error.row(r) = mean_error;
    result.variance.row(r) = variance;
    result.variance_error.row(r) = formed + arithmetic.summary * (variance + formed);
  }
  return result;
}

Summaries rows_of(const Summaries& summaries, const std::vector<Eigen::Index>& rows) {
  return {summaries.mean(rows, Eigen::all), summaries.mean_error(rows, Eigen::all),
          summaries.variance(rows, Eigen::all), summaries.variance_error(rows, Eigen::all)};
}

VoteTruth block_votes(const QueryBlock& block, const Summaries& summaries, std::int64_t key_block,
                      const VoteArithmetic& arithmetic) {
  std::vector<Eigen::Index> all(static_cast<std::size_t>(summaries.mean.rows()));
  std::iota(all.begin(), all.end(), 0);
  return block_votes(block, summaries, all, key_block, arithmetic);
}

VoteTruth block_votes(const QueryBlock& block, const Summaries& summaries,
                      const std::vector<Eigen::Index>& numbers, std::int64_t key_block,
                      const VoteArithmetic& arithmetic) {
  const double u = arithmetic.u;
  const Eigen::Index blocks = summaries.mean.rows();
  const double roundings = (static_cast<double>(summaries.mean.cols() + summaries.variance.cols()) +
                            group_columns(summaries.mean.cols()) + kEstimateRoundings) *
                           u;
  const double s = std::fabs(block.scale);
  const double half = 0.5 * s * s;
  const Eigen::MatrixXd abs_mean = summaries.mean.cwiseAbs();
  const Pools pools = pools_of(block, block.pool, arithmetic);
  const RowMatrix abs_q = pools.q.cwiseAbs();
  const RowMatrix q2 = group_sums_of_squares(pools.q);
  // Of the engine's query, squared.
  const RowMatrix grown = group_sums_of_squares(abs_q + pools.error);
  const RowMatrix q2_error = grown - q2 + arithmetic.query * grown;
  const RowMatrix estimates = block.scale * product_transposed(pools.q, summaries.mean) +
                              half * product_transposed(q2, summaries.variance);
  // Each with the roundings of sums that are as large as the terms and their errors.
  const double all = 1.0 + roundings;
  const RowMatrix errors = s * (product_transposed(all * (abs_q + pools.error), summaries.mean_error) +
                                product_transposed(all * pools.error + roundings * abs_q, abs_mean)) +
                           half * (product_transposed(all * (q2 + q2_error), summaries.variance_error) +
                                   product_transposed(all * q2_error + roundings * q2, summaries.variance));
  Largest votes(blocks);
  for (Eigen::Index p = 0; p < estimates.rows(); ++p) {
    const Pools::Of& pool = pools.of[static_cast<std::size_t>(p)];
    Eigen::VectorXd estimate = estimates.row(p);
    Eigen::VectorXd error = errors.row(p);
    for (Eigen::Index b = 0; b < blocks; ++b) {
      const Eigen::Index number = numbers[static_cast<std::size_t>(b)];
      const auto distance = static_cast<double>(pool.last - ((number + 1) * key_block - 1));
      cap_and_bias(block, slope_of(block, pool.head), distance, u, estimate[b], error[b]);
    }
    const double largest = estimate.maxCoeff();
    const double least = (estimate - error).maxCoeff();  // the largest of all is between these two
    const double most = (estimate + error).maxCoeff();
    for (Eigen::Index b = 0; b < blocks; ++b) {
      const double difference = estimate[b] - largest;
      const double low = estimate[b] - error[b] - most;
      const double high = std::min(0.0, estimate[b] + error[b] - least);
      votes.take(b, difference, low - u * std::fabs(low), high + u * std::fabs(high));
    }
  }
  return votes.rounded();
}

VoteTruth token_votes(const QueryBlock& block, const Eigen::MatrixXd& keys,
                      const std::vector<std::int32_t>& positions, const VoteArithmetic& arithmetic) {
  const double u = arithmetic.u;
  const Eigen::Index n = keys.rows();
  const double roundings = (static_cast<double>(keys.cols()) + kLogitRoundings) * u;
  const double s = std::fabs(block.scale);
  const Eigen::MatrixXd abs_keys = keys.cwiseAbs();
  const auto terms = static_cast<double>(n);
  Largest votes(n);
  const Pools pools = pools_of(block, block.pool - block.pool / 2, arithmetic);
  const RowMatrix logits = block.scale * product_transposed(pools.q, keys);
  const RowMatrix errors =
      s * product_transposed((1.0 + roundings) * pools.error + roundings * pools.q.cwiseAbs(), abs_keys);
  for (Eigen::Index p = 0; p < logits.rows(); ++p) {
    const Pools::Of& pool = pools.of[static_cast<std::size_t>(p)];
    Eigen::VectorXd logit = logits.row(p);
    Eigen::VectorXd error = errors.row(p);
    double records = 1.0;  // of the running maximum, in either direction
    double up = kNever;
    for (Eigen::Index j = 0; j < n; ++j) {
      const auto distance = static_cast<double>(pool.last - positions[static_cast<std::size_t>(j)]);
      cap_and_bias(block, slope_of(block, pool.head), distance, u, logit[j], error[j]);
      if (logit[j] > up) {
        up = logit[j];
        records += 1.0;
      }
    }
    double down = kNever;
    double falling = 1.0;
    for (Eigen::Index j = n; j-- > 0;) {
      if (logit[j] > down) {
        down = logit[j];
        falling += 1.0;
      }
    }
    const double rescales = kRescale * u * std::max(records, falling);
    const double m = logit.maxCoeff();
    const Eigen::VectorXd weight = (logit.array() - m).exp();
    const double l = weight.sum();
    const Eigen::VectorXd exponent = error.array() + 2.0 * u * (m - logit.array());
    const double sum = weight.dot(exponent) / l + u * sum_error(terms) + arithmetic.exp + rescales;
    for (Eigen::Index j = 0; j < n; ++j) {
      const double w = weight[j] / l;
      const double relative = exponent[j] + arithmetic.exp + rescales + sum + kDivide * u;
      votes.take(j, w, w * std::exp(-relative) - arithmetic.tiny, w * std::exp(relative) + arithmetic.tiny);
    }
  }
  return votes.rounded();
}

std::vector<Eigen::Index> sketch_columns(const Eigen::MatrixXd& keys) {
  Eigen::RowVectorXd squares = Eigen::RowVectorXd::Zero(keys.cols());
  for (Eigen::Index j = 0; j < std::min(keys.rows(), kColumnChoosers); ++j)
    squares += keys.row(j).cwiseAbs2();
  const auto size = [&](Eigen::Index x) { return std::isnan(squares[x]) ? -kNever : squares[x]; };
  std::vector<Eigen::Index> columns(static_cast<std::size_t>(keys.cols()));
  std::iota(columns.begin(), columns.end(), 0);
  std::stable_sort(columns.begin(), columns.end(),
                   [&](Eigen::Index a, Eigen::Index b) { return size(a) > size(b); });
  const std::size_t lots = (columns.size() + 2 * kColumnsOfLot - 1) / (2 * kColumnsOfLot);
  columns.resize(std::min({columns.size(), kMostColumns, lots * kColumnsOfLot}));
  std::sort(columns.begin(), columns.end());
  return columns;
}

// In doubles a product of floats is exact, and a quotient rounded to double and then to float is rounded right.
Sketches sketches_of(const Eigen::MatrixXd& rows, const std::vector<Eigen::Index>& columns) {
  const auto f32 = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  Sketches result{rows(Eigen::all, columns), Eigen::VectorXd(rows.rows())};
  for (Eigen::Index j = 0; j < rows.rows(); ++j) {
    auto row = result.integers.row(j);
    if (!row.allFinite()) {
      row.setZero();
      result.unit[j] = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const double largest = row.cwiseAbs().maxCoeff();
    const double r = f32(kLargestInteger / largest);
    result.unit[j] = f32(largest / kLargestInteger);
    for (double& x : row) x = std::isinf(r) ? 0.0 : std::nearbyint(f32(x * r));
  }
  return result;
}

VoteTruth sketch_votes(const QueryBlock& block, const std::vector<OwnWeights>& own,
                       const std::vector<Eigen::Index>& columns, const Sketches& keys,
                       const std::vector<std::int32_t>& positions, const VoteArithmetic& arithmetic) {
  const double u = arithmetic.u;
  const Eigen::Index n = keys.unit.size();
  const auto at_least_1 = [](double x) { return std::max(1.0, std::fabs(x)); };
  Largest votes(n);
  for (std::size_t h = 0; h < block.q.size(); ++h) {
    const Sketches queries = sketches_of(block.q[h], columns);
    const RowMatrix products = product_transposed(queries.integers, keys.integers);  // exact
    for (Eigen::Index i = 0; i < queries.unit.size(); ++i) {
      const double d = own[h].value[i];
      if (std::isnan(queries.unit[i]) || !std::isfinite(d)) continue;
      for (Eigen::Index j = 0; j < n; ++j) {
        if (std::isnan(keys.unit[j])) continue;
        double v = block.scale * queries.unit[i] * keys.unit[j] * products(i, j);
        const double reach = at_least_1(block.scale) * at_least_1(queries.unit[i]) *
                             at_least_1(keys.unit[j]) * at_least_1(products(i, j));
        double error = kSketchRoundings * (u * std::fabs(v) + kF32HalfSmallest * reach);
        const auto distance = static_cast<double>(block.begin + i - positions[static_cast<std::size_t>(j)]);
        cap_and_bias(block, slope_of(block, h), distance, u, v, error);
        const double vote = v - d;
        double off = error + own[h].bound[i];
        off += u * (std::fabs(vote) + off);
        const bool in_range = reach < kRange && std::fabs(d) + off < kRange;
        votes.take(j, vote, in_range ? vote - off : kNever, in_range ? vote + off : -kNever);
      }
    }
  }
  return votes.rounded();
}

}  // namespace headwater::conformance
