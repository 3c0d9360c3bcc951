#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "core/score_store.hpp"
#include "headwater/session.hpp"
#include "headwater/state.hpp"

namespace headwater::core {

/// The memory set of every layer and query head (MEM-1..7). A set never holds more than `capacity` entries, so
/// min(M, capacity) are stored, ascending, then -1.
class MemorySets {
 public:
  /// What the sets of all heads of a layer have in common.
  struct Layer {
    std::int64_t count = 0;     ///< valid entries of a set
    std::int64_t built_at = 0;  ///< tokens before this position were seen when it was built
  };

  MemorySets() = default;
  MemorySets(std::int64_t layers, std::int64_t heads, std::int64_t local, std::int64_t heavy,
             std::int64_t capacity, std::int64_t pinned = 0);

  /// A new set of this layer is about to be built from all tokens before `end` (MEM-5). Then build_head for
  /// every head (heads are independent), then finish.
  [[nodiscard]] std::int64_t next_count(std::int64_t end) const;

  /// MEM-1..4 and MEM-7 for one head. `keys` is scratch for `capacity` entries, `chosen` for width() entries.
  void build_head(std::int64_t layer, std::int64_t head, std::int64_t end, const ScoreStore& scores,
                  std::uint32_t* keys, std::int32_t* chosen);

  /// All heads of the layer are built: the set covers the tokens before `end`.
  void finish(std::int64_t layer, std::int64_t end);

  /// STATE-12: `sets` and one layer's `set` of the archive, [heads][min(M, tokens)]. Loading: a layer has the set that
  /// was built before its last sparse chunk, which begins at `built_at`; 0: none. Errors: invalid_argument.
  void exchange_layers(StateArchive& archive, std::span<const std::int64_t> built_at);
  void exchange_entries(StateArchive& archive, std::int64_t layer, std::int64_t tokens);

  void reset();

  /// The sets of one of the same sizes.
  void copy(const MemorySets& from);

  /// What was read by layer() and entries() before becomes the layer's again, and one head's: width() positions.
  void restore(std::int64_t layer, const Layer& before) { layers_[static_cast<std::size_t>(layer)] = before; }
  void restore(std::int64_t layer, std::int64_t head, const std::int32_t* before);

  [[nodiscard]] const Layer& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] const std::int32_t* entries(std::int64_t layer, std::int64_t head) const {
    return positions_.data() + (layer * heads_ + head) * width_;
  }
  [[nodiscard]] std::int64_t heads() const { return heads_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] std::int64_t count(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].count;
  }
  [[nodiscard]] MemoryView view(std::int64_t layer) const {
    return {entries(layer, 0), width_, width_, count(layer)};
  }
  [[nodiscard]] std::int64_t bytes() const { return positions_.bytes(); }

 private:
  void check_entries(std::int64_t layer, std::int64_t head) const;

  std::int64_t heads_ = 0;
  std::int64_t local_ = 0;
  std::int64_t heavy_ = 0;
  std::int64_t pinned_ = 0;
  std::int64_t width_ = 0;
  std::vector<Layer> layers_;
  Buffer<std::int32_t> positions_;
};

}  // namespace headwater::core
