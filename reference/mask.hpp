#pragma once

#include <cstdint>

/// Chapter 5 of the spec: the mask of the intra pass (MASK-1), and windows (MASK-2).
namespace headwater::reference {

/// MASK-1: query i sees key j in the intra pass of a chunk that starts at chunk_begin iff chunk_begin <= j <=
/// i.
[[nodiscard]] bool visible(std::int64_t chunk_begin, std::int64_t i, std::int64_t j);

/// MASK-2: the first key that query i sees in a layer with this window; 0: the layer has none.
[[nodiscard]] std::int64_t first_visible(std::int64_t window, std::int64_t i);

}  // namespace headwater::reference
