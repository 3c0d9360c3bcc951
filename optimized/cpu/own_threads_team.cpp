#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "cpu/own_threads.hpp"
#include "threads/team.hpp"

namespace headwater::cpu {

namespace {

/// Processors that this process may use.
int processors() {
  cpu_set_t set;
  const bool known =
      sched_getaffinity(0, sizeof set, &set) == 0;  // not where there are more than the set can hold
  return std::max(known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency()), 1);
}

}  // namespace

struct OwnThreads::Pool {};  // the calling thread's team

OwnThreads::OwnThreads(int threads) : threads_(threads) {}
OwnThreads::~OwnThreads() = default;

void OwnThreads::run(Share share, const void* argument) {
  // Which thread computes a share does not matter (NUM-3): what a share is follows from its number.
  parallel_tasks(std::min(threads_, processors()), threads_,
                 [&](std::int64_t thread, int) { share(argument, static_cast<int>(thread), threads_); });
}

int OwnThreads::default_count() {
  // As OpenMP reads it: the first number of a list.
  const char* const wished = std::getenv("OMP_NUM_THREADS");
  const std::string_view text = wished ? wished : "";
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool number = error == std::errc{} && (end == text.data() + text.size() || *end == ',');
  return number && threads > 0 ? threads : processors();
}
bool OwnThreads::allocate() { return true; }

}  // namespace headwater::cpu
