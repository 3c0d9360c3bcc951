#include "cpu/cpu_session.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/numbers.hpp"
#include "cpu/gather.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

/// Rows of a layer-major window: the default batch. More rows need more intra state and win no parallelism.
constexpr std::int64_t kWindowRows = 4096;

/// Whole heads are dealt out: enough of them, or equal shares. Else the chunks of a window share the threads, too.
bool heads_fill_threads(const Shape& shape, const EffectiveOptions& options) {
  return options.schedule == Schedule::chunk_major || shape.n_head % options.threads == 0 ||
         shape.n_head >= 4 * std::int64_t{options.threads};
}

std::int64_t most_window_rows(const Shape& shape, const EffectiveOptions& options) {
  const std::int64_t chunk = std::min(options.chunk, shape.capacity);
  if (heads_fill_threads(shape, options)) return chunk;
  return std::max(chunk, std::min({options.batch, shape.capacity, kWindowRows}));
}

ScratchShape scratch_shape(const KernelTable& kernels, const Bf16Table* bf16, const Shape& shape,
                           const EffectiveOptions& options, std::int64_t memory_width) {
  ScratchShape scratch;
  scratch.d = shape.d_head;
  scratch.dv = shape.d_value;
  const std::int64_t segment = std::min(kernels.segment_keys, shape.capacity);
  scratch.segment_keys = kernels.segment_keys;
  const std::int64_t chunk = options.sparse ? std::min(options.chunk, shape.capacity) : 0;
  scratch.block_keys = std::max({segment, chunk, memory_width});
  scratch.wide_keys = memory_width;
  if (shape.kv_type != DType::f32) scratch.wide_keys = std::max(segment, memory_width);
  scratch.candidates = options.sparse ? shape.capacity : 0;
  scratch.memory = memory_width;
  scratch.bf16 = bf16 != nullptr;
  if (bf16) {
    scratch.block_keys = std::max(scratch.block_keys, std::min(kBf16SegmentKeys, shape.capacity));
    scratch.d_padded = padded(shape.d_head, bf16->d_multiple);
    scratch.dv_padded = padded(shape.d_value, bf16->dv_multiple);
  }
  return scratch;
}

}  // namespace

CpuSession::CpuSession(const KernelTable& kernels, const Bf16Table* bf16, const Shape& shape,
                       const Options& options, const EffectiveOptions& effective)
    : SessionBase(shape, effective),
      kernels_(kernels),
      bf16_(shape.kv_type == DType::bf16 ? bf16 : nullptr),
      sinks_(options.sinks),
      alibi_(options.alibi),
      segment_keys_(kernels.segment_keys),
      scale_(static_cast<float>(effective.scale)),
      threads_(effective.threads),
      one_pass_(heads_fill_threads(shape, effective)),
      kv_(shape) {
  const std::int64_t heads = shape.n_head;
  scores_ = core::ScoreStore(shape.n_layer, heads, shape.capacity, effective.score_type);
  if (effective.sparse) {
    memory_ = core::MemorySets(shape.n_layer, heads, effective.local, effective.heavy, shape.capacity);
    window_rows_ = most_window_rows(shape, effective);
    const std::int64_t chunk = std::min(effective.chunk, shape.capacity);
    max_groups_ = std::min(kMaxGroups, (chunk + kGroupRows - 1) / kGroupRows);
    const std::int64_t rows = core::checked_product(heads, window_rows_);
    colsum_inter_ = core::Buffer<float>(core::checked_product(heads, memory_.width()));
    inter_partials_ = core::Buffer<double>(core::checked_product(heads, max_groups_, memory_.width()));
    colsum_intra_ = core::Buffer<float>(rows);
    intra_partials_ = core::Buffer<double>(core::checked_product(rows, max_groups_));
    if (!one_pass_) {
      row_max_ = core::Buffer<float>(rows);
      row_sum_ = core::Buffer<float>(rows);
      row_out_ = core::Buffer<float>(core::checked_product(rows, shape.d_value));
    }
    if (shape.kv_type != DType::f32) {
      const std::int64_t kv_rows = core::checked_product(shape.n_head_kv, window_rows_);
      wide_keys_ = core::Buffer<float>(core::checked_product(kv_rows, shape.d_head));
      wide_values_ = core::Buffer<float>(core::checked_product(kv_rows, shape.d_value));
    }
    std::fill_n(colsum_inter_.data(), colsum_inter_.size(), 0.0f);
  }
  lse_ = core::Buffer<float>(core::checked_product(heads, shape.capacity));
  splits_ = core::Buffer<float>(
      core::checked_product(shape.n_head_kv, kMaxSplits * kDecodeRows, shape.d_value + 2));
  if (bf16_) {
    packed_rows_ = padded(shape.capacity, kKeyTile);
    const std::int64_t rows = core::checked_product(shape.n_head_kv, packed_rows_);
    packed_values_ =
        core::Buffer<std::uint16_t>(core::checked_product(rows, padded(shape.d_value, bf16_->dv_multiple)));
    const std::int64_t d_padded = padded(shape.d_head, bf16_->d_multiple);
    if (d_padded != shape.d_head)
      packed_keys_ = core::Buffer<std::uint16_t>(core::checked_product(rows, d_padded));
  }

  const ScratchShape scratch =
      scratch_shape(kernels, bf16_, shape, effective, effective.sparse ? memory_.width() : 0);
  scratch_.reserve(static_cast<std::size_t>(threads_));
  for (int t = 0; t < threads_; ++t) scratch_.emplace_back(scratch);
#pragma omp parallel num_threads(threads_)
  {
    // The threads exist from now on, so that no call has to make them (NUM-4). Something must be done here: a
    // compiler drops an empty region.
    thread_scratch().states.data()[0] = {};
  }
}

