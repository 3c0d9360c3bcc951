// The bounds of votes (rules `blocks` and `sketches`): counted by hand where estimates are all alike, wide enough for votes in
// F32 with summaries and queries of either type, and too narrow for the mistakes that they must tell from rounding.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "conformance/formats.hpp"
#include "conformance/votes.hpp"

namespace headwater::conformance {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kHalfSmallest = 0x1p-150;

VoteArithmetic bf16_summaries() { return {.summary = 0x1p-8}; }
VoteArithmetic bf16_products() { return {.exp = 0x1p-17, .summary = 0x1p-8, .query = 0x1p-8}; }

// SEL-3 to SEL-7 in floats, one operation after another, as an engine may compute them.
struct FloatEngine {
  bool narrow_summaries = false;  // BF16
  bool narrow_queries = false;

  static float narrow(bool on, float x) { return on ? round_to(DType::bf16, x) : x; }

  std::vector<float> block_votes(const QueryBlock& block, const Eigen::MatrixXd& keys, Eigen::Index k) const {
    const Eigen::Index d = keys.cols();
    const Eigen::Index blocks = keys.rows() / k;
    const auto scale = static_cast<float>(block.scale);
    std::vector<float> votes(static_cast<std::size_t>(blocks), -std::numeric_limits<float>::infinity());
    for (const Eigen::MatrixXd& q : block.q) {
      for (Eigen::Index first = 0; first < q.rows(); first += block.pool) {
        const std::vector<float> query = pooled(q, first, block.pool);
        std::vector<float> estimate;
        for (Eigen::Index b = 0; b < blocks; ++b) {
          float linear = 0.0f;
          float square = 0.0f;
          for (Eigen::Index group = 0; group < d; group += 8) {
            const Eigen::Index end = std::min<Eigen::Index>(group + 8, d);
            float squares = 0.0f;
            float of_query = 0.0f;
            for (Eigen::Index x = group; x < end; ++x) {
              float sum = 0.0f;
              for (Eigen::Index j = 0; j < k; ++j) sum += key(keys, b * k + j, x);
              const float mean = sum * (1.0f / static_cast<float>(k));
              for (Eigen::Index j = 0; j < k; ++j) {
                const float from = key(keys, b * k + j, x) - mean;
                squares += from * from;
              }
              const float at = query[static_cast<std::size_t>(x)];
              linear += at * narrow(narrow_summaries, mean);
              of_query += at * at;
            }
            const float variance = squares * (1.0f / static_cast<float>(k * (end - group)));
            square += narrow(narrow_queries, of_query) * narrow(narrow_summaries, variance);
          }
          estimate.push_back(scale * linear + 0.5f * scale * scale * square);
        }
        const float largest = *std::max_element(estimate.begin(), estimate.end());
        for (std::size_t b = 0; b < votes.size(); ++b) votes[b] = std::max(votes[b], estimate[b] - largest);
      }
    }
    return votes;
  }

  std::vector<float> token_votes(const QueryBlock& block, const Eigen::MatrixXd& keys) const {
    std::vector<float> votes(static_cast<std::size_t>(keys.rows()), 0.0f);
    const std::int64_t half = (block.pool + 1) / 2;
    for (const Eigen::MatrixXd& q : block.q) {
      for (Eigen::Index first = 0; first < q.rows(); first += half) {
        const std::vector<float> query = pooled(q, first, half);
        std::vector<float> logit;
        for (Eigen::Index j = 0; j < keys.rows(); ++j) {
          float dot = 0.0f;
          for (Eigen::Index x = 0; x < keys.cols(); ++x)
            dot += query[static_cast<std::size_t>(x)] * key(keys, j, x);
          logit.push_back(static_cast<float>(block.scale) * dot);
        }
        const float m = *std::max_element(logit.begin(), logit.end());
        float l = 0.0f;
        for (float& s : logit) l += s = std::exp(s - m);
        for (std::size_t j = 0; j < votes.size(); ++j) votes[j] = std::max(votes[j], logit[j] * (1.0f / l));
      }
    }
    return votes;
  }

