// Built for the baseline: naming the kernels must not need the processor that runs them.

#include "cpu/kernels/avx512/kernels.hpp"

namespace headwater::cpu {

const KernelTable& avx512_kernels() {
  static const KernelTable table = [] {
    KernelTable kernels = portable_kernels();
    kernels.segment_keys =
        256;  // 32 KiB of weights; a quarter of a second-level cache of 1 MiB with keys and values
    kernels.isa = "AVX-512";
    kernels.widen = avx512::widen;
    kernels.narrow = avx512::narrow;
    kernels.pack_queries = avx512::pack_queries;
    kernels.dot_products = avx512::dot_products;
    kernels.cap_and_bias = avx512::cap_and_bias;
    kernels.softmax = avx512::softmax;
    kernels.accumulate_values = avx512::accumulate_values;
    kernels.column_sums = avx512::column_sums;
    kernels.blend = avx512::blend;
    kernels.arrange_row = avx512::arrange_row;
    kernels.restore_row = avx512::restore_row;
    kernels.row_logits = avx512::row_logits;
    kernels.row_weights = avx512::row_weights;
    kernels.row_values = avx512::row_values;
    return kernels;
  }();
  return table;
}

}  // namespace headwater::cpu
