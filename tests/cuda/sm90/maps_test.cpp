#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "cuda/emulation/sm90.hpp"
#include "cuda/kernels/sm90/column_sums.hpp"
#include "cuda/kernels/sm90/elements.hpp"
#include "cuda/kernels/sm90/forward.hpp"
#include "cuda/kernels/sm90/pipeline.hpp"
#include "cuda/kernels/sm90/schedule.hpp"
#include "cuda/kernels/sm90/score.hpp"
#include "tests/cuda/sm90/problem.hpp"

/// Index maps of wgmma and TMA against the PTX ISA's rules, written out as tables and definitions.
namespace headwater::cuda::sm90 {
namespace {

constexpr int kHead = 128;
using Tile = SharedTile<kTile, kHead>;
using Plain = KernelShape<Bf16, 128, 128, false>;
constexpr int kBanks = 32;

TEST(Sm90Swizzle, IsTheTableOfThePtxIsa) {
  // "128B swizzle mode": line r of eight holds its units of 16 bytes in the order 0 .. 7, each xored with r.
  for (std::uint32_t line = 0; line < 16; ++line) {
    for (std::uint32_t unit = 0; unit < 8; ++unit) {
      EXPECT_EQ(swizzled(line * 128 + unit * 16 + 6), line * 128 + (unit ^ (line % 8)) * 16 + 6);
    }
  }
  for (std::uint32_t address = 0; address < 4096; ++address) EXPECT_EQ(swizzled(swizzled(address)), address);
}

TEST(Sm90Tile, EveryElementHasItsOwnPlace) {
  std::vector<int> used(Tile::kBytes / 2);
  for (int row = 0; row < kTile; ++row) {
    for (int column = 0; column < kHead; ++column) {
      const std::uint32_t offset = Tile::offset(row, column);
      ASSERT_EQ(offset % 2, 0u);
      ASSERT_LT(offset, Tile::kBytes);
      ++used[offset / 2];
      ASSERT_EQ(offset, (column / 64) * Tile::kBoxBytes + box_offset(column % 64, row));
    }
  }
  EXPECT_EQ(std::set<int>(used.begin(), used.end()), std::set<int>{1});
}

/// Fragments of one 8x8 block as the PTX ISA draws them: row r, column c is in lane 4 r + c / 2, element c % 2. A
/// warp's 16 rows and the columns of a wgmma are such blocks; registers go down the rows first.
TEST(Sm90Fragments, AreTheFiguresOfThePtxIsa) {
  for (int row = 0; row < kFragmentRows; ++row) {
    for (int column = 0; column < kFragmentColumns; ++column) {
      const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
      const int block = column / 8 * 2 + row % 16 / 8;
      const FragmentPlace place = accumulator_place(thread, block * 2 + column % 2);
      EXPECT_EQ(place.row, row);
      EXPECT_EQ(place.column, column);
      if (column >= kStepK) continue;
      const FragmentPlace operand = operand_place(thread, block, column % 2);
      EXPECT_EQ(operand.row, row);
      EXPECT_EQ(operand.column, column);
    }
  }
}

TEST(Sm90Fragments, ResultsAreOperandsOfTheNextProduct) {
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    for (int i = 0; i < kAccumulators; ++i) {
      const int step = i / 8;
      const int r = i % 8 / 2;
      EXPECT_EQ(accumulator_of_operand(step, r, i % 2), i);
      const FragmentPlace result = accumulator_place(thread, i);
      const FragmentPlace operand = operand_place(thread, r, i % 2);
      EXPECT_EQ(result.row, operand.row);
      EXPECT_EQ(result.column, step * kStepK + operand.column);
    }
  }
}

TEST(Sm90Fragments, KeysLoadWithoutBankConflicts) {
  for (int warp = 0; warp < 4; ++warp) {
    for (int i = 0; i < 4 * ColumnSums<Plain>::kSteps; ++i) {
      std::set<std::uint32_t> banks;
      for (int lane = 0; lane < 32; ++lane) {
        const FragmentPlace place = operand_place(32 * warp + lane, i % 4, 0);
        banks.insert(Tile::offset(place.row, i / 4 * kStepK + place.column) / 4 % kBanks);
      }
      EXPECT_EQ(banks.size(), 32u);
    }
  }
}

TEST(Sm90Fragments, LogSumExpsOfAColumnAreOneAddressForALaneGroup) {
  for (int i = 0; i < kAccumulators; i += 2) {
    std::set<int> columns;
    for (int lane = 0; lane < 32; ++lane) columns.insert(accumulator_place(lane, i).column);
    EXPECT_EQ(columns.size(),
              4u);  // four words of 8 bytes, neighbours: one access, broadcast to eight lanes each
    EXPECT_EQ(*columns.rbegin() - *columns.begin(), 6);
  }
}

/// What the copy engine does per line and what wgmma fetches per core matrix: eight rows of 16 bytes.
TEST(Sm90Tile, RowsOfACoreMatrixLieInDifferentBanks) {
  for (int column = 0; column < kHead; column += 8) {
    for (int first = 0; first < kTile; first += 8) {
      std::set<std::uint32_t> quarters;
      for (int row = first; row < first + 8; ++row) quarters.insert(Tile::offset(row, column) / 16 % 8);
      EXPECT_EQ(quarters.size(), 8u);
    }
  }
}

TEST(Sm90Descriptor, FieldsAreThoseOfThePtxIsa) {
  const MatrixDescriptor k = k_major<Tile>(0x8000, 5);  // second box, second step in it
  EXPECT_EQ(k.bits & 0x3FFF, (0x8000u + Tile::kBoxBytes + 32) / 16);
  EXPECT_EQ(k.bits >> 16 & 0x3FFF, 1u);
  EXPECT_EQ(k.bits >> 32 & 0x3FFF, 1024u / 16);
  EXPECT_EQ(k.bits >> 49 & 7, 0u);
  EXPECT_EQ(k.bits >> 62, 1u);
  const MatrixDescriptor v = column_major<Tile>(0x8000, 3);
  EXPECT_EQ(v.bits & 0x3FFF, (0x8000u + 3 * 16 * 128) / 16);
  EXPECT_EQ(v.bits >> 16 & 0x3FFF, Tile::kBoxBytes / 16);
  EXPECT_EQ(v.bits >> 32 & 0x3FFF, 1024u / 16);
  EXPECT_EQ(v.bits >> 62, 1u);
  EXPECT_EQ(MatrixDescriptor::field(232448 + 1024 - 16), (232448u + 1024 - 16) / 16)
      << "the last address fits";
}

/// A tile of the descriptor tests: what TMA wrote, and what a thread block's product of it is.
struct Operand {
  std::vector<std::uint16_t> rows;  ///< [kTile][kHead]
  explicit Operand(int salt) : rows(static_cast<std::size_t>(kTile) * kHead) {
    // Small integers: sums are exact in any order.
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = core::bf16_from_float(static_cast<float>((i * 7 + i / 128 * 5 + salt) % 13) - 6.0f);
    }
  }
  [[nodiscard]] float at(int row, int column) const {
    return core::float_from_bf16(rows[static_cast<std::size_t>(row) * kHead + column]);
  }
  [[nodiscard]] TileMap map() const {
    return tile_map({rows.data(), kHead, kTile, 1, 1, kHead, kTile * kHead}, kTile);
  }
};

