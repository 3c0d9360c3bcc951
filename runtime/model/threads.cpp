#include "runtime/model/threads.hpp"

#include <omp.h>

#include <algorithm>

namespace headwater::runtime {

int default_threads() { return std::min(omp_get_max_threads(), kMostThreads); }

}  // namespace headwater::runtime
