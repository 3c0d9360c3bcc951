#include "cli/commands/bench/clock.hpp"

#include <ctime>

namespace headwater::bench {

namespace {

double read(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Seconds seconds_now() { return {read(CLOCK_MONOTONIC), read(CLOCK_PROCESS_CPUTIME_ID)}; }

}  // namespace headwater::bench
