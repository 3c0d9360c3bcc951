#include "cpu/scratch.hpp"

#include <algorithm>

namespace headwater::cpu {

static_assert(kDecodeRows <= kBlockRows, "rows and out hold the rows of a decode step");

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
      decode(kDecodeRows * kDecodeLogits),
      intra(core::checked_product(kBlockRows, shape.dv)),
      inter(core::checked_product(kBlockRows, shape.dv)),
      segment_max(core::checked_product((shape.block_keys + shape.segment_keys - 1) / shape.segment_keys,
                                        kBlockRows)),
      states(kGroupRows / kBlockRows),
      packed16(shape.bf16 ? core::checked_product(kGroupRows, shape.d_padded) : 0),
      keys16(shape.bf16 ? core::checked_product(key_tiles(shape.memory), kKeyTile, shape.d_padded) : 0),
      values16(shape.bf16 ? core::checked_product(key_tiles(shape.memory), kKeyTile, shape.dv_padded) : 0),
      weights16(shape.bf16 ? core::checked_product(key_tiles(shape.block_keys), kTileWeights) : 0),
      transposed(shape.bf16 ? core::checked_product(kGroupRows, shape.dv_padded) : 0),
      softmax16(shape.bf16 ? kGroupRows / kBlockRows : 0),
      order_keys(shape.candidates),
      chosen(shape.memory) {}

std::int64_t Scratch::bytes() const {
  return rows.bytes() + packed.bytes() + keys.bytes() + values.bytes() + block.bytes() + out.bytes() +
         decode.bytes() + intra.bytes() + inter.bytes() + segment_max.bytes() + states.bytes() +
         packed16.bytes() + keys16.bytes() + values16.bytes() + weights16.bytes() + transposed.bytes() +
         softmax16.bytes() + order_keys.bytes() + chosen.bytes();
}

}  // namespace headwater::cpu
