// HOST-1, INTR-1: the regions of the CPU engine, on OpenMP and on hosts of all kinds.

#include "cpu/workers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "headwater/error.hpp"
#include "tests/api/hosts.hpp"

namespace headwater::cpu {
namespace {

using api_test::FaultyHost;
using api_test::ThreadPool;
using Task = Workers::Task;

struct Host {
  const char* name;
  ParallelFor parallel_for;
  void* context;
};

std::vector<Host> hosts() {
  static ThreadPool helped(2), alone(3, false);
  return {{"OpenMP", nullptr, nullptr},
          {"threads", ThreadPool::parallel_for, &helped},
          {"threads, the caller waits", ThreadPool::parallel_for, &alone},
          {"in order", api_test::in_order, nullptr},
          {"in reverse", api_test::in_reverse, nullptr}};
}

/// What was seen of one task.
struct Seen {
  std::atomic<int> times = 0;
  int thread = -1;
  bool first = false;
};

/// Runs a region and checks that every task ran once, with the thread that `thread_of` says, and is the first of its thread
/// where no task before it has the same.
template <class Run, class ThreadOf>
void expect_dealt(std::int64_t n, int threads, const Run& run, const ThreadOf& thread_of) {
  std::vector<Seen> seen(static_cast<std::size_t>(n));
  std::vector<std::atomic<int>> busy(static_cast<std::size_t>(threads));
  run([&](const Task& task) {
    EXPECT_EQ(busy[static_cast<std::size_t>(task.thread)]++, 0);
    Seen& one = seen[static_cast<std::size_t>(task.index)];
    ++one.times;
    one.thread = task.thread;
    one.first = task.first;
    --busy[static_cast<std::size_t>(task.thread)];
  });
  std::vector<bool> met(static_cast<std::size_t>(threads), false);
  for (std::int64_t i = 0; i < n; ++i) {
    const Seen& one = seen[static_cast<std::size_t>(i)];
    ASSERT_EQ(one.times, 1) << "task " << i;
    ASSERT_EQ(one.thread, thread_of(i)) << "task " << i;
    const auto thread = static_cast<std::size_t>(one.thread);
    ASSERT_EQ(one.first, !met[thread]) << "task " << i;
    met[thread] = true;
  }
}

// The schedules are those of OpenMP's static and static,1: the first shares are the longer ones.
TEST(Workers, EveryTaskRunsOnceOnItsThread) {
  for (const Host& host : hosts()) {
    for (const int threads : {1, 2, 3, 5}) {
      Workers workers(threads, host.parallel_for, host.context);
      workers.start();
      for (const std::int64_t n : {0, 1, 2, 4, 5, 6, 7, 1000}) {
        SCOPED_TRACE(std::string(host.name) + ", " + std::to_string(threads) + " threads, " +
                     std::to_string(n) + " tasks");
        const std::int64_t longer = (n / threads + 1) * (n % threads);  // tasks in the longer shares
        expect_dealt(
            n, threads, [&](const auto& body) { workers.each(n, body); },
            [&](std::int64_t i) {
              if (i < longer) return i / (n / threads + 1);
              return n % threads + (i - longer) / (n / threads);
            });
        expect_dealt(
            n, threads, [&](const auto& body) { workers.each_in_turn(n, body); },
            [&](std::int64_t i) { return i % threads; });
      }
    }
  }
}

TEST(Workers, ARegionReadsWhatTheOneBeforeWrote) {
  for (const Host& host : hosts()) {
    Workers workers(3, host.parallel_for, host.context);
    std::vector<std::int64_t> from(1000, 0), to(1000, 0);
    for (int round = 0; round < 20; ++round) {
      workers.each(1000, [&](const Task& task) { from[static_cast<std::size_t>(task.index)] = to[0] + 1; });
      workers.each_in_turn(1000, [&](const Task& task) {
        to[static_cast<std::size_t>(task.index)] = from[static_cast<std::size_t>(999 - task.index)];
      });
    }
    EXPECT_EQ(to, std::vector<std::int64_t>(1000, 20)) << host.name;
  }
}

/// The message of the Error of code `internal` that a region on this host throws.
std::string host_error(FaultyHost host, int threads) {
  Workers workers(threads, FaultyHost::parallel_for, &host);
  std::atomic<int> sum = 0;
  try {
    workers.each(100, [&](const Task&) { ++sum; });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal) << error.what();
    EXPECT_LE(sum, 100);
    return error.what();
  }
  return "no error";
}

TEST(Workers, AnIndexThatAHostLosesOrRepeatsIsNamed) {
  using Fault = FaultyHost::Fault;
  for (const int threads : {1, 2, 5, 40}) {
    const std::string allowed = "; allowed: each index 0 .. " + std::to_string(threads - 1) + " once";
    for (const std::int64_t index : {0, threads / 2, threads - 1}) {
      const std::string name = std::to_string(index);
      EXPECT_EQ(host_error({Fault::loses, index}, threads),
                "parallel_for returned without index " + name + allowed);
      for (const Fault fault : {Fault::repeats, Fault::repeats_at_once}) {
        EXPECT_EQ(host_error({fault, index}, threads), "parallel_for ran index " + name + " twice" + allowed);
      }
    }
    EXPECT_EQ(host_error({Fault::out_of_range, threads - 1}, threads),
              "parallel_for ran index " + std::to_string(threads) + allowed);
  }
}

TEST(Workers, AHostIsCalledWithTheNumberOfThreads) {
  struct Counts {
    std::int64_t calls = 0, n = 0;
  } counts;
  const ParallelFor host = [](void* context, std::int64_t n, api_test::Body body, void* argument) {
    auto& own = *static_cast<Counts*>(context);
    ++own.calls;
    own.n = n;
    api_test::in_order(nullptr, n, body, argument);
  };
  Workers workers(7, host, &counts);
  workers.start();
  EXPECT_EQ(counts.calls, 0);
  workers.each(3, [](const Task&) {});
  EXPECT_EQ(counts.calls, 1);
  EXPECT_EQ(counts.n, 7);
}

// What a body throws arrives once, on the calling thread, the region stops, and the next one runs as ever.
TEST(Workers, TheExceptionOfATaskStopsItsRegion) {
  for (const Host& host : hosts()) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(host.name);
      Workers workers(threads, host.parallel_for, host.context);
      for (const std::int64_t bad : {0, 500, 999}) {
        std::atomic<std::int64_t> after = 0;
        std::atomic<bool> thrown = false;
        try {
          workers.each(1000, [&](const Task& task) {
            if (task.index == bad) {
              thrown = true;
              throw std::runtime_error("task " + std::to_string(task.index));
            }
            if (thrown) ++after;
          });
          ADD_FAILURE() << "no exception";
        } catch (const std::runtime_error& error) {
          EXPECT_EQ(error.what(), "task " + std::to_string(bad));
        }
        if (threads == 1) {
          EXPECT_EQ(after, 0);
        }
        std::atomic<std::int64_t> ran = 0;
        workers.each(1000, [&](const Task&) { ++ran; });
        EXPECT_EQ(ran, 1000);
      }
      // All tasks throw: one exception arrives, and at most one task a thread was begun.
      std::atomic<int> begun = 0;
      EXPECT_THROW(workers.each_in_turn(1000,
                                        [&](const Task&) {
                                          ++begun;
                                          throw std::runtime_error("all");
                                        }),
                   std::runtime_error);
      EXPECT_LE(begun, threads);
    }
  }
}

