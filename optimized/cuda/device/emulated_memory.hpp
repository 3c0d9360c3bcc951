#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "cuda/device/device.hpp"
#include "cuda/emulation/block.hpp"

namespace headwater::cuda {

/// Device and pinned memory of the emulation: each allocation between two guards, all of it NaN in every format. Of the
/// device's memory it is known what has been written.
class EmulatedMemory : public emulation::GlobalMemory {
 public:
  explicit EmulatedMemory(std::int64_t limit) : left_(limit) {}
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;
  ~EmulatedMemory() override;

  /// Null if it would exceed the limit, which counts device memory only.
  void* allocate(std::int64_t bytes, bool pinned);
  void release(void* data) noexcept;
  /// Of an allocation, or of a part of one; `what` lives as long as the program. Accesses by way of a pointer into a part are held to that part.
  void name(const void* data, std::int64_t bytes, const char* what);
  [[nodiscard]] PointerKind kind(const void* data) const;
  /// Behind its last byte; null where `data` is in none.
  [[nodiscard]] const std::byte* end_of_allocation(const void* data) const;
  /// Pinned memory is host memory that the device sees too: what is written there is not kept.
  [[nodiscard]] Buffer find(const void* at) const override;
  /// Operations of streams, on `bytes` of device memory that lie in one allocation.
  void note_written(const void* at, std::int64_t bytes);
  /// Fault, whose text begins with `what`, if some of them have not been written.
  void require_written(const void* at, std::int64_t bytes, const char* what) const;
  /// A kernel that does not use the emulation's context has run: whatever it wrote, nothing counts as unwritten any more.
  void assume_all_written();
  /// Size of the allocation whose guards were written to; 0: none.
  [[nodiscard]] std::int64_t overrun() const;

 private:
  struct Part {
    std::int64_t bytes;
    const char* name = "";
  };
  struct Allocation {
    std::int64_t bytes;
    bool pinned;
    std::byte* block;        // guard, data, guard
    unsigned char* written;  // of each 2 bytes; null: pinned
    const char* name = "";
    std::map<const std::byte*, Part> parts;
  };
  using Allocations = std::map<const std::byte*, Allocation>;
  [[nodiscard]] Allocations::const_iterator holder(const void* at) const;

  Allocations allocations_;
  std::int64_t left_;
};

}  // namespace headwater::cuda
