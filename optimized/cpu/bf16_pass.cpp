// The passes in BF16 arithmetic: calls whose Q, K and V are all BF16, on processors with BF16 products.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/numbers.hpp"
#include "cpu/cpu_session.hpp"
#include "cpu/gather.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

constexpr double kLog2E = std::numbers::log2e;

/// Natural units to units of ln 2.
float binary(float logit) { return static_cast<float>(static_cast<double>(logit) * kLog2E); }

const std::uint16_t* elements(const void* rows) { return static_cast<const std::uint16_t*>(rows); }

}  // namespace

std::int64_t CpuSession::packed_row(const Window& window, const Chunk& chunk) const {
  const std::int64_t index = &chunk - window.chunks.data();
  return index * padded(std::min(options().chunk, shape().capacity), kKeyTile);
}

void CpuSession::pack_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                           std::int64_t at) {
  if (first > 0 && HEADWATER_SABOTAGE("cpu.bf16.stale_packed_rows")) return;
  const std::int64_t row = head_kv * packed_rows_ + at;
  pack_values(*bf16_, kv_.value(layer, head_kv, first), n, kv_.d_value(),
              packed_values_.data() + row * padded(kv_.d_value(), bf16_->dv_multiple));
  if (packed_keys_.size() == 0) return;
  pad_keys(*bf16_, kv_.key(layer, head_kv, first), n, kv_.d_head(),
           packed_keys_.data() + row * padded(kv_.d_head(), bf16_->d_multiple));
}

CpuSession::Bf16Rows CpuSession::packed_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first,
                                             std::int64_t at) const {
  const std::int64_t row = head_kv * packed_rows_ + at;
  const std::int64_t d_padded = padded(kv_.d_head(), bf16_->d_multiple);
  return {packed_keys_.size() == 0 ? elements(kv_.key(layer, head_kv, first))
                                   : packed_keys_.data() + row * d_padded,
          d_padded, packed_values_.data() + row * padded(kv_.d_value(), bf16_->dv_multiple)};
}

void CpuSession::gather_bf16_rows(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions,
                                  std::int64_t n, Scratch& scratch) const {
  const std::int64_t d_padded = padded(kv_.d_head(), bf16_->d_multiple);
  const std::int64_t dv = kv_.d_value();
  const std::int64_t dv_padded = padded(dv, bf16_->dv_multiple);
  const std::int64_t stale = HEADWATER_SABOTAGE("cpu.bf16.stale_gathered_row") ? 0 : -1;
  const std::uint16_t* values[kKeyTile] = {};
  for_gathered(kv_, layer, head_kv, positions, n, [&](std::int64_t i, const void* key, const void* value) {
    if (i != stale) pad_keys(*bf16_, key, 1, kv_.d_head(), scratch.keys16.data() + i * d_padded);
    const std::int64_t row = i % kKeyTile;
    values[row] = elements(value);
    if (row + 1 < kKeyTile &&
        (i + 1 < n || (n > 256 && HEADWATER_SABOTAGE("cpu.bf16.partial_tile_beyond_256"))))
      return;
    bf16_->pack_values(values, row + 1, dv, dv_padded, scratch.values16.data() + (i - row) * dv_padded);
  });
}

CpuSession::Bf16Rows CpuSession::gathered_rows(const Scratch& scratch) const {
  return {scratch.keys16.data(), padded(kv_.d_head(), bf16_->d_multiple), scratch.values16.data()};
}

Bf16Segment CpuSession::bf16_segment(std::int64_t head, const Bf16Rows& rows) const {
  Bf16Segment segment;
  segment.keys = rows.keys;
  segment.key_stride = rows.key_stride;
  segment.d = padded(kv_.d_head(), bf16_->d_multiple);
  segment.factor = static_cast<float>(options().scale * kLog2E);
  const LogitMap map = logit_map(head);
  segment.map = {binary(map.softcap), binary(map.slope)};
  return segment;
}