 private:
  static float key(const Eigen::MatrixXd& keys, Eigen::Index row, Eigen::Index x) {
    return static_cast<float>(keys(row, x));
  }
  std::vector<float> pooled(const Eigen::MatrixXd& q, Eigen::Index first, std::int64_t pool) const {
    const Eigen::Index rows = std::min<Eigen::Index>(pool, q.rows() - first);
    std::vector<float> query;
    for (Eigen::Index x = 0; x < q.cols(); ++x) {
      float sum = 0.0f;
      for (Eigen::Index r = first; r < first + rows; ++r) sum += static_cast<float>(q(r, x));
      query.push_back(narrow(narrow_queries, sum * (1.0f / static_cast<float>(rows))));
    }
    return query;
  }
};

struct Inputs {
  QueryBlock block;
  Eigen::MatrixXd keys;
  std::int64_t key_block = 8;
};

// Normal rows rounded to BF16: 2 query heads, pools of 4 in 30 rows, 20 key blocks.
Inputs normal(unsigned seed, Eigen::Index d) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](Eigen::Index rows) -> Eigen::MatrixXd {
    return Eigen::MatrixXd::NullaryExpr(
        rows, d, [&] { return static_cast<double>(round_to(DType::bf16, normal(bits))); });
  };
  Inputs inputs;
  inputs.block.q = {draw(30), draw(30)};
  inputs.block.begin = 200;
  inputs.block.pool = 4;
  inputs.block.scale = 1.0 / std::sqrt(static_cast<double>(d));
  inputs.keys = draw(160);
  return inputs;
}

// The worst error over bound.
double worst(const std::vector<float>& got, const VoteTruth& truth) {
  double ratio = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto at = static_cast<Eigen::Index>(i);
    ratio = std::max(ratio, std::fabs(got[i] - truth.vote[at]) / truth.bound[at]);
  }
  return ratio;
}

double worst_block_vote(const Inputs& inputs, const FloatEngine& engine, const VoteArithmetic& arithmetic) {
  const Summaries summaries = summaries_of(inputs.keys, inputs.key_block, arithmetic);
  return worst(engine.block_votes(inputs.block, inputs.keys, inputs.key_block),
               block_votes(inputs.block, summaries, inputs.key_block, arithmetic));
}

double worst_token_vote(const Inputs& inputs, const FloatEngine& engine, const VoteArithmetic& arithmetic) {
  std::vector<std::int32_t> positions;
  for (std::int32_t j = 0; j < inputs.keys.rows(); ++j) positions.push_back(j);
  return worst(engine.token_votes(inputs.block, inputs.keys),
               token_votes(inputs.block, inputs.keys, positions, arithmetic));
}

TEST(VoteBound, SEL_11_HoldsForVotesInFloatsAndIsNotFarAbove) {
  const FloatEngine floats;
  const FloatEngine narrow_summaries{.narrow_summaries = true};
  const FloatEngine narrow{.narrow_summaries = true, .narrow_queries = true};
  for (const Eigen::Index d : {1, 24, 64, 128}) {
    double of_floats = 0.0;
    double of_summaries = 0.0;
    double of_products = 0.0;
    double of_tokens = 0.0;
    double of_narrow_tokens = 0.0;
    for (unsigned seed = 1; seed <= 20; ++seed) {
      const Inputs inputs = normal(seed, d);
      of_floats = std::max(of_floats, worst_block_vote(inputs, floats, {}));
      of_summaries = std::max(of_summaries, worst_block_vote(inputs, narrow_summaries, bf16_summaries()));
      of_products = std::max(of_products, worst_block_vote(inputs, narrow, bf16_products()));
      of_tokens = std::max(of_tokens, worst_token_vote(inputs, floats, {}));
      of_narrow_tokens = std::max(of_narrow_tokens, worst_token_vote(inputs, narrow, bf16_products()));
    }
    for (const double ratio : {of_floats, of_summaries, of_products, of_tokens, of_narrow_tokens}) {
      EXPECT_LE(ratio, 1.0) << "d " << d;
      EXPECT_GT(ratio, 1.0 / 512.0) << "d " << d;
    }
  }
}

