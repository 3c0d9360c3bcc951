// Which rows go to which experts, against a sort, for every number of experts and of those that are used.

#include "runtime/model/routing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace headwater::runtime {
namespace {

/// Weights [experts] of one row: 0 where it does not go. `of_all`: of a softmax over all experts.
std::vector<double> by_sort(const float* logits, std::int64_t experts, std::int64_t used, bool of_all) {
  std::vector<std::size_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights(order.size());
  double sum = 0;
  for (std::int64_t i = 0; i < (of_all ? experts : used); ++i)
    sum += std::exp(static_cast<double>(logits[order[static_cast<std::size_t>(i)]]));
  for (std::int64_t i = 0; i < used; ++i) {
    const std::size_t e = order[static_cast<std::size_t>(i)];
    weights[e] = std::exp(static_cast<double>(logits[e])) / sum;
  }
  return weights;
}

TEST(Routing, TheHighestLogitsAndTheirSoftmax) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> level(-20, 20);  // many are equal
  for (const std::int64_t experts : {1, 2, 5, 8, 60, 128, 512}) {
    for (const std::int64_t used : {std::int64_t{1}, std::int64_t{2}, std::int64_t{8}, experts}) {
      if (used > experts) continue;
      for (const std::int64_t rows : {1, 3, 200}) {
        std::vector<float> logits(static_cast<std::size_t>(rows * experts));
        for (float& one : logits) one = static_cast<float>(level(random)) / 4;
        const bool of_all = random() % 2 == 0;
        Routing routing;
        routing.reserve(200, experts, used, of_all);
        routing.choose(logits.data(), rows);
        std::vector<double> got(logits.size());
        std::int64_t visits = 0;
        for (std::int64_t e = 0; e < experts; ++e) {
          std::int32_t before = -1;
          for (const Routing::Visit& visit : routing.of(e)) {
            ASSERT_GT(visit.row, before);
            ASSERT_LT(visit.row, rows);
            before = visit.row;
            got[static_cast<std::size_t>(visit.row * experts + e)] = static_cast<double>(visit.weight);
            ++visits;
          }
        }
        ASSERT_EQ(visits, rows * used);
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto wanted = by_sort(logits.data() + row * experts, experts, used, of_all);
          for (std::int64_t e = 0; e < experts; ++e) {
            const double want = wanted[static_cast<std::size_t>(e)];
            ASSERT_NEAR(got[static_cast<std::size_t>(row * experts + e)], want,
                        want * 0x1p-24 * (30 + static_cast<double>(of_all ? experts : used)))
                << experts << " experts, " << used << " used, row " << row << ", expert " << e;
          }
        }
      }
    }
  }
}

// A row whose logits are no numbers goes somewhere, with weights that are none, and leaves the others alone.
TEST(Routing, NaNAndInfinity) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> bad = {{kNaN, kNaN, kNaN, kNaN},
                                               {1, kNaN, 3, 2},
                                               {3, 2, 1, kNaN},
                                               {-kInfinity, -kInfinity, -kInfinity, -kInfinity},
                                               {kInfinity, 1, kInfinity, 2}};
  for (const auto& row : bad) {
    std::vector<float> logits = {1, 2, 3, 4};
    logits.insert(logits.end(), row.begin(), row.end());
    Routing routing;
    routing.reserve(2, 4, 2);
    routing.choose(logits.data(), 2);
    int visits = 0;
    for (std::int64_t e = 0; e < 4; ++e) {
      for (const Routing::Visit& visit : routing.of(e)) {
        EXPECT_EQ(std::isnan(visit.weight), visit.row == 1) << e;
        ++visits;
      }
    }
    EXPECT_EQ(visits, 4);
    EXPECT_EQ(routing.of(3).front().row, 0);
  }
}

}  // namespace
}  // namespace headwater::runtime
