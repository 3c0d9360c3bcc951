#include "core/numbers.hpp"
#include "cpu/kernels/portable/kernels.hpp"

namespace headwater::cpu {

const KernelTable& portable_kernels() {
  static constexpr KernelTable table = {
      .isa = "x86-64-v2",
      .segment_keys = 1024,
      .widen = core::widen,
      .narrow = core::narrow,
      .pack_queries = portable::pack_queries,
      .dot_products = portable::dot_products,
      .cap_and_bias = portable::cap_and_bias,
      .mask_future = portable::mask_future,
      .softmax = portable::softmax,
      .accumulate_values = portable::accumulate_values,
      .column_sums = portable::column_sums,
      .blend = portable::blend,
      .arrange_row = portable::arrange_row,
      .restore_row = portable::restore_row,
      .row_logits = portable::row_logits,
      .row_weights = portable::row_weights,
      .row_values = portable::row_values,
  };
  return table;
}

}  // namespace headwater::cpu
