// Each fault that the emulation is there to find, planted into a kernel that is right without it. Both orders of the
// threads, since a fault must show whoever comes first.
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <string>

#include "tests/cuda/kernel_run.hpp"

namespace headwater::cuda::emulation {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// `kernel(ctx, planted)`: right without the plant; with it, it ends with a text that has `part`, on one line.
template <class Kernel>
void expect_fault(int threads, int shared_bytes, const std::string& part, Kernel kernel) {
  for (const Order order : {Order::ascending, Order::descending}) {
    EXPECT_EQ(fault_of(
                  threads, shared_bytes, [&](Context& ctx) { kernel(ctx, false); }, order),
              "");
    EXPECT_THAT(
        fault_of(
            threads, shared_bytes, [&](Context& ctx) { kernel(ctx, true); }, order),
        AllOf(HasSubstr(part), HasSubstr("kernel test, block (0, 0, 0), thread "), Not(HasSubstr("\n"))));
    // The block after a failed one starts afresh.
    EXPECT_EQ(fault_of(
                  threads, shared_bytes, [&](Context& ctx) { kernel(ctx, false); }, order),
              "");
  }
}

/// Shared memory that has been written once, and a barrier since.
Shared<float> written_floats(Context& ctx, int count) {
  const auto s = ctx.shared<float>(0, count);
  for (int i = ctx.thread(); i < count; i += ctx.threads()) s[i] = 0.0f;
  ctx.barrier();
  return s;
}

TEST(Race, ReadAfterWriteWithoutBarrier) {
  expect_fault(64, 256, "race at byte", [](Context& ctx, bool planted) {
    const auto s = written_floats(ctx, 64);
    s[ctx.thread()] = 1.0f;
    if (!planted) ctx.barrier();
    const float x = s[63 - ctx.thread()];
    (void)x;
  });
}

TEST(Race, WriteAfterReadWithoutBarrier) {
  expect_fault(64, 256, "race at byte", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<float>(0, 64);
    s[ctx.thread()] = 1.0f;
    ctx.barrier();
    const float x = s[63 - ctx.thread()];
    if (!planted) ctx.barrier();
    s[ctx.thread()] = x;
  });
}

TEST(Race, TwoWriters) {
  expect_fault(64, 256, "both write", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<float>(0, 64);
    s[planted ? ctx.thread() / 2 : ctx.thread()] = 1.0f;
  });
}

TEST(Race, WarpSyncOrdersOneWarpOnly) {
  expect_fault(64, 256, "race at byte", [](Context& ctx, bool planted) {
    const auto s = written_floats(ctx, 64);
    s[ctx.thread()] = 1.0f;
    ctx.warp_sync();
    const float x = s[planted ? 63 - ctx.thread() : ctx.thread() ^ 31];
    (void)x;
  });
}

TEST(Race, LanesOfOneWarpNeedWarpSync) {
  expect_fault(32, 128, "race at byte", [](Context& ctx, bool planted) {
    const auto s = written_floats(ctx, 32);
    s[ctx.lane()] = 1.0f;
    const float moved = ctx.shuffle(2.0f, 0);  // orders no memory
    if (!planted) ctx.warp_sync();
    const float x = s[31 - ctx.lane()] + moved;
    (void)x;
  });
}

// Thread 0 reads; another lane of its warp writes, or the same lane of another warp.
TEST(Race, AReaderAndOneWriterBesideIt) {
  for (const int writer : {1, 32}) {
    expect_fault(64, 128, "race at byte", [writer](Context& ctx, bool planted) {
      const auto s = ctx.shared<float>(0, 32);
      if (ctx.thread() == 0) s[0] = 1.0f;
      ctx.barrier();
      if (ctx.thread() == 0) {
        const float x = s[0];
        (void)x;
      }
      if (!planted) ctx.barrier();
      if (ctx.thread() == writer) s[0] = 2.0f;
    });
  }
}

