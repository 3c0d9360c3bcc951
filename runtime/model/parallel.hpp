#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <exception>

namespace headwater::runtime {

/// Calls work(task, thread) for every task 0 .. tasks - 1 on up to `threads` threads, in any order; rethrows the first
/// exception. Which thread does a task is not defined; its result must not depend on it.
template <typename Work>
void parallel_tasks(int threads, std::int64_t tasks, const Work& work) {
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1 && tasks > 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      work(task, omp_get_thread_num());
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

/// The same threads for the attention of sessions (HOST-1), where the library was built to have others
/// (HEADWATER_THREADS): those of one pool would wait actively where the other's should work.
inline void lend_threads(void* /*context*/, std::int64_t n, void (*body)(void*, std::int64_t),
                         void* argument) {
  parallel_tasks(static_cast<int>(n), n, [&](std::int64_t task, int) { body(argument, task); });
}

}  // namespace headwater::runtime
