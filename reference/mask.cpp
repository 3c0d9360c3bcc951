#include "reference/mask.hpp"

namespace headwater::reference {

// MASK-1
bool visible(std::int64_t chunk_begin, std::int64_t i, std::int64_t j) { return chunk_begin <= j && j <= i; }

}  // namespace headwater::reference