TEST(VoteBound, SEL_11_TellsNarrowNumbersFromWideOnes) {
  const Inputs inputs = normal(7, 64);
  const FloatEngine narrow_summaries{.narrow_summaries = true};
  const FloatEngine narrow_queries{.narrow_queries = true};
  EXPECT_GT(worst_block_vote(inputs, narrow_summaries, {}), 1.0);
  EXPECT_GT(worst_block_vote(inputs, narrow_queries, {}), 1.0);
  EXPECT_GT(worst_token_vote(inputs, narrow_queries, {}), 1.0);
}

TEST(VoteBound, SEL_3_TellsADifferenceOfSquaresFromAVariance) {
  // Two groups, of one column that differs from key to key each.
  const Eigen::MatrixXd keys = Eigen::MatrixXd::NullaryExpr(160, 9, [](Eigen::Index j, Eigen::Index x) {
    return x % 8 == 0
               ? static_cast<double>(static_cast<float>(256.0 + std::sin(static_cast<double>(9 * j + x))))
               : 1.0;
  });
  const Summaries summaries = summaries_of(keys, 8, {});
  double of_differences = 0.0;  // from the mean, which the clause asks for
  double of_squares = 0.0;
  for (Eigen::Index b = 0; b < 20; ++b) {
    for (Eigen::Index x = 0; x < 9; x += 8) {
      const auto key = [&](Eigen::Index j) { return static_cast<float>(keys(b * 8 + j, x)); };
      float sum = 0.0f;
      float squares = 0.0f;
      for (Eigen::Index j = 0; j < 8; ++j) {
        sum += key(j);
        squares += key(j) * key(j);
      }
      const float mean = sum / 8.0f;
      float differences = 0.0f;
      for (Eigen::Index j = 0; j < 8; ++j) differences += (key(j) - mean) * (key(j) - mean);
      const auto ratio = [&](float variance) {
        const float of_group = x == 0 ? variance / 8.0f : variance;
        return std::fabs(of_group - summaries.variance(b, x / 8)) / summaries.variance_error(b, x / 8);
      };
      of_differences = std::max(of_differences, ratio(differences / 8.0f));
      of_squares = std::max(of_squares, ratio(squares / 8.0f - mean * mean));
    }
  }
  EXPECT_LE(of_differences, 1.0);
  EXPECT_GT(of_squares, 100.0);
}

TEST(VoteBound, SEL_11_OfEqualEstimatesIsWhatItsStepsAddUpTo) {
  // d elements of 1 in one row and in every key: each mean is 1, each variance 0.
  for (const Eigen::Index d : {1, 64}) {
    QueryBlock block;
    block.q = {Eigen::MatrixXd::Ones(1, d)};
    block.scale = 0.5;
    const Eigen::MatrixXd keys = Eigen::MatrixXd::Ones(16, d);
    const auto width = static_cast<double>(d);
    for (const VoteArithmetic& arithmetic : {VoteArithmetic{}, bf16_summaries(), bf16_products()}) {
      const double query = 2.0 * kU + arithmetic.query * (1.0 + 2.0 * kU);
      const double delta = 9.0 * kU;
      const double mean = delta + arithmetic.summary * (1.0 + delta);
      const double columns = std::min(8.0, width);
      const double groups = std::ceil(width / 8.0);
      const double formed = delta * delta * (1.0 + (8.0 * columns + 5.0) * kU);
      const double variance = formed * (1.0 + arithmetic.summary);
      const double square = (1.0 + query) * (1.0 + query) * (1.0 + arithmetic.query);
      const double of_factors = width * (0.5 * (mean * (1.0 + query) + query) + 0.125 * variance * square);
      const double estimate = of_factors + (width + groups + columns + 8.0) * kU * (0.5 * width + of_factors);
      const VoteTruth votes = block_votes(block, summaries_of(keys, 8, arithmetic), 8, arithmetic);
      for (Eigen::Index b = 0; b < 2; ++b) {
        EXPECT_EQ(votes.vote[b], 0.0);
        const double wanted = 2.0 * estimate * (1.0 + kU) * (1.0 + kU) + kHalfSmallest;
        EXPECT_NEAR(votes.bound[b], wanted, 1e-6 * wanted);
      }
    }
  }
}

