#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "conformance/random.hpp"

namespace headwater::conformance {

/// For each row of a covering array of strength two the level of every factor, by index.
using PairRows = std::vector<std::vector<std::size_t>>;

/// Rows in which any two levels of two factors meet. Greedy, as AETG (Cohen et al., 1997): each row begins with a pair that has
/// not met; every other factor, in random order, takes the level that meets most of the levels chosen before for the first
/// time. `levels`: how many each factor has.
inline PairRows pairs_covered_once(const std::vector<std::size_t>& levels, Random& random) {
  using Chosen = std::pair<std::size_t, std::size_t>;  // factor, level
  std::set<std::pair<Chosen, Chosen>> open;
  for (std::size_t a = 0; a < levels.size(); ++a) {
    for (std::size_t b = a + 1; b < levels.size(); ++b) {
      for (std::size_t x = 0; x < levels[a]; ++x) {
        for (std::size_t y = 0; y < levels[b]; ++y) open.insert({{a, x}, {b, y}});
      }
    }
  }
  PairRows rows;
  while (!open.empty()) {
    std::vector<Chosen> chosen{open.begin()->first, open.begin()->second};
    const auto pair_with = [&](const Chosen& one, const Chosen& other) {
      return one < other ? std::pair(one, other) : std::pair(other, one);
    };
    std::vector<std::size_t> rest(levels.size());
    std::iota(rest.begin(), rest.end(), 0);
    for (std::size_t i = rest.size(); i > 1; --i)
      std::swap(rest[i - 1],
                rest[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
    for (const std::size_t factor : rest) {
      if (factor == chosen[0].first || factor == chosen[1].first) continue;
      const auto first_met = [&](std::size_t level) {
        return std::count_if(chosen.begin(), chosen.end(), [&](const Chosen& other) {
          return open.contains(pair_with({factor, level}, other));
        });
      };
      const auto turn = static_cast<std::size_t>(random.integer(0, 100));  // so that ties do not fall to one
      std::size_t best = turn % levels[factor];
      for (std::size_t level = 0; level < levels[factor]; ++level)
        if (first_met(level) > first_met(best)) best = level;
      chosen.emplace_back(factor, best);
    }
    std::vector<std::size_t> row(levels.size());
    for (const Chosen& one : chosen) {
      row[one.first] = one.second;
      for (const Chosen& other : chosen)
        if (one < other) open.erase({one, other});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The shortest of several.
inline PairRows cover_pairs(const std::vector<std::size_t>& levels, Random& random) {
  PairRows best = pairs_covered_once(levels, random);
  for (int again = 0; again < 30; ++again) {
    PairRows rows = pairs_covered_once(levels, random);
    if (rows.size() < best.size()) best = std::move(rows);
  }
  return best;
}

}  // namespace headwater::conformance
