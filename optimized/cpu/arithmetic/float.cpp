#include "cpu/arithmetic/float.hpp"

#include <algorithm>
#include <cmath>

#include "cpu/arithmetic/float_block.hpp"
#include "cpu/prefetch.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

std::int64_t most_segment_keys(const SessionData& data) {
  return std::min(data.kernels.segment_keys, data.shape.capacity);
}

/// Keys whose weights are kept at a time.
std::int64_t most_block_keys(const SessionData& data) {
  return std::max({most_segment_keys(data), data.most_chunk_rows(), data.set_width()});
}

}  // namespace

FloatArithmetic::Scratch::Scratch(const SessionData& data, std::int64_t wide_keys, std::int64_t segment_keys,
                                  std::int64_t block_keys)
    : rows(core::checked_product(kBlockRows, data.widest.d_head)),
      packed(std::max(core::checked_product(kGroupRows, data.widest.d_head),
                      core::checked_product(kBlockRows, data.summary_width()))),
      keys(std::max(core::checked_product(wide_keys, data.widest.d_head), data.summary_width())),
      values(core::checked_product(wide_keys, data.widest.d_value)),
      border_keys(core::checked_product(segment_keys, data.widest.d_head)),
      border_values(core::checked_product(segment_keys, data.widest.d_value)),
      key_rows(in_place(data) ? data.set_width() : 0),
      value_rows(key_rows.size()),
      block(core::checked_product(block_keys, kBlockRows)),
      out(core::checked_product(kGroupRows, data.widest.d_value)),
      segment_max(core::checked_product(
          (block_keys + data.kernels.segment_keys - 1) / data.kernels.segment_keys, kBlockRows)),
      states(kGroupRows / kBlockRows) {}

std::int64_t FloatArithmetic::Scratch::bytes() const {
  return rows.bytes() + packed.bytes() + keys.bytes() + values.bytes() + border_keys.bytes() +
         border_values.bytes() + key_rows.bytes() + value_rows.bytes() + block.bytes() + out.bytes() +
         segment_max.bytes() + states.bytes();
}

FloatArithmetic::FloatArithmetic(const SessionData& data, std::int64_t window_rows)
    : data_(data), kernels_(data.kernels), window_rows_(window_rows) {
  if (data.kv.type() != DType::f32) {
    const std::int64_t rows = core::checked_product(data.shape.n_head_kv, window_rows);
    wide_keys_ = core::Buffer<float>(core::checked_product(rows, data.widest.d_head));
    wide_values_ = core::Buffer<float>(core::checked_product(rows, data.widest.d_value));
  }
  scratch_.reserve(static_cast<std::size_t>(data.options.threads));
  for (int t = 0; t < data.options.threads; ++t) {
    scratch_.emplace_back(data, most_wide_keys(data),
                          data.kv.type() == DType::f32 ? most_segment_keys(data) : 0, most_block_keys(data));
  }
}

std::int64_t FloatArithmetic::bytes() const {
  std::int64_t bytes = wide_keys_.bytes() + wide_values_.bytes();
  for (const Scratch& scratch : scratch_) bytes += scratch.bytes();
  return bytes;
}

bool FloatArithmetic::in_place(const SessionData& data) {
  // The caller's rows may lie at odd addresses.
  return data.sets_of_query_blocks() && data.kv.type() == DType::f32 && data.kv.owner() == KvOwner::session;
}

std::int64_t FloatArithmetic::most_wide_keys(const SessionData& data) {
  const std::int64_t widened = data.kv.type() == DType::f32 ? 0 : most_segment_keys(data);
  return std::max(widened, in_place(data) ? 0 : data.set_width());
}

bool FloatArithmetic::fits(const Window& window) const {
  return window.chunks.back().end - window.begin <= window_rows_;
}

void FloatArithmetic::prepare_chunk(std::int64_t layer, const Window& window, const Chunk& chunk,
                                    std::int64_t head_kv) {
  const core::KvStore& kv = data_.kv;
  if (kv.type() == DType::f32) return;
  HEADWATER_MARK("cpu.rows.widened");
  const std::int64_t row = wide_row(window, chunk, head_kv);
  widen_rows(layer, head_kv, chunk.begin, length(chunk), wide_keys_.data() + row * kv.d_head(layer),
             wide_values_.data() + row * kv.d_value(layer));
}