CpuSession::PassResult CpuSession::bf16_block(const Call& call, const PassBlock& block, const Bf16Rows& rows,
                                              Scratch& scratch) {
  const std::int64_t dv = kv_.d_value();
  const std::int64_t dv_padded = padded(dv, bf16_->dv_multiple);
  Bf16Segment segment = bf16_segment(block.head, rows);
  segment.queries = scratch.packed16.data();
  segment.n_keys = block.n_keys;
  segment.positions = {block.row, block.first_key, block.gathered};
  segment.ahead = block.ahead.data();
  segment.n_ahead = std::ssize(block.ahead);
  if (HEADWATER_SABOTAGE("cpu.bf16.one_future_key")) ++segment.positions.first_row;
  if (block.n_keys > 1 && HEADWATER_SABOTAGE("cpu.bf16.tail_key_dropped")) --segment.n_keys;
  if (!block.loaded) {
    load_queries(*bf16_, call.q, block.row - call.base, block.rows, block.head, kv_.d_head(),
                 scratch.packed16.data());
  }

  const Bf16Block attention{*bf16_, block.rows, binary(block.sink), scratch.softmax16.data()[0],
                            scratch.transposed.data()};
  // The same segments in the same order as in the dense pass, for the same bits (STATE-3); all weights stay for the
  // column sums.
  const auto segment_from = [&](std::int64_t first) {
    Bf16Segment part = segment;
    std::int64_t key_at = first * part.key_stride;
    if (HEADWATER_SABOTAGE("cpu.bf16.key_offset_in_16_bits")) key_at &= 0xFFFF;
    part.keys += key_at;
    part.n_keys = std::min(kBf16SegmentKeys, segment.n_keys - first);
    part.positions.first_key += first;
    if (part.positions.gathered) part.positions.gathered += first;
    return part;
  };
  const std::int64_t last_segment = (segment.n_keys - 1) / kBf16SegmentKeys * kBf16SegmentKeys;
  const auto attend = [&] {
    for (std::int64_t first = last_segment; first >= 0; first -= kBf16SegmentKeys) {
      const Bf16Segment part = segment_from(first);
      std::uint16_t* weights = scratch.weights16.data() + first * kBlockRows;
      bf16_->weigh(part, attention.softmax, weights);
      const bool swapped = part.n_keys > 2 * kKeyTile && HEADWATER_SABOTAGE("cpu.bf16.swapped_tile");
      const bool lost = segment.n_keys >= 768 && first == last_segment && part.n_keys > kKeyTile &&
                        HEADWATER_SABOTAGE("cpu.bf16.last_tile_of_24");
      attention.accumulate(weights + (swapped ? kTileWeights : 0),
                           key_tiles(part.n_keys) - (swapped || lost ? 1 : 0),
                           rows.values + first * dv_padded, dv_padded);
    }
    return attention.finish(dv, block.out);
  };
  attention.start();
  if (const std::uint32_t failed = attend(); failed != 0) {
    alignas(64) float highest[kBlockRows];
    std::fill_n(highest, kBlockRows, -std::numeric_limits<float>::infinity());
    bf16_->raise_to_highest(segment, highest);
    attention.restart(failed, highest);
    (void)attend();
  }

  alignas(64) float factor[kBlockRows];
  attention.factors(attention.softmax.sum, factor);
  if (HEADWATER_SABOTAGE("cpu.bf16.colsum_skips_last_row")) factor[block.rows - 1] = 0.0f;
  bf16_->column_sums(scratch.weights16.data(), block.n_keys, factor, block.sums);
  return {attention.softmax.offset, attention.softmax.sum};
}

