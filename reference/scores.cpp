#include "reference/scores.hpp"

#include "reference/numbers.hpp"

namespace headwater::reference {
namespace {

/// SCORE-4 for BF16 scores; FP32 scores keep the float (SCORE-5).
float rounded_score(ScoreType type, float value) {
  if (type == ScoreType::f32) return value;
  return static_cast<float>(from_bf16(bf16(value)));
}

}  // namespace

// SCORE-2
float initial_score(ScoreType type, float colsum_intra) { return rounded_score(type, colsum_intra); }

// SCORE-3
float accumulated_score(ScoreType type, float score, float colsum_inter) {
  const float sum = score + colsum_inter;
  return rounded_score(type, sum);
}

}  // namespace headwater::reference
