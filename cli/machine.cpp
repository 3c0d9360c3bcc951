#include "machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <thread>

namespace headwater::cli {

std::uint64_t memory_limit() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  std::uint64_t limit = pages > 0 && page > 0
                            ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
                            : std::numeric_limits<std::uint64_t>::max();
  // Versions 2 and 1 of Linux's control groups as a container sees them; "max" or no file means no limit.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    std::uint64_t bytes = 0;
    if (file >> bytes && bytes > 0) limit = std::min(limit, bytes);
  }
  return limit;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace headwater::cli
