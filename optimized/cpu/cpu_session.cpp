#include "cpu/cpu_session.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "cpu/prefetch.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

std::int64_t most_window_rows(const Shape& shape, const EffectiveOptions& options) {
  if (!options.sparse) return 0;
  if (options.select == Select::blocks) return std::min(options.chunk, shape.capacity);
  return SparsePass::most_window_rows(shape, options);
}

}  // namespace

CpuSession::CpuSession(const KernelTable& kernels, const Bf16Table* bf16, const Shape& shape,
                       const Options& wished, const EffectiveOptions& effective)
    : SessionBase(shape, effective, true),
      data_(kernels, shape, wished, options()),
      floats_(data_, most_window_rows(shape, effective)),
      dense_(data_) {
  if (bf16 && shape.kv_type == DType::bf16) bf16_.emplace(data_, *bf16, floats_);
  if (effective.sparse && effective.select == Select::h2o) sparse_.emplace(data_);
  if (effective.sparse && effective.select == Select::blocks) blocks_.emplace(data_);
  data_.workers.start();
}

MemoryBytes CpuSession::memory_bytes() const {
  MemoryBytes bytes;
  bytes.kv = data_.kv.bytes();
  bytes.scores = data_.scores.bytes();
  bytes.memory_sets = data_.memory.bytes() + (data_.undo ? data_.undo->bytes() : 0) +
                      data_.summaries.bytes() + (sparse_ ? sparse_->set_bytes() : 0) +
                      (blocks_ ? blocks_->set_bytes() : 0);
  bytes.workspace = floats_.bytes() + (bf16_ ? bf16_->bytes() : 0) + (sparse_ ? sparse_->bytes() : 0) +
                    (blocks_ ? blocks_->bytes() : 0) + dense_.bytes() + data_.kv.spare_bytes() +
                    chunk_bytes();
  return bytes;
}

ScoreView CpuSession::scores(std::int64_t layer) const {
  require_layer(layer);
  if (data_.undo) data_.undo->apply(layer);
  return data_.scores.view(layer);
}

MemoryView CpuSession::memory(std::int64_t layer) const {
  require_layer(layer);
  if (!data_.undo) return {};
  data_.undo->apply(layer);
  return data_.memory.view(layer);
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

StageSeconds CpuSession::stage_seconds() const {
  if (blocks_) return {blocks_->selection_seconds()};
  return {sparse_ ? sparse_->selection_seconds() : 0.0};
}

void CpuSession::forget() {
  if (blocks_) blocks_->forget();
  if (!sparse_) return;
  sparse_->forget();
  data_.memory.reset();
  data_.undo->forget();
}

void CpuSession::keep_step() {
  if (!data_.undo) return;
  const bool sparse = plan().front().mode == ChunkMode::sparse;
  data_.undo->keep_step(sparse ? static_cast<std::int64_t>(plan().size()) : 0);
}

void CpuSession::undo_step() {
  if (data_.undo) data_.undo->undo_step();
}

void CpuSession::undo_chunks(std::int64_t sparse) {
  if (data_.undo) data_.undo->undo_chunks(sparse);
}

void CpuSession::exchange_floats(StateArchive& archive, const char* name, const std::vector<float>& own) {
  std::vector<std::int64_t> bits;
  for (const float value : own) bits.push_back(std::bit_cast<std::int32_t>(value));
  const std::vector<std::int64_t> asked = bits;
  archive.numbers(name, bits, static_cast<std::int64_t>(bits.size()));
  if (bits == asked) return;
  throw Error(ErrorCode::invalid_argument,
              std::string(name) + " of the file are not those asked for; allowed: the same values");
}

void CpuSession::exchange_state(StateArchive& archive) {
  exchange(archive, [&] {
    exchange_floats(archive, "sinks", data_.sinks);
    exchange_floats(archive, "alibi", data_.alibi);
    std::int64_t last_sparse = 0;
    for (const Chunk& chunk : chunks()) {
      if (chunk.mode == ChunkMode::sparse) last_sparse = chunk.begin;
    }
    const std::int64_t layers = shape().n_layer;
    if (data_.undo) {
      for (std::int64_t layer = 0; layer < layers; ++layer) data_.undo->apply(layer);
      std::vector<std::int64_t> built_at(static_cast<std::size_t>(layers), last_sparse);
      for (const std::int64_t layer : options().dense_layers) built_at[static_cast<std::size_t>(layer)] = 0;
      data_.memory.exchange_layers(archive, built_at);
    }
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      data_.kv.exchange(archive, layer, tokens());
      if (data_.undo) {
        data_.scores.exchange(archive, layer, tokens());
        data_.memory.exchange_entries(archive, layer, tokens());
      } else if (archive.loading()) {
        data_.scores.make_room(layer, 0, tokens());
        for (std::int64_t head = 0; head < shape().n_head; ++head) {
          data_.scores.clear(layer, head, 0, tokens());
        }
      }
      const bool summaries = data_.summaries.width() > 0 && !options().dense_layer(layer);
      if (archive.loading() && summaries && !HEADWATER_SABOTAGE("cpu.load.no_summaries")) {
        data_.workers.enter_layer(layer, {});
        summarise(layer, 0, tokens());
      }
    }
  });
}

