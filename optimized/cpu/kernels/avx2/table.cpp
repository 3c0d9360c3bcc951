// Built for the baseline: naming the kernels must not need the processor that runs them.

#include "cpu/kernels/avx2/kernels.hpp"

namespace headwater::cpu {

const KernelTable& avx2_kernels() {
  static const KernelTable table = [] {
    KernelTable kernels = portable_kernels();
    kernels.isa = "AVX2+FMA";
    kernels.widen = avx2::widen;
    kernels.narrow = avx2::narrow;
    kernels.pack_queries = avx2::pack_queries;
    kernels.dot_products = avx2::dot_products;
    kernels.cap_and_bias = avx2::cap_and_bias;
    kernels.softmax = avx2::softmax;
    kernels.accumulate_values = avx2::accumulate_values;
    kernels.column_sums = avx2::column_sums;
    kernels.blend = avx2::blend;
    kernels.arrange_row = avx2::arrange_row;
    kernels.restore_row = avx2::restore_row;
    kernels.row_logits = avx2::row_logits;
    kernels.row_weights = avx2::row_weights;
    kernels.row_values = avx2::row_values;
    return kernels;
  }();
  return table;
}

}  // namespace headwater::cpu
