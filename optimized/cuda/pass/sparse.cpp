#include "cuda/pass/sparse.hpp"

#include <algorithm>

#include "cuda/kernels/gather.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

namespace {

constexpr std::int64_t kPosition = sizeof(std::int32_t);

}  // namespace

SparsePass::SparsePass(SessionData& data)
    : data_(data), states_(static_cast<std::size_t>(data.shape.n_layer)), stores_{data} {
  const std::int64_t entries = core::checked_product(data.shape.n_head, data.set_width);
  const std::int64_t all_entries = core::checked_product(data.shape.n_layer, entries);
  using Account = SessionData::Account;
  sets_ = data.take<std::int32_t>(all_entries, "memory sets", Account::memory_sets);
  stores_.colsum_inter = data.take<float>(entries, "column sums", Account::memory_sets);
  set_scratch_ = data.take<std::int32_t>(entries, "selection");
  take_rows();
  take_states();
  shown_sets_ = core::Buffer<std::int32_t>(all_entries);
  shown_intra_ = core::Buffer<float>(core::checked_product(data.shape.n_head, data.window_rows));
  shown_inter_ = core::Buffer<float>(entries);
  data.bytes.workspace += shown_sets_.bytes() + shown_intra_.bytes() + shown_inter_.bytes();
}

void SparsePass::take_rows() {
  const std::int64_t rows =
      core::checked_product(data_.extent().gathered, data_.shape.n_head, data_.set_width);
  const std::int64_t row_bytes =
      core::checked_product(data_.key_width + data_.value_width, data_.element_bytes) + kPosition;
  stores_.keys = data_.take<unsigned char>(core::checked_product(rows, row_bytes), "gathered rows");
  const std::int64_t key_bytes = rows * data_.key_width * data_.element_bytes;
  const std::int64_t value_bytes = rows * data_.value_width * data_.element_bytes;
  stores_.values = stores_.keys + key_bytes;
  stores_.positions = reinterpret_cast<std::int32_t*>(stores_.values + value_bytes);
  data_.device->name_part(stores_.keys, key_bytes, "gathered keys");
  data_.device->name_part(stores_.values, value_bytes, "gathered values");
  data_.device->name_part(stores_.positions, rows * kPosition, "positions of gathered rows");
}

void SparsePass::take_states() {
  stores_.take_states(data_);
  const std::int64_t rows = core::checked_product(data_.shape.n_head, data_.window_rows);
  auto* next = data_.take<float>(core::checked_product(rows, 3), "softmax state of memory sets");
  SoftmaxState& inter = stores_.inter;
  inter.max = data_.part(next, rows, "inter maxima");
  inter.sum = data_.part(next, rows, "inter sums");
  inter.stride = data_.window_rows;
  stores_.colsum_intra = data_.part(next, rows, "intra column sums");
}

std::int32_t* SparsePass::sets(std::int64_t layer) const {
  return sets_ + layer * data_.shape.n_head * data_.set_width;
}

void SparsePass::forget() {
  std::fill(states_.begin(), states_.end(), SetState{});
  std::fill_n(shown_sets_.data(), shown_sets_.size(), -1);
  data_.device->set(data_.stream, sets_, 0xFF, shown_sets_.bytes());  // -1 everywhere
}

MemoryView SparsePass::memory(std::int64_t layer) const {
  const std::int64_t entries = data_.shape.n_head * data_.set_width;
  std::int32_t* shown = shown_sets_.data() + layer * entries;
  data_.device->copy(data_.stream, shown, sets(layer), entries * kPosition, Direction::device_to_host);
  data_.device->synchronize(data_.stream);
  return {shown, data_.set_width, data_.set_width, states_[static_cast<std::size_t>(layer)].count};
}

void SparsePass::run(const Window& window, std::span<const Chunk> chunks) {
  WindowLaunches& launches = window.launches;
  const auto count = static_cast<std::int64_t>(chunks.size());
  window.path.intra_groups(window, stores_, count);
  for (std::int64_t index = 0; index < count; ++index) {
    const Chunk& chunk = chunks[static_cast<std::size_t>(index)];
    const bool has_memory = chunk.begin > 0;
    launches.before_select(index);
    if (has_memory) build_memory(window, chunk, index);
    const InterChunk inter{chunk, index, state(window.layer).count};
    launches.after_gather();
    if (has_memory) window.path.inter_scores(window, stores_, inter);
    launches.before_output(index);
    if (has_memory) window.path.inter_output(window, stores_, inter);
    launches.after_output(index);
    if (!window.observed()) continue;
    launches.join(index);
    report(window, chunk);
  }
  launches.join(count - 1);
}