void CpuSession::run_layer(const SequenceCall& asked) {
  const std::int64_t layer = asked.layer;
  data_.workers.enter_layer(layer, interrupt_);
  const std::span<const Chunk> chunks = plan();
  const std::int64_t n = chunks.back().end - chunks.front().begin;
  if (data_.undo && !HEADWATER_SABOTAGE("cpu.undo.only_when_read")) data_.undo->apply(layer);
  store_rows(layer, asked.k, asked.v, chunks.front().begin, n);
  bool dense_layer = options().dense_layer(layer);  // STATE-7
  if (HEADWATER_SABOTAGE("cpu.dense_layer.first_call_alone") && chunks.front().begin > 0) dense_layer = false;
  if (data_.summaries.width() > 0 && !dense_layer) summarise(layer, chunks.front().begin, n);
  Arithmetic* arithmetic = &floats_;
  if (bf16_ && asked.q.type == DType::bf16) arithmetic = &*bf16_;
  const Chunk whole{chunks.front().begin, chunks.back().end, ChunkMode::dense};
  const bool sparse = chunks.front().mode == ChunkMode::sparse;
  const auto attended = sparse && dense_layer ? std::span(&whole, 1) : chunks;
  const LayerCall call{data_, *arithmetic, layer, asked.q, asked.out, attended, observer(), asked.lse};
  if (sparse && !dense_layer) {
    if (blocks_) {
      blocks_->run(call);
    } else {
      data_.undo->open_layer(layer, chunks);
      sparse_->run(call);
    }
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
  const auto store_row = [&](std::int64_t row) {
    for (std::int64_t head = 0; head < shape().n_head_kv; ++head) {
      if (row + kPrefetchedRows < n) {
        prefetch(core::row_address(k, row + kPrefetchedRows, head), key_bytes);
        prefetch(core::row_address(v, row + kPrefetchedRows, head), value_bytes);
        prefetch(kv.key(layer, head, base + row + kPrefetchedRows), stored_key_bytes);
        prefetch(kv.value(layer, head, base + row + kPrefetchedRows), stored_value_bytes);
      }
      kv.write(layer, head, base + row, k, v, row);
    }
  };
  // Rows, then heads, whose clearing is short: one region for both.
  data_.workers.each(
      n + shape().n_head,
      [&](const Workers::Task& task) {
        if (task.index < n) {
          store_row(task.index);
        } else {
          data_.scores.clear(layer, task.index - n, base, base + n);
        }
      },
      Workers::Asks::at_start);
}

void CpuSession::summarise(std::int64_t layer, std::int64_t base, std::int64_t n) {
  core::BlockSummaries& summaries = data_.summaries;
  const std::int64_t ahead =
      HEADWATER_SABOTAGE("cpu.blocks.block_of_two_calls") ? summaries.key_block() - 1 : 0;
  const std::int64_t first = (base + ahead) / summaries.key_block();
  const std::int64_t blocks = (base + n) / summaries.key_block() - first;
  if (blocks <= 0) return;
  summaries.make_room(layer, base, base + n);
  data_.workers.each(
      shape().n_head_kv * blocks,
      [&](const Workers::Task& task) {
        summaries.write(layer, task.index / blocks, first + task.index % blocks, data_.kv,
                        data_.kernels.widen);
      },
      Workers::Asks::at_start);
  const std::int64_t first_region = first / core::BlockSummaries::kRegionBlocks;
  const std::int64_t regions = (first + blocks) / core::BlockSummaries::kRegionBlocks - first_region;
  if (regions == 0) return;
  data_.workers.each(
      shape().n_head_kv * regions,
      [&](const Workers::Task& task) {
        summaries.write_region(layer, task.index / regions, first_region + task.index % regions);
      },
      Workers::Asks::at_start);
}

}  // namespace headwater::cpu