struct TwoTiles {
  Tile a;
  Tile b;
  SoftwareBarrier full;
};

/// Fills two tiles by TMA, multiplies by `multiply(machine, accumulators, tiles)`, and hands the 64x128 result out.
template <class Multiply>
std::vector<float> product(const Operand& a, const Operand& b, const Multiply& multiply, std::string& fault) {
  std::vector<float> result(static_cast<std::size_t>(kFragmentRows) * kFragmentColumns);
  const TensorMap a_map = encoded(a.map());
  const TensorMap b_map = encoded(b.map());
  SoftwareBlock block(0, 1, Timing::kLate, 1);
  block.run<SoftwareMachine>([&](SoftwareMachine& machine) {
    auto& tiles = machine.shared<TwoTiles>();
    if (machine.thread() == 0) machine.start(tiles.full, 1);
    machine.publish_barriers();
    if (machine.thread() == 0) {
      machine.arrive_expecting(tiles.full, 2 * Tile::kBytes);
      load_tile(machine, tiles.a, a_map, tiles.full, 0, 0, 0);
      load_tile(machine, tiles.b, b_map, tiles.full, 0, 0, 0);
    }
    machine.wait(tiles.full, 0);
    if (machine.warpgroup() != 1) return;
    float c[kAccumulators] = {};
    machine.fence_operands(c);
    multiply(machine, c, tiles);
    machine.commit();
    machine.wait_products<0>(c);
    for (int i = 0; i < kAccumulators; ++i) {
      const FragmentPlace place = accumulator_place(machine.thread() % kWarpgroup, i);
      result[static_cast<std::size_t>(place.row) * kFragmentColumns + place.column] = c[i];
    }
  });
  fault = block.fault();
  return result;
}

