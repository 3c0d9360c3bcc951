#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace headwater::cuda::emulation {

inline constexpr int kMaxWarps = 32;

/// What is ordered before what in a block: vector clocks (Mattern 1989), one component a warp. Lanes of a warp share
/// one clock, since every operation that orders memory (warp_sync, barriers) is called by a whole warp.
class Clocks {
 public:
  /// All warps at `time`; whatever happened earlier is ordered.
  void start(int warps, int time) {
    warps_ = warps;
    now_.fill(time);
    oldest_.fill(time);
    for (auto& row : known_) row.fill(time);
  }
  [[nodiscard]] int warps() const { return warps_; }
  [[nodiscard]] int now(int warp) const { return now_[warp]; }
  /// Accesses of `other` at clocks below this one are ordered before what `warp` does now.
  [[nodiscard]] int known(int warp, int other) const { return known_[warp][other]; }
  /// The least of known(warp, ..).
  [[nodiscard]] int oldest(int warp) const { return oldest_[warp]; }
  [[nodiscard]] int latest() const { return *std::max_element(now_.begin(), now_.begin() + warps_); }

  void warp_sync(int warp) {
    known_[warp][warp] = ++now_[warp];
    renew_oldest(warp);
  }
  /// The warps of `members` (a bit each) have met.
  void barrier(std::uint32_t members) {
    std::array<int, kMaxWarps> met{};
    int next = 0;
    for (int warp = 0; warp < warps_; ++warp) {
      if ((members >> warp & 1u) == 0) continue;
      next = std::max(next, now_[warp] + 1);
      for (int other = 0; other < warps_; ++other) met[other] = std::max(met[other], known_[warp][other]);
    }
    for (int warp = 0; warp < warps_; ++warp) {
      if ((members >> warp & 1u) != 0) met[warp] = next;
    }
    for (int warp = 0; warp < warps_; ++warp) {
      if ((members >> warp & 1u) == 0) continue;
      now_[warp] = next;
      known_[warp] = met;
      renew_oldest(warp);
    }
  }

 private:
  void renew_oldest(int warp) {
    oldest_[warp] = *std::min_element(known_[warp].begin(), known_[warp].begin() + warps_);
  }

  int warps_ = 0;
  std::array<int, kMaxWarps> now_{};
  std::array<int, kMaxWarps> oldest_{};
  std::array<std::array<int, kMaxWarps>, kMaxWarps> known_{};
};

}  // namespace headwater::cuda::emulation
