#include "cpu/scratch.hpp"

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

TEST(Scratch, CountsItsBytes) {
  ScratchShape shape;
  shape.d = 3;
  shape.dv = 5;
  shape.wide_keys = 7;
  shape.block_keys = 11;
  shape.segment_keys = 4;
  shape.candidates = 13;
  shape.memory = 17;
  shape.bf16 = true;
  shape.d_padded = 32;
  shape.dv_padded = 48;
  const Scratch scratch(shape);
  EXPECT_EQ(scratch.rows.size(), kBlockRows * 3);
  EXPECT_EQ(scratch.packed.size(), kGroupRows * 3);
  EXPECT_EQ(scratch.keys.size(), 7 * 3);
  EXPECT_EQ(scratch.values.size(), 7 * 5);
  EXPECT_EQ(scratch.block.size(), 11 * kBlockRows);
  EXPECT_EQ(scratch.out.size(), kGroupRows * 5);
  EXPECT_EQ(scratch.segment_max.size(), 3 * kBlockRows);
  EXPECT_EQ(scratch.states.size(), kGroupRows / kBlockRows);
  const std::int64_t floats = scratch.rows.size() + scratch.packed.size() + scratch.keys.size() +
                              scratch.values.size() + scratch.block.size() + scratch.out.size() +
                              scratch.segment_max.size() + scratch.order_keys.size() + scratch.chosen.size() +
                              scratch.decode.size() + scratch.intra.size() + scratch.inter.size() +
                              scratch.transposed.size();
  EXPECT_EQ(scratch.inter.size(), kBlockRows * 5);
  EXPECT_EQ(scratch.packed16.size(), kGroupRows * 32);
  EXPECT_EQ(scratch.keys16.size(), kKeyTile * 32);  // 17 entries are one tile
  EXPECT_EQ(scratch.values16.size(), kKeyTile * 48);
  EXPECT_EQ(scratch.weights16.size(), kTileWeights);
  EXPECT_EQ(scratch.transposed.size(), kGroupRows * 48);
  const std::int64_t halves =
      scratch.packed16.size() + scratch.keys16.size() + scratch.values16.size() + scratch.weights16.size();
  EXPECT_EQ(scratch.bytes(), 4 * floats + 2 * halves + scratch.states.bytes() + scratch.softmax16.bytes());
}

}  // namespace
}  // namespace headwater::cpu
