#include "reference/storage.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "reference/numbers.hpp"
#include "reference/rows_8bit.hpp"

namespace headwater::reference {
namespace {

std::size_t row_bytes(const Shape& shape, std::int64_t width) {
  return static_cast<std::size_t>(shape.capacity * shape.n_head_kv * width) * dtype_size(shape.kv_type);
}

// STATE-13
std::size_t group_bytes(const Shape& shape, std::int64_t width) {
  return static_cast<std::size_t>(shape.capacity * shape.n_head_kv * width / kGroupElements * kGroupBytes);
}

void pack_row(std::span<const double> row, std::span<std::byte> groups) {
  for (; !row.empty(); row = row.subspan(kGroupElements), groups = groups.subspan(kGroupBytes)) {
    pack_group(row.first(kGroupElements), groups.first(kGroupBytes));
  }
}

void restore_row(const MutableRows& rows, std::int64_t position, std::int64_t head,
                 std::span<const std::byte> groups) {
  std::vector<double> row(groups.size() / kGroupBytes * kGroupElements);
  for (std::size_t i = 0; i < row.size() / kGroupElements; ++i) {
    restore_group(groups.subspan(i * kGroupBytes, kGroupBytes),
                  std::span(row).subspan(i * kGroupElements, kGroupElements));
  }
  write_row(rows, position, head, row);
}

/// A row to its groups and what they restore; `groups` is empty where rows are stored as they are.
void store_row(const MutableRows& rows, std::int64_t position, std::int64_t head, std::span<std::byte> groups,
               std::span<const double> row) {
  if (groups.empty()) return write_row(rows, position, head, row);
  pack_row(row, groups);
  restore_row(rows, position, head, groups);
}

/// The groups of row `row`, of so many elements each; empty where there are none.
std::span<std::byte> groups_at(ZeroedBytes& all, std::int64_t width, std::int64_t row) {
  if (all.size() == 0) return {};
  const auto size = static_cast<std::size_t>(width / kGroupElements * kGroupBytes);
  return {all.data() + static_cast<std::size_t>(row) * size, size};
}

std::size_t score_size(ScoreType type) { return type == ScoreType::bf16 ? 2 : 4; }

}  // namespace

ZeroedBytes::ZeroedBytes(std::size_t size)
    : data_(static_cast<std::byte*>(std::calloc(std::max<std::size_t>(size, 1), 1))), size_(size) {
  if (data_ == nullptr) throw std::bad_alloc();
}

ZeroedBytes::~ZeroedBytes() { std::free(data_); }

ZeroedBytes::ZeroedBytes(ZeroedBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

LayerStorage::LayerStorage(const Shape& shape, const EffectiveOptions& options)
    : shape_(shape),
      score_type_(options.score_type),
      width_(options.select != Select::h2o ? 0 : std::min(options.memory(), shape.capacity)),
      keys_(row_bytes(shape, shape.d_head)),
      values_(row_bytes(shape, shape.d_value)),
      key_groups_(options.kv_bits == 8 ? group_bytes(shape, shape.d_head) : 0),
      value_groups_(options.kv_bits == 8 ? group_bytes(shape, shape.d_value) : 0),
      scores_(static_cast<std::size_t>(shape.n_head * shape.capacity) * score_size(options.score_type)),
      memory_(static_cast<std::size_t>(shape.n_head * width_), -1) {}

// STATE-6
Rows LayerStorage::keys() const {
  return Rows::token_major(keys_.data(), shape_.kv_type, shape_.n_head_kv, shape_.d_head);
}

Rows LayerStorage::values() const {
  return Rows::token_major(values_.data(), shape_.kv_type, shape_.n_head_kv, shape_.d_value);
}

MutableRows LayerStorage::keys() {
  return MutableRows::token_major(keys_.data(), shape_.kv_type, shape_.n_head_kv, shape_.d_head);
}

MutableRows LayerStorage::values() {
  return MutableRows::token_major(values_.data(), shape_.kv_type, shape_.n_head_kv, shape_.d_value);
}

void LayerStorage::store_key(std::int64_t position, std::int64_t head_kv, std::span<const double> row) {
  store_row(keys(), position, head_kv, key_groups(position, head_kv), row);
}

void LayerStorage::store_value(std::int64_t position, std::int64_t head_kv, std::span<const double> row) {
  store_row(values(), position, head_kv, value_groups(position, head_kv), row);
}

void LayerStorage::copy_rows(const LayerStorage& from, std::int64_t tokens) {
  const auto copy = [&](const ZeroedBytes& source, ZeroedBytes& target) {
    const auto token = source.size() / static_cast<std::size_t>(shape_.capacity);
    std::copy_n(source.data(), token * static_cast<std::size_t>(tokens), target.data());
  };
  copy(from.keys_, keys_);
  copy(from.values_, values_);
  copy(from.key_groups_, key_groups_);
  copy(from.value_groups_, value_groups_);
}

// STATE-13
std::span<std::byte> LayerStorage::key_groups(std::int64_t position, std::int64_t head_kv) {
  return groups_at(key_groups_, shape_.d_head, position * shape_.n_head_kv + head_kv);
}

std::span<std::byte> LayerStorage::value_groups(std::int64_t position, std::int64_t head_kv) {
  return groups_at(value_groups_, shape_.d_value, position * shape_.n_head_kv + head_kv);
}

void LayerStorage::restore_rows(std::int64_t position, std::int64_t head_kv) {
  restore_row(keys(), position, head_kv, key_groups(position, head_kv));
  restore_row(values(), position, head_kv, value_groups(position, head_kv));
}

// SCORE-1
float LayerStorage::score(std::int64_t query_head, std::int64_t position) const {
  const auto entry = static_cast<std::size_t>(query_head * shape_.capacity + position);
  if (score_type_ == ScoreType::bf16) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, scores_.data() + entry * sizeof bits, sizeof bits);
    return static_cast<float>(from_bf16(bits));
  }
  float score = 0.0F;
  std::memcpy(&score, scores_.data() + entry * sizeof score, sizeof score);
  return score;
}