/// a b^T of rows [first_row, first_row + 64) of a, through descriptors and the swizzle.
TEST(Sm90Descriptor, KMajorOperandsGiveTheProduct) {
  const Operand a(1);
  const Operand b(4);
  for (const int first_row : {0, 64}) {
    std::string fault;
    const auto c = product(
        a, b,
        [&](SoftwareMachine& machine, float(&sums)[kAccumulators], TwoTiles& tiles) {
          for (int step = 0; step < kHead / kStepK; ++step) {
            machine.multiply<Bf16>(
                sums, k_major<Tile>(machine.shared_address(&tiles.a) + first_row * kLineBytes, step),
                k_major<Tile>(machine.shared_address(&tiles.b), step), step != 0);
          }
        },
        fault);
    ASSERT_EQ(fault, "");
    for (int row = 0; row < kFragmentRows; ++row) {
      for (int column = 0; column < kFragmentColumns; ++column) {
        float sum = 0.0f;
        for (int k = 0; k < kHead; ++k) sum += a.at(first_row + row, k) * b.at(column, k);
        ASSERT_EQ(c[static_cast<std::size_t>(row) * kFragmentColumns + column], sum);
      }
    }
  }
}

/// a b with a from registers, loaded as the column sums' keys are, and b's columns contiguous, as the values'.
TEST(Sm90Descriptor, TransposedOperandsGiveTheProduct) {
  const Operand a(2);
  const Operand b(9);
  std::string fault;
  const auto c = product(
      a, b,
      [&](SoftwareMachine& machine, float(&sums)[kAccumulators], TwoTiles& tiles) {
        static thread_local std::vector<std::uint32_t> words;
        words.resize(static_cast<std::size_t>(SoftwareBlock::kThreads) * 4 * 8);
        std::uint32_t* mine = &words[static_cast<std::size_t>(machine.thread()) * 4 * 8];
        for (int i = 0; i < 4 * 8; ++i) {
          const FragmentPlace place = operand_place(machine.thread() % kWarpgroup, i % 4, 0);
          mine[i] = machine.load_word(&tiles.a, Tile::offset(place.row, i / 4 * kStepK + place.column));
        }
        for (int step = 0; step < kTile / kStepK; ++step) {
          machine.multiply_transposed<Bf16>(sums, mine + 4 * step,
                                            column_major<Tile>(machine.shared_address(&tiles.b), step));
        }
      },
      fault);
  ASSERT_EQ(fault, "");
  for (int row = 0; row < kFragmentRows; ++row) {
    for (int column = 0; column < kFragmentColumns; ++column) {
      float sum = 0.0f;
      for (int k = 0; k < kTile; ++k) sum += a.at(row, k) * b.at(k, column);
      ASSERT_EQ(c[static_cast<std::size_t>(row) * kFragmentColumns + column], sum);
    }
  }
}

