// What each instruction computes, against plain loops. The register maps are written out here once more, from the
// figures and formulas of the PTX ISA, so that a slip in emulation/fragments.hpp cannot hide.
#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/numbers.hpp"
#include "cuda/kernels/platform/numbers.hpp"
#include "tests/cuda/kernel_run.hpp"

namespace headwater::cuda::emulation {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

/// Small integers, which BF16 and F16 hold and F32 sums exactly.
int entry(int seed, int i, int j) { return (seed * 31 + i * 17 + j * 7) % 13 - 6; }

template <class Narrow>
std::uint32_t pair_of(Narrow narrow, int low, int high) {
  return static_cast<std::uint32_t>(narrow(static_cast<float>(low))) |
         static_cast<std::uint32_t>(narrow(static_cast<float>(high))) << 16;
}

/// PTX ISA 9.7.14.5.8 "Matrix Fragments for mma.m16n8k16": groupID = lane >> 2, threadID_in_group = lane % 4.
///   A: row = groupID for a0 a1 a4 a5, groupID + 8 for a2 a3 a6 a7;
///      column = threadID * 2 + (i & 1), + 8 for i >= 4
///   B: row = threadID * 2 + (i & 1), + 8 for i >= 2; column = groupID
///   C: row = groupID for c0 c1, + 8 for c2 c3; column = threadID * 2 + (i & 1)
template <class Narrow, class Multiply>
std::array<std::array<float, 8>, 16> product_of_warp(Narrow narrow, Multiply multiply,
                                                     int swapped_register = -1) {
  std::array<std::array<float, 8>, 16> product{};
  const std::string fault = fault_of(32, 0, [&](Context& ctx) {
    const int group = ctx.lane() >> 2;
    const int thread = ctx.lane() % 4;
    std::uint32_t a[4];
    std::uint32_t b[2];
    float c[4];
    for (int i = 0; i < 8; i += 2) {
      const int row = (i == 0 || i == 1 || i == 4 || i == 5) ? group : group + 8;
      const int column = thread * 2 + (i >= 4 ? 8 : 0);
      a[i / 2] = pair_of(narrow, entry(1, row, column), entry(1, row, column + 1));
    }
    for (int i = 0; i < 4; i += 2) {
      const int row = thread * 2 + (i >= 2 ? 8 : 0);
      b[i / 2] = pair_of(narrow, entry(2, row, group), entry(2, row + 1, group));
    }
    for (int i = 0; i < 4; ++i) {
      c[i] = static_cast<float>(entry(3, i < 2 ? group : group + 8, thread * 2 + (i & 1)));
    }
    if (swapped_register >= 0) std::swap(a[swapped_register], a[swapped_register + 1]);
    multiply(ctx, c, a, b);
    for (int i = 0; i < 4; ++i) product[i < 2 ? group : group + 8][thread * 2 + (i & 1)] = c[i];
  });
  EXPECT_EQ(fault, "");
  return product;
}

std::array<std::array<float, 8>, 16> product_by_loops() {
  std::array<std::array<float, 8>, 16> product{};
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      int sum = entry(3, i, j);
      for (int k = 0; k < 16; ++k) sum += entry(1, i, k) * entry(2, k, j);
      product[i][j] = static_cast<float>(sum);
    }
  }
  return product;
}

TEST(Mma, Bf16IsTheProductOfItsFragments) {
  const auto multiply = [](Context& ctx, auto& c, auto& a, auto& b) { ctx.mma_bf16(c, a, b); };
  EXPECT_EQ(product_of_warp(core::bf16_from_float, multiply), product_by_loops());
}

TEST(Mma, F16IsTheProductOfItsFragments) {
  const auto multiply = [](Context& ctx, auto& c, auto& a, auto& b) { ctx.mma_f16(c, a, b); };
  EXPECT_EQ(product_of_warp(core::f16_from_float, multiply), product_by_loops());
}

