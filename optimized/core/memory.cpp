#include "core/memory.hpp"

#include <cstdlib>
#include <new>
#include <string>

#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

constinit thread_local const Memory* Memory::current_ = nullptr;

Memory Memory::counted_in(std::int64_t& total) {
  Memory memory;
  memory.total_ = &total;
  return memory;
}

const Memory& Memory::current() {
  static const Memory own;
  return current_ ? *current_ : own;
}

void* Memory::take(std::int64_t bytes, std::size_t alignment) const {
  if (bytes == 0) return nullptr;
  if (counts()) {
    count(bytes);
    return nullptr;
  }
  void* block = nullptr;
  if (!of_host()) {
    // operator new would take a multiple of the alignment: up to a huge page more than memory_bytes() says.
    if (::posix_memalign(&block, alignment, static_cast<std::size_t>(bytes)) != 0) throw std::bad_alloc();
    return block;
  }
  block = host_.allocate(host_.context, static_cast<std::size_t>(bytes), alignment);
  if (block == nullptr) throw std::bad_alloc();
  const bool aligned = reinterpret_cast<std::uintptr_t>(block) % alignment == 0;
  if (aligned || HEADWATER_SABOTAGE("core.memory.alignment_unseen")) return block;
  give_back(block, bytes, alignment);
  throw Error(ErrorCode::internal,
              "allocate() of the host returned a block that is not aligned; allowed: a multiple of " +
                  std::to_string(alignment) + " bytes, or null");
}

void Memory::give_back(void* block, std::int64_t bytes, std::size_t alignment) const noexcept {
  if (block == nullptr) return;
  if (of_host()) {
    if (HEADWATER_SABOTAGE("core.memory.last_byte_kept")) --bytes;
    host_.release(host_.context, block, static_cast<std::size_t>(bytes), alignment);
  } else {
    std::free(block);
  }
}

void Memory::count(std::int64_t bytes) const {
  if (counts() && __builtin_add_overflow(*total_, bytes, total_)) throw std::bad_alloc();
}

}  // namespace headwater::core
