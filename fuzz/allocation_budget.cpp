#include "fuzz/allocation_budget.hpp"

#include <malloc.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

struct Budget {
  bool active = false;
  std::size_t limit = 0;
  std::size_t taken = 0;
  std::size_t large = 0;  // by posix_memalign
};
thread_local Budget budget;

// Room for the error about a refused buffer, after large buffers whose release was not counted.
constexpr std::size_t kText = 4096;

void* take(std::size_t size, std::size_t alignment) {
  const std::size_t taken = budget.taken + (size > kText ? budget.large : 0);
  if (budget.active && (size > budget.limit || taken > budget.limit - size)) return nullptr;
  const bool aligned = alignment > alignof(std::max_align_t);
  const std::size_t whole = aligned ? (size + alignment - 1) / alignment * alignment : size;
  void* memory = aligned ? std::aligned_alloc(alignment, whole == 0 ? alignment : whole)
                         : std::malloc(size == 0 ? 1 : size);
  if (budget.active && memory != nullptr) budget.taken += malloc_usable_size(memory);
  return memory;
}

void give_back(void* memory) {
  // Memory that was taken before the budget began is not counted.
  if (budget.active && memory != nullptr) budget.taken -= std::min(budget.taken, malloc_usable_size(memory));
  std::free(memory);
}

void* take_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = take(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

namespace headwater::fuzz {

AllocationBudget::AllocationBudget(std::size_t bytes) { budget = {true, bytes, 0, 0}; }
AllocationBudget::~AllocationBudget() { budget.active = false; }

}  // namespace headwater::fuzz

// Large buffers of a session. free() is not seen, so what they took stays counted, but only against each other.
extern "C" int posix_memalign(void** memory, std::size_t alignment, std::size_t size) noexcept {
  const std::size_t taken = budget.taken + budget.large;
  if (budget.active && (size > budget.limit || taken > budget.limit - size)) return ENOMEM;
  *memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (*memory == nullptr) return ENOMEM;
  if (budget.active) budget.large += size;
  return 0;
}

void* operator new(std::size_t size) { return take_or_throw(size, 1); }
void* operator new[](std::size_t size) { return take_or_throw(size, 1); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return take(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return take(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return take_or_throw(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