TEST(Sm90TileMap, RowsBehindAChunkAreZerosAndCountAsBytes) {
  constexpr int kTokens = 100;  // of a chunk; rows of the next one follow at once
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(2 * kTokens) * kHead, 0x3F80);
  const TileMap map = tile_map({rows.data(), kHead, kTokens, 2, 1, kHead, 2 * kTokens * kHead}, kTile);
  const TensorMap encoded_map = encoded(map);
  EXPECT_EQ(box_bytes(map) * Tile::kBoxes, Tile::kBytes);
  for (const int chunk : {0, 1}) {
    SoftwareBlock block(0, 1, Timing::kLate, 3);
    std::vector<std::uint16_t> tile(Tile::kBytes / 2);
    block.run<SoftwareMachine>([&](SoftwareMachine& machine) {
      auto& tiles = machine.shared<TwoTiles>();
      if (machine.thread() == 0) machine.start(tiles.full, 1);
      machine.publish_barriers();
      if (machine.thread() == 0) {
        machine.arrive_expecting(tiles.full, Tile::kBytes);
        load_tile(machine, tiles.a, encoded_map, tiles.full, 0, chunk, 0);
      }
      machine.wait(tiles.full, 0);
      if (machine.thread() == 0) std::memcpy(tile.data(), tiles.a.elements, Tile::kBytes);
    });
    ASSERT_EQ(block.fault(), "");
    for (int row = 0; row < kTile; ++row) {
      for (int column = 0; column < kHead; ++column) {
        ASSERT_EQ(tile[Tile::offset(row, column) / 2], row < kTokens ? 0x3F80 : 0);
      }
    }
  }
}

TEST(Sm90TileMap, ColumnsBehindARowAreZerosToo) {
  constexpr int kWidth = 80;  // a box and a quarter; the next head follows at once
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(kTile) * 2 * kWidth, 0x3F80);
  const TensorMap map = encoded(tile_map({rows.data(), kWidth, kTile, 1, 2, 2 * kWidth, kWidth}, kTile));
  SoftwareBlock block(0, 1, Timing::kLate, 3);
  std::vector<std::uint16_t> tile(Tile::kBytes / 2);
  block.run<SoftwareMachine>([&](SoftwareMachine& machine) {
    auto& tiles = machine.shared<TwoTiles>();
    if (machine.thread() == 0) machine.start(tiles.full, 1);
    machine.publish_barriers();
    if (machine.thread() == 0) {
      machine.arrive_expecting(tiles.full, Tile::kBytes);
      load_tile(machine, tiles.a, map, tiles.full, 0, 0, 0);
    }
    machine.wait(tiles.full, 0);
    if (machine.thread() == 0) std::memcpy(tile.data(), tiles.a.elements, Tile::kBytes);
  });
  ASSERT_EQ(block.fault(), "");
  for (int row = 0; row < kTile; ++row) {
    for (int column = 0; column < kHead; ++column) {
      ASSERT_EQ(tile[Tile::offset(row, column) / 2], column < kWidth ? 0x3F80 : 0);
    }
  }
}

TEST(Sm90Schedule, EveryItemOnceAndTheLargestFirst) {
  for (const IntraShape& shape :
       {IntraShape{4, 2, 3, 1024}, IntraShape{1, 1, 1, 130}, IntraShape{3, 1, 2, 1}}) {
    for (const int blocks : {1, 2, 7, 132}) {
      std::set<std::array<int, 3>> seen;
      std::vector<int> tiles(blocks);
      for (int block = 0; block < blocks; ++block) {
        int before = shape.tiles();
        for (int round = 0;; ++round) {
          const int index = item_of_round(block, blocks, round);
          if (index >= shape.items()) break;
          const WorkItem item = query_block(shape, index);
          EXPECT_TRUE(seen.insert({item.head, item.chunk, item.tile}).second);
          EXPECT_LE(item.tile + 1, before);
          before = item.tile + 1;
          tiles[block] += item.tile + 1;
          const WorkItem keys = key_block(shape, index);
          EXPECT_EQ(shape.tiles() - keys.tile, item.tile + 1) << "a key block has as many tiles";
        }
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(shape.items()));
    }
  }
}

