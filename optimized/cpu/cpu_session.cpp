#include "cpu/cpu_session.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "cpu/prefetch.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

/// Calls whose tasks are dealt out together at most: their list needs no memory beyond the stack's.
constexpr std::size_t kTogether = 64;

std::int64_t most_window_rows(const Shape& shape, const EffectiveOptions& options) {
  if (!options.sparse) return 0;
  if (options.select != Select::h2o) return std::min(options.chunk, shape.capacity);
  return SparsePass::most_window_rows(shape, options);
}

}  // namespace

CpuSession::Work::Work(SessionData& data, const Variant& variant)
    : floats(data, most_window_rows(data.shape, data.options)), dense(data) {
  const EffectiveOptions& options = data.options;
  if (variant.bf16 && data.shape.kv_type == DType::bf16) bf16.emplace(data, *variant.bf16, floats);
  if (options.sparse && options.select == Select::h2o) sparse.emplace(data);
  if (options.sparse && options.select == Select::blocks) blocks.emplace(data);
  if (options.sparse && options.select == Select::sketches) sketches.emplace(data, variant.sketches());
  if (!core::Memory::current().counts()) data.workers.start();
}

std::int64_t CpuSession::Work::bytes() const {
  return floats.bytes() + (bf16 ? bf16->bytes() : 0) + (sparse ? sparse->bytes() : 0) +
         (blocks ? blocks->bytes() : 0) + (sketches ? sketches->bytes() : 0) + dense.bytes();
}

std::int64_t CpuSession::Work::set_bytes() const {
  return (sparse ? sparse->set_bytes() : 0) + (blocks ? blocks->set_bytes() : 0) +
         (sketches ? sketches->set_bytes() : 0);
}

CpuSession::CpuSession(const Variant& variant, const Shape& shape, const Options& wished,
                       const EffectiveOptions& effective)
    : SessionBase(shape, effective, true),
      data_(*variant.kernels, shape, wished, options()),
      variant_(variant),
      work_(std::make_unique<Work>(data_, variant)) {
  if (effective.kv_owner == KvOwner::caller) stored_rows_ = core::StoredRowsCheck(shape);
}

CpuSession::CpuSession(CpuSession& parent)
    : SessionBase(parent), data_(parent.data_, options(), parent.tokens()), variant_(parent.variant_) {}

std::unique_ptr<Session> CpuSession::fork_session() {
  // Shared scores are not written any more, not even by those who look at them.
  if (data_.state->undo) {
    for (std::int64_t layer = 0; layer < shape().n_layer; ++layer) data_.state->undo->apply(layer);
  }
  try {
    return std::unique_ptr<Session>(new CpuSession(*this));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "no memory for a fork; allowed: what the machine can hold");
  }
}

void CpuSession::own_scores(std::int64_t tokens) {
  try {
    data_.own_scores(tokens);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory,
                "no memory for scores that a fork shares; allowed: what the machine can hold");
  }
}

void CpuSession::prepare_truncate(std::int64_t n) {
  if (n == 0 || options().checkpoints > 0) own_scores(tokens());
}

MemoryBytes CpuSession::memory_bytes() const {
  MemoryBytes bytes;
  bytes.kv = data_.kv.bytes();
  bytes.scores = data_.state->scores.bytes();
  bytes.memory_sets = data_.state->memory.bytes() + (data_.state->undo ? data_.state->undo->bytes() : 0) +
                      data_.summaries.bytes() + (work_ ? work_->set_bytes() : 0);
  bytes.workspace =
      (work_ ? work_->bytes() : 0) + stored_rows_.bytes() + chunk_bytes() + data_.kv.restored_bytes();
  return bytes;
}

MemoryEstimate CpuSession::estimate() const {
  MemoryEstimate estimate{memory_bytes(), memory_bytes()};
  estimate.full.kv = data_.kv.bytes_when_full();
  estimate.full.workspace += data_.kv.restored_bytes_when_full() - data_.kv.restored_bytes();
  estimate.full.memory_sets += data_.summaries.bytes_when_full() - data_.summaries.bytes();
  return estimate;
}

