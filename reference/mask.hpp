#pragma once

#include <cstdint>

/// Chapter 5 of the spec: the mask of the intra pass (MASK-1).
namespace headwater::reference {

/// MASK-1: query i sees key j in the intra pass of a chunk that starts at chunk_begin iff chunk_begin <= j <=
/// i.
[[nodiscard]] bool visible(std::int64_t chunk_begin, std::int64_t i, std::int64_t j);

}  // namespace headwater::reference
