#include "optimized/threads/team.hpp"

#include <immintrin.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

namespace headwater {

namespace {

/// Looks at what is waited for so often before the thread sleeps: about as long as to wake it takes. A decode step's
/// regions follow each other sooner; where cores are shared, a longer look keeps a partner from its core.
constexpr int kLooks = 500;

/// Waits until value is not `old`; what it is then.
std::uint32_t wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int look = 0; look < kLooks; ++look) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

/// The threads of one calling thread. A region is open while its gate has places; who takes one is inside until its share
/// returns. The caller takes part, closes the gate and waits for those inside, never for one that has not come: on a busy
/// machine it would wait for a core.
class Team {
 public:
  Team() : process_(getpid()) {}
  ~Team() {
    if (process_ != getpid()) {
      // A child of fork() has none of them, and by their names it may have begun others: they are left as they are.
      (void)threads_.release();
      return;
    }
    stopping_.store(true, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
    for (std::thread& thread : *threads_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void run(int threads, Share share, void* argument) {
    const auto others = static_cast<std::uint32_t>(threads - 1);
    start(others);
    share_ = share;
    argument_ = argument;
    places_ = others;
    gate_.store(others * kPlace, std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
    share(argument, 0);
    for (std::uint32_t inside = gate_.fetch_and(kPlace - 1, std::memory_order_acq_rel) & (kPlace - 1);
         inside != 0;) {
      inside = wait_while(gate_, inside);
    }
  }

 private:
  /// As many threads as there can be.
  void start(std::uint32_t others) {
    while (threads_->size() < others && process_ == getpid()) {
      try {
        threads_->emplace_back([this] { serve(); });
      } catch (const std::exception&) {  // no thread, or no memory for one: the caller does its work
        return;
      }
    }
  }

  void serve();

  /// The gate counts threads inside, and above them places.
  static constexpr std::uint32_t kPlace = 1U << 16U;

  std::atomic<std::uint32_t> calls_{0};
  std::atomic<std::uint32_t> gate_{0};
  std::atomic<bool> stopping_{false};
  // Of the open region: written while the gate is closed and nobody is inside.
  Share share_ = nullptr;
  void* argument_ = nullptr;
  std::uint32_t places_ = 0;

  pid_t process_;
  std::unique_ptr<std::vector<std::thread>> threads_ = std::make_unique<std::vector<std::thread>>();
};

/// Whether this thread runs a share.
thread_local bool t_inside = false;

void Team::serve() {
  t_inside = true;
  for (std::uint32_t seen = 0;;) {
    seen = wait_while(calls_, seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    while (gate >= kPlace && !gate_.compare_exchange_weak(gate, gate - kPlace + 1, std::memory_order_acquire,
                                                          std::memory_order_relaxed)) {
    }
    if (gate < kPlace) continue;
    share_(argument_, static_cast<int>(places_ - gate / kPlace + 1));
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
  }
}

}  // namespace

void run_on_threads(int threads, Share share, void* argument) {
  if (threads <= 1 || t_inside) {
    share(argument, 0);
    return;
  }
  thread_local Team team;
  t_inside = true;
  team.run(threads, share, argument);
  t_inside = false;
}

}  // namespace headwater