ScoreView CpuSession::scores(std::int64_t layer) const {
  require_layer(layer);
  if (data_.state->undo) data_.state->undo->apply(layer);
  return data_.state->scores.view(layer);
}

MemoryView CpuSession::memory(std::int64_t layer) const {
  require_layer(layer);
  if (!data_.state->undo) return {};
  data_.state->undo->apply(layer);
  return data_.state->memory.view(layer);
}

void CpuSession::read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                          std::span<float> row) const {
  const core::KvStore& kv = data_.kv;
  require_row(layer, head_kv, position);
  const std::int64_t d = kv.d_head(layer);
  require_width(std::ssize(row), d);
  const auto widen = [&](const void* stored) { core::widen(stored, kv.type(), d, row.data()); };
  if (!kv.packed()) return widen(kv.key(layer, head_kv, position));
  std::vector<float> restored(static_cast<std::size_t>(d));  // room for any type
  kv.restore_keys(layer, head_kv, position, 1, data_.kernels.restore_groups, restored.data());
  widen(restored.data());
}

void CpuSession::read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                            std::span<float> row) const {
  const core::KvStore& kv = data_.kv;
  require_row(layer, head_kv, position);
  const std::int64_t dv = kv.d_value(layer);
  require_width(std::ssize(row), dv);
  const auto widen = [&](const void* stored) { core::widen(stored, kv.type(), dv, row.data()); };
  if (!kv.packed()) return widen(kv.value(layer, head_kv, position));
  std::vector<float> restored(static_cast<std::size_t>(dv));  // room for any type
  kv.restore_values(layer, head_kv, position, 1, data_.kernels.restore_groups, restored.data());
  widen(restored.data());
}

StageSeconds CpuSession::stage_seconds() const {
  if (work_ && work_->blocks) return {work_->blocks->selection_seconds()};
  if (work_ && work_->sketches) return {work_->sketches->selection_seconds()};
  return {work_ && work_->sparse ? work_->sparse->selection_seconds() : 0.0};
}

void CpuSession::reserve(std::int64_t begin, std::int64_t end) {
  data_.kv.reserve(begin, end);
  if (!data_.summaries.empty()) data_.summaries.reserve(begin, end);
  data_.own_scores(begin);
  if (!work_) {
    if (options().kv_owner == KvOwner::caller) stored_rows_ = core::StoredRowsCheck(shape());
    work_ = std::make_unique<Work>(data_, variant_);
  }
}

void CpuSession::forget() {
  own_scores(0);
  data_.kv.clear();
  if (!data_.summaries.empty()) data_.summaries.clear();
  if (work_ && work_->blocks) work_->blocks->forget();
  if (work_ && work_->sketches) work_->sketches->forget();
  if (work_ && work_->sparse) work_->sparse->forget();
  if (!data_.state->undo) return;
  data_.state->memory.reset();
  data_.state->undo->forget();
}

void CpuSession::keep_step() {
  if (!data_.state->undo) return;
  const bool sparse = plan().front().mode == ChunkMode::sparse;
  data_.state->undo->keep_step(sparse ? static_cast<std::int64_t>(plan().size()) : 0);
}

void CpuSession::undo_step() {
  if (data_.state->undo) data_.state->undo->undo_step();
}

void CpuSession::undo_chunks(std::int64_t sparse) {
  if (data_.state->undo && sparse > 0) data_.state->undo->undo_chunks(sparse);
}

void CpuSession::check_rows(const SequenceCall& call) const {
  if (call.stored) stored_rows_.check(*call.stored, plan().back().end);
}

