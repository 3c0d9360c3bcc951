#include <omp.h>

#include "cpu/own_threads.hpp"

namespace headwater::cpu {

struct OwnThreads::Pool {};  // OpenMP's is the process's

OwnThreads::OwnThreads(int threads) : threads_(threads) {}
OwnThreads::~OwnThreads() = default;

void OwnThreads::run(Share share, const void* argument) {
#pragma omp parallel num_threads(threads_)
  share(argument, omp_get_thread_num(), omp_get_num_threads());
}

int OwnThreads::default_count() { return omp_get_max_threads(); }
bool OwnThreads::allocate() { return false; }

}  // namespace headwater::cpu
