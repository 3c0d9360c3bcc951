#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/emulation/clocks.hpp"
#include "cuda/kernels/platform/platform.hpp"

namespace headwater::cuda::emulation {

/// Dynamic shared memory of a block with a shadow: who wrote last and when, and when each warp read last. Two accesses of
/// different threads, at least one of them a write, must be ordered by a barrier; otherwise they race (Fault). A read of
/// what nobody wrote, or of what an asynchronous copy is still to write, is a Fault too. Nothing is cleared between
/// blocks: clocks go on, and what is older than the block counts as unwritten.
///
/// The shadow has two levels, since nearly all of the traffic is vectors of 8 and 16 bytes: an entry for each line of 8
/// bytes, and entries for its half-words, which count where the line's says "mixed" (writers) or beside it (readers).
class SharedMemory {
 public:
  /// For a block of `bytes` and `warps`; clocks are set to the block's first time.
  void start(int bytes, int warps, Clocks& clocks);
  [[nodiscard]] int bytes() const { return bytes_; }

  /// Aligned accesses of `size` bytes (2, 4, 8, 16) by `thread` at byte `at`, which the caller has held to bounds.
  void read(int thread, int at, int size, void* to) {
    switch (size) {
      case 16: check_read_of<true, 2>(thread, at / kLineBytes); break;
      case 8: check_read_of<true, 1>(thread, at / kLineBytes); break;
      case 4: check_read_of<false, 2>(thread, at / 2); break;
      default: check_read_of<false, 1>(thread, at / 2); break;
    }
    std::memcpy(to, data_.data() + at, static_cast<std::size_t>(size));
  }
  void write(int thread, int at, int size, const void* from) {
    check_write(thread, at / 2, size < kLineBytes ? size / 2 : kLineHalves);
    if (size > kLineBytes) check_write(thread, at / 2 + kLineHalves, kLineHalves);
    std::memcpy(data_.data() + at, from, static_cast<std::size_t>(size));
  }
  /// 16 bytes that arrive later: nobody may touch them until land().
  void announce(int thread, int at);
  /// Arrival; zeros if `from` is null.
  void land(int thread, int at, const void* from);
  /// The block ended before the arrival.
  void forget(int at);

 private:
  static constexpr int kLineBytes = 8;
  static constexpr int kLineHalves = kLineBytes / 2;
  static constexpr int kThreadBits = 10;
  static constexpr int kLaneBits = 6;
  static constexpr std::uint32_t kSeveralLanes = kWarp;
  static constexpr std::uint32_t kThreads = (1u << kThreadBits) - 1;
  /// Time of a write that an asynchronous copy still owes; the one above is that of mixed lines.
  static constexpr std::uint32_t kOwed = (1u << (32 - kThreadBits)) - 2;
  /// Stamp of a line whose half-words have writers of their own.
  static constexpr std::uint32_t kMixed = 0xFFFFFFFFu;

  /// A lane's read of kCount whole lines, or of kCount half-words of one line.
  template <bool kLines, int kCount>
  void check_read_of(int thread, int first) {
    const int warp = thread / kWarp;
    const auto now = static_cast<std::uint32_t>(clocks_->now(warp));
    const std::uint32_t several = now << kLaneBits | kSeveralLanes;
    std::uint32_t* readers = kLines
                                 ? line_readers_.data() + warp * std::int64_t{lines_} + first
                                 : half_readers_.data() + warp * std::int64_t{lines_ * kLineHalves} + first;
    // Whoever writes after such reads at this time races, so what was checked at the second one still holds.
    bool known = true;
    for (int i = 0; i < kCount; ++i) known = known && readers[i] == several;
    if (known) return;
    const std::uint32_t mine = now << kLaneBits | static_cast<std::uint32_t>(thread % kWarp);
    for (int i = 0; i < kCount; ++i) {
      const int line = kLines ? first + i : (first + i) / kLineHalves;
      if (unordered(warp, line_writers_[static_cast<std::size_t>(line)])) {
        judge_reads(thread, kLines ? line * kLineHalves : first + i, kLines ? kLineHalves : 1);
      }
      readers[i] = readers[i] >> kLaneBits == now && readers[i] != mine ? several : mine;
      note_read(line, now);
    }
  }
  /// Is this write of this block, or none at all, perhaps not ordered before what `warp` does now?
  [[nodiscard]] bool unordered(int warp, std::uint32_t writer) const {
    const std::uint32_t lowest = first_time_ << kThreadBits;
    return writer - lowest >= (static_cast<std::uint32_t>(clocks_->oldest(warp)) << kThreadBits) - lowest;
  }
  void note_read(int line, std::uint32_t now) {
    std::uint32_t& last = last_read_[static_cast<std::size_t>(line)];
    if (last < now) last = now;
  }
  void check_write(int thread, int first, int halves);
  void set_writer(int first, int halves, std::uint32_t writer);
  [[nodiscard]] std::uint32_t writer_of(int half) const;
  void judge_reads(int thread, int first, int halves) const;
  void judge_read(int thread, int half) const;
  void judge_writes(int thread, int first, int halves) const;
  void judge_write(int thread, int half) const;
  void judge_readers(int thread, int first, int halves) const;
  [[nodiscard]] std::uint32_t stamp(int thread) const;

  int bytes_ = 0;
  int lines_ = 0;  // of the shadow, the largest block so far
  Clocks* clocks_ = nullptr;
  std::uint32_t first_time_ = 1;  // of this block
  std::vector<unsigned char> data_;
  std::vector<std::uint32_t> line_writers_;  // time << 10 | thread, or kMixed
  std::vector<std::uint32_t> half_writers_;
  std::vector<std::uint32_t> last_read_;     // of a line: latest time of any warp
  std::vector<std::uint32_t> line_readers_;  // [warp][line]: time << 6 | lane, or lane 32 for several
  std::vector<std::uint32_t> half_readers_;  // [warp][half], reads of less than a line
};

}  // namespace headwater::cuda::emulation
