#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "core/memory.hpp"

namespace headwater::core {

/// Asks for huge pages under what is large enough for them. Advice only: pages stay untouched, and no failure matters.
void advise_huge_pages(void* data, std::size_t bytes);

/// Product of two sizes >= 0; std::bad_alloc if it does not fit, so that no wrapped number reaches an allocation.
inline std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw std::bad_alloc();
  return product;
}

/// Product of all arguments, checked.
template <typename... Rest>
std::int64_t checked_product(std::int64_t a, std::int64_t b, Rest... rest) {
  return checked_product(checked_product(a, b), rest...);
}

/// Fixed array of plain values on 64-byte alignment, from the memory that is current where it is made. The contents are
/// not initialised: touching all of a large KV store in open() would cost more than the first prompt.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t count) : memory_(Memory::current()), count_(count) {
    const std::int64_t size = checked_product(count, static_cast<std::int64_t>(sizeof(T)));
    data_ = static_cast<T*>(memory_.take(size, kAlignment));
    if (data_ && !memory_.of_host()) advise_huge_pages(data_, static_cast<std::size_t>(size));
  }
  Buffer(Buffer&& other) noexcept
      : memory_(other.memory_),
        data_(std::exchange(other.data_, nullptr)),
        count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { memory_.give_back(data_, bytes(), kAlignment); }

  /// All values; nothing where the memory was only counted.
  void fill(const T& value) {
    if (data_) std::fill_n(data_, count_, value);
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return count_; }
  [[nodiscard]] std::int64_t bytes() const { return count_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  Memory memory_;
  T* data_ = nullptr;
  std::int64_t count_ = 0;
};

}  // namespace headwater::core