void CpuSession::exchange_floats(StateArchive& archive, const char* name, const std::vector<float>& own) {
  std::vector<std::int64_t> bits;
  bits.reserve(own.size());
  for (const float value : own) bits.push_back(std::bit_cast<std::int32_t>(value));
  const std::vector<std::int64_t> asked = bits;
  archive.numbers(name, bits, static_cast<std::int64_t>(bits.size()));
  if (bits == asked) return;
  throw Error(ErrorCode::invalid_argument,
              std::string(name) + " of the file are not those asked for; allowed: the same values");
}

void CpuSession::exchange_state(StateArchive& archive) {
  // Summaries of key blocks would have to be computed of rows that are not there.
  if (!data_.summaries.empty() && data_.kv.owner() == KvOwner::caller) {
    refuse("save() or load() with rule blocks over rows of the caller");
  }
  exchange(archive, [&] {
    exchange_floats(archive, "sinks", data_.sinks);
    exchange_floats(archive, "alibi", data_.alibi);
    std::int64_t last_sparse = 0;
    for (const Chunk& chunk : chunks()) {
      if (chunk.mode == ChunkMode::sparse) last_sparse = chunk.begin;
    }
    const std::int64_t layers = shape().n_layer;
    if (data_.state->undo) {
      for (std::int64_t layer = 0; layer < layers; ++layer) data_.state->undo->apply(layer);
      std::vector<std::int64_t> built_at(static_cast<std::size_t>(layers), last_sparse);
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        if (options().dense_layer(layer)) built_at[static_cast<std::size_t>(layer)] = 0;
      }
      data_.state->memory.exchange_layers(archive, built_at);
    }
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      data_.kv.exchange(archive, layer, tokens());
      if (data_.state->undo) {
        data_.state->scores.exchange(archive, layer, tokens());
        data_.state->memory.exchange_entries(archive, layer, tokens());
      } else if (archive.loading()) {
        data_.state->scores.make_room(layer, 0, tokens());
        for (std::int64_t row = 0; row < data_.state->scores.rows(); ++row) {
          data_.state->scores.clear(layer, row, 0, tokens());
        }
      }
      const bool summaries = !data_.summaries.empty() && !options().dense_layer(layer);
      if (archive.loading() && summaries && !HEADWATER_SABOTAGE("cpu.load.no_summaries")) {
        data_.workers.enter_layer(layer, {});
        restore(layer, 0, tokens());
        summarise(layer, 0, tokens());
      }
    }
  });
}

void CpuSession::open_call(const SequenceCall& call) {
  const std::int64_t layer = call.layer;
  const std::int64_t base = plan().front().begin;
  data_.shape = options().shape_of(shape(), layer);
  data_.kv.view(call.stored);
  data_.workers.enter_layer(layer, interrupt_);
  if (data_.state->undo && !HEADWATER_SABOTAGE("cpu.undo.only_when_read")) data_.state->undo->apply(layer);
  if (data_.kv.owner() == KvOwner::session) data_.kv.make_room(layer, base, base + step_tokens());
  data_.state->scores.make_room(layer, base, base + step_tokens());
}

Arithmetic& CpuSession::arithmetic_of(const SequenceCall& call) {
  // The BF16 kernels know no windows.
  const bool in_bf16 = work_->bf16 && call.q.type == DType::bf16 && options().window(call.layer) == 0;
  if (!in_bf16) return work_->floats;
  if (!HEADWATER_SABOTAGE("cpu.bf16.padding_of_the_layer_before")) work_->bf16->enter_layer();
  return *work_->bf16;
}

