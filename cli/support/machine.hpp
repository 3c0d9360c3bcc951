#pragma once

#include <cstdint>
#include <string>

namespace headwater::cli {

/// Physical memory in bytes, or the limit of the control group where that is lower.
[[nodiscard]] std::uint64_t memory_limit();

/// Threads that this process can keep busy: the processor cores that it may run on, or fewer where its control group, or
/// one above it, has a quota of processor time. A quota of 1.5 cores is worth two threads. `root` stands before the
/// paths of /proc and /sys; what is missing or makes no sense there limits nothing.
[[nodiscard]] int usable_cores(const std::string& root = "");

/// To be called before anything else: threads that wait sleep (OMP_WAIT_POLICY=passive), and by default there are
/// usable_cores() of them (OMP_NUM_THREADS), for this program and for those that it becomes. Where the environment says
/// otherwise (GOMP_SPINCOUNT counts as a policy), that stays. The OpenMP runtime reads its variables before main(), so
/// the program starts itself anew, once; where it cannot, it goes on as it is.
void settle_threads(char** argv);

}  // namespace headwater::cli