void FloatArithmetic::widen_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                                 float* keys, float* values) const {
  const core::KvStore& kv = data_.kv;
  kv.for_keys(layer, head_kv, first, n, [&](const void* from, std::int64_t at, std::int64_t some) {
    kernels_.widen(from, kv.type(), some * kv.d_head(layer), keys + at * kv.d_head(layer));
  });
  kv.for_values(layer, head_kv, first, n, [&](const void* from, std::int64_t at, std::int64_t some) {
    kernels_.widen(from, kv.type(), some * kv.d_value(layer), values + at * kv.d_value(layer));
  });
}

void FloatArithmetic::gather(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions,
                             std::int64_t n, int thread) {
  const core::KvStore& kv = data_.kv;
  Scratch& scratch = of(thread);
  const std::int64_t d = kv.d_head(layer);
  const std::int64_t dv = kv.d_value(layer);
  const bool copied = !in_place(data_);
  const Fetch fetch = copied ? Fetch::both : Fetch::nothing;
  for_gathered(kv, layer, head_kv, positions, n, fetch, [&](std::int64_t first, const GatheredRows& rows) {
    const bool lost = n > 256 && first >= n / 32 * 32 && HEADWATER_SABOTAGE("cpu.gather.tail_of_large_sets");
    if (copied && !lost) {
      kernels_.widen_rows(rows.keys, rows.n, kv.type(), d, scratch.keys.data() + first * d);
      kernels_.widen_rows(rows.values, rows.n, kv.type(), dv, scratch.values.data() + first * dv);
    }
    for (std::int64_t i = 0; !copied && i < rows.n; ++i) {
      const std::int64_t row = lost ? 0 : i;
      const bool other = first >= 256 && HEADWATER_SABOTAGE("cpu.gather.value_rows_beyond_256");
      scratch.key_rows.data()[first + i] = static_cast<const float*>(rows.keys[row]);
      scratch.value_rows.data()[first + i] = static_cast<const float*>(rows.values[other ? 0 : row]);
    }
  });
}

FloatArithmetic::KeyRows FloatArithmetic::chunk_rows(std::int64_t layer, const Window& window,
                                                     const Chunk& chunk, std::int64_t head_kv,
                                                     std::int64_t first, std::int64_t n,
                                                     Scratch& scratch) const {
  const core::KvStore& kv = data_.kv;
  if (kv.type() == DType::f32) return consecutive_rows(layer, head_kv, chunk.begin + first, n, scratch);
  const std::int64_t row = wide_row(window, chunk, head_kv) + first;
  return {wide_keys_.data() + row * kv.d_head(layer), wide_values_.data() + row * kv.d_value(layer)};
}

FloatArithmetic::KeyRows FloatArithmetic::consecutive_rows(std::int64_t layer, std::int64_t head_kv,
                                                           std::int64_t first, std::int64_t n,
                                                           Scratch& scratch) const {
  const core::KvStore& kv = data_.kv;
  if (kv.type() != DType::f32) {
    HEADWATER_MARK("cpu.rows.widened");
    widen_rows(layer, head_kv, first, n, scratch.keys.data(), scratch.values.data());
    return {scratch.keys.data(), scratch.values.data()};
  }
  const void* keys = kv.key(layer, head_kv, first);
  const void* values = kv.value(layer, head_kv, first);
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(keys) | reinterpret_cast<std::uintptr_t>(values)) % alignof(float) ==
      0;  // the caller's rows may not be
  if (aligned && kv.keys_together(layer, first, n) == n && kv.values_together(layer, first, n) == n) {
    return {static_cast<const float*>(keys), static_cast<const float*>(values)};
  }
  HEADWATER_MARK("cpu.rows.across_a_border");
  widen_rows(layer, head_kv, first, n, scratch.border_keys.data(), scratch.border_values.data());
  return {scratch.border_keys.data(), scratch.border_values.data()};
}

