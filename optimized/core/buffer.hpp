#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace headwater::core {

/// Cache line and widest vector of any engine.
inline constexpr std::size_t kAlignment = 64;

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

/// Fixed array of plain values on 64-byte alignment. The contents are not initialised: touching all of a large
/// KV store in open() would cost more than the first prompt.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t count) : count_(count) {
    const auto size = static_cast<std::size_t>(checked_product(count, static_cast<std::int64_t>(sizeof(T))));
    data_ = static_cast<T*>(::operator new (size, std::align_val_t{kAlignment}));
    advise_huge_pages(data_, size);
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { ::operator delete (data_, std::align_val_t{kAlignment}); }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return count_; }
  [[nodiscard]] std::int64_t bytes() const { return count_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  T* data_ = nullptr;
  std::int64_t count_ = 0;
};

}  // namespace headwater::core