MemoryBytes CpuSession::memory_bytes() const {
  MemoryBytes bytes;
  bytes.kv = kv_.bytes();
  bytes.scores = scores_.bytes();
  bytes.memory_sets = memory_.bytes() + colsum_inter_.bytes();
  bytes.workspace = inter_partials_.bytes() + colsum_intra_.bytes() + intra_partials_.bytes() +
                    row_max_.bytes() + row_sum_.bytes() + row_out_.bytes() + lse_.bytes() +
                    wide_keys_.bytes() + wide_values_.bytes() + packed_keys_.bytes() +
                    packed_values_.bytes() + kv_.spare_bytes() + splits_.bytes() + chunk_bytes();
  for (const Scratch& scratch : scratch_) bytes.workspace += scratch.bytes();
  return bytes;
}

ScoreView CpuSession::scores(std::int64_t layer) const {
  require_layer(layer);
  return scores_.view(layer);
}

MemoryView CpuSession::memory(std::int64_t layer) const {
  require_layer(layer);
  return options().sparse ? memory_.view(layer) : MemoryView{};
}

void CpuSession::read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                          std::span<float> row) const {
  require_row(layer, head_kv, position, static_cast<std::int64_t>(row.size()), kv_.d_head());
  core::widen(kv_.key(layer, head_kv, position), kv_.type(), kv_.d_head(), row.data());
}

void CpuSession::read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                            std::span<float> row) const {
  require_row(layer, head_kv, position, static_cast<std::int64_t>(row.size()), kv_.d_value());
  core::widen(kv_.value(layer, head_kv, position), kv_.type(), kv_.d_value(), row.data());
}

StageSeconds CpuSession::stage_seconds() const {
  double all = 0;
  for (const Scratch& scratch : scratch_) all += scratch.selection_seconds;
  return {all / static_cast<double>(threads_)};
}

void CpuSession::forget() {
  for (Scratch& scratch : scratch_) scratch.selection_seconds = 0;
  if (!options().sparse) return;
  memory_.reset();
  std::fill_n(colsum_inter_.data(), colsum_inter_.size(), 0.0f);
}

void CpuSession::run_layer(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                           const MutableRows& out) {
  const std::span<const Chunk> chunks = plan();
  const std::int64_t base = chunks.front().begin;
  store_rows(layer, k, v, base, chunks.back().end - base);
  const bool bf16 = bf16_ && q.type == DType::bf16;
  const Call call{
      layer, q,    out,
      base,  bf16, bf16 && !HEADWATER_SABOTAGE("cpu.bf16.fuse_in_natural_units") ? std::numbers::ln2 : 1.0};
  if (chunks.front().mode == ChunkMode::sparse) {
    run_sparse(call);
  } else {
    run_dense(call, chunks.front());
  }
}

void CpuSession::store_rows(std::int64_t layer, const Rows& k, const Rows& v, std::int64_t base,
                            std::int64_t n) {
  const auto bytes = [](std::int64_t count, DType type) {
    return count * static_cast<std::int64_t>(dtype_size(type));
  };
  const std::int64_t key_bytes = bytes(kv_.d_head(), k.type);
  const std::int64_t value_bytes = bytes(kv_.d_value(), v.type);
  const std::int64_t stored_key_bytes = bytes(kv_.d_head(), kv_.type());
  const std::int64_t stored_value_bytes = bytes(kv_.d_value(), kv_.type());
  if (HEADWATER_SABOTAGE("cpu.store.rows_beyond_4096")) n = std::min<std::int64_t>(n, 4096);
  kv_.make_room(layer, base, base + n);
  scores_.make_room(layer, base, base + n);
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t row = 0; row < n; ++row) {
      for (std::int64_t head = 0; head < shape().n_head_kv; ++head) {
        if (row + kGatherAhead < n) {
          ask_for(core::row_address(k, row + kGatherAhead, head), key_bytes);
          ask_for(core::row_address(v, row + kGatherAhead, head), value_bytes);
          ask_for(kv_.key(layer, head, base + row + kGatherAhead), stored_key_bytes);
          ask_for(kv_.value(layer, head, base + row + kGatherAhead), stored_value_bytes);
        }
        kv_.write(layer, head, base + row, k, v, row);
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t head = 0; head < shape().n_head; ++head) scores_.clear(layer, head, base, base + n);
  }
}