TEST(Race, ManyReadersThenAWriterOfAnotherGroup) {
  // Warps 0 .. 2 read; the writer meets warps 0 and 1 only.
  expect_fault(128, 64, "race at byte", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<float>(0, 1);
    if (ctx.thread() == 0) s[0] = 1.0f;
    ctx.barrier();
    if (ctx.warp() < 3) {
      const float x = s[0];
      (void)x;
    }
    if (!planted) {
      ctx.barrier();
    } else if (ctx.warp() != 2) {
      ctx.barrier(1, 96);
    }
    if (ctx.thread() == 96) s[0] = 2.0f;
  });
}

TEST(Race, NamedBarriersCarryOrderOn) {
  // Warp 0 -> barrier 1 -> warp 1 -> barrier 2 -> warp 2: ordered, though warps 0 and 2 never meet.
  expect_fault(96, 64, "race at byte", [](Context& ctx, bool planted) {
    const auto s = written_floats(ctx, 1);
    if (ctx.thread() == 0) s[0] = 1.0f;
    if (ctx.warp() <= 1 && !planted) ctx.barrier(1, 64);
    if (ctx.warp() >= 1) ctx.barrier(2, 64);
    if (ctx.warp() <= 1 && planted) ctx.barrier(1, 64);
    if (ctx.thread() == 64) {
      const float x = s[0];
      (void)x;
    }
  });
}

TEST(Race, NeighbouringHalfWordsAreNoRace) {
  EXPECT_EQ(fault_of(64, 128, [](Context& ctx) { ctx.shared<std::uint16_t>(0, 64)[ctx.thread()] = 1; }), "");
}

TEST(Race, AccessesOfDifferentWidths) {
  // A vector of one thread and a half-word of another within it.
  expect_fault(64, 256, "race at byte 6 ", [](Context& ctx, bool planted) {
    const auto s = written_floats(ctx, 64);
    const auto halves = ctx.shared<std::uint16_t>(0, 128);
    if (ctx.thread() == 0) ctx.store16(s, Words4{});
    if (!planted) ctx.barrier();
    if (ctx.thread() == 40) halves[3] = 1;
  });
  expect_fault(64, 256, "race at byte", [](Context& ctx, bool planted) {
    (void)written_floats(ctx, 64);
    const auto halves = ctx.shared<std::uint16_t>(0, 128);
    if (ctx.thread() == 40) halves[3] = 1;
    if (!planted) ctx.barrier();
    if (ctx.thread() == 0) (void)ctx.load8(halves);
  });
  expect_fault(64, 256, "race at byte", [](Context& ctx, bool planted) {
    const auto s = written_floats(ctx, 64);
    const auto halves = ctx.shared<std::uint16_t>(0, 128);
    if (ctx.lane() < 2) (void)ctx.load16(s);  // several lanes of both warps
    if (!planted) ctx.barrier();
    if (ctx.thread() == 40) halves[3] = 1;
  });
}

TEST(Race, PartsOfOneLineBelongToDifferentThreads) {
  EXPECT_EQ(fault_of(64, 256,
                     [](Context& ctx) {
                       const auto halves = ctx.shared<std::uint16_t>(0, 128);
                       halves[ctx.thread()] = 1;
                       std::uint16_t x = halves[ctx.thread()];
                       halves[ctx.thread()] = ++x;
                       ctx.barrier();
                       (void)ctx.load16(halves + ctx.thread() / 8 * 8);
                     }),
            "");
}

TEST(Race, LoadMatrixReads) {
  expect_fault(32, 512, "race at byte", [](Context& ctx, bool planted) {
    (void)written_floats(ctx, 128);
    const auto s = ctx.shared<std::uint16_t>(0, 256);
    for (int i = 0; i < 8; ++i) s[i * 32 + ctx.lane()] = 0;
    if (!planted) ctx.warp_sync();
    std::uint32_t r[4];
    ctx.load_matrix_x4(r, s + ctx.lane() * 8);
  });
}

