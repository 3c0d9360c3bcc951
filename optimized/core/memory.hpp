#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "headwater/options.hpp"

namespace headwater::core {

/// Where the large blocks of a session come from: the library's own memory, the host's (HOST-2), or none at all, where they
/// are only counted (NUM-5).
///
/// Buffers take the memory that is current() on their thread when they are made, and keep it for giving back. So one line
/// in a call of a session, a MemoryScope, says it for all stores and passes below, and a block that forks share can outlive
/// the session that took it.
class Memory {
 public:
  /// The library's own.
  Memory() = default;
  /// The host's; the library's own where it has no functions.
  explicit Memory(const Allocator& host) : host_(host) {}
  /// None: what would be taken is added to `total`, which outlives all scopes of this memory.
  static Memory counted_in(std::int64_t& total);

  /// That of the buffers which this thread makes now.
  static const Memory& current();

  /// A block on a multiple of `alignment`, a power of two. Null where bytes is 0, and where blocks are counted. Errors:
  /// std::bad_alloc, also where 64 bits cannot count what was taken so far; `internal`: the host's block is not aligned.
  [[nodiscard]] void* take(std::int64_t bytes, std::size_t alignment) const;
  /// A block of take(), with the same numbers.
  void give_back(void* block, std::int64_t bytes, std::size_t alignment) const noexcept;

  /// Adds to the count what is not taken from here. Where nothing is counted: nothing.
  void count(std::int64_t bytes) const;
  [[nodiscard]] bool counts() const { return total_ != nullptr; }
  [[nodiscard]] bool of_host() const { return host_.allocate != nullptr; }
  /// Whether blocks of one may be given back to the other.
  bool operator==(const Memory& other) const {
    return host_.allocate == other.host_.allocate && host_.release == other.host_.release &&
           host_.context == other.host_.context && total_ == other.total_;
  }

 private:
  friend class MemoryScope;
  static constinit thread_local const Memory* current_;

  Allocator host_;
  std::int64_t* total_ = nullptr;
};

/// Makes a memory current on this thread, as long as both live.
class MemoryScope {
 public:
  explicit MemoryScope(const Memory& memory) : before_(Memory::current_) { Memory::current_ = &memory; }
  ~MemoryScope() { Memory::current_ = before_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  const Memory* before_;
};

/// Cache line and widest vector of any engine.
inline constexpr std::size_t kAlignment = 64;

/// The allocator of a List: the memory that is current where the list is made.
template <class T>
struct ListMemory {
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  ListMemory() : memory(Memory::current()) {}
  template <class Other>
  explicit ListMemory(const ListMemory<Other>& other) : memory(other.memory) {}

  [[nodiscard]] T* allocate(std::size_t n) {
    return static_cast<T*>(memory.take(static_cast<std::int64_t>(n * sizeof(T)), kAlignment));
  }
  void deallocate(T* data, std::size_t n) {
    memory.give_back(data, static_cast<std::int64_t>(n * sizeof(T)), kAlignment);
  }
  bool operator==(const ListMemory&) const = default;

  Memory memory;
};
template <class T>
using List = std::vector<T, ListMemory<T>>;

}  // namespace headwater::core
