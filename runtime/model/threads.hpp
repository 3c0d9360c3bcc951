#pragma once

namespace headwater::runtime {

/// The most threads of a session and of products (Options::threads).
inline constexpr int kMostThreads = 512;

/// As many threads as OpenMP would use (OMP_NUM_THREADS, else all cores), and kMostThreads at most: a larger machine is no
/// error where nobody asked for a number.
int default_threads();

}  // namespace headwater::runtime
