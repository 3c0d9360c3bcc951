#pragma once

#include <cstdint>

#include "core/numbers.hpp"
#include "core/run_buffer.hpp"
#include "headwater/session.hpp"
#include "headwater/state.hpp"

namespace headwater::core {

/// Heavy-hitter scores of all layers: score[layer][head * capacity + position] (SCORE-1), BF16 or F32.
/// Only positions that were initialised hold a value. Where a session forms none, they stay zero, and one row of zeros
/// stands for all heads of all layers.
class ScoreStore {
 public:
  ScoreStore() = default;
  ScoreStore(std::int64_t layers, std::int64_t heads, std::int64_t capacity, ScoreType type);
  /// Of a session that forms no scores.
  static ScoreStore zeros(std::int64_t capacity, ScoreType type);

  /// Those of the first `tokens` positions of a store of the same sizes.
  void copy(const ScoreStore& from, std::int64_t tokens);

  /// Scores of positions [begin, end) of all heads of a layer are about to be cleared. Not from several threads.
  void make_room(std::int64_t layer, std::int64_t begin, std::int64_t end);

  /// Scores of positions [begin, end) of one head become zero (SCORE-1).
  void clear(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t end);

  /// SCORE-2: score(begin + i) = bf16(column_sums[i]) for i < count; overwrites.
  void initialise(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t count,
                  const float* column_sums);

  /// SCORE-3: score(positions[i]) = bf16(float(score) + column_sums[i]), the sum in F32.
  void accumulate(std::int64_t layer, std::int64_t head, const std::int32_t* positions, std::int64_t count,
                  const float* column_sums);

  /// Copies scores as they are stored, score(positions[i]) to entry i of `kept`, and back.
  void keep(std::int64_t layer, std::int64_t head, const std::int32_t* positions, std::int64_t count,
            void* kept) const;
  void put_back(std::int64_t layer, std::int64_t head, const std::int32_t* positions, std::int64_t count,
                const void* kept);

  /// STATE-12: `score` of one layer, [heads][tokens]. Any bits are taken.
  void exchange(StateArchive& archive, std::int64_t layer, std::int64_t tokens);

  /// Rows of a layer: its heads, or one.
  [[nodiscard]] std::int64_t rows() const { return shared_ ? 1 : heads_; }
  [[nodiscard]] float read(std::int64_t layer, std::int64_t head, std::int64_t position) const;
  [[nodiscard]] ScoreView view(std::int64_t layer) const;
  [[nodiscard]] int key_bits() const { return type_ == ScoreType::bf16 ? 16 : 32; }
  [[nodiscard]] std::int64_t element_bytes() const { return key_bits() / 8; }
  [[nodiscard]] std::int64_t bytes() const { return scores_.bytes(); }

 private:
  [[nodiscard]] std::int64_t index(std::int64_t layer, std::int64_t head, std::int64_t position) const {
    return shared_ ? position : (layer * heads_ + head) * capacity_ + position;
  }
  /// Of the type that is stored.
  [[nodiscard]] std::uint16_t* bf16() { return reinterpret_cast<std::uint16_t*>(scores_.data()); }
  [[nodiscard]] float* f32() { return reinterpret_cast<float*>(scores_.data()); }
  [[nodiscard]] const std::uint16_t* bf16() const {
    return reinterpret_cast<const std::uint16_t*>(scores_.data());
  }
  [[nodiscard]] const float* f32() const { return reinterpret_cast<const float*>(scores_.data()); }

  std::int64_t heads_ = 0;
  std::int64_t capacity_ = 0;
  ScoreType type_ = ScoreType::bf16;
  bool shared_ = false;  // one row for all
  RunBuffer scores_;
};

}  // namespace headwater::core
