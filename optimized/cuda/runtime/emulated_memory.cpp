#include "cuda/runtime/emulated_memory.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define HEADWATER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(HEADWATER_ASAN)
#define HEADWATER_ASAN 1
#endif
#ifdef HEADWATER_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace headwater::cuda {
namespace {

constexpr std::int64_t kGuard = 256;  // keeps the alignment that a device's allocations have
constexpr std::align_val_t kAlign{256};
constexpr int kGuardByte = 0xA5;

/// A guard is read by overrun(), so the sanitizer may refuse writes only as far as it refuses reads: with it, the guards
/// are poisoned and not looked at.
void close_guards(std::byte* block, std::int64_t bytes) {
#ifdef HEADWATER_ASAN
  __asan_poison_memory_region(block, kGuard);
  __asan_poison_memory_region(block + kGuard + bytes, kGuard);
#else
  std::memset(block, kGuardByte, kGuard);
  std::memset(block + kGuard + bytes, kGuardByte, kGuard);
#endif
}

void open_guards([[maybe_unused]] std::byte* block, [[maybe_unused]] std::int64_t bytes) {
#ifdef HEADWATER_ASAN
  __asan_unpoison_memory_region(block, static_cast<std::size_t>(bytes + 2 * kGuard));
#endif
}

bool intact([[maybe_unused]] const std::byte* guard) {
#ifdef HEADWATER_ASAN
  return true;
#else
  return std::all_of(guard, guard + kGuard,
                     [](std::byte b) { return b == static_cast<std::byte>(kGuardByte); });
#endif
}

}  // namespace

EmulatedMemory::~EmulatedMemory() {
  while (!allocations_.empty()) release(allocations_.begin()->second.block + kGuard);
}

void* EmulatedMemory::allocate(std::int64_t bytes, bool pinned) {
  if (!pinned && bytes > left_) return nullptr;
  auto* block = static_cast<std::byte*>(
      ::operator new(static_cast<std::size_t>(bytes + 2 * kGuard), kAlign, std::nothrow));
  if (block == nullptr) return nullptr;
  std::byte* data = block + kGuard;
  std::memset(data, 0xFF, static_cast<std::size_t>(bytes));
  close_guards(block, bytes);
  try {
    allocations_.emplace(data, Allocation{bytes, pinned, block});
  } catch (...) {
    open_guards(block, bytes);
    ::operator delete(block, kAlign);
    throw;
  }
  if (!pinned) left_ -= bytes;
  return data;
}

void EmulatedMemory::release(void* data) noexcept {
  const auto place = allocations_.find(static_cast<const std::byte*>(data));
  if (place == allocations_.end()) return;
  const Allocation allocation = place->second;
  open_guards(allocation.block, allocation.bytes);
  ::operator delete(allocation.block, kAlign);
  if (!allocation.pinned) left_ += allocation.bytes;
  allocations_.erase(place);
}

EmulatedMemory::Allocations::const_iterator EmulatedMemory::holder(const void* at) const {
  const auto* byte = static_cast<const std::byte*>(at);
  auto place = allocations_.upper_bound(byte);
  if (place == allocations_.begin()) return allocations_.end();
  --place;
  return std::less<>{}(byte, place->first + place->second.bytes) ? place : allocations_.end();
}

PointerKind EmulatedMemory::kind(const void* data) const {
  const auto place = holder(data);
  if (place == allocations_.end()) return PointerKind::host;
  return place->second.pinned ? PointerKind::pinned : PointerKind::device;
}

emulation::GlobalMemory::Range EmulatedMemory::find(const void* at) const {
  const auto place = holder(at);
  if (place == allocations_.end()) return {};
  return {place->first, place->first + place->second.bytes};
}

std::int64_t EmulatedMemory::overrun() const {
  for (const auto& [data, allocation] : allocations_) {
    if (!intact(allocation.block) || !intact(data + allocation.bytes)) return allocation.bytes;
  }
  return 0;
}

}  // namespace headwater::cuda
