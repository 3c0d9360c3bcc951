#pragma once

#include <cstdint>
#include <span>

#include "reference/logits.hpp"
#include "reference/numbers.hpp"
#include "reference/softmax.hpp"

/// Chapter 8 of the spec: the inter pass, chunk to memory (INTER-1 .. INTER-3).
namespace headwater::reference {

/// Attention of one query head of a chunk that starts at chunk_begin over its memory set: every query sees
/// every entry, no mask, no sink (INTER-1, LOGIT-4). q [n][d]: row r is position chunk_begin + r. memory: the
/// |M| valid positions; k [|M|][d] and v [|M|][dv] are the rows gathered at these. column_sums has |M|
/// entries (INTER-2). An empty set gives neutral rows (INTER-3).
[[nodiscard]] PassResult inter_pass(const LogitRule& rule, std::int64_t chunk_begin, const Matrix& q,
                                    std::span<const std::int32_t> memory, const Matrix& k, const Matrix& v);

}  // namespace headwater::reference