void CpuSession::run_layer(const SequenceCall& asked) {
  const std::int64_t layer = asked.layer;
  const std::span<const Chunk> chunks = plan();
  open_call(asked);
  const SequenceCall* const one = &asked;
  store_rows(data_.workers, {&one, 1});
  bool dense_layer = options().dense_layer(layer);  // STATE-7
  if (HEADWATER_SABOTAGE("cpu.dense_layer.first_call_alone") && chunks.front().begin > 0) dense_layer = false;
  const bool alone = asked.rows_alone();  // DEC-2
  if (alone && HEADWATER_SABOTAGE("cpu.rows_alone.no_summaries")) return;
  const Chunk whole{chunks.front().begin, chunks.back().end, ChunkMode::dense};
  const bool sparse = chunks.front().mode == ChunkMode::sparse;
  const auto attended = sparse && dense_layer ? std::span(&whole, 1) : chunks;
  const bool decodes = (dense_layer || !sparse) && work_->dense.decode_of(attended.front());
  restore(layer, alone || decodes ? first_summarised(whole.begin) : 0, whole.end);
  if (!dense_layer) summarise(layer, whole.begin, step_tokens());
  if (alone) return;
  const LayerCall call{data_,    arithmetic_of(asked), layer,    asked.q, asked.out,
                       attended, observer(),           asked.lse};
  if (sparse && !dense_layer) {
    if (work_->blocks) {
      work_->blocks->run(call);
    } else if (work_->sketches) {
      work_->sketches->run(call);
    } else {
      data_.state->undo->open_layer(layer, chunks);
      work_->sparse->run(call);
    }
  } else {
    work_->dense.run(call);
  }
}

CpuSession* CpuSession::decodes_together(const SequenceCall& call) const {
  auto* const session = dynamic_cast<CpuSession*>(call.session);
  if (!session || session->observer() || call.rows_alone() ||
      !session->data_.workers.same_threads(data_.workers))
    return nullptr;
  const std::span<const Chunk> chunks = session->plan();
  const bool dense = chunks.size() == 1 && chunks.front().mode != ChunkMode::sparse;
  return dense && session->work_->dense.decode_of(chunks.front()) ? session : nullptr;
}

void CpuSession::attend_group(std::span<const SequenceCall> calls) {
  std::array<const SequenceCall*, kTogether> group;
  std::size_t n = 0;
  const auto decode = [&] {
    decode_group(std::span(group).first(n));
    n = 0;
  };
  for (const SequenceCall& call : calls) {
    if (!decodes_together(call)) {
      SessionBase::attend_group({&call, 1});
      continue;
    }
    group[n++] = &call;
    if (n == kTogether && HEADWATER_SABOTAGE("cpu.together.full_group_forgotten")) n = 0;
    if (n == kTogether) decode();
  }
  if (n > 0) decode();
}

void CpuSession::decode_group(std::span<const SequenceCall* const> calls) {
  std::array<std::optional<LayerCall>, kTogether> layers;
  std::array<DecodePass::Decode, kTogether> decodes;
  std::size_t entered = 0;
  const auto session_of = [](const SequenceCall& call) { return static_cast<CpuSession*>(call.session); };
  try {
    for (const SequenceCall* const call : calls) {
      session_of(*call)->enter(*call);
      ++entered;
      session_of(*call)->open_call(*call);
      session_of(*call)->data_.workers.ask_between_tasks();  // INTR-1
    }
    store_rows(data_.workers, calls);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const SequenceCall& call = *calls[i];
      CpuSession& session = *session_of(call);
      const Chunk& chunk = session.plan().front();
      session.restore(call.layer, session.first_summarised(chunk.begin), chunk.end);
      if (!session.options().dense_layer(call.layer)) {
        session.summarise(call.layer, chunk.begin, session.step_tokens());
      }
      layers[i].emplace(LayerCall{session.data_, session.arithmetic_of(call), call.layer, call.q, call.out,
                                  session.plan(), session.observer(), call.lse});
      decodes[i] = {session.work_->dense.decode_of(chunk), &*layers[i], {}};
    }
    DecodePass::run(data_.workers, std::span(decodes).first(calls.size()));
  } catch (...) {
    for (const SequenceCall* const call : calls.first(entered)) session_of(*call)->fail(*call);
    throw;
  }
}

