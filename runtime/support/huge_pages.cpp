#include "runtime/support/huge_pages.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace headwater::runtime {

void advise_huge_pages(const void* data, std::size_t bytes) {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  if (last <= first) return;
  auto* const pages = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + (first - begin);
  (void)::madvise(pages, last - first, MADV_HUGEPAGE);  // NOLINT: madvise takes a mutable pointer
}

}  // namespace headwater::runtime
