#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "cuda/emulation/block.hpp"
#include "cuda/emulation/global.hpp"
#include "cuda/emulation/operands.hpp"
#include "cuda/kernels/platform/platform.hpp"

namespace headwater::cuda::emulation {

/// An element of shared memory, or several that are moved at once: reads and writes are checked (SharedMemory).
template <class T>
class Reference {
 public:
  Reference(Block& block, int at) : block_(&block), at_(at) {}
  Reference(const Reference&) = default;
  operator T() const {  // NOLINT: stands for the element
    std::remove_const_t<T> value;
    block_->shared().read(block_->thread(), at_, sizeof(T), &value);
    return value;
  }
  const Reference& operator=(T value) const {  // NOLINT: assigns the element, not the reference
    block_->shared().write(block_->thread(), at_, sizeof(T), &value);
    return *this;
  }
  const Reference& operator=(const Reference& other) const {  // NOLINT
    return *this = static_cast<T>(other);
  }
  Reference& operator=(const Reference& other) {  // NOLINT
    static_cast<const Reference&>(*this) = static_cast<T>(other);
    return *this;
  }
  const Reference& operator+=(T value) const { return *this = static_cast<T>(*this + value); }
  const Reference& operator-=(T value) const { return *this = static_cast<T>(*this - value); }
  const Reference& operator*=(T value) const { return *this = static_cast<T>(*this * value); }

 private:
  Block* block_;
  int at_;
};

/// Stands for a T* to `count` elements of shared memory; what lies outside of them is out of bounds.
template <class T>
class Shared {
 public:
  Shared(Block& block, int at, int first, int last) : block_(&block), at_(at), first_(first), last_(last) {}
  operator Shared<const T>() const  // NOLINT: as T* to const T*
      requires(!std::is_const_v<T>) {
    return {*block_, at_, first_, last_};
  }
  Reference<T> operator[](std::int64_t i) const { return {*block_, checked(i, sizeof(T))}; }
  Reference<T> operator*() const { return (*this)[0]; }
  Shared operator+(std::int64_t n) const {
    return {*block_, static_cast<int>(at_ + n * static_cast<std::int64_t>(sizeof(T))), first_, last_};
  }
  Shared operator-(std::int64_t n) const { return *this + -n; }
  Shared& operator+=(std::int64_t n) { return *this = *this + n; }

  /// Byte of element i in the block's shared memory; Fault unless `bytes` from there are in bounds and aligned.
  [[nodiscard]] int checked(std::int64_t i, int bytes) const {
    const std::int64_t at = at_ + i * static_cast<std::int64_t>(sizeof(T));
    if (at < first_ || at + bytes > last_) block_->fail_bounds(at, bytes, first_, last_);
    if ((at & (bytes - 1)) != 0) block_->fail_alignment(at, bytes);
    return static_cast<int>(at);
  }

 private:
  Block* block_;
  int at_;
  int first_;
  int last_;
};

/// One thread of a block on the host; kernels/platform/context.hpp says what each member does.
class Context {
 public:
  explicit Context(Block& block, int thread) : block_(&block), thread_(thread) {}

  [[nodiscard]] int thread() const { return thread_; }
  [[nodiscard]] int lane() const { return thread_ % kWarp; }
  [[nodiscard]] int warp() const { return thread_ / kWarp; }
  [[nodiscard]] int threads() const { return block_->launch().threads; }
  [[nodiscard]] int block_x() const { return static_cast<int>(block_->index().x); }
  [[nodiscard]] int block_y() const { return static_cast<int>(block_->index().y); }
  [[nodiscard]] int block_z() const { return static_cast<int>(block_->index().z); }
  [[nodiscard]] int grid_x() const { return static_cast<int>(block_->launch().grid.x); }
  [[nodiscard]] int grid_y() const { return static_cast<int>(block_->launch().grid.y); }
  [[nodiscard]] int grid_z() const { return static_cast<int>(block_->launch().grid.z); }

  template <class T>
  [[nodiscard]] Shared<T> shared(int byte_offset, int count) const {
    static_assert(sizeof(T) >= 2 && std::is_trivially_copyable_v<T>);
    const std::int64_t last = byte_offset + count * static_cast<std::int64_t>(sizeof(T));
    if (byte_offset < 0 || count < 0 || last > block_->shared().bytes()) {
      block_->fail("shared memory out of bounds: an array from " + std::to_string(byte_offset) + " to " +
                   std::to_string(last) + " in a block of " + std::to_string(block_->shared().bytes()) +
                   " bytes");
    }
    return {*block_, byte_offset, byte_offset, static_cast<int>(last)};
  }

  void barrier() const { block_->barrier(0, threads()); }
  void barrier(int id, int threads) const {
    if (id < 1 || id > 15) block_->fail("barrier id " + std::to_string(id) + "; allowed: 1 .. 15");
    block_->barrier(id, threads);
  }
  void warp_sync() const { block_->together(WarpOperation::warp_sync, kAll, nullptr); }
  void fence() const;
  std::uint32_t atomic_add(const GlobalPlace<std::uint32_t>& global, std::uint32_t value) const;

