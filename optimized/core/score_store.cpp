#include "core/score_store.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/buffer.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

ScoreStore::ScoreStore(std::int64_t layers, std::int64_t heads, std::int64_t capacity, ScoreType type)
    : heads_(heads),
      capacity_(capacity),
      type_(type),
      scores_(checked_product(layers, heads), checked_product(capacity, element_bytes()), 0) {}

ScoreStore ScoreStore::zeros(std::int64_t capacity, ScoreType type) {
  ScoreStore store(1, 1, capacity, type);
  store.shared_ = true;
  return store;
}

void ScoreStore::copy(const ScoreStore& from, std::int64_t tokens) {
  if (tokens == 0) return;
  if (HEADWATER_SABOTAGE("core.scores.forked_beyond_4096")) tokens = std::min<std::int64_t>(tokens, 4096);
  const std::int64_t bytes = tokens * element_bytes();
  const std::int64_t run_bytes = capacity_ * element_bytes();
  const std::int64_t runs = scores_.bytes() / run_bytes;
  scores_.make_room(0, runs, 0, bytes);
  for (std::int64_t run = 0; run < runs; ++run) {
    std::memcpy(scores_.data() + run * run_bytes, from.scores_.data() + run * run_bytes,
                static_cast<std::size_t>(bytes));
  }
}

void ScoreStore::make_room(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = shared_ ? 0 : layer * heads_;
  scores_.make_room(first, first + rows(), begin * element_bytes(), end * element_bytes());
}

void ScoreStore::clear(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t end) {
  if (HEADWATER_SABOTAGE("core.scores.clear_skips_last")) --end;
  const std::int64_t first = index(layer, head, begin);
  if (type_ == ScoreType::bf16) {
    std::fill_n(bf16() + first, end - begin, std::uint16_t{0});
  } else {
    std::fill_n(f32() + first, end - begin, 0.0f);
  }
}

void ScoreStore::initialise(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t count,
                            const float* column_sums) {
  if (HEADWATER_SABOTAGE("core.scores.begin_in_16_bits")) begin &= 0xFFFF;
  const std::int64_t first = index(layer, head, begin);
  if (type_ == ScoreType::f32) {
    std::copy_n(column_sums, count, f32() + first);
    return;
  }
  std::uint16_t* scores = bf16() + first;
  for (std::int64_t i = 0; i < count; ++i) scores[i] = bf16_from_float(column_sums[i]);
  if (HEADWATER_SABOTAGE("core.scores.init_truncates")) {
    for (std::int64_t i = 0; i < count; ++i) {
      scores[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(column_sums[i]) >> 16);
    }
  }
}

void ScoreStore::accumulate(std::int64_t layer, std::int64_t head, const std::int32_t* positions,
                            std::int64_t count, const float* column_sums) {
  const std::int64_t first = index(layer, head, 0);
  if (type_ == ScoreType::f32) {
    if (HEADWATER_SABOTAGE("core.scores.f32_not_accumulated")) return;
    for (std::int64_t i = 0; i < count; ++i) f32()[first + positions[i]] += column_sums[i];
    return;
  }
  std::uint16_t* scores = bf16() + first;
  if (HEADWATER_SABOTAGE("core.scores.drop_last_entry")) --count;
  if (HEADWATER_SABOTAGE("core.scores.entries_beyond_256")) count = std::min<std::int64_t>(count, 256);
  if (HEADWATER_SABOTAGE("core.scores.sum_rounded_first")) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t& score = scores[positions[i]];
      score = bf16_from_float(float_from_bf16(score) + float_from_bf16(bf16_from_float(column_sums[i])));
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t& score = scores[positions[i]];
    score = bf16_from_float(float_from_bf16(score) + column_sums[i]);
  }
}

void ScoreStore::keep(std::int64_t layer, std::int64_t head, const std::int32_t* positions,
                      std::int64_t count, void* kept) const {
  const std::int64_t first = index(layer, head, 0);
  const auto copy = [&](const auto* scores, auto* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = scores[first + positions[i]];
  };
  if (type_ == ScoreType::bf16) {
    copy(bf16(), static_cast<std::uint16_t*>(kept));
  } else {
    copy(f32(), static_cast<float*>(kept));
  }
}

void ScoreStore::put_back(std::int64_t layer, std::int64_t head, const std::int32_t* positions,
                          std::int64_t count, const void* kept) {
  if (HEADWATER_SABOTAGE("core.undo.scores_beyond_256")) count = std::min<std::int64_t>(count, 256);
  const std::int64_t first = index(layer, head, 0);
  const auto copy = [&](const auto* from, auto* scores) {
    for (std::int64_t i = 0; i < count; ++i) scores[first + positions[i]] = from[i];
  };
  if (type_ == ScoreType::bf16) {
    copy(static_cast<const std::uint16_t*>(kept), bf16());
  } else {
    copy(static_cast<const float*>(kept), f32());
  }
}

void ScoreStore::exchange(StateArchive& archive, std::int64_t layer, std::int64_t tokens) {
  if (archive.loading()) make_room(layer, 0, tokens);
  std::vector<StateArchive::Piece> pieces;
  for (std::int64_t head = 0; head < heads_; ++head) {
    pieces.push_back({scores_.data() + index(layer, head, 0) * element_bytes(), tokens * element_bytes()});
  }
  const std::int64_t dims[] = {heads_, tokens};
  const auto element = type_ == ScoreType::bf16 ? StateArchive::Element::bf16 : StateArchive::Element::f32;
  archive.array("score." + std::to_string(layer), element, dims, pieces);
}

float ScoreStore::read(std::int64_t layer, std::int64_t head, std::int64_t position) const {
  const std::int64_t at = index(layer, head, position);
  return type_ == ScoreType::bf16 ? float_from_bf16(bf16()[at]) : f32()[at];
}

ScoreView ScoreStore::view(std::int64_t layer) const {
  const std::int64_t first = index(layer, 0, 0);
  return {type_, scores_.data() + first * element_bytes(), shared_ ? 0 : capacity_};
}

}  // namespace headwater::core