TEST(VoteBound, SEL_7_OfEqualWeightsIsWhatItsStepsAddUpTo) {
  const Eigen::MatrixXd keys = Eigen::MatrixXd::Ones(100, 4);
  std::vector<std::int32_t> positions(100);
  for (std::size_t j = 0; j < positions.size(); ++j) positions[j] = static_cast<std::int32_t>(j);
  QueryBlock block;
  block.q = {Eigen::MatrixXd::Ones(4, 4)};
  block.pool = 4;  // half pools of 2
  block.begin = 100;
  const double pooled = 4.0 * 3.0 * kU;                        // (2 + 1) u of each of four products
  const double logit = pooled + 8.0 * kU * (4.0 + pooled);     // (d + 4) u
  const double rescales = 10.0 * kU;                           // one record among equal logits, and the first
  const double sum = logit + 80.0 * kU + 4.0 * kU + rescales;  // 8 sqrt(100)
  const double relative = logit + 4.0 * kU + rescales + sum + 2.0 * kU;
  const VoteTruth votes = token_votes(block, keys, positions, {});
  for (Eigen::Index j = 0; j < 100; ++j) {
    EXPECT_NEAR(votes.vote[j], 0.01, 1e-15);
    const double off = 0.01 * std::expm1(relative);
    const double wanted = off + kU * (0.01 + off);
    EXPECT_NEAR(votes.bound[j], wanted, 1e-6 * wanted);
  }
}

TEST(VoteBound, SEL_6_OnlyRowsAndBlocksThatCanBeTheLargestWidenIt) {
  // A second head whose huge keyless estimates are far below the first one's for block 0, so its errors do not count there.
  QueryBlock one;
  one.q = {Eigen::MatrixXd::Constant(1, 1, 1.0)};
  Eigen::MatrixXd keys(2, 1);
  keys << 0.0, -1.0;  // blocks of one key: votes 0 and -1
  const VoteArithmetic arithmetic;
  const Summaries summaries = summaries_of(keys, 1, arithmetic);
  const VoteTruth alone = block_votes(one, summaries, 1, arithmetic);
  QueryBlock two = one;
  two.q.push_back(Eigen::MatrixXd::Constant(1, 1, 1000.0));  // votes 0 and -1000, a thousand times the error
  const VoteTruth both = block_votes(two, summaries, 1, arithmetic);
  EXPECT_EQ(both.vote[1], -1.0);
  EXPECT_EQ(both.bound[1], alone.bound[1]);
}

// SEL-12 in floats, from the kept summaries, as an engine may compute it; `between` 0 leaves out how far the means are apart.
Summaries regions_in_floats(const Eigen::MatrixXd& keys, Eigen::Index k, bool narrow, float between) {
  const Eigen::Index n = kBlocksOfRegion;
  const auto kept = [&](float x) { return FloatEngine::narrow(narrow, x); };
  Summaries result;
  result.mean.resize(keys.rows() / (n * k), keys.cols());
  result.variance = Eigen::MatrixXd::Zero(keys.rows() / (n * k), (keys.cols() + 7) / 8);
  for (Eigen::Index r = 0; r < result.mean.rows(); ++r) {
    for (Eigen::Index group = 0; group < result.variance.cols(); ++group) {
      const Eigen::Index end = std::min<Eigen::Index>(8 * group + 8, keys.cols());
      const auto columns = static_cast<float>(end - 8 * group);
      std::vector<float> within(static_cast<std::size_t>(n), 0.0f);  // of each block, squares
      float spread = 0.0f;
      for (Eigen::Index x = 8 * group; x < end; ++x) {
        std::vector<float> means;
        float sum = 0.0f;
        for (Eigen::Index b = 0; b < n; ++b) {
          float mean = 0.0f;
          for (Eigen::Index j = 0; j < k; ++j) mean += static_cast<float>(keys((r * n + b) * k + j, x));
          mean /= static_cast<float>(k);
          for (Eigen::Index j = 0; j < k; ++j) {
            const float from = static_cast<float>(keys((r * n + b) * k + j, x)) - mean;
            within[static_cast<std::size_t>(b)] += from * from;
          }
          means.push_back(kept(mean));
          sum += means.back();
        }
        const float mean = sum / static_cast<float>(n);
        for (const float of_block : means) spread += between * (of_block - mean) * (of_block - mean);
        result.mean(r, x) = kept(mean);
      }
      spread /= columns;
      for (const float squares : within) spread += kept(squares / (static_cast<float>(k) * columns));
      result.variance(r, group) = kept(spread / static_cast<float>(n));
    }
  }
  return result;
}

