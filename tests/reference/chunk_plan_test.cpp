#include "reference/chunk_plan.hpp"

#include <cstdint>
#include <vector>

#include "tests/reference/support.hpp"

/// Clauses: PLAN-1, PLAN-2.
namespace headwater::reference {
namespace {

/// Boundaries of a plan that has no gap: first begin, then every end.
std::vector<std::int64_t> boundaries(const std::vector<Chunk>& chunks, ChunkMode mode) {
  std::vector<std::int64_t> result;
  for (const Chunk& chunk : chunks) {
    EXPECT_EQ(chunk.mode, mode);
    if (result.empty()) {
      result.push_back(chunk.begin);
    } else {
      EXPECT_EQ(chunk.begin, result.back());
    }
    result.push_back(chunk.end);
  }
  return result;
}

std::vector<std::int64_t> sparse(std::int64_t base, std::int64_t n, std::int64_t batch, std::int64_t chunk) {
  return boundaries(chunk_plan(base, n, ChunkMode::sparse, batch, chunk), ChunkMode::sparse);
}

using Boundaries = std::vector<std::int64_t>;

TEST(ChunkPlan, PLAN_1_ChunksInsideOneBatch) {
  EXPECT_EQ(sparse(0, 1, 16, 4), (Boundaries{0, 1}));
  EXPECT_EQ(sparse(0, 3, 16, 4), (Boundaries{0, 3}));
  EXPECT_EQ(sparse(0, 4, 16, 4), (Boundaries{0, 4}));
  EXPECT_EQ(sparse(0, 5, 16, 4), (Boundaries{0, 4, 5}));
  EXPECT_EQ(sparse(0, 13, 16, 4), (Boundaries{0, 4, 8, 12, 13}));
  EXPECT_EQ(sparse(0, 16, 16, 4), (Boundaries{0, 4, 8, 12, 16}));
  EXPECT_EQ(sparse(0, 3, 1, 1), (Boundaries{0, 1, 2, 3}));
}

TEST(ChunkPlan, PLAN_1_BoundariesFollowTheBase) {
  EXPECT_EQ(sparse(7, 9, 16, 4), (Boundaries{7, 11, 15, 16}));
  EXPECT_EQ(sparse(7, 9, 8, 4), (Boundaries{7, 11, 15, 16}));
}

TEST(ChunkPlan, PLAN_2_ChunksRestartAtEachBatch) {
  EXPECT_EQ(sparse(0, 10, 10, 4), (Boundaries{0, 4, 8, 10}));
  EXPECT_EQ(sparse(5, 23, 10, 4), (Boundaries{5, 9, 13, 15, 19, 23, 25, 28}));
  EXPECT_EQ(sparse(0, 21, 10, 4), (Boundaries{0, 4, 8, 10, 14, 18, 20, 21}));
  EXPECT_EQ(sparse(0, 12, 5, 5), (Boundaries{0, 5, 10, 12}));
}

TEST(ChunkPlan, PLAN_1_TheLargestSizes) {
  const std::int64_t most = 2147483647;
  EXPECT_EQ(sparse(0, most, most, most), (Boundaries{0, most}));
  EXPECT_EQ(sparse(most - 3, 3, most, most), (Boundaries{most - 3, most}));
  EXPECT_EQ(sparse(most - 3, 3, most, 2), (Boundaries{most - 3, most - 1, most}));
}

TEST(ChunkPlan, PLAN_1_DenseCallsAndDecodeStepsAreOneChunk) {
  for (const ChunkMode mode : {ChunkMode::dense, ChunkMode::decode}) {
    EXPECT_EQ(boundaries(chunk_plan(3, 100, mode, 10, 4), mode), (Boundaries{3, 103}));
    EXPECT_EQ(boundaries(chunk_plan(0, 1, mode, 10, 4), mode), (Boundaries{0, 1}));
  }
}

TEST(ChunkPlan, PLAN_2_CutsAtMultiplesOfTheChunkChangeNothing) {
  for (const std::int64_t n : {1, 4, 7, 8, 9, 31, 32, 33}) {
    const Boundaries whole = sparse(0, n, 16, 4);
    for (std::int64_t cut = 4; cut < n; cut += 4) {
      Boundaries parts = sparse(0, cut, 16, 4);
      const Boundaries second = sparse(cut, n - cut, 16, 4);
      parts.insert(parts.end(), second.begin() + 1, second.end());
      EXPECT_EQ(parts, whole) << "n = " << n << ", cut = " << cut;
    }
  }
}

}  // namespace
}  // namespace headwater::reference
