#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headwater::runtime {

/// Byte-pair merging: a text is a list of symbols, and the best pair of neighbours becomes one until there is none.
/// With a heap of candidates this takes n log n steps, also for one word of a megabyte.
class MergeQueue {
 public:
  struct Node {
    std::int32_t symbol = -1;  ///< what the caller's lookup understands
    std::size_t begin = 0;     ///< bytes [begin, begin + length) of the text
    std::size_t length = 0;    ///< 0: merged into the one before
    std::int32_t previous = -1;
    std::int32_t next = -1;
  };
  /// What two neighbours would become. `order`: the lowest is merged first; of equal ones the leftmost.
  struct Merged {
    bool possible = false;
    double order = 0.0;
    std::int32_t symbol = -1;
  };

  void clear() {
    nodes_.clear();
    heap_.clear();
  }

  /// Appends the next symbol of the text.
  void push(std::int32_t symbol, std::size_t begin, std::size_t length) {
    const auto index = static_cast<std::int32_t>(nodes_.size());
    if (index > 0) nodes_.back().next = index;
    nodes_.push_back({symbol, begin, length, index - 1, -1});
  }

  /// lookup(left, right) -> Merged, for two neighbouring nodes.
  template <typename Lookup>
  void merge_all(Lookup&& lookup) {
    for (std::size_t i = 1; i < nodes_.size(); ++i) consider(static_cast<std::int32_t>(i) - 1, lookup);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), worse);
      const Candidate best = heap_.back();
      heap_.pop_back();
      Node& left = nodes_[static_cast<std::size_t>(best.left)];
      if (left.length != best.left_length || left.next < 0) continue;  // one of the two was merged elsewhere
      Node& right = nodes_[static_cast<std::size_t>(left.next)];
      if (right.length != best.right_length) continue;
      left.symbol = best.symbol;
      left.length += right.length;
      right.length = 0;
      left.next = right.next;
      if (left.next >= 0) nodes_[static_cast<std::size_t>(left.next)].previous = best.left;
      consider(left.previous, lookup);
      consider(best.left, lookup);
    }
  }

  /// visit(node) for what is left, in the order of the text.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (std::int32_t i = nodes_.empty() ? -1 : 0; i >= 0; i = nodes_[static_cast<std::size_t>(i)].next) {
      visit(nodes_[static_cast<std::size_t>(i)]);
    }
  }

 private:
  struct Candidate {
    double order = 0.0;
    std::int32_t left = -1;
    std::int32_t symbol = -1;
    std::size_t left_length =
        0;  ///< with right_length: nodes only grow, so these tell whether one has changed
    std::size_t right_length = 0;
  };
  static bool worse(const Candidate& a, const Candidate& b) {
    return a.order != b.order ? a.order > b.order : a.left > b.left;
  }

  template <typename Lookup>
  void consider(std::int32_t left, Lookup&& lookup) {
    if (left < 0 || nodes_[static_cast<std::size_t>(left)].next < 0) return;
    const Node& a = nodes_[static_cast<std::size_t>(left)];
    const Node& b = nodes_[static_cast<std::size_t>(a.next)];
    const Merged merged = lookup(a, b);
    if (!merged.possible) return;
    heap_.push_back({merged.order, left, merged.symbol, a.length, b.length});
    std::push_heap(heap_.begin(), heap_.end(), worse);
  }

  std::vector<Node> nodes_;
  std::vector<Candidate> heap_;
};

}  // namespace headwater::runtime