TEST(VoteBounds, SEL_12_HoldForRegionsInFloats) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (const bool narrow : {false, true}) {
    const VoteArithmetic arithmetic = narrow ? bf16_summaries() : VoteArithmetic{};
    double worst = 0.0;
    double without = 0.0;
    for (const Eigen::Index k : {1, 8}) {
      for (const double centre : {0.0, 5.0}) {
        const Eigen::MatrixXd keys = Eigen::MatrixXd::NullaryExpr(3 * kBlocksOfRegion * k, 16, [&] {
          return static_cast<double>(round_to(DType::bf16, static_cast<float>(centre + normal(random))));
        });
        const Summaries wanted = region_summaries(summaries_of(keys, k, arithmetic), arithmetic);
        const Summaries got = regions_in_floats(keys, k, narrow, 1.0f);
        const auto ratio = [](const Eigen::MatrixXd& a, const Eigen::MatrixXd& b,
                              const Eigen::MatrixXd& error) {
          return ((a - b).array().abs() / error.array()).maxCoeff();
        };
        worst = std::max({worst, ratio(got.mean, wanted.mean, wanted.mean_error),
                          ratio(got.variance, wanted.variance, wanted.variance_error)});
        const Summaries mistaken = regions_in_floats(keys, k, narrow, 0.0f);
        without = std::max(without, ratio(mistaken.variance, wanted.variance, wanted.variance_error));
      }
    }
    EXPECT_LE(worst, 1.0) << narrow;
    EXPECT_GT(worst, 1e-3) << narrow;
    EXPECT_GT(without, 1.0) << narrow;  // how far the means are from each other is more than rounding
  }
}

// ---- Rule `sketches` ----

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(SketchOracle, SKE_3_OfEqualColumnsThoseWithTheLowerNumber) {
  Eigen::MatrixXd keys = Eigen::MatrixXd::Ones(257, 40);
  keys.row(256).setConstant(50.0);
  keys(256, 33) = 100.0;  // too late to choose
  keys(3, 38) = -1.5;
  keys(255, 39) = kNaN;  // as large as infinity
  const std::vector<Eigen::Index> columns = sketch_columns(keys);
  ASSERT_EQ(columns.size(), 32U);
  EXPECT_EQ(columns[29], 29);
  EXPECT_EQ(columns[30], 38);
  EXPECT_EQ(columns[31], 39);
}

TEST(SketchOracle, SKE_4_RoundsAsFloatsDo) {
  Eigen::MatrixXd rows(5, 3);
  rows << 254.0, 3.0, -5.0,     // r = 1/2: ties
      0x1p-122, 0x1p-122, 0.0,  // r is infinite
      1.0, kInfinity, 0.0,      // no sketch
      3.0, 1.0, kNaN,           // its NaN is in no column of X
      0.0, 0.0, 1.0;            // zeros in X
  const Sketches sketches = sketches_of(rows, {0, 1});
  EXPECT_EQ(sketches.integers(0, 1), 2.0);                    // 1.5
  EXPECT_EQ(sketches_of(rows, {0, 2}).integers(0, 1), -2.0);  // -2.5
  EXPECT_EQ(sketches.integers.row(1).cwiseAbs().maxCoeff(), 0.0);
  EXPECT_EQ(sketches.unit[1], static_cast<double>(0x1p-122F / 127.0F));
  EXPECT_TRUE(std::isnan(sketches.unit[2]));
  EXPECT_EQ(sketches.integers(3, 0), 127.0);
  EXPECT_EQ(sketches.unit[3], static_cast<double>(3.0F / 127.0F));
  EXPECT_EQ(sketches.unit[4], 0.0);
}

// One query head of 30 rows that vote on 160 keys; D is given.
struct Sketched {
  Inputs inputs;
  std::vector<Eigen::Index> columns;
  std::vector<OwnWeights> own;
  std::vector<std::int32_t> positions;

