#include "core/memory_sets.hpp"

#include <algorithm>
#include <string>

#include "core/selection.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

MemorySets::MemorySets(std::int64_t layers, std::int64_t heads, std::int64_t local, std::int64_t heavy,
                       std::int64_t capacity, std::int64_t pinned)
    : heads_(heads),
      local_(local),
      heavy_(heavy),
      pinned_(pinned),
      width_(std::min(local + heavy, capacity)),
      layers_(static_cast<std::size_t>(layers)),
      positions_(checked_product(layers, heads, width_)) {
  positions_.fill(-1);
}

std::int64_t MemorySets::next_count(std::int64_t end) const {
  // Every token before `end` is in Local, in the previous set, new, or was dropped because the heavy budget was
  // full already; so the set is as large as its budgets and the tokens allow.
  return std::min(local_ + heavy_, end);
}

void MemorySets::build_head(std::int64_t layer, std::int64_t head, std::int64_t end, const ScoreStore& scores,
                            std::uint32_t* keys, std::int32_t* chosen) {
  if (head >= 64 && HEADWATER_SABOTAGE("core.memory.heads_beyond_64")) return;
  const Layer& state = layers_[static_cast<std::size_t>(layer)];
  std::int32_t* set = positions_.data() + (layer * heads_ + head) * width_;
  std::int64_t local_begin = std::max<std::int64_t>(0, end - local_);  // MEM-1
  if (HEADWATER_SABOTAGE("core.memory.local_one_late") && local_begin > 0) {
    --local_begin;
    --end;
  }

  // MEM-2, in ascending order: what is left of the previous set (all below built_at), then the tokens since.
  std::int64_t kept = 0;
  while (kept < state.count && set[kept] < local_begin) {
    keys[kept] = order_key(scores.read(layer, head, set[kept]));
    ++kept;
  }
  const std::int64_t since = std::min(state.built_at, local_begin);
  std::int64_t candidates = kept;
  for (std::int64_t p = since; p < local_begin; ++p) {
    keys[candidates++] = order_key(scores.read(layer, head, p));
  }
  // MEM-7. Pinned tokens are the first of all: after the second set they stand at the front of the previous one.
  const std::int64_t pinned = std::min(pinned_, local_begin);
  if (!HEADWATER_SABOTAGE("core.memory.pinned_once") || state.count == 0) {
    std::fill_n(keys, pinned, kPinnedKey);
  }
  if (HEADWATER_SABOTAGE("core.memory.forget_previous_set")) {
    for (std::int64_t i = 0; i < kept; ++i) keys[i] = 0;
  }

  // MEM-3, MEM-4. chosen[i] >= i, so the old entries can be overwritten from the left while they are read.
  const std::int64_t heavy = select_best(keys, candidates, heavy_, scores.key_bits(), chosen);
  std::int64_t count = 0;
  for (; count < heavy; ++count) {
    const std::int32_t c = chosen[count];
    set[count] = c < kept ? set[c] : static_cast<std::int32_t>(since + (c - kept));
    if (HEADWATER_SABOTAGE("core.memory.heavy_in_16_bits")) set[count] &= 0xFFFF;
  }
  for (std::int64_t p = local_begin; p < end; ++p) set[count++] = static_cast<std::int32_t>(p);
  std::fill(set + count, set + width_, -1);
}

void MemorySets::finish(std::int64_t layer, std::int64_t end) {
  layers_[static_cast<std::size_t>(layer)] = {next_count(end), end};
}

void MemorySets::exchange_layers(StateArchive& archive, std::span<const std::int64_t> built_at) {
  std::vector<std::int64_t> numbers;
  for (const Layer& layer : layers_) numbers.insert(numbers.end(), {layer.count, layer.built_at});
  const std::size_t size = numbers.size();
  archive.numbers("sets", numbers, static_cast<std::int64_t>(size));
  if (!archive.loading()) return;
  if (numbers.size() != size) {
    throw Error(ErrorCode::invalid_argument,
                "sets has " + std::to_string(numbers.size()) + " numbers; allowed: " + std::to_string(size));
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer right{next_count(built_at[l]), built_at[l]};
    if (numbers[2 * l] != right.count || numbers[2 * l + 1] != right.built_at) {
      throw Error(ErrorCode::invalid_argument,
                  "sets of layer " + std::to_string(l) + " have " + std::to_string(numbers[2 * l]) +
                      " entries, built at " + std::to_string(numbers[2 * l + 1]) + "; allowed: " +
                      std::to_string(right.count) + ", built at " + std::to_string(right.built_at));
    }
    layers_[l] = right;
  }
}

void MemorySets::exchange_entries(StateArchive& archive, std::int64_t layer, std::int64_t tokens) {
  const std::int64_t dims[] = {heads_, std::min(local_ + heavy_, tokens)};
  std::vector<StateArchive::Piece> pieces;
  for (std::int64_t head = 0; head < heads_; ++head) {
    pieces.push_back({positions_.data() + (layer * heads_ + head) * width_,
                      dims[1] * static_cast<std::int64_t>(sizeof(std::int32_t))});
  }
  archive.array("set." + std::to_string(layer), StateArchive::Element::i32, dims, pieces);
  if (!archive.loading() || HEADWATER_SABOTAGE("core.load.sets_believed")) return;
  for (std::int64_t head = 0; head < heads_; ++head) check_entries(layer, head);
}

void MemorySets::check_entries(std::int64_t layer, std::int64_t head) const {
  const auto [count, built_at] = this->layer(layer);
  const std::int64_t local_begin = std::max<std::int64_t>(0, built_at - local_);
  const std::int64_t heavy = count - (built_at - local_begin);
  const std::int64_t pinned = std::min(pinned_, local_begin);
  const std::int32_t* set = entries(layer, head);
  std::int64_t before = -1;
  for (std::int64_t i = 0; i < width_; ++i) {
    const std::int64_t at = set[i];
    const bool right = i >= count   ? at == -1
                       : i >= heavy ? at == local_begin + i - heavy
                       : i < pinned ? at == i
                                    : at > before && at < local_begin;
    if (!right) {
      throw Error(ErrorCode::invalid_argument, "set." + std::to_string(layer) + ": entry " +
                                                   std::to_string(i) + " of head " + std::to_string(head) +
                                                   " is " + std::to_string(at) +
                                                   "; allowed: ascending positions of MEM-4, then -1");
    }
    before = at;
  }
}

void MemorySets::restore(std::int64_t layer, std::int64_t head, const std::int32_t* before) {
  std::copy_n(before, width_, positions_.data() + (layer * heads_ + head) * width_);
}

void MemorySets::copy(const MemorySets& from) {
  std::copy(from.layers_.begin(), from.layers_.end(), layers_.begin());
  std::copy_n(from.positions_.data(), positions_.size(), positions_.data());
}

void MemorySets::reset() {
  if (HEADWATER_SABOTAGE("core.memory.reset_keeps_sets")) return;
  std::fill(layers_.begin(), layers_.end(), Layer{});
  positions_.fill(-1);
}

}  // namespace headwater::core
