#include "reference/mask.hpp"

namespace headwater::reference {

// MASK-1
bool visible(std::int64_t chunk_begin, std::int64_t i, std::int64_t j) { return chunk_begin <= j && j <= i; }

// MASK-2: i - j < window
std::int64_t first_visible(std::int64_t window, std::int64_t i) {
  if (window == 0 || i < window) return 0;
  return i - window + 1;
}

}  // namespace headwater::reference