/// Rows [begin, end) within one run of kGroupRows positions.
void CpuSession::dense_bf16_group(const Call& call, std::int64_t head, std::int64_t begin, std::int64_t end,
                                  Scratch& scratch) {
  const std::int64_t dv = kv_.d_value();
  const std::int64_t dv_padded = padded(dv, bf16_->dv_multiple);
  const std::int64_t d_padded = padded(kv_.d_head(), bf16_->d_multiple);
  // Blocks end at multiples of kBlockRows, and so at ends of tiles: every row finds its own key, and thus an anchor, in
  // the first tile that its block computes.
  const auto index_of = [&](std::int64_t row) { return row / kBlockRows - begin / kBlockRows; };
  const auto next = [&](std::int64_t row) {
    return std::min(row / kBlockRows * kBlockRows + kBlockRows, end);
  };
  const auto block_at = [&](std::int64_t row) {
    const std::int64_t index = index_of(row);
    return Bf16Block{*bf16_, next(row) - row, binary(sink(head)), scratch.softmax16.data()[index],
                     scratch.transposed.data() + index * kBlockRows * dv_padded};
  };
  // Keys [first, last) as the block at `row` sees them.
  const auto segment_at = [&](std::int64_t row, std::int64_t first, std::int64_t last) {
    const Bf16Rows rows = packed_rows(call.layer, kv_head(head), first, first);
    Bf16Segment segment = bf16_segment(head, rows);
    segment.queries = scratch.packed16.data() + index_of(row) * kBlockRows * d_padded;
    segment.n_keys = std::min(last, row + block_at(row).rows) - first;
    segment.positions = {row, first, nullptr};
    return segment;
  };
  const auto add_segment = [&](std::int64_t row, std::int64_t first, std::int64_t last) {
    const Bf16Segment segment = segment_at(row, first, last);
    if (segment.n_keys <= 0) return;
    const Bf16Block block = block_at(row);
    bf16_->weigh(segment, block.softmax, scratch.weights16.data());
    block.accumulate(scratch.weights16.data(), key_tiles(segment.n_keys),
                     packed_rows(call.layer, kv_head(head), first, first).values, dv_padded);
  };
  const std::int64_t segments = (end + kBf16SegmentKeys - 1) / kBf16SegmentKeys;

  for (std::int64_t row = begin; row < end; row = next(row)) {
    const Bf16Block block = block_at(row);
    load_queries(*bf16_, call.q, row - call.base, block.rows, head, kv_.d_head(),
                 scratch.packed16.data() + index_of(row) * kBlockRows * d_padded);
    block.start();
  }
  // Segments outside, from the last, which holds the anchors; blocks inside, while its rows are in the cache.
  const bool lost = HEADWATER_SABOTAGE("cpu.bf16.dense_first_segment") ||
                    (end > 4096 && HEADWATER_SABOTAGE("cpu.bf16.dense_oldest_segment_beyond_4096"));
  const std::int64_t first_segment = lost && segments > 1 ? 1 : 0;
  for (std::int64_t s = segments; s-- > first_segment;) {
    for (std::int64_t row = begin; row < end; row = next(row)) {
      add_segment(row, s * kBf16SegmentKeys, std::min((s + 1) * kBf16SegmentKeys, end));
    }
  }
  for (std::int64_t row = begin; row < end; row = next(row)) {
    const Bf16Block block = block_at(row);
    if (const std::uint32_t failed = block.finish(dv, scratch.out.data()); failed != 0) {
      alignas(64) float highest[kBlockRows];
      std::fill_n(highest, kBlockRows, -std::numeric_limits<float>::infinity());
      for (std::int64_t first = 0; first < end; first += kBf16SegmentKeys) {
        const Bf16Segment segment = segment_at(row, first, std::min(first + kBf16SegmentKeys, end));
        if (segment.n_keys > 0) bf16_->raise_to_highest(segment, highest);
      }
      block.restart(failed, highest);
      for (std::int64_t s = segments; s-- > 0;) {
        add_segment(row, s * kBf16SegmentKeys, std::min((s + 1) * kBf16SegmentKeys, end));
      }
      (void)block.finish(dv, scratch.out.data());
    }
    for (std::int64_t r = 0; r < block.rows; ++r) {
      store_row(call, row + r, head, scratch.out.data() + r * dv);
      lse_.data()[head * shape().capacity + (row + r - call.base)] =
          static_cast<float>(std::numbers::ln2 * static_cast<double>(block.softmax.offset[r]) +
                             std::log(static_cast<double>(block.softmax.sum[r])));
    }
  }
}

}  // namespace headwater::cpu
