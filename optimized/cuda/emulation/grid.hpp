#pragma once

#include "cuda/emulation/block.hpp"

namespace headwater::cuda::emulation {

/// Runs all blocks of a grid, several at a time on OpenMP's threads, and returns when they have ended. Throws Fault with
/// the failure of the first failing block in the launch's order, whatever the number of threads.
void run_grid(const Launch& launch);

}  // namespace headwater::cuda::emulation
