#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

namespace headwater {

/// What each of several threads does; thread: 0 .. threads - 1, no two at once have the same. It does not throw.
using Share = void (*)(void* argument, int thread);

/// Calls share(argument, 0) on the calling thread, and share(argument, t) on up to threads - 1 others that come while it
/// runs; returns when all of them have returned. Whether any other comes is not defined. They are the calling thread's
/// own and sleep between calls, whatever OpenMP's are told to do (docs/adr/0022-threads-of-the-program.md). Within a
/// share, and for one thread, it is the call alone.
void run_on_threads(int threads, Share share, void* argument);

/// Calls work(task, thread) for every task 0 .. tasks - 1 on up to `threads` threads, in any order; rethrows the first
/// exception. Which thread does a task is not defined; its result must not depend on it.
template <typename Work>
void parallel_tasks(int threads, std::int64_t tasks, const Work& work) {
  struct Region {
    const Work& work;
    std::int64_t tasks;
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr failure = nullptr;  // written once, by who has set `failed`
  } region{work, tasks};
  run_on_threads(
      static_cast<int>(std::min<std::int64_t>(threads, tasks)),
      [](void* argument, int thread) {
        Region& own = *static_cast<Region*>(argument);
        while (!own.failed.load(std::memory_order_relaxed)) {
          const std::int64_t task = own.next.fetch_add(1, std::memory_order_relaxed);
          if (task >= own.tasks) return;
          try {
            own.work(task, thread);
          } catch (...) {
            if (!own.failed.exchange(true)) own.failure = std::current_exception();
          }
        }
      },
      &region);
  if (region.failure) std::rethrow_exception(region.failure);
}

/// The same threads for the attention of sessions (HOST-1): those of two pools would get in each other's way.
inline void lend_threads(void* /*context*/, std::int64_t n, void (*body)(void*, std::int64_t),
                         void* argument) {
  parallel_tasks(static_cast<int>(n), n, [&](std::int64_t task, int) { body(argument, task); });
}

}  // namespace headwater
