#include "cpu/pass/sparse.hpp"

#include <gtest/gtest.h>

namespace headwater::cpu {
namespace {

TEST(Groups, CoverAChunkInFewPiecesOfWholeBlocks) {
  for (std::int64_t n = 1; n < 20000; n += n < 2000 ? 1 : 97) {
    const std::int64_t rows = group_rows(n);
    EXPECT_EQ(rows % kBlockRows, 0) << n;
    EXPECT_GE(rows, kGroupRows) << n;
    EXPECT_LE((n + rows - 1) / rows, kMaxGroups) << n;
    // No larger than that needs: one block less would make too many groups, or be less than the smallest.
    const std::int64_t smaller = rows - kBlockRows;
    EXPECT_TRUE(smaller < kGroupRows || (n + smaller - 1) / smaller > kMaxGroups) << n;
  }
}

}  // namespace
}  // namespace headwater::cpu
