#pragma once

#include <cstdint>

namespace headwater::conformance {

/// Counts or fails the allocations of this process while it is in scope: malloc and its relatives are replaced in the
/// kit's programs, so C++ new, aligned new and the C library's own calls are counted. Calls from the OpenMP runtime
/// are not (NUM-4). Where a sanitizer owns malloc, `available` is false and nothing is counted.
class AllocationWatch {
 public:
  /// Counts only.
  AllocationWatch() : AllocationWatch(-1) {}
  /// Lets `fail_at` allocations pass, then refuses one, then lets all pass again; -1 refuses none.
  explicit AllocationWatch(std::int64_t fail_at);
  ~AllocationWatch();
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

  /// Allocations since construction, on any thread.
  [[nodiscard]] std::int64_t count() const;
  /// Allocations since construction that were not given back: 0 where nothing leaked, as long as nothing older is given
  /// back meanwhile.
  [[nodiscard]] std::int64_t live() const;
  /// Bytes requested since construction.
  [[nodiscard]] std::int64_t bytes() const;
  /// Whether an allocation was refused.
  [[nodiscard]] bool refused() const;

  static bool available();
};

/// While in scope, the calling thread's allocations are neither counted nor refused (true), or are again (false): what
/// the kit takes for itself between an engine and its case is not the engine's.
class AllocationPause {
 public:
  explicit AllocationPause(bool paused);
  ~AllocationPause();
  AllocationPause(const AllocationPause&) = delete;
  AllocationPause& operator=(const AllocationPause&) = delete;

 private:
  bool before_;
};

}  // namespace headwater::conformance
