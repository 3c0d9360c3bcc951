#include "reference/session.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "headwater/error.hpp"
#include "reference/arguments.hpp"
#include "reference/chunk_plan.hpp"
#include "reference/config.hpp"
#include "reference/numbers.hpp"
#include "reference/saved_state.hpp"
#include "reference/schedule.hpp"

namespace headwater::reference {
namespace {

void require_index(const std::string& field, std::int64_t value, std::int64_t count) {
  if (value >= 0 && value < count) return;
  reject(field, std::to_string(value), "at least 0 and below " + std::to_string(count));
}

[[noreturn]] void wrong_state(const std::string& message) { throw Error(ErrorCode::wrong_state, message); }

[[noreturn]] void out_of_memory(const std::string& call) {
  throw Error(ErrorCode::out_of_memory, call + ": the reference could not take its working memory");
}

/// Copies a stored row of `width` elements to the front of `into`.
void copy_stored_row(const Rows& rows, std::int64_t head, std::int64_t position, std::int64_t width,
                     std::span<float> into) {
  if (into.size() < static_cast<std::size_t>(width)) {
    reject("row.size", std::to_string(into.size()), "at least " + std::to_string(width));
  }
  copy_row(rows, position, head, into.first(static_cast<std::size_t>(width)));
}

}  // namespace

ReferenceSession::ReferenceSession(const Shape& shape, const Options& options)
    : shape_(shape), options_(options), effective_(resolve(shape, options)), history_(effective_) {
  layers_.reserve(static_cast<std::size_t>(shape.n_layer));
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    layers_.emplace_back(effective_.shape_of(shape, layer), effective_);
  }
  attended_.assign(layers_.size(), false);
  checkpoints_.resize(layers_.size());
}

void ReferenceSession::require_usable() const {
  if (progress_ == Progress::failed)
    wrong_state("the last step failed: only abort() or reset() is allowed (STATE-5)");
}

void ReferenceSession::require_idle(const std::string& call) const {
  require_usable();
  if (progress_ == Progress::open) wrong_state(call + " in an open step: end() or abort() must come first");
}

bool ReferenceSession::failed() const { return progress_ == Progress::failed; }

void ReferenceSession::begin(const Step& step) {
  require_usable();
  if (progress_ == Progress::open) {
    progress_ = Progress::failed;
    wrong_state("begin() in an open step: end() must come first; the step has failed");
  }
  try {
    const Turn turn = next_turn(history_.turn(), step, effective_, tokens_, shape_.capacity);
    const std::vector<Chunk> plan =
        chunk_plan(tokens_, step.n, turn.mode, effective_.batch, effective_.chunk);
    std::vector<LayerState> before;
    for (const LayerStorage& storage : layers_) before.push_back(storage.state(tokens_));
    history_.add(turn, plan);
    before_step_ = std::move(before);
  } catch (const std::bad_alloc&) {
    out_of_memory("begin()");
  }
  step_tokens_ = step.n;
  attended_.assign(layers_.size(), false);
  progress_ = Progress::open;
}

void ReferenceSession::attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                              const MutableRows& out, const LseOutput& lse) {
  run({this, layer, q, k, v, nullptr, out, lse});
}

void ReferenceSession::attend_stored(std::int64_t layer, const Rows& q, const StoredRows& rows,
                                     const MutableRows& out, const LseOutput& lse) {
  run({this, layer, q, {}, {}, &rows, out, lse});
}

void ReferenceSession::check_call(const SequenceCall& call) const {
  require_usable();
  if (progress_ != Progress::open) wrong_state("attend() without an open step: begin() must come first");
  require_index("layer", call.layer, shape_.n_layer);
  const Shape& shape = layers_[static_cast<std::size_t>(call.layer)].shape();
  const bool rows_alone = call.rows_alone() && history_.turn().mode == ChunkMode::decode;  // DEC-2
  if (!rows_alone) check_rows("q", call.q, step_tokens_, shape.n_head, shape.d_head);
  const bool of_caller = effective_.kv_owner == KvOwner::caller;
  if (of_caller != (call.stored != nullptr)) {
    reject("kv_owner", of_caller ? "1 (caller)" : "0 (session)",
           of_caller ? "0 for attend(): attend_stored() takes the rows"
                     : "1 for attend_stored(): attend() takes the rows");
  }
  if (of_caller) {
    try {
      check_stored_rows(*call.stored, shape, tokens_ + step_tokens_);
    } catch (const std::bad_alloc&) {
      out_of_memory("attend_stored()");
    }
  } else {
    check_rows("k", call.k, step_tokens_, shape.n_head_kv, shape.d_head);
    check_rows("v", call.v, step_tokens_, shape.n_head_kv, shape.d_value);
  }
  if (!rows_alone) check_rows("out", read_only(call.out), step_tokens_, shape.n_head, shape.d_value);
  if (call.lse.data != nullptr && !rows_alone) {
    check_rows("lse", read_only(as_rows(call.lse)), step_tokens_, shape.n_head, 1);
  }
  if (attended_[static_cast<std::size_t>(call.layer)]) {
    wrong_state("attend() of layer " + std::to_string(call.layer) +
                ": already attended in this step; the step has failed");
  }
}

