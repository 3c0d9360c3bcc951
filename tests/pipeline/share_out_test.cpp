// How layers are shared out among ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/pipeline/pipeline.hpp"

namespace headwater::pipeline {
namespace {

using Costs = std::vector<double>;
using Shares = std::vector<std::int64_t>;

double busiest(const Costs& costs, double head, const Shares& shares) {
  double most = 0;
  auto from = costs.begin();
  for (std::size_t r = 0; r < shares.size(); ++r) {
    const auto to = from + shares[r];
    most = std::max(most, std::accumulate(from, to, r + 1 == shares.size() ? head : 0.0));
    from = to;
  }
  return most;
}

/// The least work of the busiest rank, by trying every split.
double least(const Costs& costs, double head, int ranks) {
  double best = 1e300;
  Shares shares;
  const auto extend = [&](const auto& self, std::int64_t rest) -> void {
    const auto open = ranks - static_cast<int>(shares.size());
    if (open == 1) {
      shares.push_back(rest);
      best = std::min(best, busiest(costs, head, shares));
      shares.pop_back();
      return;
    }
    for (std::int64_t own = 1; own <= rest - (open - 1); ++own) {
      shares.push_back(own);
      self(self, rest - own);
      shares.pop_back();
    }
  };
  extend(extend, static_cast<std::int64_t>(costs.size()));
  return best;
}

TEST(ShareOut, EqualLayersGoEvenlyAndTheFirstRanksGetMore) {
  EXPECT_EQ(share_out(Costs(8, 1.0), 0, 1), (Shares{8}));
  EXPECT_EQ(share_out(Costs(8, 1.0), 0, 2), (Shares{4, 4}));
  EXPECT_EQ(share_out(Costs(8, 1.0), 0, 3), (Shares{3, 3, 2}));
  EXPECT_EQ(share_out(Costs(8, 1.0), 0, 8), Shares(8, 1));
  EXPECT_EQ(share_out(Costs(126, 1.0), 0, 64).size(), 64U);
}

TEST(ShareOut, TheHeadIsTheLastRanksWork) {
  EXPECT_EQ(share_out(Costs(8, 1.0), 2.0, 2), (Shares{5, 3}));
  EXPECT_EQ(share_out(Costs(8, 1.0), 100.0, 3).back(), 1);
}

// Groups of one to three layers that cost the same: no other split is as good.
TEST(ShareOut, ThreeHundredRanks) {
  Costs costs;
  Shares groups;
  for (std::int64_t r = 0; r < 300; ++r) {
    groups.push_back(1 + r * r % 3);
    costs.insert(costs.end(), static_cast<std::size_t>(groups.back()),
                 6e12 / static_cast<double>(groups.back()));
  }
  EXPECT_EQ(share_out(costs, 0, 300), groups);
  costs.back() -= 1e12;
  EXPECT_EQ(share_out(costs, 1e12, 300), groups);
}

TEST(ShareOut, NoSplitIsBetter) {
  std::uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525U + 1013904223U; };
  for (int round = 0; round < 200; ++round) {
    Costs costs(1 + (next() >> 16) % 9);
    for (double& cost : costs) cost = 1.0 + (next() >> 16) % 20;
    const double head = (next() >> 16) % 30;
    const int ranks = 1 + static_cast<int>((next() >> 16) % costs.size());
    const Shares shares = share_out(costs, head, ranks);
    ASSERT_EQ(shares.size(), static_cast<std::size_t>(ranks));
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}),
              static_cast<std::int64_t>(costs.size()));
    ASSERT_GE(*std::min_element(shares.begin(), shares.end()), 1);
    EXPECT_EQ(busiest(costs, head, shares), least(costs, head, ranks));
  }
}

}  // namespace
}  // namespace headwater::pipeline
