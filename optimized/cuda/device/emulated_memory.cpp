#include "cuda/device/emulated_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "cuda/emulation/fault.hpp"

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

constexpr std::int64_t kGuard = 256;  // in front: keeps the alignment that a device's allocations have
constexpr std::int64_t kGuardBehind = 64;
constexpr std::align_val_t kAlign{256};
constexpr int kGuardByte = 0xA5;

/// A guard is read by overrun(), so the sanitizer may refuse writes only as far as it refuses reads: with it, the guards
/// are poisoned and not looked at.
void close_guards(std::byte* block, std::int64_t bytes) {
#ifdef HEADWATER_ASAN
  __asan_poison_memory_region(block, kGuard);
  __asan_poison_memory_region(block + kGuard + bytes, kGuardBehind);
#else
  std::memset(block, kGuardByte, kGuard);
  std::memset(block + kGuard + bytes, kGuardByte, kGuardBehind);
#endif
}

void open_guards([[maybe_unused]] std::byte* block, [[maybe_unused]] std::int64_t bytes) {
#ifdef HEADWATER_ASAN
  __asan_unpoison_memory_region(block, static_cast<std::size_t>(kGuard + bytes + kGuardBehind));
#endif
}

std::size_t marks_of(std::int64_t bytes) { return static_cast<std::size_t>(bytes + 1) / 2; }

/// Zeros that take no memory until something is written; not from the heap, whose use is a session's own. Null: none left.
unsigned char* take_marks(std::int64_t bytes) {
  void* marks = mmap(nullptr, marks_of(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return marks == MAP_FAILED ? nullptr : static_cast<unsigned char*>(marks);
}

void give_marks_back(unsigned char* marks, std::int64_t bytes) {
  if (marks != nullptr) munmap(marks, marks_of(bytes));
}

bool intact([[maybe_unused]] const std::byte* guard, [[maybe_unused]] std::int64_t bytes) {
#ifdef HEADWATER_ASAN
  return true;
#else
  return std::all_of(guard, guard + bytes,
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
      ::operator new(static_cast<std::size_t>(kGuard + bytes + kGuardBehind), kAlign, std::nothrow));
  if (block == nullptr) return nullptr;
  std::byte* data = block + kGuard;
  unsigned char* written = pinned ? nullptr : take_marks(bytes);
  if (!pinned && written == nullptr) {
    ::operator delete(block, kAlign);
    return nullptr;
  }
  std::memset(data, 0xFF, static_cast<std::size_t>(bytes));
  close_guards(block, bytes);
  try {
    allocations_.emplace(data, Allocation{bytes, pinned, block, written, {}, {}});
  } catch (...) {
    open_guards(block, bytes);
    give_marks_back(written, bytes);
    ::operator delete(block, kAlign);
    throw;
  }
  if (!pinned) left_ -= bytes;
  return data;
}

void EmulatedMemory::name(const void* data, std::int64_t bytes, const char* what) {
  const auto* first = static_cast<const std::byte*>(data);
  const auto place = allocations_.upper_bound(first);
  if (place == allocations_.begin() || bytes <= 0) return;
  const auto holder = std::prev(place);
  if (first == holder->first && bytes == holder->second.bytes) {
    holder->second.name = what;
  } else {
    holder->second.parts[first] = {bytes, what};
  }
}

void EmulatedMemory::release(void* data) noexcept {
  const auto place = allocations_.find(static_cast<const std::byte*>(data));
  if (place == allocations_.end()) return;
  const Allocation& allocation = place->second;
  open_guards(allocation.block, allocation.bytes);
  give_marks_back(allocation.written, allocation.bytes);
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

const std::byte* EmulatedMemory::end_of_allocation(const void* data) const {
  const auto place = holder(data);
  return place == allocations_.end() ? nullptr : place->first + place->second.bytes;
}

emulation::GlobalMemory::Buffer EmulatedMemory::find(const void* at) const {
  const auto place = holder(at);
  if (place == allocations_.end()) return {};
  const auto& [data, allocation] = *place;
  if (allocation.parts.empty()) return {data, allocation.bytes, allocation.name, allocation.written};
  const auto* byte = static_cast<const std::byte*>(at);
  auto part = allocation.parts.upper_bound(byte);
  if (part == allocation.parts.begin()) return {};
  --part;
  const auto& [first, shape] = *part;
  if (!std::less<>{}(byte, first + shape.bytes)) return {};
  unsigned char* written = allocation.written == nullptr ? nullptr : allocation.written + (first - data) / 2;
  return {first, shape.bytes, shape.name, written};
}

void EmulatedMemory::note_written(const void* at, std::int64_t bytes) {
  const auto place = holder(at);
  if (place == allocations_.end() || place->second.written == nullptr || bytes <= 0) return;
  const std::int64_t first = static_cast<const std::byte*>(at) - place->first;
  std::memset(place->second.written + first / 2, 1,
              static_cast<std::size_t>((first + bytes + 1) / 2 - first / 2));
}

void EmulatedMemory::require_written(const void* at, std::int64_t bytes, const char* what) const {
  const auto place = holder(at);
  if (place == allocations_.end() || place->second.written == nullptr || bytes <= 0) return;
  const std::int64_t first = static_cast<const std::byte*>(at) - place->first;
  const unsigned char* marks = place->second.written;
  const unsigned char* end = marks + (first + bytes + 1) / 2;
  const unsigned char* hole = std::find(marks + first / 2, end, 0);
  if (hole == end) return;
  const std::int64_t byte = 2 * (hole - marks);
  const Buffer buffer = find(place->first + byte);
  throw emulation::Fault(std::string(what) + " of byte " +
                         std::to_string(place->first + byte - buffer.first) + " of buffer '" + buffer.name +
                         "', which nothing has written");
}

void EmulatedMemory::assume_all_written() {
  for (const auto& [data, allocation] : allocations_) note_written(data, allocation.bytes);
}

std::int64_t EmulatedMemory::overrun() const {
  for (const auto& [data, allocation] : allocations_) {
    if (!intact(allocation.block, kGuard) || !intact(data + allocation.bytes, kGuardBehind))
      return allocation.bytes;
  }
  return 0;
}

}  // namespace headwater::cuda
