#include "core/memory.hpp"

#include <cstdlib>
#include <new>

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
  // operator new would take a multiple of the alignment: up to a huge page more than memory_bytes() says.
  if (::posix_memalign(&block, alignment, static_cast<std::size_t>(bytes)) != 0) throw std::bad_alloc();
  return block;
}

void Memory::give_back(void* block) const noexcept { std::free(block); }

void Memory::count(std::int64_t bytes) const {
  if (counts() && __builtin_add_overflow(*total_, bytes, total_)) throw std::bad_alloc();
}

}  // namespace headwater::core
