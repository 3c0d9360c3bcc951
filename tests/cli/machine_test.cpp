// The quota of processor time that a control group has, from files as the kernel and container runtimes lay them out.

#include "cli/support/machine.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace {

/// Cores that the machine says that there are; 0: those of this one.
int cores_said = 0;

}  // namespace

// In the place of the C library's.
extern "C" int sched_getaffinity(pid_t process, std::size_t size, cpu_set_t* set) noexcept {
  if (cores_said == 0) return ::syscall(SYS_sched_getaffinity, process, size, set) < 0 ? -1 : 0;
  CPU_ZERO_S(size, set);
  for (int i = 0; i < cores_said; ++i) CPU_SET_S(static_cast<std::size_t>(CPU_SETSIZE - 1 - i), size, set);
  return 0;
}

namespace headwater::cli {
namespace {

class UsableCores : public ::testing::Test {
 protected:
  UsableCores() {
    std::string name = (std::filesystem::temp_directory_path() / "headwater-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    root_ = name;
  }
  ~UsableCores() override {
    cores_said = 0;
    std::filesystem::remove_all(root_);
  }

  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] int cores() const { return usable_cores(root_); }

  std::string root_;
  // As many as this machine has; a quota can only take from that.
  const int all_ = usable_cores("/nothing/is/here");
};

TEST_F(UsableCores, AreAllWithoutControlGroups) {
  EXPECT_GE(all_, 1);
  EXPECT_EQ(cores(), all_);
}

TEST_F(UsableCores, FollowTheQuotaRoundedUp) {
  put("/proc/self/cgroup", "0::/service\n");
  put("/sys/fs/cgroup/service/cpu.max", "100000 100000\n");
  EXPECT_EQ(cores(), 1);
  put("/sys/fs/cgroup/service/cpu.max", "1000 100000\n");
  EXPECT_EQ(cores(), 1);
  put("/sys/fs/cgroup/service/cpu.max", "150000 100000\n");
  EXPECT_EQ(cores(), std::min(2, all_));
  put("/sys/fs/cgroup/service/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), all_);
}

TEST_F(UsableCores, FollowEveryGroupAbove) {
  put("/proc/self/cgroup", "0::/outer/middle/inner\n");
  put("/sys/fs/cgroup/outer/middle/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), all_);
  put("/sys/fs/cgroup/outer/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores(), 1);
}

// In a container the path may be the host's, while what is mounted is the container's own group.
TEST_F(UsableCores, FollowTheRootOfWhatIsMounted) {
  put("/proc/self/cgroup", "0::/docker/0123456789abcdef\n");
  put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(cores(), 1);
  put("/proc/self/cgroup", "0::/../elsewhere\n");
  EXPECT_EQ(cores(), 1);
}

TEST_F(UsableCores, FollowVersion1) {
  put("/proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n");
  put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), all_);
  put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "90000\n");
  EXPECT_EQ(cores(), 1);
  put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "100000\n");
  put("/sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 1);
}

// Of a machine with a thousand: as many as the quota is of its period, rounded up, by both versions.
TEST_F(UsableCores, QuotasOfLargeMachines) {
  cores_said = 1000;
  EXPECT_EQ(cores(), 1000);
  struct Case {
    const char* quota;
    const char* period;
    int cores;
  };
  for (const Case& one :
       {Case{"200000", "100000", 2}, Case{"200001", "100000", 3}, Case{"25500000", "100000", 255},
        Case{"25500001", "100000", 256}, Case{"99999999", "100000", 1000}, Case{"70000", "1000", 70},
        Case{"3000000000", "10000000", 300}, Case{"6553600000", "100000", 1000},
        Case{"429496729700000", "100000", 1000}}) {
    const std::string text = std::string(one.quota) + " " + one.period;
    put("/proc/self/cgroup", "0::/a\n");
    put("/sys/fs/cgroup/a/cpu.max", text + "\n");
    EXPECT_EQ(cores(), one.cores) << text;
    put("/proc/self/cgroup", "3:cpu:/a\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", std::string(one.quota) + "\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", std::string(one.period) + "\n");
    EXPECT_EQ(cores(), one.cores) << text;
  }
  // The least of all groups, wherever it stands.
  put("/proc/self/cgroup", "0::/a/b/c\n");
  for (const char* least : {"", "/a", "/a/b", "/a/b/c"}) {
    for (const char* folder : {"", "/a", "/a/b", "/a/b/c"}) {
      put(std::string("/sys/fs/cgroup") + folder + "/cpu.max",
          folder == std::string(least) ? "300000 100000" : "900000 100000");
    }
    EXPECT_EQ(cores(), 3) << least;
  }
}

TEST_F(UsableCores, IgnoreWhatMakesNoSense) {
  put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  for (const char* groups :
       {"", "\n\n", "0:", "0::relative\n", "garbage", "::::::", "0\n", "x:cpuset:/a\n"}) {
    put("/proc/self/cgroup", groups);
    EXPECT_EQ(cores(), all_) << groups;
  }
  put("/proc/self/cgroup", "0::/a\n");
  for (const char* quota : {"", "max", "100000", "0 0", "0 100000", "100000 0", "-5 100000", "100000 -7",
                            "nan nan", "x 100000", "99999999999999999999999 1", "9223372036854775807 1"}) {
    put("/sys/fs/cgroup/cpu.max", quota);
    EXPECT_EQ(cores(), all_) << quota;
  }
  put("/proc/self/cgroup", "0::/" + std::string(100000, 'a') + std::string(5000, '/') + "\n");
  EXPECT_EQ(cores(), all_);
}

}  // namespace
}  // namespace headwater::cli
