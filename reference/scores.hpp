#pragma once

#include "headwater/options.hpp"

/// Chapter 6 of the spec: scores (SCORE-1 .. SCORE-5). A score is handed about as a float; a float holds
/// every BF16 value exactly.
namespace headwater::reference {

/// SCORE-2: initialisation overwrites.
[[nodiscard]] float initial_score(ScoreType type, float colsum_intra);

/// SCORE-3: accumulation, the sum in F32, rounded once.
[[nodiscard]] float accumulated_score(ScoreType type, float score, float colsum_inter);

}  // namespace headwater::reference