/// A dense window: the tiles from that of its first query on, and no others.
TEST(Sm90Schedule, AWindowHasTheTilesOfItsQueries) {
  for (const int first : {0, 127, 128, 299}) {
    const IntraShape shape{3, 1, 1, 300, first};
    std::set<std::array<int, 2>> seen;
    for (int index = 0; index < shape.items(); ++index) {
      const WorkItem item = query_block(shape, index);
      EXPECT_GE(item.tile, first / kTile);
      EXPECT_TRUE(seen.insert({item.head, item.tile}).second);
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(3 * (3 - first / kTile))) << first;
  }
}

/// The target shape: no multiprocessor does more than 4 % above the mean.
TEST(Sm90Schedule, IsBalancedAtTheTargetShape) {
  const IntraShape shape{32, 8, 16, 1024};
  constexpr int kBlocks = 132;
  int most = 0;
  int all = 0;
  for (int block = 0; block < kBlocks; ++block) {
    int tiles = 0;
    for (int round = 0; item_of_round(block, kBlocks, round) < shape.items(); ++round) {
      tiles += query_block(shape, item_of_round(block, kBlocks, round)).tile + 1;
    }
    most = std::max(most, tiles);
    all += tiles;
  }
  EXPECT_EQ(all, 32 * 16 * 36);
  EXPECT_LE(most, 1.04 * all / kBlocks);
}

TEST(Sm90Schedule, RunsOfQueryBlocksFillTheProcessorOnce) {
  EXPECT_EQ(score_run(32, 1024, 132), 4);
  EXPECT_EQ((ScoreShape{32, 1024, 4}.blocks()), 128);
  EXPECT_EQ(score_run(1, 1, 132), 1);
  const ScoreShape ragged{2, 300, 2};
  EXPECT_EQ(ragged.query_blocks(), 5);
  EXPECT_EQ(ragged.runs(), 3);
  EXPECT_EQ(ragged.blocks_of_run(0) + ragged.blocks_of_run(1) + ragged.blocks_of_run(2), 5);
}

/// What docs/notes/cuda-h100.md says a block asks for.
TEST(Sm90Memory, BlocksHoldWhatTheNotesSay) {
  EXPECT_EQ(sizeof(CausalForward<Plain>::Smem<std::uint64_t>), 164864u);
  EXPECT_EQ(sizeof(ColumnSums<Plain>::Smem<std::uint64_t>), 133120u);
  EXPECT_EQ(sizeof(Score<Plain>::Smem<std::uint64_t>), 175104u);
}

struct PlainArithmetic {
  [[nodiscard]] float maximum(float a, float b) const { return std::fmax(a, b); }
  [[nodiscard]] float multiply_add(float a, float b, float c) const { return std::fma(a, b, c); }
};

TEST(Sm90Exponential, PolynomialIsExactAtIntegersAndZeroWhereMasked) {
  const PlainArithmetic machine;
  for (int exponent = -125; exponent <= 0; ++exponent) {
    EXPECT_EQ(exp2_by_polynomial(machine, static_cast<float>(exponent)), std::ldexp(1.0f, exponent));
  }
  EXPECT_EQ(exp2_by_polynomial(machine, -127.0f), 0.0f);
  EXPECT_EQ(exp2_by_polynomial(machine, -1e30f), 0.0f);
  EXPECT_EQ(exp2_by_polynomial(machine, kMinusInfinity), 0.0f);
  double worst = 0.0;
  for (float x = -125.0f; x <= 0.0f; x += 0.000917f) {
    const double exact = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp2_by_polynomial(machine, x) - exact) / exact);
  }
  EXPECT_LE(worst, 0x1p-22);  // as the special function unit: 2 units in the last place
}

TEST(Sm90Pipeline, ARingChangesParityOnceARound) {
  Ring<3> ring;
  for (int i = 0; i < 20; ++i, ring.advance()) {
    EXPECT_EQ(ring.stage(), i % 3);
    EXPECT_EQ(ring.parity(), static_cast<std::uint32_t>(i / 3 % 2));
  }
}

}  // namespace
}  // namespace headwater::cuda::sm90