TEST(Mma, ASwappedFragmentIsSeen) {
  const auto multiply = [](Context& ctx, auto& c, auto& a, auto& b) { ctx.mma_bf16(c, a, b); };
  for (int r = 0; r < 3; ++r)
    EXPECT_NE(product_of_warp(core::bf16_from_float, multiply, r), product_by_loops()) << r;
}

TEST(Mma, ValuesOfSubnormalsAndInfinitiesAreKept) {
  float seen = 0;
  EXPECT_EQ(fault_of(32, 0,
                     [&](Context& ctx) {
                       std::uint32_t a[4] = {};
                       std::uint32_t b[2] = {};
                       float c[4] = {};
                       if (ctx.lane() == 0) {
                         a[0] = 0x0001u;  // the least F16, 2^-24
                         b[0] = 0x7800u;  // 2^15
                         c[0] = 1.0f;
                       }
                       ctx.mma_f16(c, a, b);
                       if (ctx.lane() == 0) seen = c[0];
                     }),
            "");
  EXPECT_EQ(seen, 1.0f + 0x1p-9f);
}

/// ldmatrix: lane i of 8 x 8 matrix j gets elements 2 (i % 4) and the next of row i / 4, the row whose address lane
/// 8 j + i / 4 gave; with .trans of column i / 4.
template <int Matrices, class Load>
void expect_matrices(bool transposed, Load load) {
  EXPECT_EQ(
      fault_of(32, 4096,
               [&](Context& ctx) {
                 const auto s = ctx.shared<std::uint16_t>(0, 2048);
                 // Rows of 24 elements: no row lies where a denser or wider pitch would have it.
                 for (int i = ctx.lane(); i < 32 * 24; i += 32) s[i] = static_cast<std::uint16_t>(i);
                 ctx.warp_sync();
                 std::uint32_t r[Matrices];
                 load(ctx, r, s + ctx.lane() * 24);
                 for (int matrix = 0; matrix < Matrices; ++matrix) {
                   for (int half = 0; half < 2; ++half) {
                     const int major = ctx.lane() / 4;
                     const int minor = ctx.lane() % 4 * 2 + half;
                     const int row = matrix * 8 + (transposed ? minor : major);
                     const int column = transposed ? major : minor;
                     EXPECT_EQ(r[matrix] >> 16 * half & 0xFFFFu, static_cast<unsigned>(row * 24 + column))
                         << "lane " << ctx.lane() << " matrix " << matrix << " half " << half;
                   }
                 }
               }),
      "");
}

TEST(LoadMatrix, GivesEachLaneItsElements) {
  expect_matrices<4>(false, [](Context& ctx, auto& r, auto row) { ctx.load_matrix_x4(r, row); });
  expect_matrices<4>(true, [](Context& ctx, auto& r, auto row) { ctx.load_matrix_x4_transposed(r, row); });
  // Addresses of the upper lanes are not used by the smaller ones.
  const auto used = [](Context& ctx, auto row) { return ctx.lane() < 16 ? row : row + 100'000; };
  expect_matrices<2>(false, [&](Context& ctx, auto& r, auto row) { ctx.load_matrix_x2(r, used(ctx, row)); });
  expect_matrices<2>(
      true, [&](Context& ctx, auto& r, auto row) { ctx.load_matrix_x2_transposed(r, used(ctx, row)); });
}

/// What each lane of one warp got.
template <class T, class Body>
std::array<T, 32> lanes_of(Body body) {
  std::array<T, 32> got{};
  EXPECT_EQ(fault_of(32, 0, [&](Context& ctx) { got[ctx.lane()] = body(ctx); }), "");
  return got;
}

TEST(Warp, Shuffles) {
  const auto broadcast = lanes_of<int>([](Context& ctx) { return ctx.shuffle(ctx.lane() * 3, 5); });
  const auto wrapped = lanes_of<int>([](Context& ctx) { return ctx.shuffle(ctx.lane(), 37); });
  const auto crossed =
      lanes_of<float>([](Context& ctx) { return ctx.shuffle_xor(static_cast<float>(ctx.lane()), 9); });
  const auto up =
      lanes_of<unsigned>([](Context& ctx) { return ctx.shuffle_up(static_cast<unsigned>(ctx.lane()), 3); });
  const auto down = lanes_of<int>([](Context& ctx) { return ctx.shuffle_down(ctx.lane(), 3); });
  const auto halves = lanes_of<int>([](Context& ctx) {
    const bool low = ctx.lane() < 16;
    return ctx.shuffle_masked(low ? 0x0000FFFFu : 0xFFFF0000u, ctx.lane(), low ? 2 : 20);
  });
  EXPECT_THAT(broadcast, Each(15));
  EXPECT_THAT(wrapped, Each(5));
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(crossed[lane], static_cast<float>(lane ^ 9));
    EXPECT_EQ(up[lane], static_cast<unsigned>(lane < 3 ? lane : lane - 3));
    EXPECT_EQ(down[lane], lane > 28 ? lane : lane + 3);
    EXPECT_EQ(halves[lane], lane < 16 ? 2 : 20);
  }
}

