#pragma once

#include <memory>

namespace headwater::cpu {

/// The threads of a session that no host lends its own (HOST-1). The build's option HEADWATER_THREADS says whose they are:
/// OpenMP's (own_threads_openmp.cpp), or the calling thread's team (own_threads_team.cpp) in a process that must not get a
/// second OpenMP runtime. Used by one thread at a time; several of these work at once.
class OwnThreads {
 public:
  /// The work of one of `threads` threads.
  using Share = void (*)(const void* argument, int thread, int threads);

  /// Up to `threads` threads at a time, 1 .. 512.
  explicit OwnThreads(int threads);
  ~OwnThreads();
  OwnThreads(const OwnThreads&) = delete;
  OwnThreads& operator=(const OwnThreads&) = delete;

  /// Calls share(argument, t, n) once for each t in 0 .. n - 1, where n is at most `threads`, and returns when all have. The
  /// calling thread has one of them, or more. A share does not throw.
  void run(Share share, const void* argument);

  /// What a session gets that asks for no number: all processors, or OMP_NUM_THREADS.
  static int default_count();
  /// Whether run() may allocate memory, so that NUM-4 cannot be promised.
  static bool allocate();

 private:
  struct Pool;
  int threads_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace headwater::cpu
