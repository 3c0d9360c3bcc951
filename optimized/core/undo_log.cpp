#include "core/undo_log.hpp"

#include <algorithm>

#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

UndoLog::UndoLog(MemorySets& sets, ScoreStore& scores, std::int64_t layers, std::int64_t capacity,
                 std::int64_t checkpoints)
    : sets_(sets),
      scores_(scores),
      ring_(2 * std::min(checkpoints, capacity)),  // a chunk has a token at least
      layers_(static_cast<std::size_t>(layers)) {
  const std::int64_t entries = checked_product(layers, sets.heads(), sets.width());
  const std::int64_t slots = ring_ + 1;
  heads_ = Buffer<Head>(checked_product(layers, sets.heads()));
  heads_.fill(Head::untouched);
  before_ = Buffer<MemorySets::Layer>(checked_product(slots, layers));
  positions_ = Buffer<std::int32_t>(checked_product(slots, entries));
  kept_scores_ = Buffer<unsigned char>(checked_product(slots, entries, scores.element_bytes()));
  first_sets_ = Buffer<std::int32_t>(entries);
}

void UndoLog::open_layer(std::int64_t layer, std::span<const Chunk> chunks) {
  chunks_ = chunks;
  layers_[static_cast<std::size_t>(layer)].step = Step::open;
  std::fill_n(&head_of(layer, 0), sets_.heads(), Head::untouched);
  before(ring_, layer) = sets_.layer(layer);
}

std::int64_t UndoLog::slot_of(std::int64_t begin) const {
  const auto last =
      chunks_.last(static_cast<std::size_t>(most_kept(static_cast<std::int64_t>(chunks_.size()))));
  const auto chunk = std::lower_bound(last.begin(), last.end(), begin,
                                      [](const Chunk& one, std::int64_t at) { return one.begin < at; });
  if (chunk == last.end() || chunk->begin != begin) return -1;
  const std::int64_t half = HEADWATER_SABOTAGE("core.undo.ring_without_spare_half") ? ring_ / 2 : ring_;
  return (checkpoints_ + (chunk - last.begin())) % half;
}

void UndoLog::copy_set(std::int64_t slot, std::int64_t layer, std::int64_t head) {
  std::copy_n(sets_.entries(layer, head), sets_.width(), positions(slot, layer, head));
}

void UndoLog::keep_set(std::int64_t layer, std::int64_t head, std::int64_t begin) {
  if (Head& state = head_of(layer, head); state == Head::untouched) {
    copy_set(ring_, layer, head);
    state = Head::set_kept;
  }
  const std::int64_t slot = slot_of(begin);
  if (slot < 0) return;
  copy_set(slot, layer, head);
  if (head == 0) before(slot, layer) = sets_.layer(layer);
}

void UndoLog::keep_scores(std::int64_t layer, std::int64_t head, std::int64_t begin) {
  const std::int32_t* set = sets_.entries(layer, head);
  const std::int64_t count = sets_.next_count(begin);
  if (Head& state = head_of(layer, head); state == Head::set_kept) {
    std::copy_n(set, sets_.width(), first_set(layer, head));
    scores_.keep(layer, head, set, count, kept_scores(ring_, layer, head));
    state = Head::scores_kept;
  }
  const std::int64_t slot = slot_of(begin);
  if (slot >= 0) scores_.keep(layer, head, set, count, kept_scores(slot, layer, head));
}

void UndoLog::keep_step(std::int64_t chunks) {
  checkpoints_ += most_kept(chunks);
  for (Layer& layer : layers_) {
    if (layer.step == Step::open) layer = {Step::none, checkpoints_};
  }
}

void UndoLog::undo_step() {
  for (Layer& layer : layers_) {
    if (layer.step == Step::open) layer.step = Step::aborted;
  }
}

void UndoLog::apply_step(std::int64_t layer) {
  for (std::int64_t head = 0; head < sets_.heads(); ++head) {
    const Head state = head_of(layer, head);
    if (state == Head::untouched) continue;
    if (state == Head::scores_kept) {
      const std::int32_t* set = first_set(layer, head);
      const std::int64_t count = std::find(set, set + sets_.width(), -1) - set;
      scores_.put_back(layer, head, set, count, kept_scores(ring_, layer, head));
    }
    sets_.restore(layer, head, positions(ring_, layer, head));
  }
  MemorySets::Layer old = before(ring_, layer);
  if (HEADWATER_SABOTAGE("core.undo.set_seems_newer")) old.built_at = sets_.layer(layer).built_at;
  sets_.restore(layer, old);
}

void UndoLog::apply(std::int64_t layer) {
  Layer& state = layers_[static_cast<std::size_t>(layer)];
  if (state.step == Step::aborted) {
    apply_step(layer);
    state.step = Step::none;
  }
  if (state.checkpoints <= checkpoints_) return;  // dense layers make none
  for (std::int64_t head = 0; head < sets_.heads(); ++head) {
    if (head >= 64 && HEADWATER_SABOTAGE("core.undo.heads_beyond_64")) break;
    const std::int32_t* set = sets_.entries(layer, head);
    std::int64_t count = sets_.count(layer);
    if (HEADWATER_SABOTAGE("core.undo.sets_beyond_512")) count = std::min<std::int64_t>(count, 512);
    for (std::int64_t last = state.checkpoints; last-- > checkpoints_;) {
      const std::int64_t slot = last % ring_;
      scores_.put_back(layer, head, set, count, kept_scores(slot, layer, head));
      set = positions(slot, layer, head);
      count = before(slot, layer).count;
    }
    sets_.restore(layer, head, set);
  }
  sets_.restore(layer, before(checkpoints_ % ring_, layer));
  state.checkpoints = checkpoints_;
}

void UndoLog::forget() {
  checkpoints_ = 0;
  std::fill(layers_.begin(), layers_.end(), Layer{});
}

void UndoLog::copy(const UndoLog& from) {
  checkpoints_ = from.checkpoints_;
  std::copy(from.layers_.begin(), from.layers_.end(), layers_.begin());
  // Without the record of the open step, which is the last slot.
  const std::int64_t slots = std::min(ring_, checkpoints_);
  const std::int64_t entries = index(slots, 0, 0) * sets_.width();
  std::copy_n(from.before_.data(), slots * layers(), before_.data());
  std::copy_n(from.positions_.data(), entries, positions_.data());
  std::copy_n(from.kept_scores_.data(), entries * scores_.element_bytes(), kept_scores_.data());
}

}  // namespace headwater::core
