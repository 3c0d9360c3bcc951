#pragma once

#include <cstdint>

#include "core/buffer.hpp"
#include "core/numbers.hpp"
#include "headwater/session.hpp"

namespace headwater::core {

/// Heavy-hitter scores of all layers: score[layer][head * capacity + position] (SCORE-1), BF16 or F32.
/// Only positions that were initialised hold a value.
class ScoreStore {
 public:
  ScoreStore() = default;
  ScoreStore(std::int64_t layers, std::int64_t heads, std::int64_t capacity, ScoreType type);

  /// Scores of positions [begin, end) of one head become zero (SCORE-1).
  void clear(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t end);

  /// SCORE-2: score(begin + i) = bf16(column_sums[i]) for i < count; overwrites.
  void initialise(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t count,
                  const float* column_sums);

  /// SCORE-3: score(positions[i]) = bf16(float(score) + column_sums[i]), the sum in F32.
  void accumulate(std::int64_t layer, std::int64_t head, const std::int32_t* positions, std::int64_t count,
                  const float* column_sums);

  [[nodiscard]] float read(std::int64_t layer, std::int64_t head, std::int64_t position) const;
  [[nodiscard]] ScoreView view(std::int64_t layer) const;
  [[nodiscard]] int key_bits() const { return type_ == ScoreType::bf16 ? 16 : 32; }
  [[nodiscard]] std::int64_t bytes() const { return bf16_.bytes() + f32_.bytes(); }

 private:
  [[nodiscard]] std::int64_t index(std::int64_t layer, std::int64_t head, std::int64_t position) const {
    return (layer * heads_ + head) * capacity_ + position;
  }

  std::int64_t heads_ = 0;
  std::int64_t capacity_ = 0;
  ScoreType type_ = ScoreType::bf16;
  Buffer<std::uint16_t> bf16_;
  Buffer<float> f32_;
};

}  // namespace headwater::core
