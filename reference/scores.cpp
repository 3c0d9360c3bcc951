#include "scores.hpp"

#include <bit>
#include <cstdint>

#include "headwater/testing/sabotage.hpp"
#include "numbers.hpp"

namespace headwater::reference {
namespace {

/// SCORE-4 for BF16 scores; FP32 scores keep the float (SCORE-5).
float rounded_score(ScoreType type, float value) {
  if (type == ScoreType::f32) return value;
  if (HEADWATER_SABOTAGE("ref.scores.truncates")) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xFFFF0000U);
  }
  return static_cast<float>(from_bf16(bf16(value)));
}

}  // namespace

float initial_score(ScoreType type, float colsum_intra) { return rounded_score(type, colsum_intra); }

float accumulated_score(ScoreType type, float score, float colsum_inter) {
  if (HEADWATER_SABOTAGE("ref.scores.overwrites")) return rounded_score(type, colsum_inter);
  if (HEADWATER_SABOTAGE("ref.scores.rounds_twice")) colsum_inter = rounded_score(type, colsum_inter);
  const float sum = score + colsum_inter;
  return rounded_score(type, sum);
}

}  // namespace headwater::reference
