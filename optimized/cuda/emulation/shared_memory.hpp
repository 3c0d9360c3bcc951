#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/emulation/clocks.hpp"

namespace headwater::cuda::emulation {

/// Dynamic shared memory of a block with a shadow for each half-word: who wrote it last and when, and when each warp
/// read it last. Two accesses of different threads, at least one of them a write, must be ordered by a barrier;
/// otherwise they race (Fault). A read of what nobody wrote, or of what an asynchronous copy is still to write, is a
/// Fault too. Nothing is cleared between blocks: clocks go on, and what is older than the block counts as unwritten.
class SharedMemory {
 public:
  /// For a block of `bytes` and `warps`; clocks are set to the block's first time.
  void start(int bytes, int warps, Clocks& clocks);
  [[nodiscard]] int bytes() const { return bytes_; }

  /// Aligned accesses of `size` bytes (2, 4, 8, 16) by `thread` at byte `at`, which the caller has held to bounds.
  void read(int thread, int at, int size, void* to) {
    check_read(thread, at / 2, size / 2);
    std::memcpy(to, data_.data() + at, static_cast<std::size_t>(size));
  }
  void write(int thread, int at, int size, const void* from) {
    check_write(thread, at / 2, size / 2);
    std::memcpy(data_.data() + at, from, static_cast<std::size_t>(size));
  }
  /// 16 bytes that arrive later: nobody may touch them until land().
  void announce(int thread, int at);
  /// Arrival; zeros if `from` is null.
  void land(int thread, int at, const void* from);
  /// The block ended before the arrival.
  void forget(int at);

 private:
  void check_read(int thread, int first, int halves);
  void check_write(int thread, int first, int halves);
  void judge_read(int thread, int half, std::uint32_t writer) const;
  void judge_write(int thread, int half, std::uint32_t writer) const;
  [[nodiscard]] std::uint32_t stamp(int thread) const;

  int bytes_ = 0;
  int halves_ = 0;  // of the shadow, the largest block so far
  Clocks* clocks_ = nullptr;
  std::uint32_t first_time_ = 1;  // of this block
  std::vector<unsigned char> data_;
  std::vector<std::uint32_t> writers_;  // time << 10 | thread
  std::vector<std::uint32_t> readers_;  // [warp][half]: time << 6 | lane, or lane 32 for several
};

}  // namespace headwater::cuda::emulation
