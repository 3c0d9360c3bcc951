#include "reference/sketch_rule.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "reference/selection.hpp"
#include "reference/softmax.hpp"

namespace headwater::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kLargestInteger = 127.0F;

/// SKE-6: the sum over X of two sketches' integers, which is exact.
std::int64_t product(const Sketch& a, const Sketch& b) {
  std::int64_t sum = 0;
  for (std::size_t x = 0; x < a.integers.size(); ++x) {
    sum += static_cast<std::int64_t>(a.integers[x]) * b.integers[x];
  }
  return sum;
}

}  // namespace

// SKE-2
SketchedPast sketched_past(std::int64_t begin, std::int64_t local, std::int64_t heavy, std::int64_t pinned) {
  const std::int64_t local_begin = std::max<std::int64_t>(0, begin - local);
  SketchedPast past;
  for (std::int64_t position = 0; position < begin; ++position) {
    const bool is_fixed = position < pinned || position >= local_begin;
    if (is_fixed) past.fixed.push_back(static_cast<std::int32_t>(position));
    if (!is_fixed && heavy > 0) past.candidates.push_back(static_cast<std::int32_t>(position));
  }
  return past;
}

// SKE-3
std::vector<std::int64_t> sketch_columns(const Matrix& k) {
  std::vector<double> sums(static_cast<std::size_t>(k.columns));
  for (std::int64_t j = 0; j < std::min(k.rows, kColumnChoosers); ++j) {
    for (std::size_t x = 0; x < sums.size(); ++x) {
      const double square = k.row(j)[x] * k.row(j)[x];  // exact: the elements are floats
      sums[x] += square;
    }
  }
  for (double& sum : sums) sum = std::isnan(sum) ? kInfinity : sum;
  std::vector<std::int64_t> columns(sums.size());
  std::iota(columns.begin(), columns.end(), 0);
  std::sort(columns.begin(), columns.end(), [&](std::int64_t a, std::int64_t b) {
    const double left = sums[static_cast<std::size_t>(a)];
    const double right = sums[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  });
  columns.resize(static_cast<std::size_t>(sketch_size(k.columns)));
  std::sort(columns.begin(), columns.end());
  return columns;
}

// SKE-4
Sketch sketch(std::span<const double> row, std::span<const std::int64_t> columns) {
  float largest = 0.0F;
  for (const std::int64_t x : columns) {
    const auto element = static_cast<float>(row[static_cast<std::size_t>(x)]);
    if (!std::isfinite(element)) return {};
    largest = std::max(largest, std::fabs(element));
  }
  const float per_unit = kLargestInteger / largest;
  Sketch result{true, largest / kLargestInteger, {}};
  for (const std::int64_t x : columns) {
    const float scaled = static_cast<float>(row[static_cast<std::size_t>(x)]) * per_unit;
    result.integers.push_back(std::isinf(per_unit) ? 0 : static_cast<std::int32_t>(std::nearbyint(scaled)));
  }
  return result;
}

// SKE-5
double own_weight(const LogitRule& rule, std::span<const double> query, std::int64_t i, const Matrix& k,
                  std::span<const std::int32_t> fixed, std::int64_t own_begin) {
  std::vector<double> logits;
  for (const std::int64_t j : fixed) logits.push_back(logit(rule, query, k.row(j), i, j));
  for (std::int64_t j = own_begin; j <= i; ++j) logits.push_back(logit(rule, query, k.row(j), i, j));
  return log_sum_exp(softmax_row(logits, {}, rule.sink, 0));
}

// SKE-6
std::vector<double> sketch_votes(std::span<const VotingHead> heads, std::int64_t begin, const Matrix& k,
                                 std::span<const std::int32_t> candidates,
                                 std::span<const std::int64_t> columns) {
  std::vector<Sketch> keys;
  for (const std::int64_t j : candidates) keys.push_back(sketch(k.row(j), columns));
  std::vector<double> votes(candidates.size(), -kInfinity);
  for (const VotingHead& head : heads) {
    for (std::int64_t row = 0; row < head.q.rows; ++row) {
      const double own = head.own[static_cast<std::size_t>(row)];
      const Sketch query = sketch(head.q.row(row), columns);
      if (!query.exists || !std::isfinite(own)) continue;
      for (std::size_t c = 0; c < candidates.size(); ++c) {
        if (!keys[c].exists) continue;
        const double v = head.rule.scale * static_cast<double>(query.unit) *
                         static_cast<double>(keys[c].unit) * static_cast<double>(product(query, keys[c]));
        const double vote = capped_and_biased(head.rule, v, begin + row, candidates[c]) - own;
        votes[c] = std::max(votes[c], std::isnan(vote) ? -kInfinity : vote);
      }
    }
  }
  return votes;
}

// SKE-7
std::vector<std::int32_t> chosen_by_votes(std::span<const std::int32_t> candidates,
                                          std::span<const float> votes, double least_weight,
                                          std::int64_t most) {
  const float least = round_to_f32(std::log(least_weight));  // -infinity where there is no least
  std::vector<Candidate> allowed;
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    if (votes[c] >= least) allowed.push_back(Candidate{candidates[c], votes[c]});
  }
  return select_heavy(allowed, std::max<std::int64_t>(0, most));  // MEM-3
}

}  // namespace headwater::reference
