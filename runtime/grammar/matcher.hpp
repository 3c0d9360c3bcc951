#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/grammar/grammar.hpp"

namespace headwater::runtime {

/// Reads a text byte by byte, along all ways in which a grammar may read it. Calls of one rule from one place in the text are one
/// frame, whoever calls (a graph-structured stack; Tomita, 1985), so that steps and memory grow with a power of the text's
/// length, not exponentially, and both are bounded.
class GrammarMatcher {
 public:
  static constexpr std::size_t kMostSteps = std::size_t{1} << 24U;   ///< between calls of begin_work()
  static constexpr std::size_t kMostFrames = std::size_t{1} << 20U;  ///< and edges between them

  /// Where the text stands. Of the matcher that made it.
  struct State {
    struct Thread {
      std::int32_t at = 0;   ///< the instruction that reads next
      std::int32_t row = 0;  ///< within a character, else its first row
      std::int32_t frame = 0;
      bool operator==(const Thread&) const = default;
    };
    std::vector<Thread> threads;
    bool complete = false;  ///< the text so far is one of the grammar's
    bool operator==(const State&) const = default;
  };

  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

  [[nodiscard]] State begin();
  /// The state after one more byte; false: no text goes on so, and `to` is of no use. `to` is not `from`.
  /// Error(invalid_argument) where the grammar takes more than kMostSteps or kMostFrames.
  [[nodiscard]] bool step(const State& from, std::uint8_t byte, State& to);

  /// What was read after a mark may be forgotten: states of before stay, those of later are of no use.
  struct Mark {
    std::size_t frames = 0, edges = 0;
  };
  [[nodiscard]] Mark mark() const { return {frames_.size(), edges_.size()}; }
  void forget(Mark mark);
  void begin_work() { steps_ = 0; }

 private:
  /// A call of a rule.
  struct Frame {
    std::int64_t time = 0;    // of the step that made it
    std::int32_t edges = -1;  // the first one
    bool left = false;        // in the step that made it: the rule has read nothing
  };
  /// Where a call goes on.
  struct Edge {
    std::int32_t at = 0;
    std::int32_t frame = 0;
    std::int32_t next = -1;
  };
  /// Adds what can be reached without reading.
  void settle(State& to);
  void push(std::int32_t at, std::int32_t frame);
  void call(std::int32_t rule, bool last, std::int32_t at, std::int32_t frame);
  void leave(std::int32_t frame, State& to);
  void add_edge(std::int32_t callee, std::int32_t at, std::int32_t frame);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Frame> frames_;  // 0: the answer's
  std::vector<Edge> edges_;
  std::int64_t time_ = 0;
  std::vector<std::int64_t> called_;        // of each rule: the time of its latest call
  std::vector<std::int32_t> called_frame_;  // and its frame
  std::size_t steps_ = 0;
  // Of settle(): what was reached, as a table of (instruction, frame) that is open at `seen_time_`.
  struct Place {
    std::int64_t time = -1;
    std::int32_t at = 0, frame = 0;
  };
  void grow_seen();
  std::vector<Place> seen_;
  std::size_t seen_count_ = 0;
  std::vector<Place> work_;
};

}  // namespace headwater::runtime
