#include "cuda/emulation/clocks.hpp"

#include <gtest/gtest.h>

namespace headwater::cuda::emulation {
namespace {

/// Is what `other` did before `then` ordered before what `warp` does now?
bool knows(const Clocks& clocks, int warp, int other, int then) { return then < clocks.known(warp, other); }

TEST(Clocks, NothingIsOrderedAtFirst) {
  Clocks clocks;
  clocks.start(4, 10);
  for (int warp = 0; warp < 4; ++warp) {
    for (int other = 0; other < 4; ++other) {
      EXPECT_FALSE(knows(clocks, warp, other, clocks.now(other)));
      EXPECT_TRUE(knows(clocks, warp, other, 9));
    }
  }
}

TEST(Clocks, ABarrierOrdersItsMembers) {
  Clocks clocks;
  clocks.start(4, 1);
  const int before = clocks.now(0);
  clocks.barrier(0b0011);
  EXPECT_TRUE(knows(clocks, 1, 0, before));
  EXPECT_FALSE(knows(clocks, 2, 0, before));
  EXPECT_FALSE(knows(clocks, 1, 0, clocks.now(0)));
  EXPECT_FALSE(knows(clocks, 0, 2, clocks.now(2)));
}

TEST(Clocks, OrderIsHandedOn) {
  Clocks clocks;
  clocks.start(3, 1);
  const int before = clocks.now(0);
  clocks.barrier(0b011);
  const int between = clocks.now(0);
  clocks.barrier(0b110);
  EXPECT_TRUE(knows(clocks, 2, 0, before));
  EXPECT_FALSE(knows(clocks, 2, 0, between));
}

TEST(Clocks, WarpSyncOrdersTheWarpOnly) {
  Clocks clocks;
  clocks.start(2, 1);
  const int before = clocks.now(0);
  clocks.warp_sync(0);
  EXPECT_TRUE(knows(clocks, 0, 0, before));
  EXPECT_FALSE(knows(clocks, 1, 0, before));
}

TEST(Clocks, OldestIsTheLeastKnown) {
  Clocks clocks;
  clocks.start(3, 5);
  clocks.barrier(0b011);
  EXPECT_EQ(clocks.oldest(0), 5);
  EXPECT_EQ(clocks.oldest(2), 5);
  clocks.barrier(0b111);
  EXPECT_EQ(clocks.oldest(0), clocks.now(0));
  EXPECT_EQ(clocks.latest(), clocks.now(2));
}

}  // namespace
}  // namespace headwater::cuda::emulation
