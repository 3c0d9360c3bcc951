#pragma once

#include <cstdint>
#include <span>

#include "oracle.hpp"

namespace headwater::reference {

/// The errors that oracle_head() and oracle_bounds() document.
void check_oracle_arguments(const LayerRows& layer, const Chunk& chunk, std::int64_t query_head,
                            std::span<const std::int32_t> memory);

}  // namespace headwater::reference
