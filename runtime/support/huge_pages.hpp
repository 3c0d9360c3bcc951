#pragma once

#include <cstddef>

namespace headwater::runtime {

/// Asks for huge pages under what is large enough for them: decoding one token streams through all weights, and with
/// pages of 4 KiB the look-up of addresses and prefetchers that stop at every page bound it, not memory. Advice only:
/// nothing is touched, and no failure matters.
void advise_huge_pages(const void* data, std::size_t bytes);

}  // namespace headwater::runtime
