#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "cpu/own_threads.hpp"
#include "headwater/options.hpp"
#include "headwater/session.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

/// The threads of a session, the library's own (OwnThreads) or the host's (HOST-1). They work in regions: the tasks
/// 0 .. n - 1 are dealt out by their numbers alone, and a region ends when all of them are done, so that what one region
/// wrote the next may read.
///
/// A task that throws stops its region soon: no thread begins another task, and the first exception is thrown on the
/// calling thread. So does the caller's interrupt (INTR-1), which is asked on the calling thread only.
class Workers {
 public:
  struct Task {
    std::int64_t index;
    int thread;  ///< 0 .. threads - 1: no other task has this number at the same time
    bool first;  ///< of this thread in the region
  };
  /// How often the interrupt is asked: a region of short tasks asks before them alone.
  enum class Asks : std::uint8_t { at_start, before_tasks };

  /// host null: the library's own threads. Takes all memory that the regions need.
  Workers(int threads, ParallelFor host, void* context);
  /// As many threads of the same kind.
  Workers(const Workers& other) : Workers(other.threads_, other.host_, other.context_) {}

  /// Starts the library's own threads, where they are used, so that no call has to (NUM-4).
  void start();
  /// The regions that follow belong to attend() of this layer, on this thread. The interrupt, which may be empty, must
  /// outlive them.
  void enter_layer(std::int64_t layer, const Interrupt& interrupt);
  /// For a task in a region of other workers: asks the interrupt on the calling thread, which throws where it is to stop.
  void ask_between_tasks() const {
    if (on_caller() && !HEADWATER_SABOTAGE("cpu.interrupt.asked_at_start_alone")) ask();
  }
  /// Whether regions of these may be those of others, too.
  [[nodiscard]] bool same_threads(const Workers& other) const {
    return threads_ == other.threads_ && host_ == other.host_ && context_ == other.context_;
  }

  /// Calls body(task) for n tasks; consecutive ones go to one thread. Errors: `internal` where the host lost an index or
  /// repeated one, `interrupted`, and what the interrupt or a body throws.
  template <class Body>
  void each(std::int64_t n, const Body& body, Asks asks = Asks::before_tasks) {
    run({*this, n, &body,
         [](const Region& region, int thread, int threads) {
           const std::int64_t share = region.n / threads;
           const std::int64_t left = region.n % threads;
           const std::int64_t begin = thread * share + std::min<std::int64_t>(thread, left);
           std::int64_t end = begin + share + (thread < left ? 1 : 0);
           if (HEADWATER_SABOTAGE("cpu.workers.share_of_512_tasks")) end = std::min(end, begin + 512);
           region.work<Body>(begin, end, 1, thread);
         },
         asks});
  }

  /// The same, dealt out one by one: thread t has the tasks t, t + threads, ...
  template <class Body>
  void each_in_turn(std::int64_t n, const Body& body, Asks asks = Asks::before_tasks) {
    run({*this, n, &body,
         [](const Region& region, int thread, int threads) {
           region.work<Body>(thread, region.n, threads, thread);
         },
         asks});
  }

  /// Tasks of several jobs in one region: body(job, task) for the tasks 0 .. tasks(job) - 1 of each. Tasks of one job are
  /// of one length, those of several need not be. Where there are many, task i of all jobs runs on one thread, so that what
  /// they read in common is in its cache. No interrupt is asked between tasks: a body may ask its job's.
  template <class Job, class Tasks, class Body>
  void each_of(std::span<const Job> jobs, const Tasks& tasks, const Body& body) {
    std::int64_t n = 0;
    std::int64_t most = 0;
    for (const Job& job : jobs) {
      n += tasks(job);
      most = std::max<std::int64_t>(most, tasks(job));
    }
    const auto run_task = [&](const Task& task) {
      std::int64_t index = task.index;
      std::size_t job = 0;
      for (; index >= tasks(jobs[job]); ++job) index -= tasks(jobs[job]);
      body(jobs[job], Task{index, task.thread, task.first});
    };
    if (jobs.size() == 1) {
      each(n, run_task, Asks::at_start);
    } else if (most % threads_ == 0 || most >= 8 * threads_) {
      const auto run_together = [&](const Task& task) {
        bool first = task.first;
        for (const Job& job : jobs) {
          if (task.index >= tasks(job)) continue;
          body(job, Task{task.index, task.thread, first});
          first = false;
        }
      };
      each_in_turn(most, run_together, Asks::at_start);
    } else {
      each_in_turn(n, run_task, Asks::at_start);
    }
  }

 private:
  struct Region {
    Workers& workers;
    std::int64_t n;
    const void* body;
    /// The tasks of one of `threads` threads.
    void (*share)(const Region& region, int thread, int threads);
    Asks asks;

    template <class Body>
    void work(std::int64_t begin, std::int64_t end, std::int64_t step, int thread) const {
      for (std::int64_t task = begin; task < end && !workers.stopped(); task += step) {
        if (asks == Asks::before_tasks) workers.ask_between_tasks();
        (*static_cast<const Body*>(body))(Task{task, thread, task == begin});
      }
    }
  };

  void run(const Region& region);
  void run_on_host(const Region& region);
  /// The share of a thread; what it throws stops the region.
  void run_share(const Region& region, int thread, int threads);
  /// Stops the region with this exception, unless another one did.
  void stop(std::exception_ptr error);
  [[nodiscard]] bool stopped() const {
    return stopped_.load(std::memory_order_relaxed) && !HEADWATER_SABOTAGE("cpu.interrupt.others_go_on");
  }
  [[nodiscard]] bool on_caller() const { return interrupt_ && std::this_thread::get_id() == caller_; }
  /// Throws where the answer is to stop.
  void ask() const;

  int threads_;
  ParallelFor host_;
  void* context_;
  std::unique_ptr<OwnThreads> own_;       // null: the host's
  const Interrupt* interrupt_ = nullptr;  // null: none
  std::int64_t layer_ = 0;

  std::thread::id caller_;

  // Of the region that runs.
  unsigned float_controls_ = 0;  // the caller's MXCSR, which all threads take over
  std::atomic<bool> stopped_ = false;
  std::exception_ptr error_;                // written once, by who stopped the region
  std::vector<std::atomic<bool>> indexes_;  // those that the host has run
};

}  // namespace headwater::cpu
