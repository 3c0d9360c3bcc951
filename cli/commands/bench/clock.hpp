#pragma once

namespace headwater::bench {

/// A moment, or the time between two: by the clock on the wall, and by the processor time of this process. Other work on
/// the machine moves the first; on one thread the second is what the work took.
struct Seconds {
  double wall = 0.0;
  double cpu = 0.0;

  Seconds operator-(const Seconds& earlier) const { return {wall - earlier.wall, cpu - earlier.cpu}; }
};

[[nodiscard]] Seconds seconds_now();

}  // namespace headwater::bench