TEST(Memory, UninitialisedRead) {
  expect_fault(32, 256, "uninitialised read at byte 128", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<float>(0, 64);
    s[ctx.lane()] = 1.0f;
    ctx.barrier();
    if (ctx.lane() == 0) {
      const float x = s[planted ? 32 : 31];
      (void)x;
    }
  });
}

TEST(Memory, TheBlockBeforeInitialisesNothing) {
  Launch launch;
  launch.threads = 32;
  launch.shared_bytes = 128;
  launch.grid = {64, 1, 1};
  EXPECT_THAT(fault_of(launch,
                       [](Context& ctx) {
                         const auto s = ctx.shared<float>(0, 32);
                         if (ctx.block_x() != 63) s[ctx.lane()] = 1.0f;
                         const float x = s[ctx.lane()];
                         (void)x;
                       }),
              HasSubstr("block (63, 0, 0)"));
}

TEST(Memory, AnEarlierBlockWithMoreWarpsLeavesNothingBehind) {
  const auto in_pieces = [](Context& ctx) {
    ctx.shared<std::uint16_t>(0, 128)[ctx.thread()] = 1;
    ctx.barrier();
    const std::uint16_t x = ctx.shared<std::uint16_t>(0, 128)[ctx.thread() ^ 127];
    (void)x;
  };
  EXPECT_EQ(fault_of(128, 256, in_pieces), "");
  EXPECT_EQ(fault_of(32, 256, [](Context& ctx) { ctx.shared<std::uint16_t>(0, 128)[ctx.thread()] = 1; }), "");
  EXPECT_THAT(fault_of(32, 256, [](Context& ctx) { (void)ctx.load8(ctx.shared<std::uint16_t>(0, 128)); }),
              HasSubstr("uninitialised read at byte 0"));
}

TEST(Memory, OffByOneTail) {
  expect_fault(32, 256, "out of bounds: 4 bytes at 128 of an array from 0 to 128",
               [](Context& ctx, bool planted) {
                 const auto s = ctx.shared<float>(0, 32);
                 for (int i = ctx.lane(); i < (planted ? 33 : 32); i += 32) s[i] = 0.0f;
               });
}

TEST(Memory, BeforeTheArrayAndMisaligned) {
  expect_fault(32, 256, "out of bounds: 4 bytes at 60", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<float>(64, 32);
    s[ctx.lane() - (planted ? 1 : 0)] = 0.0f;
  });
  expect_fault(32, 1024, "not aligned: 16 bytes at 8", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<float>(0, 128);
    if (ctx.lane() == 0) ctx.store16(s + (planted ? 2 : 4), Words4{});
  });
}

TEST(Memory, AnArrayOutsideOfTheBlock) {
  expect_fault(32, 256, "an array from 0 to 260 in a block of 256 bytes",
               [](Context& ctx, bool planted) { (void)ctx.shared<float>(0, planted ? 65 : 64); });
}

TEST(Memory, GlobalVectorsMustBeAligned) {
  alignas(16) static std::array<std::uint32_t, 8> words{};
  expect_fault(32, 0, "not aligned to its 16 bytes",
               [](Context& ctx, bool planted) { (void)ctx.load16(words.data() + (planted ? 1 : 0)); });
}

TEST(Memory, GlobalVectorsMustLieInAnAllocation) {
  alignas(16) static std::array<std::uint32_t, 8> words{};
  struct First : GlobalMemory {
    [[nodiscard]] Buffer find(const void* at) const override {
      const auto* first = reinterpret_cast<const std::byte*>(words.data());
      return {at < first + 16 ? first : nullptr, at < first + 16 ? 16 : 0, "words", nullptr};
    }
  } memory;
  Launch launch;
  launch.threads = 32;
  launch.memory = &memory;
  EXPECT_EQ(fault_of(launch, [](Context& ctx) { (void)ctx.load16(words.data()); }), "");
  EXPECT_THAT(fault_of(launch, [](Context& ctx) { (void)ctx.load16(words.data() + 4); }),
              HasSubstr("read of 16 bytes of global memory outside of every allocation"));
}

