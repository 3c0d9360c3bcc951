#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace headwater::testing {

/// Bytes of this process that lie in memory, by /proc/self/statm; -1 where there is none.
inline std::int64_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  return file >> all >> resident ? resident * ::sysconf(_SC_PAGESIZE) : -1;
}

inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;

}  // namespace headwater::testing
