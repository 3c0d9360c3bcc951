#include "cli/support/machine.hpp"

#include <sched.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <thread>

namespace headwater::cli {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// Whole cores of a quota of `quota` in every `period` microseconds. Up, as Go and the JVM do: the threads of a team
/// are stopped together when the quota is used up, so nobody waits for a stopped partner, and one thread less would
/// leave a part of the quota unused.
std::int64_t cores_of(std::int64_t quota, std::int64_t period) {
  if (quota <= 0 || period <= 0) return kUnlimited;
  return quota / period + (quota % period != 0 ? 1 : 0);
}

std::int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? number : 0;
}

/// "QUOTA PERIOD" of version 2; "max PERIOD" is no limit, and no number.
std::int64_t cores_by_version_2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::int64_t quota = 0;
  std::int64_t period = 0;
  return file >> quota >> period ? cores_of(quota, period) : kUnlimited;
}

/// Version 1; a quota of -1 is no limit.
std::int64_t cores_by_version_1(const std::string& folder) {
  return cores_of(number_in(folder + "/cpu.cfs_quota_us"), number_in(folder + "/cpu.cfs_period_us"));
}

/// The lowest of a group and of all above it, as far as they are to be seen: a container's own group may be the root of
/// what is mounted, whatever path the kernel gives.
template <typename Cores>
std::int64_t lowest(const std::string& mount, std::string_view group, const Cores& cores_of_folder) {
  std::int64_t least = cores_of_folder(mount);
  if (group.size() >= PATH_MAX || group.find("..") != std::string_view::npos) return least;
  for (; group.size() > 1; group = group.substr(0, group.rfind('/'))) {
    least = std::min(least, cores_of_folder(mount + std::string(group)));
  }
  return least;
}

/// Lines of /proc/self/cgroup: number, controllers, path; version 2 is number 0 without controllers.
std::int64_t cores_by_quota(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::int64_t least = kUnlimited;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = std::string_view(line).substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, lowest(mount, group, cores_by_version_2));
    } else if ((',' + controllers + ',').find(",cpu,") != std::string::npos) {
      least = std::min({least, lowest(mount + "/cpu", group, cores_by_version_1),
                        lowest(mount + '/' + controllers, group, cores_by_version_1)});
    }
  }
  return least;
}

bool in_environment(const char* name) { return std::getenv(name) != nullptr; }

}  // namespace

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

int usable_cores(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  const int cores = known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  return static_cast<int>(std::clamp<std::int64_t>(cores_by_quota(root), 1, std::max(1, cores)));
}

void settle_threads(char** argv) {
  const bool waits = in_environment("OMP_WAIT_POLICY") || in_environment("GOMP_SPINCOUNT");
  const bool counts = in_environment("OMP_NUM_THREADS");
  if (waits && counts) return;
  // Both are there for the next start, so it is the last one.
  if (!waits && ::setenv("OMP_WAIT_POLICY", "passive", 0) != 0) return;
  if (!counts && ::setenv("OMP_NUM_THREADS", std::to_string(usable_cores()).c_str(), 0) != 0) return;
  // Started through the dynamic loader by its name, the program in /proc/self/exe is the loader.
  if (argv[0] == nullptr || ::getauxval(AT_BASE) == 0) return;
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length > 0) (void)::execv(path.data(), argv);
}

}  // namespace headwater::cli