void ReferenceSession::store(const SequenceCall& call) {
  LayerStorage& storage = layers_[static_cast<std::size_t>(call.layer)];
  if (!call.stored) {
    store_rows(storage, tokens_, step_tokens_, call.k, call.v);
    return;
  }
  for (std::int64_t position = 0; position < tokens_ + step_tokens_; ++position) {
    store_rows(storage, position, 1, key_rows(*call.stored, shape_.kv_type, position),
               value_rows(*call.stored, shape_.kv_type, position));
  }
}

void ReferenceSession::run(const SequenceCall& call) {
  try {
    check_call(call);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::wrong_state && progress_ == Progress::open) progress_ = Progress::failed;
    throw;
  }
  const std::int64_t layer = call.layer;
  progress_ = Progress::failed;  // until the layer is done (STATE-5)
  try {
    LayerStorage& storage = layers_[static_cast<std::size_t>(layer)];
    std::vector<Checkpoint>& checkpoints = checkpoints_[static_cast<std::size_t>(layer)];
    LayerStep step{storage.shape(), options_, effective_, observer_, interrupt_, storage,
                   checkpoints,     layer,    tokens_,    call.q,    call.out,   call.lse};
    ask_to_stop(step);
    store(call);
    attended_[static_cast<std::size_t>(layer)] = true;
    const ChunkMode mode = history_.turn().mode;
    const bool dense_layer = effective_.dense_layer(layer);
    if (call.rows_alone()) {  // DEC-2
      // Nothing is asked.
    } else if (mode == ChunkMode::sparse && dense_layer) {  // STATE-7
      attend_dense(step, Chunk{tokens_, tokens_ + step_tokens_, ChunkMode::dense});
    } else if (mode != ChunkMode::sparse) {
      attend_dense(step, plan().front());
    } else if (effective_.schedule == Schedule::layer_major) {
      attend_layer_major(step, plan());
    } else {
      attend_chunk_major(step, plan());
    }
  } catch (const std::bad_alloc&) {
    out_of_memory("attend()");
  }
  progress_ = Progress::open;
}

void ReferenceSession::end() {
  require_usable();
  if (progress_ != Progress::open) wrong_state("end() without an open step: begin() must come first");
  const auto missing = std::find(attended_.begin(), attended_.end(), false);
  if (missing != attended_.end()) {
    progress_ = Progress::failed;
    wrong_state("end() before layer " + std::to_string(missing - attended_.begin()) +
                " was attended; the step has failed");
  }
  tokens_ += step_tokens_;
  step_tokens_ = 0;
  progress_ = Progress::idle;
  before_step_.clear();
  history_.settle();
  const auto settled = [&](const Checkpoint& checkpoint) {
    return checkpoint.begin < history_.settled_end();
  };
  for (std::vector<Checkpoint>& checkpoints : checkpoints_) std::erase_if(checkpoints, settled);
}

void ReferenceSession::reset() {
  for (LayerStorage& storage : layers_) storage.clear(tokens_ + step_tokens_);
  for (std::vector<Checkpoint>& checkpoints : checkpoints_) checkpoints.clear();
  before_step_.clear();
  history_.clear();
  tokens_ = 0;
  step_tokens_ = 0;
  progress_ = Progress::idle;
}

// STATE-8
void ReferenceSession::abort() {
  if (progress_ == Progress::idle) wrong_state("abort() without an open step: begin() must come first");
  const auto of_the_step = [&](const Checkpoint& checkpoint) { return checkpoint.begin >= tokens_; };
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    layers_[layer].restore(before_step_[layer], tokens_ + step_tokens_);
    std::erase_if(checkpoints_[layer], of_the_step);
  }
  before_step_.clear();
  history_.drop_last();
  step_tokens_ = 0;
  progress_ = Progress::idle;
}

// STATE-9, STATE-10
void ReferenceSession::truncate(std::int64_t n) {
  require_idle("truncate()");
  const std::string stored = std::to_string(tokens_);
  const auto refuse_n = [&](const std::string& allowed) {
    reject("truncate() to n", std::to_string(n), allowed);
  };
  if (n < 0 || n > tokens_) refuse_n("0 to " + stored + ", the tokens stored");
  if (!history_.can_end_at(n)) {
    const Chunk* around = history_.sparse_chunk_around(n);
    refuse_n("0, or " + std::to_string(history_.settled_end()) + " to " + stored + " and not inside of " +
             (around ? "the sparse chunk from " + std::to_string(around->begin) + " to " +
                           std::to_string(around->end)
                     : std::string("a sparse chunk")) +
             " (STATE-10, checkpoints = " + std::to_string(effective_.checkpoints) + ")");
  }
  if (n == 0) {
    reset();
    return;
  }
  const auto dropped = [&](const Checkpoint& checkpoint) { return checkpoint.begin >= n; };
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    std::vector<Checkpoint>& checkpoints = checkpoints_[layer];
    // Without such a chunk nothing changed the scores and sets since: dense and decode chunks do not.
    const auto first = std::find_if(checkpoints.begin(), checkpoints.end(), dropped);
    if (first != checkpoints.end()) layers_[layer].restore(first->state, tokens_);
    checkpoints.erase(first, checkpoints.end());
  }
  history_.truncate(n);
  tokens_ = n;
}

