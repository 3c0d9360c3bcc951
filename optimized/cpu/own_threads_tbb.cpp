#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "cpu/own_threads.hpp"

namespace headwater::cpu {

/// An arena of its own: while the calling thread waits it takes shares of this region only, never another caller's work,
/// and no other caller takes its place there.
struct OwnThreads::Pool {
  tbb::task_arena arena;
};

OwnThreads::OwnThreads(int threads) : threads_(threads) {
  // oneTBB warns on stderr of an arena that asks for more threads than there are processors.
  const int at_once = std::min(threads, tbb::info::default_concurrency());
  if (threads > 1) pool_ = std::make_unique<Pool>(Pool{tbb::task_arena(at_once)});
}
OwnThreads::~OwnThreads() = default;

void OwnThreads::run(Share share, const void* argument) {
  // One thread needs no oneTBB, whose threads a child of fork() lacks.
  if (!pool_) {
    share(argument, 0, 1);
    return;
  }
  // Who computes a share does not matter (NUM-3), so stealing is free to choose; what a share is follows from its number.
  pool_->arena.execute([&] {
    tbb::parallel_for(
        0, threads_, [&](int thread) { share(argument, thread, threads_); }, tbb::simple_partitioner{});
  });
}

int OwnThreads::default_count() {
  // As OpenMP reads it: the first number of a list.
  const char* const wished = std::getenv("OMP_NUM_THREADS");
  const std::string_view text = wished ? wished : "";
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool number = error == std::errc{} && (end == text.data() + text.size() || *end == ',');
  return number && threads > 0 ? threads : tbb::info::default_concurrency();
}
bool OwnThreads::allocate() { return true; }

}  // namespace headwater::cpu