// A task of another thread waits until the caller was told to stop: it must be the last one of that thread.
TEST(Workers, AnInterruptStopsAllThreads) {
  for (const Host& host : hosts()) {
    if (host.parallel_for == api_test::in_order || host.parallel_for == api_test::in_reverse) continue;
    SCOPED_TRACE(host.name);
    const auto caller = std::this_thread::get_id();
    Workers workers(2, host.parallel_for, host.context);
    std::atomic<bool> begun = false;
    std::atomic<int> asked = 0;
    const Interrupt interrupt = [&] {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++asked;
      return begun.load();
    };
    workers.enter_layer(4, interrupt);
    std::atomic<std::int64_t> ran = 0;
    try {
      workers.each(100'000, [&](const Task&) {
        begun = true;
        ++ran;
      });
      // The host gave the caller no share, so nobody asked between tasks.
      EXPECT_NE(host.parallel_for, nullptr);
      EXPECT_EQ(asked, 1);
      EXPECT_EQ(ran, 100'000);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::interrupted);
      EXPECT_STREQ(error.what(), "attend() of layer 4 was interrupted; allowed: abort() or reset()");
      EXPECT_LT(ran, 100'000);
    }
    // The region after it asks before it begins.
    ran = 0;
    EXPECT_THROW(workers.each(10, [&](const Task&) { ++ran; }), Error);
    EXPECT_EQ(ran, 0);
    workers.enter_layer(4, {});
  }
}

TEST(Workers, ShortTasksAskOnceARegion) {
  Workers workers(1, nullptr, nullptr);
  int asked = 0;
  const Interrupt interrupt = [&] {
    ++asked;
    return false;
  };
  workers.enter_layer(0, interrupt);
  workers.each(
      100, [](const Task&) {}, Workers::Asks::at_start);
  EXPECT_EQ(asked, 1);
  workers.each(100, [](const Task&) {});
  EXPECT_EQ(asked, 102);
  workers.each_in_turn(100, [](const Task&) {});
  EXPECT_EQ(asked, 203);
  workers.each(0, [](const Task&) {});
  EXPECT_EQ(asked, 203);
}

}  // namespace
}  // namespace headwater::cpu
