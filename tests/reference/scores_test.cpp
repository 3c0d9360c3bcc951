#include "reference/scores.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/reference/support.hpp"

/// Clauses: SCORE-2, SCORE-3, SCORE-4, SCORE-5.
namespace headwater::reference {
namespace {

using test::kInfF;
using test::kNaNF;

constexpr ScoreType kBF16 = ScoreType::bf16;
constexpr ScoreType kF32 = ScoreType::f32;

TEST(Scores, SCORE_2_InitialisationRoundsOnce) {
  EXPECT_EQ(initial_score(kBF16, 1.0F), 1.0F);
  EXPECT_EQ(initial_score(kBF16, 1.0F + 0x1p-8F), 1.0F);                // tie, even stays
  EXPECT_EQ(initial_score(kBF16, 1.0F + 3 * 0x1p-8F), 1.0F + 0x1p-6F);  // tie, odd goes up
  EXPECT_EQ(initial_score(kBF16, 0.7F), 0.69921875F);
  EXPECT_EQ(initial_score(kBF16, 0.0F), 0.0F);
  EXPECT_EQ(initial_score(kBF16, 0x1p-133F), 0x1p-133F);
  EXPECT_TRUE(std::isnan(initial_score(kBF16, kNaNF)));
  EXPECT_EQ(initial_score(kF32, 0.7F), 0.7F);
  EXPECT_EQ(initial_score(kF32, 1.0F + 0x1p-23F), 1.0F + 0x1p-23F);
}

TEST(Scores, SCORE_3_AccumulationAddsAndRoundsOnce) {
  EXPECT_EQ(accumulated_score(kBF16, 1.0F, 0.5F), 1.5F);
  EXPECT_EQ(accumulated_score(kBF16, 0.5F, 0.0F), 0.5F);
  EXPECT_EQ(accumulated_score(kBF16, 1.0F, 0x1p-8F), 1.0F);
  EXPECT_EQ(accumulated_score(kBF16, 1.0F + 0x1p-7F, 0x1p-8F), 1.0F + 0x1p-6F);
  // The column sum is not rounded before it is added: 2^-8 + 2^-17 alone would become 2^-8, and then tie.
  EXPECT_EQ(accumulated_score(kBF16, 1.0F, 0x1p-8F + 0x1p-17F), 1.0F + 0x1p-7F);
  // The sum is an F32: 2^-30 is lost in it, and what is left ties.
  EXPECT_EQ(accumulated_score(kBF16, 1.0F, 0x1p-8F + 0x1p-30F), 1.0F);
  EXPECT_EQ(accumulated_score(kF32, 1.0F, 0x1p-20F), 1.0F + 0x1p-20F);
  EXPECT_EQ(accumulated_score(kF32, 1.0F, 0x1p-25F), 1.0F);
}

TEST(Scores, SCORE_5_ScoresStagnateButDoNotFall) {
  EXPECT_EQ(accumulated_score(kBF16, 256.0F, 0.99F), 256.0F);
  EXPECT_EQ(accumulated_score(kBF16, 256.0F, 1.01F), 258.0F);
  EXPECT_EQ(accumulated_score(kF32, 256.0F, 0.5F), 256.5F);
  EXPECT_EQ(accumulated_score(kBF16, 3e38F, 3e38F), kInfF);
  EXPECT_EQ(accumulated_score(kBF16, kInfF, 1.0F), kInfF);
  EXPECT_TRUE(std::isnan(accumulated_score(kBF16, kNaNF, 1.0F)));
  EXPECT_TRUE(std::isnan(accumulated_score(kBF16, 1.0F, kNaNF)));
}

}  // namespace
}  // namespace headwater::reference
