#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/emulation/block.hpp"

namespace headwater::cuda::emulation {

/// An element of global memory: reads and writes are held to a buffer, reads to what has been written.
template <class T>
class GlobalReference {
 public:
  GlobalReference(T* base, std::int64_t offset) : base_(base), offset_(offset) {}
  GlobalReference(const GlobalReference&) = default;
  operator std::remove_const_t<T>() const {  // NOLINT: stands for the element
    std::remove_const_t<T> value;
    Block::current()->read_global(base_, offset_, sizeof(T), &value);
    return value;
  }
  const GlobalReference& operator=(T value) const {  // NOLINT: assigns the element, not the reference
    Block::current()->write_global(base_, offset_, sizeof(T), &value);
    return *this;
  }
  const GlobalReference& operator=(const GlobalReference& other) const {  // NOLINT
    return *this = static_cast<T>(other);
  }
  GlobalReference& operator=(const GlobalReference& other) {  // NOLINT
    static_cast<const GlobalReference&>(*this) = static_cast<T>(other);
    return *this;
  }

 private:
  T* base_;
  std::int64_t offset_;
};

/// A place in the buffer that `base` points into, `offset` bytes after it; perhaps outside, which its use would show.
template <class T>
class GlobalPlace {
 public:
  GlobalPlace(T* base) : GlobalPlace(base, 0) {}  // NOLINT: as a pointer
  GlobalPlace(T* base, std::int64_t offset) : base_(base), offset_(offset) {}
  operator GlobalPlace<const T>() const  // NOLINT: as T* to const T*
      requires(!std::is_const_v<T>) {
    return {base_, offset_};
  }
  GlobalReference<T> operator[](std::int64_t i) const {
    return {base_, offset_ + i * static_cast<std::int64_t>(sizeof(T))};
  }
  GlobalPlace operator+(std::int64_t n) const {
    return {base_, offset_ + n * static_cast<std::int64_t>(sizeof(T))};
  }
  [[nodiscard]] T* base() const { return base_; }
  [[nodiscard]] std::int64_t offset() const { return offset_; }

 private:
  T* base_;
  std::int64_t offset_;
};

template <class T>
class Global;
template <class T>
GlobalPlace(Global<T>) -> GlobalPlace<T>;

/// A pointer as a kernel's parameters have it: as large as the device's.
template <class T>
class Global {
 public:
  Global() = default;
  Global(T* data) : data_(data) {}  // NOLINT: as a pointer
  template <class U>
  requires(!std::is_same_v<U, T> && std::is_convertible_v<U*, T*>) Global(const Global<U>& other)
      : data_(other.raw()) {}  // NOLINT: as U* to T*
  [[nodiscard]] T* raw() const { return data_; }
  friend bool operator==(const Global& a, std::nullptr_t) { return a.data_ == nullptr; }
  operator GlobalPlace<T>() const { return {data_, 0}; }  // NOLINT: as a pointer
  GlobalReference<T> operator[](std::int64_t i) const { return GlobalPlace<T>(data_)[i]; }
  GlobalPlace<T> operator+(std::int64_t n) const { return GlobalPlace<T>(data_) + n; }

 private:
  T* data_;
};

static_assert(sizeof(Global<float>) == sizeof(float*) && std::is_trivially_copyable_v<Global<float>>);

}  // namespace headwater::cuda::emulation
