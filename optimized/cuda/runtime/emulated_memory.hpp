#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "cuda/emulation/block.hpp"
#include "cuda/runtime/device.hpp"

namespace headwater::cuda {

/// Device and pinned memory of the emulation: each allocation between two guards, all of it NaN in every format.
class EmulatedMemory : public emulation::GlobalMemory {
 public:
  explicit EmulatedMemory(std::int64_t limit) : left_(limit) {}
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;
  ~EmulatedMemory() override;

  /// Null if it would exceed the limit, which counts device memory only.
  void* allocate(std::int64_t bytes, bool pinned);
  void release(void* data) noexcept;
  [[nodiscard]] PointerKind kind(const void* data) const;
  [[nodiscard]] Range find(const void* at) const override;
  /// Size of the allocation whose guards were written to; 0: none.
  [[nodiscard]] std::int64_t overrun() const;

 private:
  struct Allocation {
    std::int64_t bytes;
    bool pinned;
    std::byte* block;  // guard, data, guard
  };
  using Allocations = std::map<const std::byte*, Allocation>;
  [[nodiscard]] Allocations::const_iterator holder(const void* at) const;

  Allocations allocations_;
  std::int64_t left_;
};

}  // namespace headwater::cuda
