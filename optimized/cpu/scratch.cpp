#include "cpu/scratch.hpp"

#include <algorithm>

namespace headwater::cpu {

std::int64_t group_rows(std::int64_t n) {
  const std::int64_t share = (n + kMaxGroups - 1) / kMaxGroups;
  const std::int64_t blocks = (share + kBlockRows - 1) / kBlockRows;
  return std::max(kGroupRows, blocks * kBlockRows);
}

Scratch::Scratch(const ScratchShape& shape)
    : rows(core::checked_product(kBlockRows, shape.d)),
      packed(core::checked_product(kGroupRows, shape.d)),
      keys(core::checked_product(shape.wide_keys, shape.d)),
      values(core::checked_product(shape.wide_keys, shape.dv)),
      block(core::checked_product(shape.block_keys, kBlockRows)),
      out(core::checked_product(kGroupRows, shape.dv)),
      segment_max(core::checked_product((shape.block_keys + shape.segment_keys - 1) / shape.segment_keys,
                                        kBlockRows)),
      states(kGroupRows / kBlockRows),
      order_keys(shape.candidates),
      chosen(shape.memory) {}

std::int64_t Scratch::bytes() const {
  return rows.bytes() + packed.bytes() + keys.bytes() + values.bytes() + block.bytes() + out.bytes() +
         segment_max.bytes() + states.bytes() + order_keys.bytes() + chosen.bytes();
}

}  // namespace headwater::cpu