void SparsePass::build_memory(const Window& window, const Chunk& chunk, std::int64_t index) {
  const EffectiveOptions& options = data_.options;
  SetState& set = state(window.layer);
  const std::int64_t end = chunk.begin;
  const std::int64_t local_begin = std::max<std::int64_t>(0, end - options.local);  // MEM-1
  // MEM-2: what the previous set holds before Local (its own Local ended at built_at), then the tokens since.
  const std::int64_t kept = set.count - std::max<std::int64_t>(0, set.built_at - local_begin);
  const std::int64_t since = std::min(set.built_at, local_begin);
  const std::int64_t candidates = kept + local_begin - since;
  const std::int64_t heavy = std::min(options.heavy, candidates);

  SelectParams select{};
  select.sets = sets(window.layer);
  select.scratch = set_scratch_;
  select.scores = data_.scores(window.layer);
  select.scores_bf16 = data_.scores_bf16();
  select.capacity = data_.shape.capacity;
  select.width = static_cast<int>(data_.set_width);
  select.kept = static_cast<int>(kept);
  select.since = static_cast<int>(since);
  select.candidates = static_cast<int>(candidates);
  // They stand at the front of the previous set, or are the first tokens of all.
  select.pinned = HEADWATER_SABOTAGE("cuda.memory.pins_nothing")
                      ? 0
                      : static_cast<int>(std::min(options.pinned, local_begin));
  select.heavy = static_cast<int>(heavy);
  select.local_begin = static_cast<int>(local_begin);
  select.end = static_cast<int>(end);
  if (HEADWATER_SABOTAGE("cuda.memory.local_one_late") && local_begin > 0) {
    --select.local_begin;
    --select.end;
  }
  window.launches.launch(window.launches.select(index), data_.dispatch.select(Stage::select, candidates),
                         grid(data_.shape.n_head, 1, 1), select);
  set = {heavy + end - local_begin, end};

  window.launches.before_gather(index);
  if (HEADWATER_SABOTAGE("cuda.gather.stale") && chunk.begin > options.chunk) return;
  gather(window, index);
}

void SparsePass::gather(const Window& window, std::int64_t index) {
  const SparseStores::Gathered to = stores_.gathered(window.launches.slot(index));
  const std::int64_t count = state(window.layer).count;
  GatherParams gather{};
  gather.keys = data_.keys(window.layer);
  gather.values = data_.values(window.layer);
  gather.gathered_keys = const_cast<void*>(to.keys.data.raw());
  gather.gathered_values = const_cast<void*>(to.values.data.raw());
  gather.gathered_positions = to.positions;
  gather.positions = sets(window.layer);
  gather.positions_stride = data_.set_width;
  gather.entries = data_.set_width;
  gather.count = static_cast<int>(count);
  gather.group = static_cast<int>(data_.group);
  gather.element_bytes = static_cast<int>(data_.element_bytes);
  window.launches.launch(window.launches.gather(index), data_.dispatch.only(Stage::gather),
                         grid(data_.shape.n_head, std::min(pieces(count, kGatherEntries), kMaxGrid), 1),
                         gather);
}

/// Copies in host memory, made only while somebody observes.
void SparsePass::report(const Window& window, const Chunk& chunk) {
  Device& device = *data_.device;
  const Stream stream = data_.stream;
  const std::int64_t heads = data_.shape.n_head;
  const std::int64_t n = chunk.end - chunk.begin;
  const std::int64_t window_bytes = data_.window_rows * kFloat;
  const std::int64_t set_bytes = data_.set_width * kFloat;
  const std::int64_t count = chunk.begin > 0 ? state(window.layer).count : 0;
  device.copy_rows(stream, {shown_intra_.data(), window_bytes},
                   {stores_.colsum_intra + (chunk.begin - window.begin), window_bytes}, n * kFloat, heads,
                   Direction::device_to_host);
  device.copy_rows(stream, {data_.shown_lse.data(), window_bytes}, {data_.lse, window_bytes}, n * kFloat,
                   heads, Direction::device_to_host);
  std::fill_n(shown_inter_.data(), shown_inter_.size(), 0.0f);
  if (count > 0) {
    device.copy_rows(stream, {shown_inter_.data(), set_bytes}, {stores_.colsum_inter, set_bytes},
                     count * kFloat, heads, Direction::device_to_host);
  }
  device.synchronize(stream);

  ChunkRecord record;
  record.layer = window.layer;
  record.chunk = chunk;
  record.memory_count = count;
  record.memory_stride = data_.set_width;
  record.memory = memory(window.layer).data;
  record.colsum_inter = shown_inter_.data();
  record.row_stride = data_.window_rows;
  record.colsum_intra = shown_intra_.data();
  record.lse = data_.shown_lse.data();
  window.observer(record);
}

}  // namespace headwater::cuda
