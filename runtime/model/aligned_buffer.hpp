#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "runtime/support/huge_pages.hpp"

namespace headwater::runtime {

/// Uninitialised memory on a 64-byte boundary, the size of a cache line and of the widest registers; on huge pages where
/// it is large enough.
class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    data_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment})));
    advise_huge_pages(data_.get(), bytes);
  }

  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(data_.get()); }

 private:
  struct Delete {
    void operator()(std::byte* pointer) const { ::operator delete (pointer, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<std::byte, Delete> data_;
  std::size_t bytes_ = 0;
};

/// `bytes` rounded up to whole cache lines.
constexpr std::size_t aligned_size(std::size_t bytes) {
  return (bytes + AlignedBuffer::kAlignment - 1) / AlignedBuffer::kAlignment * AlignedBuffer::kAlignment;
}

}  // namespace headwater::runtime