TEST(CopyAsync, ReadBeforeItsWait) {
  alignas(16) static std::array<std::uint32_t, 4> from{1, 2, 3, 4};
  expect_fault(32, 64, "no wait for it before", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<std::uint32_t>(0, 16);
    if (ctx.lane() != 0) return;
    ctx.copy_async16(s, from.data(), true);
    ctx.copy_commit();
    if (planted) {
      ctx.copy_wait<1>();
    } else {
      ctx.copy_wait<0>();
    }
    const std::uint32_t x = s[0];
    EXPECT_EQ(x, 1u);
  });
}

TEST(CopyAsync, WaitWithoutCommitWaitsForNothing) {
  alignas(16) static std::array<std::uint32_t, 4> from{1, 2, 3, 4};
  expect_fault(32, 64, "no wait for it before", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<std::uint32_t>(0, 16);
    if (ctx.lane() != 0) return;
    ctx.copy_async16(s, from.data(), true);
    if (!planted) ctx.copy_commit();
    ctx.copy_wait<0>();
    const std::uint32_t x = s[0];
    EXPECT_EQ(x, 1u);
  });
}

TEST(CopyAsync, ItsWaitOrdersTheWaitingThreadOnly) {
  alignas(16) static std::array<std::uint32_t, 128> from{};
  expect_fault(32, 512, "race at byte", [](Context& ctx, bool planted) {
    (void)written_floats(ctx, 128);
    const auto s = ctx.shared<std::uint32_t>(0, 128);
    ctx.copy_async16(s + ctx.lane() * 4, from.data() + ctx.lane() * 4, true);
    ctx.copy_commit();
    ctx.copy_wait<0>();
    if (!planted) ctx.warp_sync();
    const std::uint32_t x = s[127 - ctx.lane()];
    (void)x;
  });
}

TEST(CopyAsync, IntoWhatOthersStillRead) {
  alignas(16) static std::array<std::uint32_t, 256> from{};
  expect_fault(64, 1024, "race at byte", [](Context& ctx, bool planted) {
    const auto s = ctx.shared<std::uint32_t>(0, 256);
    ctx.store16(s + ctx.thread() * 4, Words4{});
    ctx.barrier();
    const std::uint32_t x = s[255 - ctx.thread() * 4];
    (void)x;
    if (!planted) ctx.barrier();
    ctx.copy_async16(s + ctx.thread() * 4, from.data() + ctx.thread() * 4, true);
    ctx.copy_commit();
    ctx.copy_wait<0>();
  });
}

TEST(CopyAsync, WhatABlockLeavesUnderWayDoesNotReachTheNext) {
  alignas(16) static std::array<std::uint32_t, 128> from{};
  const auto leaves = [](Context& ctx) {
    ctx.copy_async16(ctx.shared<std::uint32_t>(0, 128) + ctx.lane() * 4, from.data() + ctx.lane() * 4, true);
  };
  const auto writes = [](Context& ctx) {
    ctx.store16(ctx.shared<std::uint32_t>(0, 128) + ctx.lane() * 4, Words4{});
  };
  EXPECT_EQ(fault_of(32, 512, leaves), "");
  EXPECT_EQ(fault_of(32, 512, writes), "");
}

TEST(Divergence, BarrierThatOneThreadSkips) {
  expect_fault(64, 0, "barrier", [](Context& ctx, bool planted) {
    if (!planted || ctx.thread() != 17) ctx.barrier();
  });
}

TEST(Divergence, BarrierInABranch) {
  expect_fault(64, 0, "divergence: at", [](Context& ctx, bool planted) {
    if (planted && ctx.thread() < 7) {
      ctx.warp_sync();
      ctx.barrier();
    } else {
      ctx.barrier();
      ctx.warp_sync();
    }
  });
}

TEST(Divergence, NamedBarrierOfHalfAWarp) {
  expect_fault(64, 0, "divergence: lane", [](Context& ctx, bool planted) {
    if (!planted || ctx.lane() % 2 == 0) ctx.barrier(1, planted ? 32 : 64);
  });
}

