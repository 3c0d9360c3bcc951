// Which pages lie under runs of rows: small ones until half of a huge page is stored. The kernel tells the advice that it
// was given in the VmFlags of /proc/self/smaps.

#include "core/run_buffer.hpp"

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace headwater::core {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

/// "nh" (no huge pages), "hg" (huge pages) or "" of the mapping that holds an address.
std::string advice(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream file("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      here = begin <= wanted && wanted < end;
    } else if (here && line.starts_with("VmFlags:")) {
      for (const char* flag : {"nh", "hg"}) {
        if (line.find(std::string(" ") + flag) != std::string::npos) return flag;
      }
      return "";
    }
  }
  return "";
}

class RunsOnHugePages : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string setting;
    if (!std::getline(file, setting) || setting.find("[never]") != std::string::npos) {
      GTEST_SKIP() << "huge pages are switched off on this machine";
    }
  }
};

TEST_F(RunsOnHugePages, OnlyWhereHalfOfOneIsStored) {
  RunBuffer runs(3, 2 * kHugePage, 0);
  const auto page = [&](std::int64_t run, std::int64_t of_run) {
    return advice(runs.data() + (2 * run + of_run) * kHugePage);
  };
  runs.make_room(0, 3, 0, kHugePage / 2 - 1);
  for (std::int64_t run = 0; run < 3; ++run) EXPECT_EQ(page(run, 0), "nh") << run;
  std::memset(runs.data() + 2 * kHugePage, 7, kHugePage / 2 - 1);

  runs.make_room(1, 2, kHugePage / 2 - 1, kHugePage / 2);
  EXPECT_EQ(page(0, 0), "nh");
  EXPECT_EQ(page(1, 0), "hg");
  EXPECT_EQ(page(1, 1), "nh");
  EXPECT_EQ(page(2, 0), "nh");
  EXPECT_EQ(runs.data()[2 * kHugePage + 1000], 7) << "what is stored stays";

  runs.make_room(0, 3, kHugePage / 2, 2 * kHugePage);
  for (std::int64_t run = 0; run < 3; ++run) {
    EXPECT_EQ(page(run, 0), "hg") << run;
    EXPECT_EQ(page(run, 1), "hg") << run;
  }
}

// A page that several runs share counts the fronts of all of them.
TEST_F(RunsOnHugePages, CountTheRunsThatShareOne) {
  constexpr std::int64_t kRuns = 6;
  RunBuffer runs(kRuns, kHugePage / 4 * 3, 0);  // 4.5 huge pages, the last half no whole one
  runs.make_room(0, kRuns, 0, kHugePage / 3);
  // Of page 0: run 0 and the first quarter page of run 1. Of page 1: run 1 is past its front, run 2 begins in the middle.
  EXPECT_EQ(advice(runs.data()), "hg");
  EXPECT_EQ(advice(runs.data() + kHugePage), "nh");
  runs.make_room(0, kRuns, kHugePage / 3, kHugePage / 4 * 3);
  for (std::int64_t page = 0; page < 4; ++page) EXPECT_EQ(advice(runs.data() + page * kHugePage), "hg");
}

TEST(Runs, SmallerThanAPageTakeNoAdvice) {
  RunBuffer runs(5, 1000, 32);
  runs.make_room(0, 5, 0, 1000);
  std::memset(runs.data(), 1, 5032);
  EXPECT_EQ(runs.bytes(), 5000);
}

TEST(Runs, LeaveNoFileOpen) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = open_files();
  for (int i = 0; i < 10; ++i) (void)RunBuffer(3, 2 * kHugePage, 0);  // large enough for huge pages
  EXPECT_EQ(open_files(), before);
}

TEST(Runs, RefuseSizesThatDoNotFit) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  EXPECT_THROW(RunBuffer(4, kMost, 0), std::bad_alloc);
  EXPECT_THROW(RunBuffer(1, kMost + (kMost - 1), 1), std::bad_alloc);
}

}  // namespace
}  // namespace headwater::core