void LayerStorage::set_score(std::int64_t query_head, std::int64_t position, float score) {
  const auto entry = static_cast<std::size_t>(query_head * shape_.capacity + position);
  if (score_type_ == ScoreType::bf16) {
    const std::uint16_t bits =
        bf16(score);  // exact: scores are rounded where they are made (SCORE-2, SCORE-3)
    std::memcpy(scores_.data() + entry * sizeof bits, &bits, sizeof bits);
    return;
  }
  std::memcpy(scores_.data() + entry * sizeof score, &score, sizeof score);
}

ScoreView LayerStorage::score_view() const { return {score_type_, scores_.data(), shape_.capacity}; }

std::span<std::byte> LayerStorage::scores(std::int64_t query_head, std::int64_t tokens) {
  const std::size_t size = score_size(score_type_);
  return {scores_.data() + static_cast<std::size_t>(query_head * shape_.capacity) * size,
          static_cast<std::size_t>(tokens) * size};
}

// MEM-4
std::span<std::int32_t> LayerStorage::memory(std::int64_t query_head) {
  return std::span(memory_).subspan(static_cast<std::size_t>(query_head * width_),
                                    static_cast<std::size_t>(width_));
}

std::span<const std::int32_t> LayerStorage::memory(std::int64_t query_head) const {
  return std::span(memory_).subspan(static_cast<std::size_t>(query_head * width_),
                                    static_cast<std::size_t>(width_));
}

std::span<const std::int32_t> LayerStorage::memory_set(std::int64_t query_head) const {
  return memory(query_head).first(static_cast<std::size_t>(memory_count));
}

MemoryView LayerStorage::memory_view() const { return {memory_.data(), width_, width_, memory_count}; }

void LayerStorage::clear(std::int64_t tokens) {
  const std::size_t size = score_size(score_type_);
  for (std::int64_t h = 0; h < shape_.n_head; ++h) {
    std::memset(scores_.data() + static_cast<std::size_t>(h * shape_.capacity) * size, 0,
                static_cast<std::size_t>(tokens) * size);
  }
  std::fill(memory_.begin(), memory_.end(), -1);
  memory_count = 0;
  memory_end = 0;
}

LayerState LayerStorage::state(std::int64_t tokens) const {
  const std::size_t size = score_size(score_type_);
  LayerState state{tokens, {}, memory_, memory_count, memory_end};
  for (std::int64_t h = 0; h < shape_.n_head; ++h) {
    const std::byte* scores = scores_.data() + static_cast<std::size_t>(h * shape_.capacity) * size;
    state.scores.insert(state.scores.end(), scores, scores + static_cast<std::size_t>(tokens) * size);
  }
  return state;
}

void LayerStorage::restore(const LayerState& state, std::int64_t end) {
  clear(end);
  const std::size_t size = score_size(score_type_);
  const std::size_t row = static_cast<std::size_t>(state.tokens) * size;
  for (std::int64_t h = 0; h < shape_.n_head; ++h) {
    const auto from = state.scores.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(h) * row);
    std::copy(from, from + static_cast<std::ptrdiff_t>(row),
              scores_.data() + static_cast<std::size_t>(h * shape_.capacity) * size);
  }
  memory_ = state.memory;
  memory_count = state.memory_count;
  memory_end = state.memory_end;
}

std::int64_t bytes_of(const LayerState& state) {
  return static_cast<std::int64_t>(state.scores.size() + state.memory.size() * sizeof(std::int32_t));
}

MemoryBytes LayerStorage::bytes() const {
  MemoryBytes bytes;
  bytes.kv =
      static_cast<std::int64_t>(keys_.size() + values_.size() + key_groups_.size() + value_groups_.size());
  bytes.scores = static_cast<std::int64_t>(scores_.size());
  bytes.memory_sets = static_cast<std::int64_t>(memory_.size() * sizeof(std::int32_t));
  return bytes;
}

}  // namespace headwater::reference