TEST(Warp, VotesAndSums) {
  EXPECT_THAT(lanes_of<std::uint32_t>([](Context& ctx) { return ctx.ballot(ctx.lane() % 3 == 0); }),
              Each(0x49249249u));
  EXPECT_THAT(lanes_of<std::uint32_t>([](Context& ctx) {
                return ctx.reduce_add(0xFFFFFFF0u + static_cast<unsigned>(ctx.lane()));
              }),
              Each(static_cast<std::uint32_t>(32u * 0xFFFFFFF0u + 496u)));
}

TEST(Warp, PlaceInBlockAndGrid) {
  std::vector<int> seen(2 * 3 * 4 * 64, 0);
  Launch launch;
  launch.threads = 64;
  launch.grid = {2, 3, 4};
  EXPECT_EQ(fault_of(launch,
                     [&](Context& ctx) {
                       const int block =
                           (ctx.block_z() * ctx.grid_y() + ctx.block_y()) * ctx.grid_x() + ctx.block_x();
                       EXPECT_EQ(ctx.grid_z(), 4);
                       EXPECT_EQ(ctx.thread(), ctx.warp() * 32 + ctx.lane());
                       ++seen[block * ctx.threads() + ctx.thread()];
                     }),
            "");
  EXPECT_THAT(seen, Each(1));
}

TEST(CopyAsync, BringsBytesAndZeros) {
  alignas(16) std::array<std::uint16_t, 64> from{};
  for (int i = 0; i < 64; ++i) from[i] = static_cast<std::uint16_t>(100 + i);
  EXPECT_EQ(fault_of(32, 1024,
                     [&](Context& ctx) {
                       const auto s = ctx.shared<std::uint16_t>(0, 512);
                       const int row = ctx.lane();
                       ctx.copy_async16(s + row * 8, from.data() + row % 8 * 8, row < 8);
                       ctx.copy_commit();
                       ctx.copy_wait<0>();
                       for (int i = 0; i < 8; ++i) EXPECT_EQ(s[row * 8 + i], row < 8 ? 100 + row * 8 + i : 0);
                     }),
            "");
}

TEST(CopyAsync, WaitsForAllButTheLastGroups) {
  alignas(16) std::array<std::uint32_t, 12> from{};
  for (int i = 0; i < 12; ++i) from[i] = static_cast<std::uint32_t>(i);
  EXPECT_EQ(fault_of(32, 1024,
                     [&](Context& ctx) {
                       const auto s = ctx.shared<std::uint32_t>(0, 256);
                       if (ctx.lane() != 0) return;
                       for (int stage = 0; stage < 3; ++stage) {
                         ctx.copy_async16(s + stage * 4, from.data() + stage * 4, true);
                         ctx.copy_commit();
                       }
                       ctx.copy_wait<1>();
                       EXPECT_EQ(s[3], 3u);
                       EXPECT_EQ(s[7], 7u);
                       ctx.copy_wait<0>();
                       EXPECT_EQ(s[11], 11u);
                     }),
            "");
}

