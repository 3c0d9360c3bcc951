#pragma once

#include <cstdint>

#include "cuda/emulation/fragments.hpp"

namespace headwater::cuda::emulation {

/// One lane's part of a warp operation; lives on the lane's stack while it waits.
struct ShuffleOperand {
  std::uint32_t value;
  int source;
  std::uint32_t result;
};
struct SumOperand {
  std::uint32_t value;
  std::uint32_t result;
};
struct MatrixOperand {
  std::uint32_t* registers;
  int row;  ///< byte in shared memory
};
using MmaOperand = MmaRegisters;

}  // namespace headwater::cuda::emulation
