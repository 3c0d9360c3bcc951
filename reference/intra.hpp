#pragma once

#include <cstdint>

#include "reference/logits.hpp"
#include "reference/numbers.hpp"
#include "reference/softmax.hpp"

/// Chapter 5 of the spec: the intra pass (MASK-1, INTRA-1, INTRA-2).
namespace headwater::reference {

/// Causal attention of one query head among the tokens of a chunk that starts at position chunk_begin.
/// q [n][d], k [n][d], v [n][dv]: row r of each is position chunk_begin + r. The sink takes part (LOGIT-4).
/// column_sums has n entries.
[[nodiscard]] PassResult intra_pass(const LogitRule& rule, std::int64_t chunk_begin, const Matrix& q,
                                    const Matrix& k, const Matrix& v);

}  // namespace headwater::reference
