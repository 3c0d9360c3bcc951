#include "cuda/emulation/shared_memory.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/device/platform.hpp"
#include "cuda/emulation/fault.hpp"

namespace headwater::cuda::emulation {
namespace {

constexpr int kThreadBits = 10;
constexpr int kLaneBits = 6;
constexpr std::uint32_t kThreads = (1u << kThreadBits) - 1;
constexpr std::uint32_t kLanes = (1u << kLaneBits) - 1;
constexpr std::uint32_t kSeveralLanes = kWarp;
/// Time of a write that an asynchronous copy still owes.
constexpr std::uint32_t kOwed = (1u << (32 - kThreadBits)) - 1;
/// Half of the times are left for the block that starts.
constexpr std::uint32_t kRenewAt = kOwed / 2;

std::string byte_text(int half) { return " at byte " + std::to_string(2 * half) + " of shared memory"; }

}  // namespace

void SharedMemory::start(int bytes, int warps, Clocks& clocks) {
  const int halves = (bytes + 1) / 2;
  const auto readers =
      static_cast<std::size_t>(halves_ > halves ? halves_ : halves) * static_cast<std::size_t>(warps);
  if (clocks_ != nullptr) first_time_ = static_cast<std::uint32_t>(clocks_->latest()) + 1;
  if (first_time_ > kRenewAt || halves > halves_ || readers > readers_.size()) {
    halves_ = std::max(halves_, halves);
    data_.assign(static_cast<std::size_t>(halves_) * 2, 0xFF);
    writers_.assign(static_cast<std::size_t>(halves_), 0);
    readers_.assign(std::max(readers, readers_.size()), 0);
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

void SharedMemory::check_read(int thread, int first, int halves) {
  const int warp = thread / kWarp;
  const std::uint32_t lowest = first_time_ << kThreadBits;
  const std::uint32_t ordered = (static_cast<std::uint32_t>(clocks_->oldest(warp)) << kThreadBits) - lowest;
  for (int half = first; half < first + halves; ++half) {
    if (writers_[half] - lowest >= ordered) judge_read(thread, half, writers_[half]);
  }
  const auto now = static_cast<std::uint32_t>(clocks_->now(warp));
  const std::uint32_t mine = now << kLaneBits | static_cast<std::uint32_t>(thread % kWarp);
  const std::uint32_t several = now << kLaneBits | kSeveralLanes;
  std::uint32_t* readers =
      readers_.data() + static_cast<std::size_t>(warp) * static_cast<std::size_t>(halves_) + first;
  for (int i = 0; i < halves; ++i) {
    readers[i] = readers[i] >> kLaneBits == now && readers[i] != mine ? several : mine;
  }
}

void SharedMemory::judge_read(int thread, int half, std::uint32_t writer) const {
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

void SharedMemory::check_write(int thread, int first, int halves) {
  const int warp = thread / kWarp;
  const std::uint32_t ordered = static_cast<std::uint32_t>(clocks_->oldest(warp)) << kThreadBits;
  const std::uint32_t mine = stamp(thread);
  for (int half = first; half < first + halves; ++half) {
    if (writers_[half] >= ordered) judge_write(thread, half, writers_[half]);
    writers_[half] = mine;
  }
  for (int other = 0; other < clocks_->warps(); ++other) {
    const std::uint32_t* readers =
        readers_.data() + static_cast<std::size_t>(other) * static_cast<std::size_t>(halves_) + first;
    const std::uint32_t known = static_cast<std::uint32_t>(clocks_->known(warp, other)) << kLaneBits;
    for (int i = 0; i < halves; ++i) {
      if (readers[i] < known) continue;
      if (other == warp && (readers[i] & kLanes) == static_cast<std::uint32_t>(thread % kWarp)) continue;
      throw Fault("race" + byte_text(first + i) + ": write of what warp " + std::to_string(other) +
                  " reads, with no barrier between");
    }
  }
}

void SharedMemory::judge_write(int thread, int half, std::uint32_t writer) const {
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

void SharedMemory::announce(int thread, int at) {
  check_write(thread, at / 2, 8);
  std::fill_n(writers_.begin() + at / 2, 8, kOwed << kThreadBits | static_cast<std::uint32_t>(thread));
}

void SharedMemory::land(int thread, int at, const void* from) {
  std::fill_n(writers_.begin() + at / 2, 8, stamp(thread));
  if (from != nullptr) {
    std::memcpy(data_.data() + at, from, 16);
  } else {
    std::memset(data_.data() + at, 0, 16);
  }
}

void SharedMemory::forget(int at) { std::fill_n(writers_.begin() + at / 2, 8, 0u); }

}  // namespace headwater::cuda::emulation
