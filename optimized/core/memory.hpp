#pragma once

#include <cstddef>
#include <cstdint>

namespace headwater::core {

/// Where the large blocks of a session come from: the library's own memory, or none at all, where they are only counted
/// (NUM-5).
///
/// Buffers take the memory that is current() on their thread when they are made, and keep it for giving back. So one line
/// in a call of a session, a MemoryScope, says it for all stores and passes below, and a block that forks share can outlive
/// the session that took it.
class Memory {
 public:
  /// The library's own.
  Memory() = default;
  /// None: what would be taken is added to `total`, which outlives all scopes of this memory.
  static Memory counted_in(std::int64_t& total);

  /// That of the buffers which this thread makes now.
  static const Memory& current();

  /// A block on a multiple of `alignment`, a power of two. Null where bytes is 0, and where blocks are counted. Errors:
  /// std::bad_alloc, also where 64 bits cannot count what was taken so far.
  [[nodiscard]] void* take(std::int64_t bytes, std::size_t alignment) const;
  /// A block of take().
  void give_back(void* block) const noexcept;

  /// Adds to the count what is not taken from here. Where nothing is counted: nothing.
  void count(std::int64_t bytes) const;
  [[nodiscard]] bool counts() const { return total_ != nullptr; }

 private:
  friend class MemoryScope;
  static constinit thread_local const Memory* current_;

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

}  // namespace headwater::core
