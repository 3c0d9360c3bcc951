#include "reference/memory_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "reference/selection.hpp"
#include "tests/reference/support.hpp"

/// Clauses: MEM-1, MEM-2, MEM-3, MEM-4, MEM-5, MEM-7.
namespace headwater::reference {
namespace {

using test::kInfF;
using test::kNaNF;
using Set = std::vector<std::int32_t>;

TEST(Selection, MEM_3_Order) {
  EXPECT_TRUE(ranks_before({7, 2.0F}, {3, 1.0F}));
  EXPECT_FALSE(ranks_before({3, 1.0F}, {7, 2.0F}));
  EXPECT_TRUE(ranks_before({3, 1.0F}, {7, 1.0F}));
  EXPECT_FALSE(ranks_before({7, 1.0F}, {3, 1.0F}));
  EXPECT_FALSE(ranks_before({3, 1.0F}, {3, 1.0F}));
  EXPECT_TRUE(ranks_before({3, -0.0F}, {7, 0.0F}));
  EXPECT_FALSE(ranks_before({7, 0.0F}, {3, -0.0F}));
  EXPECT_TRUE(ranks_before({3, 0.0F}, {7, -0.0F}));
  EXPECT_TRUE(ranks_before({9, -kInfF}, {1, kNaNF}));
  EXPECT_FALSE(ranks_before({1, kNaNF}, {9, -kInfF}));
  EXPECT_TRUE(ranks_before({9, 0.0F}, {1, kNaNF}));
  EXPECT_TRUE(ranks_before({1, kNaNF}, {9, kNaNF}));
  EXPECT_FALSE(ranks_before({9, kNaNF}, {1, kNaNF}));
  EXPECT_TRUE(ranks_before({1, kNaNF}, {9, -kNaNF}));
  EXPECT_TRUE(ranks_before({9, kInfF}, {1, 1.0F}));
}

TEST(Selection, MEM_3_TheBestInAscendingOrder) {
  const std::vector<Candidate> candidates{{0, 1.0F}, {1, 3.0F}, {4, 2.0F}, {6, 3.0F}, {8, 0.0F}, {9, 2.0F}};
  EXPECT_EQ(select_heavy(candidates, 0), (Set{}));
  EXPECT_EQ(select_heavy(candidates, 1), (Set{1}));
  EXPECT_EQ(select_heavy(candidates, 2), (Set{1, 6}));
  EXPECT_EQ(select_heavy(candidates, 3), (Set{1, 4, 6}));
  EXPECT_EQ(select_heavy(candidates, 4), (Set{1, 4, 6, 9}));
  EXPECT_EQ(select_heavy(candidates, 5), (Set{0, 1, 4, 6, 9}));
  EXPECT_EQ(select_heavy(candidates, 6), (Set{0, 1, 4, 6, 8, 9}));
  EXPECT_EQ(select_heavy(candidates, 7), (Set{0, 1, 4, 6, 8, 9}));
  EXPECT_EQ(select_heavy(candidates, 2147483647), (Set{0, 1, 4, 6, 8, 9}));
  EXPECT_EQ(select_heavy({}, 3), (Set{}));
}

TEST(Selection, MEM_3_NanComesLast) {
  const std::vector<Candidate> candidates{{0, kNaNF}, {1, 0.0F}, {2, kNaNF}, {3, kInfF}, {4, -0.0F}};
  EXPECT_EQ(select_heavy(candidates, 1), (Set{3}));
  EXPECT_EQ(select_heavy(candidates, 2), (Set{1, 3}));
  EXPECT_EQ(select_heavy(candidates, 3), (Set{1, 3, 4}));
  EXPECT_EQ(select_heavy(candidates, 4), (Set{0, 1, 3, 4}));
}

TEST(Selection, MEM_7_PinnedOnesComeFirst) {
  for (const float pinned : {0.0F, -kInfF, kNaNF, 1.0F}) {
    for (const float other : {1.0F, kInfF, kNaNF, 0.0F}) {
      EXPECT_TRUE(ranks_before({9, pinned, true}, {3, other}));
      EXPECT_FALSE(ranks_before({3, other}, {9, pinned, true}));
    }
  }
  EXPECT_TRUE(ranks_before({3, 1.0F, true}, {7, 1.0F, true}));
  EXPECT_FALSE(ranks_before({7, 1.0F, true}, {3, 1.0F, true}));
  EXPECT_FALSE(ranks_before({3, 1.0F, true}, {3, 1.0F, true}));
  const std::vector<Candidate> candidates{
      {0, 0.0F, true}, {1, kNaNF, true}, {4, kInfF}, {6, kNaNF}, {8, 2.0F}};
  EXPECT_EQ(select_heavy(candidates, 2), (Set{0, 1}));
  EXPECT_EQ(select_heavy(candidates, 3), (Set{0, 1, 4}));
  EXPECT_EQ(select_heavy(candidates, 4), (Set{0, 1, 4, 8}));
  EXPECT_EQ(select_heavy(candidates, 9), (Set{0, 1, 4, 6, 8}));
}

TEST(MemorySet, MEM_1_LocalWindow) {
  EXPECT_EQ(local_begin(10, 3), 7);
  EXPECT_EQ(local_begin(10, 0), 10);
  EXPECT_EQ(local_begin(10, 10), 0);
  EXPECT_EQ(local_begin(10, 11), 0);
  EXPECT_EQ(local_begin(10, 2147483647), 0);
}

TEST(MemorySet, MEM_2_Candidates) {
  const Set previous{1, 3, 6, 7};
  EXPECT_EQ(candidates({}, 0, 5, 2), (Set{0, 1, 2}));
  EXPECT_EQ(candidates(previous, 8, 12, 2), (Set{1, 3, 6, 7, 8, 9}));
  EXPECT_EQ(candidates(previous, 8, 12, 0), (Set{1, 3, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(candidates(previous, 8, 12, 4), (Set{1, 3, 6, 7}));
  // The window may reach back over a short chunk, and then previous entries lie in it.
  EXPECT_EQ(candidates(previous, 8, 9, 2), (Set{1, 3, 6}));
  EXPECT_EQ(candidates(previous, 8, 9, 3), (Set{1, 3}));
  EXPECT_EQ(candidates(previous, 8, 9, 100), (Set{}));
}

float score_of_table(std::int64_t position) {
  const float scores[] = {5, 9, 2, 9, 1, 7, 0, 3, 0, 8, 4, 6};
  return scores[position];
}

TEST(MemorySet, MEM_4_SetsAreAscending) {
  EXPECT_EQ(build_memory_set({}, 0, 4, 2, 1, score_of_table), (Set{1, 2, 3}));
  EXPECT_EQ(build_memory_set({}, 0, 4, 1, 2, score_of_table), (Set{0, 1, 3}));
  EXPECT_EQ(build_memory_set({}, 0, 4, 0, 2, score_of_table), (Set{1, 3}));
  EXPECT_EQ(build_memory_set({}, 0, 4, 2, 0, score_of_table), (Set{2, 3}));
  EXPECT_EQ(build_memory_set({}, 0, 2, 4, 4, score_of_table), (Set{0, 1}));
  const Set previous{0, 1, 3};
  EXPECT_EQ(build_memory_set(previous, 4, 8, 1, 3, score_of_table), (Set{1, 3, 5, 7}));
  EXPECT_EQ(build_memory_set(previous, 4, 8, 2, 2, score_of_table), (Set{1, 3, 6, 7}));
}

TEST(MemorySet, MEM_2_WhatWasDroppedIsNoCandidate) {
  // Position 1 has the best score, but neither was it kept nor is it new.
  const Set previous{2, 3};
  EXPECT_EQ(build_memory_set(previous, 4, 8, 1, 2, score_of_table), (Set{3, 5, 7}));
}

TEST(MemorySet, MEM_5_AllTokensSinceTheLastSetAreCandidates) {
  // A dense turn and decoded tokens lie between: scores 0.
  const auto zero_after_4 = [](std::int64_t position) {
    return position < 4 ? static_cast<float>(4 - position) : 0.0F;
  };
  const Set previous{0, 3};
  EXPECT_EQ(build_memory_set(previous, 4, 10, 2, 4, zero_after_4), (Set{0, 3, 4, 5, 8, 9}));
}

TEST(MemorySet, MEM_7_PinnedTokensOnBothSidesOfLocal) {
  // Scores 5 9 2 9 1 7 0 3 of 0 .. 7.
  EXPECT_EQ(build_memory_set({}, 0, 8, 2, 2, score_of_table, 0), (Set{1, 3, 6, 7}));
  EXPECT_EQ(build_memory_set({}, 0, 8, 2, 2, score_of_table, 1), (Set{0, 1, 6, 7}));
  EXPECT_EQ(build_memory_set({}, 0, 8, 2, 2, score_of_table, 2), (Set{0, 1, 6, 7}));
  EXPECT_EQ(build_memory_set({}, 0, 8, 2, 3, score_of_table, 3), (Set{0, 1, 2, 6, 7}));
  EXPECT_EQ(build_memory_set({}, 0, 8, 0, 3, score_of_table, 1), (Set{0, 1, 3}));
  EXPECT_EQ(build_memory_set({}, 0, 8, 2, 4, score_of_table, 3), (Set{0, 1, 2, 3, 6, 7}));
  // Still in Local: no candidate, and no place among the H is taken.
  EXPECT_EQ(build_memory_set({}, 0, 4, 4, 3, score_of_table, 3), (Set{0, 1, 2, 3}));
  EXPECT_EQ(build_memory_set({}, 0, 5, 3, 1, score_of_table, 1), (Set{0, 2, 3, 4}));
  EXPECT_EQ(build_memory_set({}, 0, 6, 3, 2, score_of_table, 2), (Set{0, 1, 3, 4, 5}));
  // More than there are tokens.
  EXPECT_EQ(build_memory_set({}, 0, 3, 1, 8, score_of_table, 8), (Set{0, 1, 2}));
  EXPECT_EQ(build_memory_set({}, 0, 1, 0, 8, score_of_table, 8), (Set{0}));
}

TEST(MemorySet, MEM_7_WhateverTheScoresAre) {
  for (const float bad : {kNaNF, 0.0F, -kInfF, kInfF}) {
    for (const float other : {kNaNF, 0.0F, 2.0F, kInfF}) {
      const auto score = [&](std::int64_t position) { return position < 3 ? bad : other; };
      EXPECT_EQ(build_memory_set({}, 0, 9, 2, 3, score, 3), (Set{0, 1, 2, 7, 8}));
      EXPECT_EQ(build_memory_set({}, 0, 9, 2, 5, score, 3), (Set{0, 1, 2, 3, 4, 7, 8}));
    }
  }
}

TEST(MemorySet, MEM_7_LawsOnRandomScores) {
  test::Numbers numbers(11);
  const float special[] = {0.0F, 1.0F, 2.0F, kInfF, kNaNF, -0.0F};
  for (int round = 0; round < 300; ++round) {
    std::vector<float> scores;
    for (int j = 0; j < 700; ++j) scores.push_back(special[numbers.below(6)]);
    const bool large = round % 10 == 0;
    const std::int64_t local = numbers.below(large ? 60 : 6);
    const std::int64_t heavy = numbers.below(large ? 200 : 8);
    const std::int64_t pinned = numbers.below(4) == 0 ? heavy : numbers.below(heavy + 1);
    Set set;
    std::int64_t end = 0;
    while (end < (large ? 600 : 30)) {
      const std::int64_t previous_end = end;
      end += 1 + numbers.below(large ? 90 : 7);
      const auto score = [&](std::int64_t position) { return scores[static_cast<std::size_t>(position)]; };
      set = build_memory_set(Set(set), previous_end, end, local, heavy, score, pinned);
      ASSERT_EQ(static_cast<std::int64_t>(set.size()), std::min(local + heavy, end));
      const std::int64_t first_local = std::max<std::int64_t>(0, end - local);
      for (std::int64_t j = 0; j < end; ++j) {
        const bool kept = std::binary_search(set.begin(), set.end(), j);
        if (j >= first_local || j < pinned) {
          EXPECT_TRUE(kept) << "position " << j << " of " << end;
          continue;
        }
        std::int64_t before = 0;
        for (std::int64_t other = 0; other < first_local; ++other) {
          const float mine = score(j);
          const float its = score(other);
          const bool tie = its == mine || (std::isnan(its) && std::isnan(mine));
          const bool better = its > mine || (std::isnan(mine) && !std::isnan(its)) || (tie && other < j);
          if (other < pinned || better) ++before;
        }
        EXPECT_EQ(kept, before < heavy) << "position " << j << " of " << end;
      }
    }
  }
}

TEST(MemorySet, MEM_4_Padding) {
  Set stored(5, 77);
  store_memory_set(Set{2, 9}, stored);
  EXPECT_EQ(stored, (Set{2, 9, -1, -1, -1}));
  store_memory_set(Set{0, 1, 2, 3, 4}, stored);
  EXPECT_EQ(stored, (Set{0, 1, 2, 3, 4}));
  store_memory_set({}, stored);
  EXPECT_EQ(stored, Set(5, -1));
}

TEST(MemorySet, LawsOnRandomScores) {
  test::Numbers numbers(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> scores;
    for (int j = 0; j < 40; ++j) scores.push_back(static_cast<float>(numbers.below(6)));
    const std::int64_t local = numbers.below(6);
    const std::int64_t heavy = numbers.below(6);
    Set set;
    std::int64_t end = 0;
    while (end < 30) {
      const std::int64_t previous_end = end;
      end += 1 + numbers.below(7);
      const Set previous = set;
      set = build_memory_set(previous, previous_end, end, local, heavy, [&](std::int64_t position) {
        return scores[static_cast<std::size_t>(position)];
      });
      EXPECT_TRUE(std::is_sorted(set.begin(), set.end()));
      EXPECT_EQ(std::set<std::int32_t>(set.begin(), set.end()).size(), set.size());
      EXPECT_EQ(static_cast<std::int64_t>(set.size()), std::min(local + heavy, end));
      const std::int64_t first_local = std::max<std::int64_t>(0, end - local);
      for (std::int64_t j = 0; j < end; ++j) {
        const bool kept = std::count(set.begin(), set.end(), j) == 1;
        if (j >= first_local) {
          EXPECT_TRUE(kept);
          continue;
        }
        // Kept iff fewer than H of all tokens before Local are better (SPEC 14: scores do not change here, so
        // what was dropped cannot come back).
        std::int64_t better = 0;
        for (std::int64_t other = 0; other < first_local; ++other) {
          const float mine = scores[static_cast<std::size_t>(j)];
          const float its = scores[static_cast<std::size_t>(other)];
          if (its > mine || (its == mine && other < j)) ++better;
        }
        EXPECT_EQ(kept, better < heavy) << "position " << j << " of " << end;
      }
    }
  }
}

}  // namespace
}  // namespace headwater::reference
