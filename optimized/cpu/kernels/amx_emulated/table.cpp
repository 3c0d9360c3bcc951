#ifdef HEADWATER_TESTING

#include "cpu/kernels/amx_emulated/kernels.hpp"

namespace headwater::cpu {

const Bf16Table& amx_emulated_kernels() {
  static constexpr Bf16Table table = HEADWATER_BF16_TABLE(amx_emulated, "AMX-BF16 emulated", 32, 16);
  return table;
}

}  // namespace headwater::cpu

#endif
