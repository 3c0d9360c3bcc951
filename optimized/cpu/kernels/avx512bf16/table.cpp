#include "cpu/kernels/avx512bf16/kernels.hpp"

namespace headwater::cpu {

const Bf16Table& avx512bf16_kernels() {
  static constexpr Bf16Table table = [] {
    Bf16Table kernels = HEADWATER_BF16_TABLE(avx512bf16, "AVX512_BF16", 2, 1);
    kernels.row_logits = avx512bf16::row_logits;
    return kernels;
  }();
  return table;
}

}  // namespace headwater::cpu
