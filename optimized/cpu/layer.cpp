#include "cpu/layer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

Shape widest_of(Shape shape, const EffectiveOptions& options) {
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const Shape own = options.shape_of(shape, layer);
    shape.d_head = std::max(shape.d_head, own.d_head);
    shape.d_value = std::max(shape.d_value, own.d_value);
  }
  return shape;
}

}  // namespace

ScoreState::ScoreState(const Shape& shape, const EffectiveOptions& options) {
  if (!options.sparse || options.select != Select::h2o) {
    scores = core::ScoreStore::zeros(shape.capacity, options.score_type);
    return;
  }
  scores = core::ScoreStore(shape.n_layer, shape.n_head, shape.capacity, options.score_type);
  memory = core::MemorySets(shape.n_layer, shape.n_head, options.local, options.heavy, shape.capacity,
                            options.pinned);
  undo.emplace(memory, scores, shape.n_layer, shape.capacity, options.checkpoints);
}

void ScoreState::copy(const ScoreState& from, std::int64_t tokens) {
  scores.copy(from.scores, tokens);
  if (!undo) return;
  memory.copy(from.memory);
  if (!HEADWATER_SABOTAGE("cpu.fork.checkpoints_left_behind")) undo->copy(*from.undo);
}

SessionData::SessionData(const KernelTable& kernel_table, const Shape& session_shape, const Options& wished,
                         const EffectiveOptions& effective)
    : kernels(kernel_table),
      widest(widest_of(session_shape, effective)),
      shape(session_shape),
      options(effective),
      sinks(wished.sinks),
      alibi(wished.alibi),
      kv(shape, effective),
      state(std::make_shared<ScoreState>(shape, effective)),
      workers(effective.threads, wished.parallel_for, wished.parallel_context) {
  if (effective.sparse && effective.select == Select::blocks && effective.heavy > 0)
    summaries = core::BlockSummaries(shape, effective);
}

SessionData::SessionData(SessionData& parent, const EffectiveOptions& effective, std::int64_t tokens)
    : kernels(parent.kernels),
      widest(parent.widest),
      shape(parent.shape),
      options(effective),
      sinks(parent.sinks),
      alibi(parent.alibi),
      kv(parent.kv.fork(tokens)),
      state(parent.state),
      shares_state(true),
      summaries(parent.summaries.fork(tokens)),
      workers(parent.workers) {
  parent.shares_state = true;
}

void SessionData::own_scores(std::int64_t tokens) {
  if (!shares_state) return;
  auto own = std::make_shared<ScoreState>(shape, options);
  own->copy(*state, tokens);
  state = std::move(own);
  shares_state = false;
}

std::int64_t SessionData::kv_head(std::int64_t head) const {
  const std::int64_t group = shape.n_head / shape.n_head_kv;
  if (group > 8 && HEADWATER_SABOTAGE("cpu.heads.groups_beyond_8"))
    return std::min(head / 8, shape.n_head_kv - 1);
  return head / group;  // LOGIT-1: floor(h * Hkv / Hq)
}

std::int64_t SessionData::most_chunk_rows() const {
  return options.sparse ? std::min(options.chunk, shape.capacity) : 0;
}

std::int64_t SessionData::set_width() const {
  return options.sparse ? std::min(options.memory(), shape.capacity) : 0;
}

std::int64_t SessionData::summary_width() const { return summaries.most_width(); }

LogitMap LayerCall::logit_map(std::int64_t head) const {
  LogitMap map;
  map.softcap = static_cast<float>(data.options.softcap_of(layer));
  if (!data.alibi.empty()) map.slope = data.alibi[static_cast<std::size_t>(head)];
  return map;
}

float LayerCall::sink(std::int64_t head) const {
  const std::vector<float>* sinks = &data.sinks;
  if (!data.options.layers.empty()) {
    const auto& own = data.options.layers[static_cast<std::size_t>(layer)].sinks;
    if (own) sinks = &*own;
  }
  return sinks->empty() ? -std::numeric_limits<float>::infinity() : (*sinks)[static_cast<std::size_t>(head)];
}

std::int64_t LayerCall::first_visible(std::int64_t position) const {
  const std::int64_t window = data.options.window(layer);
  return window == 0 ? 0 : std::max<std::int64_t>(0, position - window + 1);
}

float* LayerCall::float_row(std::int64_t position, std::int64_t head) const {
  void* row = core::row_address(out, position - base(), head);
  if (out.type != DType::f32 || reinterpret_cast<std::uintptr_t>(row) % alignof(float) != 0) return nullptr;
  return static_cast<float*>(row);
}

void LayerCall::store_row(std::int64_t position, std::int64_t head, const float* row) const {
  void* to = core::row_address(out, position - base(), head);
  data.kernels.narrow(row, data.shape.d_value, out.type, to);
  if (out.type == DType::bf16 && HEADWATER_SABOTAGE("cpu.rows.truncated")) {
    const auto* upper = reinterpret_cast<const unsigned char*>(row) + 2;
    auto* bytes = static_cast<unsigned char*>(to);
    for (std::int64_t c = 0; c < data.shape.d_value; ++c) std::memcpy(bytes + 2 * c, upper + 4 * c, 2);
  }
}

bool LayerCall::wants_lse() const {
  return observer || (lse.data != nullptr && !HEADWATER_SABOTAGE("cpu.lse.for_observers_alone"));
}

void LayerCall::store_lse(const LseRows& shown, std::int64_t position, std::int64_t head, float value) const {
  if (observer) shown.at(head, position) = value;
  if (lse.data == nullptr) return;
  if (HEADWATER_SABOTAGE("cpu.lse.heads_beyond_16") && head >= 16) return;
  std::int64_t row = position - base();
  if (HEADWATER_SABOTAGE("cpu.lse.row_in_12_bits")) row &= 0xFFF;
  // The caller's floats need not be aligned.
  auto* to = reinterpret_cast<unsigned char*>(lse.data) +
             (row * lse.row_stride + head * lse.head_stride) * std::int64_t{sizeof(float)};
  std::memcpy(to, &value, sizeof value);
}

}  // namespace headwater::cpu