TEST(Divergence, NamedBarrierWithTwoCounts) {
  expect_fault(96, 0, "where another thread waits for",
               [](Context& ctx, bool planted) { ctx.barrier(3, planted && ctx.warp() == 2 ? 64 : 96); });
}

TEST(Divergence, NamedBarrierThatNobodyElseReaches) {
  expect_fault(64, 0, "divergence: ", [](Context& ctx, bool planted) {
    if (!planted || ctx.warp() == 0) ctx.barrier(1, 64);
  });
}

TEST(Divergence, BarrierIdAndCount) {
  expect_fault(64, 0, "barrier id 16",
               [](Context& ctx, bool planted) { ctx.barrier(planted ? 16 : 15, 64); });
  expect_fault(64, 0, "barrier of 48 threads",
               [](Context& ctx, bool planted) { ctx.barrier(1, planted ? 48 : 64); });
}

TEST(Divergence, TwoOperationsOfOneWarp) {
  expect_fault(32, 0, "divergence: at", [](Context& ctx, bool planted) {
    if (planted && ctx.lane() == 31) {
      (void)ctx.ballot(true);
    } else {
      (void)ctx.reduce_add(1);
    }
    if (!planted) (void)ctx.ballot(true);
  });
}

TEST(LaneMask, OmitsALaneThatTakesPart) {
  expect_fault(32, 0, "omits lane 16, which takes part", [](Context& ctx, bool planted) {
    if (planted && ctx.lane() < 16) return;
    (void)ctx.shuffle_masked(planted ? 0xFFFE0000u : 0xFFFFFFFFu, 1, 20);
  });
}

TEST(LaneMask, NamesALaneThatDoesNot) {
  expect_fault(32, 0, "ends while its warp waits for it at shuffle", [](Context& ctx, bool planted) {
    if (planted && ctx.lane() == 3) return;
    (void)ctx.shuffle(1.0f, 0);
  });
}

TEST(LaneMask, ReadsALaneOutsideOfIt) {
  expect_fault(32, 0, "reads lane 16, which does not take part", [](Context& ctx, bool planted) {
    if (ctx.lane() < 16) (void)ctx.shuffle_masked(0xFFFFu, 1, planted ? 16 : 15);
  });
}

TEST(LaneMask, DiffersAmongLanes) {
  expect_fault(32, 0, "another lane mask", [](Context& ctx, bool planted) {
    (void)ctx.shuffle_masked(planted && ctx.lane() == 5 ? 0x7FFFFFFFu : 0xFFFFFFFFu, 1, 0);
  });
}

TEST(Endless, AThreadThatNeverEnds) {
  Launch launch;
  launch.threads = 32;
  launch.most_operations = 10'000;
  const auto count = [](int rounds) {
    return [rounds](Context& ctx) {
      for (int i = 0; i != rounds; ++i) ctx.warp_sync();
    };
  };
  EXPECT_EQ(fault_of(launch, count(300)), "");
  EXPECT_THAT(fault_of(launch, count(-1)), HasSubstr("does not end: more than 10000 operations"));
}

TEST(Limits, SharedMemoryThreadsAndGrid) {
  const auto nothing = [](Context&) {};
  EXPECT_EQ(fault_of(32, 232'448, nothing), "");
  EXPECT_THAT(fault_of(32, 232'449, nothing),
              HasSubstr("232449 bytes of shared memory; allowed: 0 .. 232448"));
  EXPECT_EQ(fault_of(1024, 0, nothing), "");
  EXPECT_THAT(fault_of(1056, 0, nothing), HasSubstr("blocks of 1056 threads"));
  EXPECT_THAT(fault_of(33, 0, nothing), HasSubstr("blocks of 33 threads"));
  Launch launch;
  launch.threads = 32;
  launch.grid = {1, 0, 1};
  EXPECT_THAT(fault_of(launch, nothing), HasSubstr("grid of 1 x 0 x 1 blocks"));
}

}  // namespace
}  // namespace headwater::cuda::emulation
