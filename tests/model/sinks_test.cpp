// What becomes of the tiles of a product, however it is cut: by the formulas, at the widths of models.

#include "runtime/model/sinks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace headwater::runtime {
namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kPair = 2 * kGateRows;

std::vector<float> random_floats(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = static_cast<float>(random() >> 8) * 0x1p-21F - 4.0F;
  return values;
}

/// All of [kRows][columns], in tiles of some rows and some pairs of kGateRows columns each, last ones first; what lies
/// beside a tile's columns must not matter.
void give_tiles(const std::vector<float>& product, std::int64_t columns, const TileSink& sink) {
  std::mt19937 random(static_cast<unsigned>(columns));
  for (std::int64_t last_row = kRows; last_row > 0;) {
    const std::int64_t rows = std::min<std::int64_t>(last_row, 1 + random() % 3);
    const std::int64_t row = last_row - rows;
    for (std::int64_t end = columns; end > 0;) {
      std::int64_t column = (end - 1) / kPair * kPair;
      column -=
          std::min(column, static_cast<std::int64_t>(random() % (Projection::kPanelWidth / kPair)) * kPair);
      const std::int64_t width = end - column;
      const auto stride = width + static_cast<std::int64_t>(random() % 4);
      std::vector<float> values(static_cast<std::size_t>(rows * stride), 1e30F);
      for (std::int64_t r = 0; r < rows; ++r) {
        std::copy_n(product.begin() + (row + r) * columns + column, width, values.begin() + r * stride);
      }
      sink.take({row, rows, column, width, values.data(), stride});
      end = column;
    }
    last_row = row;
  }
}

constexpr std::int64_t kWidths[] = {1, 64, 100, 896, 14336, 70001};

TEST(Sinks, StoreAndAddWithABiasOfEachColumn) {
  for (const std::int64_t width : kWidths) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(width);
      const float scale = biased ? 0.22F : 1.0F;
      const auto product = random_floats(kRows * width, 1);
      const auto bias = biased ? random_floats(width, 2) : std::vector<float>();
      auto stored = std::vector<float>(product.size() + 1, 12345.0F);
      const auto before = random_floats(kRows * width, 3);
      auto added = before;
      give_tiles(product, width, StoreSink(stored.data(), width, bias));
      give_tiles(product, width, AddSink(added.data(), width, bias, scale));
      for (std::size_t i = 0; i < product.size(); ++i) {
        const float value = product[i] + (biased ? bias[i % static_cast<std::size_t>(width)] : 0.0F);
        ASSERT_EQ(stored[i], value) << i;
        ASSERT_EQ(added[i], before[i] + scale * value) << i;
      }
      EXPECT_EQ(stored.back(), 12345.0F);
    }
  }
}

// The visits of an expert go to rows of their own, with weights of their own.
TEST(Sinks, VisitsAreAddedToTheirRows) {
  std::vector<Routing::Visit> visits;
  for (std::int32_t r = 0; r < kRows; ++r) visits.push_back({3 * r + 1, 0.125F * static_cast<float>(r + 1)});
  for (const std::int64_t width : kWidths) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(width);
      const auto product = random_floats(kRows * width, 6);
      const auto before = random_floats(3 * kRows * width, 7);
      const auto bias = biased ? random_floats(width, 8) : std::vector<float>();
      auto added = before;
      give_tiles(product, width, VisitSink(added.data(), width, visits, bias, 0.5F));
      for (std::int64_t row = 0; row < 3 * kRows; ++row) {
        for (std::int64_t c = 0; c < width; ++c) {
          const auto at = static_cast<std::size_t>(row * width + c);
          const float value = product[static_cast<std::size_t>(row / 3 * width + c)] +
                              (biased ? bias[static_cast<std::size_t>(c)] : 0.0F);
          const float weight = row % 3 == 1 ? 0.5F * visits[static_cast<std::size_t>(row / 3)].weight : 0.0F;
          ASSERT_EQ(added[at], before[at] + weight * value) << row << ", " << c;
        }
      }
    }
  }
}

// The product holds kGateRows of gate, as many of up, and so on; at the end there are fewer of both.
class Gates : public ::testing::TestWithParam<Gate> {};

/// `gate` and `up`, rows of `width` each, in turns.
std::vector<float> in_turns(const std::vector<float>& gate, const std::vector<float>& up,
                            std::int64_t width) {
  std::vector<float> turns;
  for (auto row = gate.begin(), other = up.begin(); row != gate.end(); row += width, other += width) {
    for (std::int64_t first = 0; first < width; first += kGateRows) {
      const std::int64_t count = std::min(kGateRows, width - first);
      turns.insert(turns.end(), row + first, row + first + count);
      turns.insert(turns.end(), other + first, other + first + count);
    }
  }
  return turns;
}

TEST_P(Gates, EachGateMeetsItsUp) {
  const Kernels& loops = kernels();
  const auto loop = GetParam() == Gate::gelu      ? loops.geglu
                    : GetParam() == Gate::clamped ? loops.clamped_glu
                                                  : loops.swiglu;
  for (const std::int64_t width : kWidths) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(width);
      const auto gate = random_floats(kRows * width, 4);
      const auto up = random_floats(kRows * width, 5);
      const auto own = biased ? random_floats(width, 8) : std::vector<float>(static_cast<std::size_t>(width));
      const auto other = biased ? random_floats(width, 9) : own;
      const auto bias = biased ? in_turns(own, other, width) : std::vector<float>();
      const auto product = in_turns(gate, up, width);
      std::vector<float> wanted(gate.size()), got(gate.size() + 1, 12345.0F);
      std::vector<std::uint16_t> wanted_narrow(gate.size()), narrow(gate.size() + 1, 0x1234);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        const std::size_t column = i % static_cast<std::size_t>(width);
        const float pair[] = {gate[i] + own[column], up[i] + other[column]};
        loop(pair, 1, &wanted[i]);
        loops.to_bf16(&wanted[i], 1, &wanted_narrow[i]);
      }
      give_tiles(product, 2 * width, GateSink(GetParam(), got.data(), width, bias, false));
      give_tiles(product, 2 * width, GateSink(GetParam(), narrow.data(), width, bias, true));
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_EQ(got[i], wanted[i]) << i;
        ASSERT_EQ(narrow[i], wanted_narrow[i]) << i;
      }
      EXPECT_EQ(got.back(), 12345.0F);
      EXPECT_EQ(narrow.back(), 0x1234);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Gates, ::testing::Values(Gate::silu, Gate::gelu, Gate::clamped));

}  // namespace
}  // namespace headwater::runtime
