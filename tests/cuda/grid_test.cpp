// Grids: blocks on several host threads and in both orders; what one block hands to another.
#include <gmock/gmock.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda/kernel_run.hpp"

namespace headwater::cuda::emulation {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

Launch grid_of(unsigned blocks, int threads, int shared_bytes, Order order) {
  Launch launch;
  launch.threads = threads;
  launch.shared_bytes = shared_bytes;
  launch.grid = {blocks, 1, 1};
  launch.order = order;
  return launch;
}

constexpr int kBlocks = 24;

/// Sum of 64 * kBlocks numbers by blocks, the first block's large: each writes a partial sum; the last one to arrive adds them in the order of
/// their index, or, with the fault planted, each block adds its own as it comes.
float reduce(Order order, bool planted) {
  std::vector<float> partial(kBlocks);
  std::uint32_t tickets = 0;
  float total = 0;
  const std::string fault = fault_of(grid_of(kBlocks, 64, 512, order), [&](Context& ctx) {
    const auto s = ctx.shared<float>(0, 64);
    const auto ticket = ctx.shared<std::uint32_t>(256, 1);
    s[ctx.thread()] = 0.03125f;
    ctx.barrier();
    if (ctx.thread() == 0) {
      float sum = ctx.block_x() == 0 ? 1e8f : 0.0f;
      for (int i = 0; i < 64; ++i) sum += s[i];
      partial[ctx.block_x()] = sum;
      ctx.fence();
      ticket[0] = ctx.atomic_add(&tickets, 1);
      if (planted) {
#pragma omp critical(headwater_cuda_grid_test)
        total += sum;
      }
    }
    ctx.barrier();
    if (planted || ticket[0] != kBlocks - 1) return;
    ctx.fence();
    if (ctx.thread() == 0) total = std::accumulate(partial.begin(), partial.end(), 0.0f);
  });
  EXPECT_EQ(fault, "");
  return total;
}

TEST(Grid, TheLastBlockSeesAllPartialSums) {
  const float expected = reduce(Order::ascending, false);
  EXPECT_EQ(expected, 1e8f);  // where a sum that began with the others would keep them
  for (int run = 0; run < 10; ++run) {
    EXPECT_EQ(reduce(Order::ascending, false), expected);
    EXPECT_EQ(reduce(Order::descending, false), expected);
  }
}

TEST(Grid, AnUnorderedReductionShowsInTheOtherOrder) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  EXPECT_NE(reduce(Order::ascending, true), reduce(Order::descending, true));
  omp_set_num_threads(threads);
}

TEST(Grid, ThreadsRunInBothOrders) {
  const auto first_of = [](Order order) {
    std::vector<int> came;
    EXPECT_EQ(fault_of(grid_of(1, 96, 0, order), [&](Context& ctx) { came.push_back(ctx.thread()); }), "");
    return came;
  };
  std::vector<int> ascending(96);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(first_of(Order::ascending), ascending);
  std::reverse(ascending.begin(), ascending.end());
  EXPECT_EQ(first_of(Order::descending), ascending);
}

TEST(Grid, NamesTheFirstFailingBlockWhateverTheThreads) {
  for (int run = 0; run < 20; ++run) {
    const auto kernel = [](Context& ctx) {
      if (ctx.block_x() % 5 == 3 && ctx.thread() == 40) (void)ctx.shared<float>(0, 1000);
      ctx.barrier();
    };
    EXPECT_THAT(fault_of(grid_of(kBlocks, 64, 0, Order::ascending), kernel),
                HasSubstr("block (3, 0, 0), thread 40"));
    EXPECT_THAT(fault_of(grid_of(kBlocks, 64, 0, Order::descending), kernel),
                HasSubstr("block (23, 0, 0), thread 40"));
  }
}

TEST(Grid, BlocksShareNothing) {
  std::vector<float> out(kBlocks * 32);
  EXPECT_EQ(fault_of(grid_of(kBlocks, 32, 128, Order::ascending),
                     [&](Context& ctx) {
                       const auto s = ctx.shared<float>(0, 32);
                       s[ctx.lane()] = static_cast<float>(ctx.block_x());
                       ctx.barrier();
                       out[ctx.block_x() * 32 + ctx.lane()] = s[31 - ctx.lane()];
                     }),
            "");
  for (int block = 0; block < kBlocks; ++block) {
    for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(out[block * 32 + lane], static_cast<float>(block));
  }
}

TEST(Grid, AnExceptionOfAKernelIsItsFault) {
  EXPECT_THAT(fault_of(grid_of(2, 32, 0, Order::ascending),
                       [](Context& ctx) {
                         ctx.barrier();
                         if (ctx.thread() == 9) throw std::runtime_error("nine");
                         ctx.barrier();
                       }),
              HasSubstr("thread 9: kernel threw: nine"));
}

TEST(Grid, UnwindingRunsDestructors) {
  std::atomic<int> alive{0};
  struct Count {
    explicit Count(std::atomic<int>& n) : count(&n) { ++*count; }
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;
    ~Count() { --*count; }
    std::atomic<int>* count;
  };
  EXPECT_THAT(fault_of(grid_of(1, 128, 0, Order::ascending),
                       [&](Context& ctx) {
                         const Count counted(alive);
                         if (ctx.thread() == 100) (void)ctx.shared<float>(0, 1);
                         ctx.barrier();
                       }),
              HasSubstr("thread 100"));
  EXPECT_EQ(alive.load(), 0);
}

TEST(Grid, ManyBarriersOverManyBlocks) {
  std::vector<std::uint32_t> sums(200);
  EXPECT_EQ(fault_of(grid_of(200, 128, 16, Order::ascending),
                     [&](Context& ctx) {
                       const auto s = ctx.shared<std::uint32_t>(0, 4);
                       std::uint32_t sum = 0;
                       for (std::uint32_t i = 0; i < 20; ++i) {
                         if (ctx.lane() == 0) s[ctx.warp()] = i;
                         ctx.barrier();
                         for (int j = 0; j < 4; ++j) sum += s[j];
                         ctx.barrier();
                       }
                       if (ctx.thread() == 127) sums[ctx.block_x()] = sum;
                     }),
            "");
  EXPECT_THAT(sums, Each(4u * 190u));
}

}  // namespace
}  // namespace headwater::cuda::emulation