// STATE-11
std::unique_ptr<Session> ReferenceSession::fork() {
  require_idle("fork()");
  try {
    auto other = std::make_unique<ReferenceSession>(shape_, options_);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const LayerStorage& storage = layers_[layer];
      other->layers_[layer].copy_rows(storage, tokens_);
      other->layers_[layer].restore(storage.state(tokens_), tokens_);
    }
    other->history_ = history_;
    other->checkpoints_ = checkpoints_;
    other->tokens_ = tokens_;
    return other;
  } catch (const std::bad_alloc&) {
    out_of_memory("fork()");
  }
}

// STATE-12
void ReferenceSession::exchange_state(StateArchive& archive) {
  require_idle("save() or load()");
  const bool loading = archive.loading();
  if (loading && tokens_ > 0) {
    wrong_state("load() into a session of " + std::to_string(tokens_) + " tokens: it must be empty");
  }
  try {
    tokens_ = exchange_steps(archive, effective_, shape_.capacity, history_);
    exchange_floats(archive, "sinks", options_.sinks);
    exchange_floats(archive, "alibi", options_.alibi);
    if (effective_.sparse && effective_.select == Select::h2o) {
      exchange_set_sizes(archive, effective_, chunks(), layers_);
    }
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      exchange_layer(archive, effective_, tokens_, static_cast<std::int64_t>(layer), layers_[layer]);
    }
  } catch (...) {
    if (loading) reset();
    try {
      throw;
    } catch (const std::bad_alloc&) {
      out_of_memory("save() or load()");
    }
  }
}

MemoryBytes ReferenceSession::memory_bytes() const {
  MemoryBytes sum;
  for (const LayerStorage& storage : layers_) {
    const MemoryBytes bytes = storage.bytes();
    sum.kv += bytes.kv;
    sum.scores += bytes.scores;
    sum.memory_sets += bytes.memory_sets;
  }
  // Unlike the rest these are taken step by step.
  for (const LayerState& state : before_step_) sum.memory_sets += bytes_of(state);
  for (const std::vector<Checkpoint>& checkpoints : checkpoints_) {
    for (const Checkpoint& checkpoint : checkpoints) sum.memory_sets += bytes_of(checkpoint.state);
  }
  sum.workspace = static_cast<std::int64_t>(sizeof(*this) + layers_.size() * sizeof(LayerStorage));
  return sum;
}

ScoreView ReferenceSession::scores(std::int64_t layer) const {
  require_index("layer", layer, shape_.n_layer);
  return layers_[static_cast<std::size_t>(layer)].score_view();
}

MemoryView ReferenceSession::memory(std::int64_t layer) const {
  require_index("layer", layer, shape_.n_layer);
  return layers_[static_cast<std::size_t>(layer)].memory_view();
}

std::int64_t ReferenceSession::stored_rows(std::int64_t layer) const {
  return tokens_ + (attended_[static_cast<std::size_t>(layer)] ? step_tokens_ : 0);
}

void ReferenceSession::read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                                std::span<float> row) const {
  if (effective_.kv_owner == KvOwner::caller) refuse("reading rows that the caller keeps");
  require_index("layer", layer, shape_.n_layer);
  require_index("head_kv", head_kv, shape_.n_head_kv);
  require_index("position", position, stored_rows(layer));
  const LayerStorage& storage = layers_[static_cast<std::size_t>(layer)];
  copy_stored_row(storage.keys(), head_kv, position, storage.shape().d_head, row);
}

void ReferenceSession::read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                                  std::span<float> row) const {
  if (effective_.kv_owner == KvOwner::caller) refuse("reading rows that the caller keeps");
  require_index("layer", layer, shape_.n_layer);
  require_index("head_kv", head_kv, shape_.n_head_kv);
  require_index("position", position, stored_rows(layer));
  const LayerStorage& storage = layers_[static_cast<std::size_t>(layer)];
  copy_stored_row(storage.values(), head_kv, position, storage.shape().d_value, row);
}

void ReferenceSession::set_observer(Observer observer) { observer_ = std::move(observer); }

void ReferenceSession::set_interrupt(Interrupt interrupt) { interrupt_ = std::move(interrupt); }

}  // namespace headwater::reference
