#pragma once

#include "cpu/kernels/kernel_names.hpp"

/// Plain C++ for the baseline x86-64-v2: what every other table starts from.
HEADWATER_DECLARE_KERNELS(portable)

namespace headwater::cpu::portable {

void mask_future(const BlockPositions& positions, std::int64_t lanes, std::int64_t n_keys, float* block);

}  // namespace headwater::cpu::portable
