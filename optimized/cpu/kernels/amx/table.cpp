#include "cpu/kernels/amx/kernels.hpp"

namespace headwater::cpu {

const Bf16Table& amx_kernels() {
  static constexpr Bf16Table table = HEADWATER_BF16_TABLE(amx, "AMX-BF16", 32, 16);
  return table;
}

}  // namespace headwater::cpu
