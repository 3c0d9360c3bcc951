#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "headwater/options.hpp"
#include "headwater/session.hpp"
#include "reference/turn.hpp"

/// Chapter 2 of the spec: the steps of a session and what abort and truncate leave of them (STATE-8 .. STATE-12).
namespace headwater::reference {

/// All steps since the session was empty, an open one included.
class History {
 public:
  explicit History(const EffectiveOptions& options);

  /// Where the session stands: the turn of the last step.
  [[nodiscard]] Turn turn() const;
  [[nodiscard]] std::span<const Chunk> chunks() const { return chunks_; }
  /// Chunks of the last step.
  [[nodiscard]] std::span<const Chunk> plan() const;

  /// STATE-12: for each step the index of its first chunk, and the length of the turn that was opened last, also after
  /// its end; 0 where none was.
  [[nodiscard]] std::vector<std::int64_t> step_numbers() const;

  /// One more step. Errors: std::bad_alloc, with everything as it was.
  void add(const Turn& turn, std::span<const Chunk> plan);
  /// STATE-8: without the last step.
  void drop_last();
  /// STATE-10: to be called when a step has ended.
  void settle();
  /// STATE-12: all sparse chunks are settled.
  void settle_all();
  /// STATE-10: the end of the last settled chunk; 0 where none is.
  [[nodiscard]] std::int64_t settled_end() const { return settled_end_; }
  /// STATE-10: the sparse chunk with begin < n < end, or null.
  [[nodiscard]] const Chunk* sparse_chunk_around(std::int64_t n) const;
  /// STATE-10: whether the session can be truncated to n tokens, 0 <= n <= tokens stored.
  [[nodiscard]] bool can_end_at(std::int64_t n) const;
  /// STATE-9, for n >= 1: what begins at n or later is dropped, the last chunk that is left ends at n.
  void truncate(std::int64_t n);
  void clear();

 private:
  struct PastStep {
    Turn turn;
    std::size_t first_chunk = 0;
  };

  Select select_;
  std::size_t checkpoints_;
  std::vector<PastStep> steps_;
  std::vector<Chunk> chunks_;
  std::int64_t settled_end_ = 0;
};

}  // namespace headwater::reference
