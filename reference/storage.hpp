#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "headwater/options.hpp"
#include "headwater/session.hpp"

/// What a session keeps: stored K and V rows (STATE-6), scores (SCORE-1) and memory sets (MEM-4).
namespace headwater::reference {

/// Zeroed bytes. The operating system hands the pages out when they are first touched, so a large capacity
/// that is never used costs nothing. Errors: std::bad_alloc.
class ZeroedBytes {
 public:
  explicit ZeroedBytes(std::size_t size);
  ~ZeroedBytes();
  ZeroedBytes(ZeroedBytes&& other) noexcept;
  ZeroedBytes(const ZeroedBytes&) = delete;
  ZeroedBytes& operator=(const ZeroedBytes&) = delete;
  ZeroedBytes& operator=(ZeroedBytes&&) = delete;

  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// What a step can change in a layer beside rows at positions that were free (STATE-8): its scores and memory sets.
struct LayerState {
  std::int64_t tokens = 0;
  std::vector<std::byte> scores;  ///< [Hq][tokens]
  std::vector<std::int32_t> memory;
  std::int64_t memory_count = 0;
  std::int64_t memory_end = 0;
};

/// The state of a layer when a sparse chunk began (STATE-10).
struct Checkpoint {
  std::int64_t begin = 0;  ///< first position of the chunk
  LayerState state;
};

[[nodiscard]] std::int64_t bytes_of(const LayerState& state);

/// Everything that one layer of a session stores. The shape, which is the layer's, and the options are validated.
class LayerStorage {
 public:
  LayerStorage(const Shape& shape, const EffectiveOptions& options);

  [[nodiscard]] const Shape& shape() const { return shape_; }

  /// STATE-6: the rows of all Hkv heads, row p is position p; rounded once when written.
  [[nodiscard]] Rows keys() const;
  [[nodiscard]] Rows values() const;
  [[nodiscard]] MutableRows keys();
  [[nodiscard]] MutableRows values();
  /// Rows of the input's type.
  void store_key(std::int64_t position, std::int64_t head_kv, std::span<const double> row);
  void store_value(std::int64_t position, std::int64_t head_kv, std::span<const double> row);
  /// The first rows of another session's layer of the same shape.
  void copy_rows(const LayerStorage& from, std::int64_t tokens);

  /// STATE-13: the groups of a row; empty unless rows are stored in 8 bits. What is written into them becomes the rows
  /// by restore_rows().
  [[nodiscard]] std::span<std::byte> key_groups(std::int64_t position, std::int64_t head_kv);
  [[nodiscard]] std::span<std::byte> value_groups(std::int64_t position, std::int64_t head_kv);
  void restore_rows(std::int64_t position, std::int64_t head_kv);

  /// SCORE-1, head-major: entry query_head * capacity + position.
  [[nodiscard]] float score(std::int64_t query_head, std::int64_t position) const;
  void set_score(std::int64_t query_head, std::int64_t position, float score);
  [[nodiscard]] ScoreView score_view() const;
  /// The bytes of the first `tokens` scores of one query head.
  [[nodiscard]] std::span<std::byte> scores(std::int64_t query_head, std::int64_t tokens);

  /// MEM-4: all entries of one query head, -1 after the last valid one; and the valid ones alone. With rule `blocks`
  /// there are none: its sets live as long as their chunk (SEL-9).
  [[nodiscard]] std::span<std::int32_t> memory(std::int64_t query_head);
  [[nodiscard]] std::span<const std::int32_t> memory(std::int64_t query_head) const;
  [[nodiscard]] std::span<const std::int32_t> memory_set(std::int64_t query_head) const;
  [[nodiscard]] MemoryView memory_view() const;

  /// Entries of the last set that are valid, and the number of tokens that were processed when it was built.
  std::int64_t memory_count = 0;
  std::int64_t memory_end = 0;

  /// SCORE-1: back to zero scores and no memory set, given that no position >= tokens was ever scored.
  void clear(std::int64_t tokens);

  /// The state of the first `tokens` tokens; and back to such a state, given that no position >= end was ever scored.
  [[nodiscard]] LayerState state(std::int64_t tokens) const;
  void restore(const LayerState& state, std::int64_t end);

  [[nodiscard]] MemoryBytes bytes() const;

 private:
  Shape shape_;
  ScoreType score_type_;
  std::int64_t width_;
  ZeroedBytes keys_;
  ZeroedBytes values_;
  ZeroedBytes key_groups_;
  ZeroedBytes value_groups_;
  ZeroedBytes scores_;
  std::vector<std::int32_t> memory_;
};

}  // namespace headwater::reference
