#pragma once

#include <cstdint>

namespace headwater::cli {

/// Physical memory in bytes, or the limit of the control group where that is lower.
[[nodiscard]] std::uint64_t memory_limit();

/// Processor cores that this process may run on.
[[nodiscard]] int usable_cores();

}  // namespace headwater::cli
