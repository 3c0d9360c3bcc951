#pragma once

#include <functional>
#include <string>

namespace headwater::conformance {

/// The outcome of work that was done in a process of its own.
struct ChildEnd {
  enum class How {
    finished,   ///< the work returned: `result` is what it returned
    signalled,  ///< killed by signal `number`
    exited,     ///< the process ended with status `number`, but the work never returned
    timed_out,  ///< killed when its time was over
  };
  How how = How::exited;
  int number = 0;
  std::string result;
  std::string output;  ///< the last few kB of what it wrote to standard output and standard error

  /// "" for finished work; else one line: "crashed: killed by signal 11 (Segmentation fault)".
  [[nodiscard]] std::string trouble(double time_limit) const;
};

/// Forks, runs `work` in the child and waits at most `time_limit` seconds (wall clock) for its result. Whatever `work`
/// does to its process (crash, hang, exit, stray threads and children, closed files), the caller goes on.
///
/// The caller must be single-threaded and must not have used OpenMP: a forked copy of an OpenMP runtime hangs as soon as
/// it needs the threads that were not copied. So a program that isolates work computes nothing itself. The child has
/// no standard input and dies with its parent. Errors: headwater::Error out_of_memory where no process can be made.
[[nodiscard]] ChildEnd run_in_child(const std::function<std::string()>& work, double time_limit);

}  // namespace headwater::conformance
