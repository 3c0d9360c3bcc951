#include "core/buffer.hpp"

#include <sys/mman.h>

namespace headwater::core {

void advise_huge_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  if (last <= first) return;
  (void)madvise(static_cast<unsigned char*>(data) + (first - begin), last - first, MADV_HUGEPAGE);
}

}  // namespace headwater::core
