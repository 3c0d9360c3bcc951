#pragma once

#include <cstdint>
#include <vector>

#include "headwater/session.hpp"

/// Chapter 2 of the spec: the chunk plan (PLAN-1, PLAN-2).
namespace headwater::reference {

/// The chunks of one step of n >= 1 tokens at base b >= 0, in ascending order (PLAN-1). A sparse call is cut
/// into batches of `batch` tokens and each batch into chunks of `chunk`; the boundaries restart at each batch
/// (PLAN-2). A dense prefill call and a decode step are one chunk each, whatever batch and chunk say.
[[nodiscard]] std::vector<Chunk> chunk_plan(std::int64_t base, std::int64_t n, ChunkMode mode,
                                            std::int64_t batch, std::int64_t chunk);

}  // namespace headwater::reference