  Sketched(unsigned seed, Eigen::Index d) : inputs(normal(seed, d)) {
    inputs.block.q.resize(1);
    columns = sketch_columns(inputs.keys);
    own.push_back({Eigen::VectorXd::LinSpaced(30, 1.0, 4.0), Eigen::VectorXd::Constant(30, 4.0 * kU)});
    for (std::int32_t j = 0; j < inputs.keys.rows(); ++j) positions.push_back(j);
  }
  [[nodiscard]] VoteTruth truth() const {
    return sketch_votes(inputs.block, own, columns, sketches_of(inputs.keys, columns), positions, {});
  }
  // SKE-6 in floats, with integers up to `most`.
  [[nodiscard]] std::vector<float> in_floats(float most) const {
    const auto sketch = [&](const Eigen::MatrixXd& from, Eigen::Index row, std::vector<float>& integers) {
      float largest = 0.0f;
      for (const Eigen::Index x : columns)
        largest = std::max(largest, std::fabs(static_cast<float>(from(row, x))));
      for (const Eigen::Index x : columns)
        integers.push_back(std::nearbyint(static_cast<float>(from(row, x)) * (most / largest)));
      return largest / most;
    };
    std::vector<float> votes(positions.size(), -std::numeric_limits<float>::infinity());
    for (Eigen::Index i = 0; i < 30; ++i) {
      std::vector<float> query;
      const float unit = sketch(inputs.block.q[0], i, query);
      for (std::size_t j = 0; j < votes.size(); ++j) {
        std::vector<float> key;
        const float of_key = sketch(inputs.keys, static_cast<Eigen::Index>(j), key);
        float sum = 0.0f;
        for (std::size_t x = 0; x < key.size(); ++x) sum += query[x] * key[x];
        const float v = static_cast<float>(inputs.block.scale) * unit * of_key * sum;
        votes[j] = std::max(votes[j], v - static_cast<float>(own[0].value[i]));
      }
    }
    return votes;
  }
};

TEST(SketchBound, SKE_9_HoldsForVotesInFloatsAndTellsOtherIntegers) {
  for (const Eigen::Index d : {24, 64}) {
    double of_floats = 0.0;
    double of_126 = 0.0;
    for (unsigned seed = 1; seed <= 10; ++seed) {
      const Sketched sketched(seed, d);
      of_floats = std::max(of_floats, worst(sketched.in_floats(127.0f), sketched.truth()));
      of_126 = std::max(of_126, worst(sketched.in_floats(126.0f), sketched.truth()));
    }
    EXPECT_LE(of_floats, 1.0) << d;
    EXPECT_GT(of_floats, 1.0 / 512.0) << d;
    EXPECT_GT(of_126, 1000.0) << d;
  }
}

TEST(SketchBound, SKE_6_WhoHasNoPart) {
  Sketched sketched(3, 24);
  const VoteTruth before = sketched.truth();
  sketched.inputs.keys(7, 5) = kInfinity;
  sketched.inputs.block.q[0].row(2).setConstant(1e3);  // it would have the largest votes, or the least
  sketched.own[0].value[2] = -kInfinity;
  sketched.inputs.block.q[0](4, 0) = kNaN;
  const VoteTruth truth = sketched.truth();
  EXPECT_EQ(truth.vote[7], -kInfinity);
  EXPECT_EQ(truth.bound[7], 0.0);
  for (const Eigen::Index j : {0, 80, 159}) {
    EXPECT_LE(truth.vote[j], before.vote[j]);
    EXPECT_LT(truth.bound[j], 1e-5);
  }
  for (double& d : sketched.own[0].value) d = kNaN;
  EXPECT_EQ(sketched.truth().vote[0], -kInfinity);
}

TEST(SketchBound, SKE_6_AnythingGoesBeyondTheRangeOfF32) {
  Sketched sketched(3, 24);
  sketched.inputs.keys.row(9).setConstant(0x1p120);
  const VoteTruth of_key = sketched.truth();
  EXPECT_EQ(of_key.bound[9], kInfinity);
  EXPECT_LT(of_key.bound[8], 1e-5);
  sketched.own[0].bound[3] = kInfinity;  // this row may have a part in all votes, or in none
  EXPECT_EQ(sketched.truth().bound[8], kInfinity);
}

}  // namespace
}  // namespace headwater::conformance