std::int64_t CpuSession::store_tasks() const {
  const std::int64_t rows = data_.kv.owner() == KvOwner::session ? step_tokens() : 0;  // ROWS-1
  return rows + data_.state->scores.rows();
}

void CpuSession::store_rows(Workers& workers, std::span<const SequenceCall* const> calls) {
  const auto session_of = [](const SequenceCall* call) { return static_cast<CpuSession*>(call->session); };
  workers.each_of(
      calls, [&](const SequenceCall* call) { return session_of(call)->store_tasks(); },
      [&](const SequenceCall* call, const Workers::Task& task) {
        session_of(call)->store_task(*call, task.index);
      });
}

void CpuSession::store_task(const SequenceCall& call, std::int64_t index) {
  core::KvStore& kv = data_.kv;
  const std::int64_t layer = call.layer;
  const std::int64_t base = plan().front().begin;
  const std::int64_t stored = store_tasks() - data_.state->scores.rows();
  if (index >= stored) {
    data_.state->scores.clear(layer, index - stored, base, base + step_tokens());
    return;
  }
  if (index >= 4096 && HEADWATER_SABOTAGE("cpu.store.rows_beyond_4096")) return;
  const Rows& k = call.k;
  const Rows& v = call.v;
  const auto bytes = [](std::int64_t count, DType type) {
    return count * static_cast<std::int64_t>(dtype_size(type));
  };
  const std::int64_t later = index + kPrefetchedRows;
  for (std::int64_t head = 0; head < shape().n_head_kv; ++head) {
    if (later < stored) {
      prefetch(core::row_address(k, later, head), bytes(kv.d_head(layer), k.type));
      prefetch(core::row_address(v, later, head), bytes(kv.d_value(layer), v.type));
      if (!kv.packed()) {
        prefetch(kv.key(layer, head, base + later), bytes(kv.d_head(layer), kv.type()));
        prefetch(kv.value(layer, head, base + later), bytes(kv.d_value(layer), kv.type()));
      }
    }
    kv.write(layer, head, base + index, k, v, index);
  }
}

void CpuSession::restore(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  if (!data_.kv.packed()) return;
  constexpr std::int64_t kRows = 256;  // of a task
  const std::int64_t parts = (end - begin + kRows - 1) / kRows;
  data_.workers.each(
      shape().n_head_kv * parts,
      [&](const Workers::Task& task) {
        const std::int64_t first = begin + task.index % parts * kRows;
        data_.kv.restore(layer, task.index / parts, first, std::min(first + kRows, end),
                         data_.kernels.restore_groups);
      },
      Workers::Asks::at_start);
}

void CpuSession::summarise(std::int64_t layer, std::int64_t base, std::int64_t n) {
  core::BlockSummaries& summaries = data_.summaries;
  if (summaries.empty()) return;
  const std::int64_t ahead =
      HEADWATER_SABOTAGE("cpu.blocks.block_of_two_calls") ? summaries.key_block() - 1 : 0;
  const std::int64_t first = (base + ahead) / summaries.key_block();
  const std::int64_t blocks = (base + n) / summaries.key_block() - first;
  if (blocks <= 0) return;
  summaries.make_room(layer, base, base + n);
  constexpr std::int64_t kBlocksAhead = 4;
  const std::int64_t key_block = summaries.key_block();
  const std::int64_t row_bytes =
      data_.kv.d_head(layer) * static_cast<std::int64_t>(dtype_size(data_.kv.type()));
  data_.workers.each(
      shape().n_head_kv * blocks,
      [&](const Workers::Task& task) {
        const std::int64_t head = task.index / blocks;
        const std::int64_t block = first + task.index % blocks;
        if (block + kBlocksAhead < first + blocks) {
          data_.kv.for_keys(
              layer, head, (block + kBlocksAhead) * key_block, key_block,
              [&](const void* keys, std::int64_t, std::int64_t some) { prefetch(keys, some * row_bytes); });
        }
        summaries.write(layer, head, block, data_.kv, data_.kernels.spread);
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
