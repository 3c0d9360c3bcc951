#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "headwater/options.hpp"

namespace headwater::api_test {

using Body = void (*)(void* argument, std::int64_t index);

/// Threads of a host (Options::parallel_for with this as its context). Whoever is free takes the next index, so that the
/// same index runs on another thread every time.
class ThreadPool {
 public:
  /// caller_helps false: the calling thread waits and runs no index.
  explicit ThreadPool(int threads, bool caller_helps = true) : caller_helps_(caller_helps) {
    for (int t = 0; t < threads; ++t) threads_.emplace_back([this] { work(); });
  }
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static void parallel_for(void* context, std::int64_t n, Body body, void* argument) {
    static_cast<ThreadPool*>(context)->run(n, body, argument);
  }
  [[nodiscard]] std::int64_t calls() const { return calls_; }

 private:
  void run(std::int64_t n, Body body, void* argument) {
    std::unique_lock lock(mutex_);
    ++calls_;
    body_ = body, argument_ = argument, next_ = 0, n_ = n, done_ = 0;
    changed_.notify_all();
    while (caller_helps_ && next_ < n_) run_next(lock);
    changed_.wait(lock, [&] { return done_ == n_; });
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || next_ < n_; });
      if (closing_) return;
      run_next(lock);
    }
  }
  void run_next(std::unique_lock<std::mutex>& lock) {
    const std::int64_t index = next_++;
    lock.unlock();
    body_(argument_, index);
    lock.lock();
    if (++done_ == n_) changed_.notify_all();
  }

  const bool caller_helps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  std::int64_t next_ = 0, n_ = 0, done_ = 0, calls_ = 0;
  std::vector<std::thread> threads_;
};

/// Hosts without threads.
inline void in_order(void* /*context*/, std::int64_t n, Body body, void* argument) {
  for (std::int64_t index = 0; index < n; ++index) body(argument, index);
}
inline void in_reverse(void* /*context*/, std::int64_t n, Body body, void* argument) {
  for (std::int64_t index = n; index-- > 0;) body(argument, index);
}

/// A host that breaks its contract (HOST-1) from call number `first_bad` on.
struct FaultyHost {
  enum class Fault : std::uint8_t { loses, repeats, repeats_at_once, out_of_range };
  Fault fault;
  std::int64_t index;
  std::int64_t first_bad = 0;
  std::int64_t calls = 0;

  static void parallel_for(void* context, std::int64_t n, Body body, void* argument) {
    auto& host = *static_cast<FaultyHost*>(context);
    const bool bad = host.calls++ >= host.first_bad;
    for (std::int64_t index = 0; index < n; ++index) {
      if (!bad || index != host.index) {
        body(argument, index);
        continue;
      }
      switch (host.fault) {
        case Fault::loses: break;
        case Fault::repeats:
          body(argument, index);
          body(argument, index);
          break;
        case Fault::repeats_at_once: {
          std::thread other(body, argument, index);
          body(argument, index);
          other.join();
          break;
        }
        case Fault::out_of_range:
          body(argument, index);
          body(argument, n);
          body(argument, -1);
          break;
      }
    }
  }
};

}  // namespace headwater::api_test