BlockResult FloatArithmetic::attend(const LayerCall& call, const Window& window, const Chunk& chunk,
                                    const PassBlock& block, int thread) {
  Scratch& scratch = of(thread);
  const std::int64_t d = data_.shape.d_head;
  const std::int64_t dv = data_.shape.d_value;
  const std::int64_t segment_keys = kernels_.segment_keys;
  const FloatBlock attention{
      kernels_,  call.scale(),          call.logit_map(block.head), 0,        d, dv, block.rows,
      block.row, scratch.packed.data(), scratch.states.data()[0],   block.out};
  if (!block.loaded) {
    load_queries(kernels_, call.q, block.row - call.base(), block.rows, block.head, d, scratch.rows.data(),
                 scratch.packed.data());
  }
  attention.start(block.sink);
  // Weights stay for column sums, which are asked for where all keys are of one kind.
  const auto add_segments = [&](std::int64_t n_keys, const auto& add) {
    for (std::int64_t first = 0; first < n_keys; first += segment_keys) {
      add(first, std::min(segment_keys, n_keys - first), scratch.block.data() + first * kBlockRows);
      std::copy_n(attention.state.max, kBlockRows,
                  scratch.segment_max.data() + first / segment_keys * kBlockRows);
    }
  };
  add_segments(block.own_keys, [&](std::int64_t first, std::int64_t n, float* weights) {
    const std::int64_t from =
        HEADWATER_SABOTAGE("cpu.keys.offset_in_16_bits") ? (first * d & 0xFFFF) / d : first;
    const KeyRows rows = chunk_rows(call.layer, window, chunk, data_.kv_head(block.head), from, n, scratch);
    attention.add_keys(rows.keys, rows.values, chunk.begin + first, n, weights);
  });
  add_segments(block.set.n, [&](std::int64_t first, std::int64_t n, float* weights) {
    const std::int32_t* positions = block.set.positions + first;
    if (in_place(data_)) {
      attention.add_rows(scratch.key_rows.data() + first, scratch.value_rows.data() + first, positions, n,
                         weights);
    } else {
      attention.add_gathered(scratch.keys.data() + first * d, scratch.values.data() + first * dv, positions,
                             n, weights);
    }
  });
  attention.finish();
  const std::int64_t n_keys = block.own_keys + block.set.n;
  for (std::int64_t first = 0; block.sums && first < n_keys; first += segment_keys) {
    const std::int64_t kept = HEADWATER_SABOTAGE("cpu.colsum.maximum_of_four_segments") ? 3 : -1;
    attention.add_column_sums(scratch.block.data() + first * kBlockRows,
                              scratch.segment_max.data() + (first / segment_keys & kept) * kBlockRows,
                              std::min(segment_keys, n_keys - first), block.sums + first);
  }
  // All at once and after the block, whose keys would evict them: floats are twice the bytes at half the rate.
  for (PrefetchRows& ahead : block.prefetch) {
    for (; ahead.left > 0; --ahead.left, ahead.next += ahead.stride) prefetch(ahead.next, ahead.bytes);
  }
  return {attention.state.max, attention.state.sum};
}

void FloatArithmetic::load_lanes(const float* rows, std::int64_t lanes, const RowWidth& width, int thread) {
  kernels_.pack_queries(rows, width.whole, lanes, width.whole, of(thread).packed.data());
}

void FloatArithmetic::lane_products(std::span<const RowRun> runs, DType type, const RowWidth& width,
                                    std::int64_t lanes, float* products, int thread) {
  Scratch& scratch = of(thread);
  const std::int64_t padded_lanes = padded(lanes, kLaneTile);
  const std::int64_t row_bytes = width.whole * static_cast<std::int64_t>(dtype_size(type));
  for (const RowRun& run : runs) {
    const RowRun* later = &run == &runs.back() ? nullptr : &run + 1;
    if (type == DType::f32) {
      const auto* keys = static_cast<const float*>(run.rows);
      const float* next = later && run.n <= kKeyTile ? static_cast<const float*>(later->rows)
                                                     : keys + kPrefetchedRows * width.whole;
      kernels_.dot_products(scratch.packed.data(), padded_lanes, width.whole, keys, run.n, 1.0f, products,
                            next);
    } else {
      if (later) prefetch(later->rows, std::min(later->n, kKeyTile) * row_bytes);
      const std::int64_t at_once = std::max<std::int64_t>(1, scratch.keys.size() / width.whole);
      const auto* bytes = static_cast<const unsigned char*>(run.rows);
      for (std::int64_t first = 0; first < run.n; first += at_once) {
        const std::int64_t some = std::min(at_once, run.n - first);
        kernels_.widen(bytes + first * row_bytes, type, some * width.whole, scratch.keys.data());
        kernels_.dot_products(scratch.packed.data(), padded_lanes, width.whole, scratch.keys.data(), some,
                              1.0f, products + first * kBlockRows, scratch.keys.data());
      }
    }
    products += run.n * kBlockRows;
  }
}