CpuSession::KeyRows CpuSession::consecutive_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first,
                                                 std::int64_t n, Scratch& scratch) const {
  const void* keys = kv_.key(layer, head_kv, first);
  const void* values = kv_.value(layer, head_kv, first);
  if (kv_.type() == DType::f32) return {static_cast<const float*>(keys), static_cast<const float*>(values)};
  HEADWATER_MARK("cpu.rows.widened");
  kernels_.widen(keys, kv_.type(), n * kv_.d_head(), scratch.keys.data());
  kernels_.widen(values, kv_.type(), n * kv_.d_value(), scratch.values.data());
  return {scratch.keys.data(), scratch.values.data()};
}

CpuSession::KeyRows CpuSession::window_rows(const Window& window, std::int64_t layer, std::int64_t head_kv,
                                            std::int64_t first) const {
  if (kv_.type() == DType::f32) {
    return {static_cast<const float*>(kv_.key(layer, head_kv, first)),
            static_cast<const float*>(kv_.value(layer, head_kv, first))};
  }
  const std::int64_t row = window_index(window, head_kv, first);
  return {wide_keys_.data() + row * kv_.d_head(), wide_values_.data() + row * kv_.d_value()};
}

void CpuSession::widen_window(const Window& window, std::int64_t layer, std::int64_t head_kv,
                              const Chunk& chunk) {
  if (kv_.type() == DType::f32) return;
  HEADWATER_MARK("cpu.rows.widened");
  const std::int64_t n = chunk.end - chunk.begin;
  const std::int64_t row = window_index(window, head_kv, chunk.begin);
  kernels_.widen(kv_.key(layer, head_kv, chunk.begin), kv_.type(), n * kv_.d_head(),
                 wide_keys_.data() + row * kv_.d_head());
  kernels_.widen(kv_.value(layer, head_kv, chunk.begin), kv_.type(), n * kv_.d_value(),
                 wide_values_.data() + row * kv_.d_value());
}

void CpuSession::gather_rows(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions,
                             std::int64_t n, Scratch& scratch) const {
  if (n > 256 && HEADWATER_SABOTAGE("cpu.gather.tail_of_large_sets")) n = n / 32 * 32;
  for_gathered(kv_, layer, head_kv, positions, n, [&](std::int64_t i, const void* key, const void* value) {
    kernels_.widen(key, kv_.type(), kv_.d_head(), scratch.keys.data() + i * kv_.d_head());
    kernels_.widen(value, kv_.type(), kv_.d_value(), scratch.values.data() + i * kv_.d_value());
  });
}

void CpuSession::store_row(const Call& call, std::int64_t position, std::int64_t head,
                           const float* row) const {
  void* to = core::row_address(call.out, position - call.base, head);
  kernels_.narrow(row, kv_.d_value(), call.out.type, to);
  if (call.out.type == DType::bf16 && HEADWATER_SABOTAGE("cpu.rows.truncated")) {
    const auto* upper = reinterpret_cast<const unsigned char*>(row) + 2;
    auto* bytes = static_cast<unsigned char*>(to);
    for (std::int64_t c = 0; c < kv_.d_value(); ++c) std::memcpy(bytes + 2 * c, upper + 4 * c, 2);
  }
}

std::int64_t CpuSession::kv_head(std::int64_t head) const {
  const std::int64_t group = shape().n_head / shape().n_head_kv;
  if (group > 8 && HEADWATER_SABOTAGE("cpu.heads.groups_beyond_8"))
    return std::min(head / 8, shape().n_head_kv - 1);
  return head / group;  // LOGIT-1: floor(h * Hkv / Hq)
}

LogitMap CpuSession::logit_map(std::int64_t head) const {
  LogitMap map;
  map.softcap = static_cast<float>(options().softcap);
  if (!alibi_.empty()) map.slope = alibi_[static_cast<std::size_t>(head)];
  return map;
}

float CpuSession::sink(std::int64_t head) const {
  return sinks_.empty() ? -std::numeric_limits<float>::infinity() : sinks_[static_cast<std::size_t>(head)];
}

Scratch& CpuSession::thread_scratch() { return scratch_[static_cast<std::size_t>(omp_get_thread_num())]; }

}  // namespace headwater::cpu