TEST(Memory, VectorsOfGlobalAndSharedMemory) {
  alignas(16) std::array<std::uint32_t, 8> words{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(fault_of(32, 64,
                     [&](Context& ctx) {
                       if (ctx.lane() != 0) return;
                       const auto s = ctx.shared<float>(0, 16);
                       ctx.store16(s, ctx.load16(words.data() + 4));
                       ctx.store8(s + 4, ctx.load8(words.data() + 2));
                       ctx.store4(s + 6, ctx.load4(words.data() + 1));
                       const Words4 low = ctx.load16(s);
                       const Words2 pair = ctx.load8(s + 4);
                       EXPECT_THAT(low.word, ElementsAre(4u, 5u, 6u, 7u));
                       EXPECT_THAT(pair.word, ElementsAre(2u, 3u));
                       EXPECT_EQ(ctx.load4(s + 6), 1u);
                       ctx.store16(words.data(), low);
                     }),
            "");
  EXPECT_THAT(words, ElementsAre(4u, 5u, 6u, 7u, 4u, 5u, 6u, 7u));
}

TEST(Memory, AtomicsAndElementwiseArithmetic) {
  std::uint32_t counter = 7;
  std::array<int, 64> before{};
  EXPECT_EQ(fault_of(64, 256,
                     [&](Context& ctx) {
                       before[ctx.thread()] = static_cast<int>(ctx.atomic_add(&counter, 2));
                       const auto s = ctx.shared<float>(0, 64);
                       s[ctx.thread()] = 3.0f;
                       s[ctx.thread()] += 1.0f;
                       s[ctx.thread()] *= 2.0f;
                       s[ctx.thread()] -= 0.5f;
                       EXPECT_EQ(s[ctx.thread()], 7.5f);
                     }),
            "");
  EXPECT_EQ(counter, 7u + 128u);
  std::sort(before.begin(), before.end());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(before[i], 7 + 2 * i);
}

TEST(Arithmetic, PowersFlushSubnormals) {
  const auto powers = lanes_of<float>([](Context& ctx) {
    const float x[] = {0.0f, 1.0f, -1.5f, -126.0f, -127.0f, -INFINITY, 128.0f, NAN};
    return ctx.exp2(x[ctx.lane() % 8]);
  });
  EXPECT_EQ(powers[0], 1.0f);
  EXPECT_EQ(powers[1], 2.0f);
  EXPECT_FLOAT_EQ(powers[2], 0.35355339f);
  EXPECT_EQ(powers[3], std::numeric_limits<float>::min());
  EXPECT_EQ(powers[4], 0.0f);
  EXPECT_EQ(powers[5], 0.0f);
  EXPECT_EQ(powers[6], INFINITY);
  EXPECT_TRUE(std::isnan(powers[7]));
}

TEST(Numbers, PairsRoundAsTheCore) {
  const float values[] = {1.0f, -1.00390625f, 3.4e38f, 1e-40f, 65519.0f, 65520.0f, 6.1e-5f, INFINITY};
  for (const float low : values) {
    for (const float high : values) {
      EXPECT_EQ(pack_bf16(low, high),
                core::bf16_from_float(low) | std::uint32_t{core::bf16_from_float(high)} << 16);
      EXPECT_EQ(pack_f16(low, high),
                core::f16_from_float(low) | std::uint32_t{core::f16_from_float(high)} << 16);
    }
    EXPECT_EQ(bf16_from_float(low), core::bf16_from_float(low));
    EXPECT_EQ(f16_from_float(low), core::f16_from_float(low));
  }
  EXPECT_EQ(bf16_from_float(NAN), 0x7FC0);
  EXPECT_EQ(f16_from_float(NAN), 0x7E00);
  EXPECT_EQ(pack_bf16(NAN, 1.0f) & 0xFFFFu, 0x7FFFu);
  EXPECT_EQ(low_bf16(0x40003F80u), 1.0f);
  EXPECT_EQ(high_bf16(0x40003F80u), 2.0f);
  EXPECT_EQ(low_f16(0x40003C00u), 1.0f);
  EXPECT_EQ(high_f16(0x40003C00u), 2.0f);
}

}  // namespace
}  // namespace headwater::cuda::emulation