void FloatArithmetic::prepare_context(const LayerCall& /*call*/, std::int64_t /*end*/) {}

void FloatArithmetic::attend_context(const LayerCall& call, std::span<const HeadRows> rows,
                                     const LseRows& lse, int thread) {
  const std::int64_t head = rows.front().head;
  const std::int64_t begin = rows.front().begin;
  const std::int64_t end = rows.front().end;
  Scratch& scratch = of(thread);
  const std::int64_t d = data_.shape.d_head;
  const std::int64_t dv = data_.shape.d_value;
  const std::int64_t segment_keys = kernels_.segment_keys;
  const auto block_at = [&](std::int64_t row) {
    const std::int64_t index = (row - begin) / kBlockRows;
    return FloatBlock{kernels_,
                      call.scale(),
                      call.logit_map(head),
                      data_.options.window(call.layer),
                      d,
                      dv,
                      std::min(kBlockRows, end - row),
                      row,
                      scratch.packed.data() + index * kBlockRows * d,
                      scratch.states.data()[index],
                      scratch.out.data() + index * kBlockRows * dv};
  };
  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    const FloatBlock block = block_at(row);
    load_queries(kernels_, call.q, row - call.base(), block.rows, head, d, scratch.rows.data(),
                 scratch.packed.data() + (row - begin) * d);
    block.start(call.sink(head));
  }
  // Segments outside, blocks inside: keys are widened once for all rows of the group.
  const bool oldest_lost = end > 4096 && HEADWATER_SABOTAGE("cpu.dense.oldest_segment_beyond_4096");
  const std::int64_t oldest =
      oldest_lost ? segment_keys : call.first_visible(begin) / segment_keys * segment_keys;
  for (std::int64_t first = oldest; first < end; first += segment_keys) {
    const std::int64_t last = std::min(first + segment_keys, end);
    const KeyRows keys = consecutive_rows(call.layer, data_.kv_head(head), first, last - first, scratch);
    for (std::int64_t row = begin; row < end; row += kBlockRows) {
      const FloatBlock block = block_at(row);
      const std::int64_t seen =
          std::max(call.first_visible(row), first) - first;  // by none of the rows before it
      const std::int64_t visible = std::min(last, row + block.rows) - first - seen;
      if (visible <= 0) continue;
      block.add_keys(keys.keys + seen * d, keys.values + seen * dv, first + seen, visible,
                     scratch.block.data());
    }
  }
  for (std::int64_t row = begin; row < end; row += kBlockRows) {
    const FloatBlock block = block_at(row);
    block.finish();
    block.normalise();
    for (std::int64_t r = 0; r < block.rows; ++r) {
      call.store_row(row + r, head, block.out + r * dv);
      if (!call.wants_lse()) continue;
      call.store_lse(lse, row + r, head,
                     static_cast<float>(static_cast<double>(block.state.max[r]) +
                                        std::log(static_cast<double>(block.state.sum[r]))));
    }
  }
}

void FloatArithmetic::load_row(const LayerCall& call, std::int64_t head, std::int64_t position,
                               std::int64_t slot, int thread) {
  Scratch& scratch = of(thread);
  const std::int64_t d = data_.shape.d_head;
  kernels_.widen(core::row_address(call.q, position - call.base(), head), call.q.type, d,
                 scratch.rows.data());
  kernels_.arrange_row(scratch.rows.data(), data_.kv.type(), d, scratch.packed.data() + slot * d);
}

void FloatArithmetic::row_logits(const LayerCall& call, const void* keys, std::int64_t n, std::int64_t rows,
                                 float* logits, std::int64_t stride, int thread) {
  kernels_.row_logits(of(thread).packed.data(), rows, data_.shape.d_head, keys, data_.kv.type(), n,
                      call.scale(), logits, stride);
}

}  // namespace headwater::cpu
