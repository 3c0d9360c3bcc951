#include "cpu/cpu_session.hpp"

#include <algorithm>

#include "core/numbers.hpp"
#include "cpu/prefetch.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

/// Something must be done in the region: a compiler drops an empty one.
void warm_threads(int threads) {
  int seen = 0;
#pragma omp parallel num_threads(threads) reduction(+ : seen)
  ++seen;
  asm volatile("" : : "r"(seen));
}

}  // namespace

CpuSession::CpuSession(const KernelTable& kernels, const Bf16Table* bf16, const Shape& shape,
                       const Options& wished, const EffectiveOptions& effective)
    : SessionBase(shape, effective),
      data_(kernels, shape, wished, options()),
      floats_(data_, effective.sparse ? SparsePass::most_window_rows(shape, effective) : 0),
      dense_(data_) {
  if (bf16 && shape.kv_type == DType::bf16) bf16_.emplace(data_, *bf16, floats_);
  if (effective.sparse) sparse_.emplace(data_);
  warm_threads(effective.threads);  // no call has to make them (NUM-4)
}

MemoryBytes CpuSession::memory_bytes() const {
  MemoryBytes bytes;
  bytes.kv = data_.kv.bytes();
  bytes.scores = data_.scores.bytes();
  bytes.memory_sets = data_.memory.bytes() + (sparse_ ? sparse_->set_bytes() : 0);
  bytes.workspace = floats_.bytes() + (bf16_ ? bf16_->bytes() : 0) + (sparse_ ? sparse_->bytes() : 0) +
                    dense_.bytes() + data_.kv.spare_bytes() + chunk_bytes();
  return bytes;
}

ScoreView CpuSession::scores(std::int64_t layer) const {
  require_layer(layer);
  return data_.scores.view(layer);
}

MemoryView CpuSession::memory(std::int64_t layer) const {
  require_layer(layer);
  return options().sparse ? data_.memory.view(layer) : MemoryView{};
}

void CpuSession::read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                          std::span<float> row) const {
  const core::KvStore& kv = data_.kv;
  require_row(layer, head_kv, position, static_cast<std::int64_t>(row.size()), kv.d_head());
  core::widen(kv.key(layer, head_kv, position), kv.type(), kv.d_head(), row.data());
}

void CpuSession::read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                            std::span<float> row) const {
  const core::KvStore& kv = data_.kv;
  require_row(layer, head_kv, position, static_cast<std::int64_t>(row.size()), kv.d_value());
  core::widen(kv.value(layer, head_kv, position), kv.type(), kv.d_value(), row.data());
}

StageSeconds CpuSession::stage_seconds() const { return {sparse_ ? sparse_->selection_seconds() : 0.0}; }

void CpuSession::forget() {
  if (!sparse_) return;
  sparse_->forget();
  data_.memory.reset();
}

void CpuSession::run_layer(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                           const MutableRows& out) {
  const std::span<const Chunk> chunks = plan();
  store_rows(layer, k, v, chunks.front().begin, chunks.back().end - chunks.front().begin);
  Arithmetic* arithmetic = &floats_;
  if (bf16_ && q.type == DType::bf16) arithmetic = &*bf16_;
  const LayerCall call{data_, *arithmetic, layer, q, out, chunks, observer()};
  if (chunks.front().mode == ChunkMode::sparse) {
    sparse_->run(call);
  } else {
    dense_.run(call);
  }
}

void CpuSession::store_rows(std::int64_t layer, const Rows& k, const Rows& v, std::int64_t base,
                            std::int64_t n) {
  core::KvStore& kv = data_.kv;
  const auto bytes = [](std::int64_t count, DType type) {
    return count * static_cast<std::int64_t>(dtype_size(type));
  };
  const std::int64_t key_bytes = bytes(kv.d_head(), k.type);
  const std::int64_t value_bytes = bytes(kv.d_value(), v.type);
  const std::int64_t stored_key_bytes = bytes(kv.d_head(), kv.type());
  const std::int64_t stored_value_bytes = bytes(kv.d_value(), kv.type());
  if (HEADWATER_SABOTAGE("cpu.store.rows_beyond_4096")) n = std::min<std::int64_t>(n, 4096);
  kv.make_room(layer, base, base + n);
  data_.scores.make_room(layer, base, base + n);
#pragma omp parallel num_threads(options().threads)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t row = 0; row < n; ++row) {
      for (std::int64_t head = 0; head < shape().n_head_kv; ++head) {
        if (row + kPrefetchedRows < n) {
          prefetch(core::row_address(k, row + kPrefetchedRows, head), key_bytes);
          prefetch(core::row_address(v, row + kPrefetchedRows, head), value_bytes);
          prefetch(kv.key(layer, head, base + row + kPrefetchedRows), stored_key_bytes);
          prefetch(kv.value(layer, head, base + row + kPrefetchedRows), stored_value_bytes);
        }
        kv.write(layer, head, base + row, k, v, row);
      }
    }
#pragma omp for schedule(static)
    for (std::int64_t head = 0; head < shape().n_head; ++head) {
      data_.scores.clear(layer, head, base, base + n);
    }
  }
}

}  // namespace headwater::cpu
