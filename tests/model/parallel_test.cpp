// The team of a calling thread.
#include "optimized/threads/team.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

namespace headwater::runtime {
namespace {

/// Whether every task ran once, none of two at once with the same thread, and every thread below the number that there
/// can be.
bool runs_each_once(int threads, int tasks) {
  std::vector<std::atomic<int>> times(static_cast<std::size_t>(tasks));
  std::vector<std::atomic<bool>> busy(static_cast<std::size_t>(std::max(threads, 1)));
  std::atomic<bool> right = true;
  parallel_tasks(threads, tasks, [&](std::int64_t task, int thread) {
    if (thread < 0 || thread >= std::max(std::min(threads, tasks), 1) || busy[thread].exchange(true)) {
      right = false;
      return;
    }
    ++times[task];
    busy[thread] = false;
  });
  return right && std::all_of(times.begin(), times.end(), [](const auto& n) { return n == 1; });
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(ParallelTasks, EachRunsOnce) {
  for (const int threads : {1, 2, 5, 2, 64, 3}) {  // a team grows, and serves fewer than it has
    for (const int tasks : {0, 1, 2, 3, 63, 64, 65, 5000}) {
      EXPECT_TRUE(runs_each_once(threads, tasks)) << threads << " threads, " << tasks << " tasks";
    }
  }
}

TEST(ParallelTasks, MostThreadsThatASessionMayHave) { EXPECT_TRUE(runs_each_once(512, 2000)); }

TEST(ParallelTasks, OtherThreadsCome) {
  std::atomic<int> begun = 0;
  parallel_tasks(3, 3, [&](std::int64_t, int) {
    ++begun;
    while (begun < 3) std::this_thread::yield();
  });
  EXPECT_EQ(begun, 3);
}

TEST(ParallelTasks, ExceptionsReachTheCaller) {
  for (const int threads : {1, 2, 8}) {
    std::atomic<int> ran = 0;
    const auto fails = [&](std::int64_t task, int) {
      ++ran;
      if (task == 3) throw std::runtime_error("task 3");
    };
    EXPECT_THROW(parallel_tasks(threads, 1'000'000, fails), std::runtime_error);
    EXPECT_LT(ran, 1'000'000) << "the others went on";
    EXPECT_TRUE(runs_each_once(threads, 100));
  }
}

TEST(ParallelTasks, WithinATaskTheyAreTheThreadsOwn) {
  std::atomic<int> wrong = 0;
  parallel_tasks(4, 40, [&](std::int64_t, int) {
    const auto self = std::this_thread::get_id();
    parallel_tasks(4, 10, [&](std::int64_t, int thread) {
      if (thread != 0 || std::this_thread::get_id() != self) ++wrong;
    });
  });
  EXPECT_EQ(wrong, 0);
}

TEST(ParallelTasks, CallersWorkAtOnce) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      for (int region = 0; region < 100; ++region) {
        if (!runs_each_once(1 + (caller + region) % 4, 1 + region % 7)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();  // their threads end with them
  EXPECT_EQ(wrong, 0);
}

TEST(ParallelTasks, AChildOfForkRunsThemAlone) {
  EXPECT_TRUE(runs_each_once(4, 100));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<bool> right = true;
    std::thread([&] {
      right = right && runs_each_once(3, 100);
    }).join();  // a thread of the child has its own
    right = right && runs_each_once(4, 100) && runs_each_once(9, 100);
    std::exit(right ? 0 : 1);  // which ends without waiting for the parent's threads
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ParallelTasks, WaitingThreadsSleep) {
  EXPECT_TRUE(runs_each_once(8, 100));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

TEST(ParallelTasks, OnOneProcessorNobodyWaitsForACore) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  std::thread([&] {
    int processor = 0;
    while (!CPU_ISSET(processor, &all)) ++processor;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // of this thread, and of those that it starts
    const double before = cpu_seconds();
    for (int region = 0; region < 2000; ++region) parallel_tasks(4, 8, [](std::int64_t, int) {});
    EXPECT_LT(cpu_seconds() - before, 1.0);
  }).join();
}

}  // namespace
}  // namespace headwater::runtime
