#include "cuda/emulation/shared_memory.hpp"

#include <algorithm>
#include <string>

#include "cuda/emulation/fault.hpp"

namespace headwater::cuda::emulation {
namespace {

constexpr int kCopyBytes = 16;

std::string byte_text(int half) { return " at byte " + std::to_string(2 * half) + " of shared memory"; }

}  // namespace

void SharedMemory::start(int bytes, int warps, Clocks& clocks) {
  const int lines = std::max((bytes + kCopyBytes - 1) / kCopyBytes * (kCopyBytes / kLineBytes), lines_);
  const auto readers = static_cast<std::size_t>(lines) * static_cast<std::size_t>(warps);
  if (clocks_ != nullptr) first_time_ = static_cast<std::uint32_t>(clocks_->latest()) + 1;
  // Half of the times are left for the block that starts.
  if (first_time_ > kOwed / 2 || lines > lines_ || readers > line_readers_.size()) {
    const auto count = static_cast<std::size_t>(lines);
    lines_ = lines;
    data_.assign(count * kLineBytes, 0xFF);
    line_writers_.assign(count, 0);
    half_writers_.assign(count * kLineHalves, 0);
    last_read_.assign(count, 0);
    line_readers_.assign(std::max(readers, line_readers_.size()), 0);
    half_readers_.assign(line_readers_.size() * kLineHalves, 0);
    first_time_ = 1;
  }
  bytes_ = bytes;
  clocks_ = &clocks;
  clocks.start(warps, static_cast<int>(first_time_));
}

std::uint32_t SharedMemory::stamp(int thread) const {
  const auto now = static_cast<std::uint32_t>(clocks_->now(thread / kWarp));
  if (now >= kOwed) throw Fault("more barriers in one block than the emulation can count");
  return now << kThreadBits | static_cast<std::uint32_t>(thread);
}

std::uint32_t SharedMemory::writer_of(int half) const {
  const std::uint32_t line = line_writers_[static_cast<std::size_t>(half / kLineHalves)];
  return line != kMixed ? line : half_writers_[static_cast<std::size_t>(half)];
}

// ---- reads -------------------------------------------------------------------------------------------------------

void SharedMemory::judge_reads(int thread, int first, int halves) const {
  for (int half = first; half < first + halves; ++half) {
    if (unordered(thread / kWarp, writer_of(half))) judge_read(thread, half);
  }
}

void SharedMemory::judge_read(int thread, int half) const {
  const std::uint32_t writer = writer_of(half);
  if (writer < first_time_ << kThreadBits) throw Fault("uninitialised read" + byte_text(half));
  const auto by = static_cast<int>(writer & kThreads);
  const auto time = writer >> kThreadBits;
  if (time == kOwed) {
    throw Fault("read" + byte_text(half) + " of what a copy of thread " + std::to_string(by) +
                " still has to bring: no wait for it before");
  }
  if (by == thread || time < static_cast<std::uint32_t>(clocks_->known(thread / kWarp, by / kWarp))) return;
  throw Fault("race" + byte_text(half) + ": read of what thread " + std::to_string(by) +
              " wrote, with no barrier between");
}

// ---- writes ------------------------------------------------------------------------------------------------------

void SharedMemory::check_write(int thread, int first, int halves) {
  const int warp = thread / kWarp;
  const auto line = static_cast<std::size_t>(first / kLineHalves);
  const auto oldest = static_cast<std::uint32_t>(clocks_->oldest(warp));
  const std::uint32_t mine = stamp(thread);
  if (line_writers_[line] >= oldest << kThreadBits) judge_writes(thread, first, halves);
  set_writer(first, halves, mine);
  if (last_read_[line] >= oldest) judge_readers(thread, first, halves);
}

void SharedMemory::set_writer(int first, int halves, std::uint32_t writer) {
  std::uint32_t& line = line_writers_[static_cast<std::size_t>(first / kLineHalves)];
  if (halves == kLineHalves || line == writer) {
    line = writer;
    return;
  }
  if (line != kMixed)
    std::fill_n(half_writers_.begin() + first / kLineHalves * kLineHalves, kLineHalves, line);
  line = kMixed;
  std::fill_n(half_writers_.begin() + first, halves, writer);
}

void SharedMemory::judge_writes(int thread, int first, int halves) const {
  const std::uint32_t ordered = static_cast<std::uint32_t>(clocks_->oldest(thread / kWarp)) << kThreadBits;
  for (int half = first; half < first + halves; ++half) {
    if (writer_of(half) >= ordered) judge_write(thread, half);
  }
}

void SharedMemory::judge_write(int thread, int half) const {
  const std::uint32_t writer = writer_of(half);
  const auto by = static_cast<int>(writer & kThreads);
  const auto time = writer >> kThreadBits;
  if (time == kOwed) {
    throw Fault("write" + byte_text(half) + " to where a copy of thread " + std::to_string(by) +
                " still has to arrive: no wait for it before");
  }
  if (by == thread || time < static_cast<std::uint32_t>(clocks_->known(thread / kWarp, by / kWarp))) return;
  throw Fault("race" + byte_text(half) + ": threads " + std::to_string(by) + " and " +
              std::to_string(thread) + " both write, with no barrier between");
}

/// Some warp has read of this line what may not be ordered before the write: which, and what exactly?
void SharedMemory::judge_readers(int thread, int first, int halves) const {
  const int warp = thread / kWarp;
  for (int other = 0; other < clocks_->warps(); ++other) {
    const std::uint32_t known = static_cast<std::uint32_t>(clocks_->known(warp, other)) << kLaneBits;
    const auto races = [&](std::uint32_t reader) {
      if (reader < known) return false;
      return other != warp || reader % (1u << kLaneBits) != static_cast<std::uint32_t>(thread % kWarp);
    };
    const std::int64_t line = std::int64_t{other} * lines_ + first / kLineHalves;
    const std::uint32_t* readers = half_readers_.data() + static_cast<std::size_t>(other) *
                                                              static_cast<std::size_t>(lines_ * kLineHalves);
    for (int half = first; half < first + halves; ++half) {
      if (!races(readers[half]) && !races(line_readers_[static_cast<std::size_t>(line)])) continue;
      throw Fault("race" + byte_text(half) + ": write of what warp " + std::to_string(other) +
                  " reads, with no barrier between");
    }
  }
}

// ---- asynchronous copies -----------------------------------------------------------------------------------------

void SharedMemory::announce(int thread, int at) {
  // Both before either is owed: what a failed block still owes would never be forgotten.
  for (int byte = at; byte < at + kCopyBytes; byte += kLineBytes) check_write(thread, byte / 2, kLineHalves);
  std::fill_n(line_writers_.begin() + at / kLineBytes, kCopyBytes / kLineBytes,
              kOwed << kThreadBits | static_cast<std::uint32_t>(thread));
}

void SharedMemory::land(int thread, int at, const void* from) {
  std::fill_n(line_writers_.begin() + at / kLineBytes, kCopyBytes / kLineBytes, stamp(thread));
  if (from != nullptr) {
    std::memcpy(data_.data() + at, from, kCopyBytes);
  } else {
    std::memset(data_.data() + at, 0, kCopyBytes);
  }
}

void SharedMemory::forget(int at) {
  std::fill_n(line_writers_.begin() + at / kLineBytes, kCopyBytes / kLineBytes, 0u);
}

}  // namespace headwater::cuda::emulation