  template <class T>
  T shuffle(T value, int lane) const {
    return shuffle_from(kAll, value, lane % kWarp);
  }
  template <class T>
  T shuffle_xor(T value, int mask) const {
    return shuffle_from(kAll, value, lane() ^ mask);
  }
  template <class T>
  T shuffle_up(T value, int delta) const {
    return shuffle_from(kAll, value, lane() < delta ? lane() : lane() - delta);
  }
  template <class T>
  T shuffle_down(T value, int delta) const {
    return shuffle_from(kAll, value, lane() + delta >= kWarp ? lane() : lane() + delta);
  }
  template <class T>
  T shuffle_masked(std::uint32_t mask, T value, int lane) const {
    return shuffle_from(mask, value, lane % kWarp);
  }
  [[nodiscard]] std::uint32_t ballot(bool vote) const {
    SumOperand operand{vote ? 1u : 0u, 0};
    block_->together(WarpOperation::ballot, kAll, &operand);
    return operand.result;
  }
  [[nodiscard]] std::uint32_t reduce_add(std::uint32_t value) const {
    SumOperand operand{value, 0};
    block_->together(WarpOperation::reduce_add, kAll, &operand);
    return operand.result;
  }

  /// Of global memory: a T*, Global<T> or GlobalPlace<T>.
  template <class From>
  std::uint32_t load4(const From& from) const {
    return load_global<std::uint32_t>(GlobalPlace(from));
  }
  template <class From>
  Words2 load8(const From& from) const {
    return load_global<Words2>(GlobalPlace(from));
  }
  template <class From>
  Words4 load16(const From& from) const {
    return load_global<Words4>(GlobalPlace(from));
  }
  template <class To>
  void store4(const To& to, std::uint32_t value) const {
    store_global(GlobalPlace(to), value);
  }
  template <class To>
  void store8(const To& to, const Words2& value) const {
    store_global(GlobalPlace(to), value);
  }
  template <class To>
  void store16(const To& to, const Words4& value) const {
    store_global(GlobalPlace(to), value);
  }
  template <class T>
  std::uint32_t load4(const Shared<T>& from) const {
    return load_shared<std::uint32_t>(from);
  }
  template <class T>
  Words2 load8(const Shared<T>& from) const {
    return load_shared<Words2>(from);
  }
  template <class T>
  Words4 load16(const Shared<T>& from) const {
    return load_shared<Words4>(from);
  }
  template <class T>
  void store4(const Shared<T>& to, std::uint32_t value) const {
    store_shared(to, value);
  }
  template <class T>
  void store8(const Shared<T>& to, const Words2& value) const {
    store_shared(to, value);
  }
  template <class T>
  void store16(const Shared<T>& to, const Words4& value) const {
    store_shared(to, value);
  }

  template <class T, class From>
  void copy_async16(const Shared<T>& to, const From& from, bool valid) const {
    const GlobalPlace place(from);
    block_->announce_copy(to.checked(0, 16), place.base(), place.offset(), valid);
  }
  void copy_commit() const { block_->commit_copies(); }
  template <int N>
  void copy_wait() const {
    static_assert(N >= 0);
    block_->wait_for_copies(N);
  }

  void load_matrix_x4(std::uint32_t (&r)[4], const Shared<std::uint16_t>& row) const {
    load_matrix(WarpOperation::load_matrix_x4, r, row, kWarp);
  }
  void load_matrix_x4_transposed(std::uint32_t (&r)[4], const Shared<std::uint16_t>& row) const {
    load_matrix(WarpOperation::load_matrix_x4_transposed, r, row, kWarp);
  }
  void load_matrix_x2(std::uint32_t (&r)[2], const Shared<std::uint16_t>& row) const {
    load_matrix(WarpOperation::load_matrix_x2, r, row, kWarp / 2);
  }
  void load_matrix_x2_transposed(std::uint32_t (&r)[2], const Shared<std::uint16_t>& row) const {
    load_matrix(WarpOperation::load_matrix_x2_transposed, r, row, kWarp / 2);
  }
  void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) const {
    MmaOperand operand{c, a, b};
    block_->together(WarpOperation::mma_bf16, kAll, &operand);
  }
  void mma_f16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) const {
    MmaOperand operand{c, a, b};
    block_->together(WarpOperation::mma_f16, kAll, &operand);
  }

  [[nodiscard]] float exp2(float x) const {
    const float y = std::exp2(x);
    return y < std::numeric_limits<float>::min() ? 0.0f : y;
  }
  [[nodiscard]] float log2(float x) const { return std::log2(x); }
  [[nodiscard]] float fma(float a, float b, float c) const { return __builtin_fmaf(a, b, c); }

 private:
  static constexpr std::uint32_t kAll = 0xFFFFFFFFu;

  template <class T>
  T shuffle_from(std::uint32_t mask, T value, int source) const {
    static_assert(sizeof(T) == 4);
    ShuffleOperand operand{std::bit_cast<std::uint32_t>(value), source, 0};
    block_->together(WarpOperation::shuffle, mask, &operand);
    return std::bit_cast<T>(operand.result);
  }
  void load_matrix(WarpOperation operation, std::uint32_t* r, const Shared<std::uint16_t>& row,
                   int rows) const {
    MatrixOperand operand{r, lane() < rows ? row.checked(0, 16) : 0};
    block_->together(operation, kAll, &operand);
  }
  template <class Words, class T>
  Words load_global(const GlobalPlace<T>& from) const {
    Words words;
    block_->read_global(from.base(), from.offset(), sizeof(Words), &words);
    return words;
  }
  template <class Words, class T>
  void store_global(const GlobalPlace<T>& to, const Words& words) const {
    block_->write_global(to.base(), to.offset(), sizeof(Words), &words);
  }
  template <class Words, class T>
  Words load_shared(const Shared<T>& from) const {
    Words words;
    block_->shared().read(thread_, from.checked(0, sizeof(Words)), sizeof(Words), &words);
    return words;
  }
  template <class Words, class T>
  void store_shared(const Shared<T>& to, const Words& words) const {
    block_->shared().write(thread_, to.checked(0, sizeof(Words)), sizeof(Words), &words);
  }

  Block* block_;
  int thread_;
};

}  // namespace headwater::cuda::emulation
