#pragma once

#include <cstdint>

#include "cli/commands/bench/workload.hpp"

namespace headwater::bench {

/// Seconds that `threads` threads take to read the bytes once, each its own contiguous share: what bounds a decode step,
/// which reads every stored row once and does little with it.
[[nodiscard]] double read_seconds(const LineBytes& bytes, int threads);

}  // namespace headwater::bench
