#pragma once

#include <cstdint>

#include "core/memory.hpp"
#include "headwater/session.hpp"

namespace headwater::core {

/// PLAN-1, PLAN-2: appends the chunks of a sparse prefill call of n >= 1 tokens at base: batches of `batch`
/// tokens, each cut into chunks of `chunk`; boundaries restart at each batch start. Within reserved capacity
/// (n chunks at most) nothing is allocated.
void append_sparse_chunks(std::int64_t base, std::int64_t n, std::int64_t batch, std::int64_t chunk,
                          List<Chunk>& plan);

}  // namespace headwater::core
