#pragma once

#include <cstdint>
#include <vector>

#include "reference/logits.hpp"
#include "reference/numbers.hpp"
#include "reference/softmax.hpp"

/// Chapter 11 of the spec: dense causal attention, for decode steps (DEC-1) and dense prefill calls
/// (STATE-3).
namespace headwater::reference {

/// Queries at positions begin, begin + 1, ... of one query head over everything stored up to themselves. q
/// [n][d]; k [begin + n][d], v [begin + n][dv]: row j is position j. The sink takes part once (LOGIT-4).
[[nodiscard]] std::vector<SoftmaxRow> dense_attention(const LogitRule& rule, std::int64_t begin,
                                                      const Matrix& q, const Matrix& k, const Matrix& v);

}  // namespace headwater::reference
