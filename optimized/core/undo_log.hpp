#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "core/memory_sets.hpp"
#include "core/score_store.hpp"
#include "headwater/session.hpp"

namespace headwater::core {

/// What takes chunks of rule h2o back (STATE-8, STATE-10): for every layer, records of its memory sets and of the scores
/// that a chunk changes. A record holds the set before, and the scores, before they grow, of the set that is built.
///
/// - One record of the open step, made with its first set. That is enough for any number of chunks: what was dropped from a
///   set never comes back, so every older token whose score the step changes is in that first set.
/// - A ring of records of single chunks, the checkpoints. The set that a chunk built is the set before the next one, or the
///   current one. Only the last E chunks of a step make them, into the half of the ring that the E before do not need, so
///   that those are still there when the step is aborted.
///
/// undo_step() and undo_chunks() only say what is to be taken back. apply() does it, layer by layer.
class UndoLog {
 public:
  /// Takes all memory (std::bad_alloc). Both stores outlive the log.
  UndoLog(MemorySets& sets, ScoreStore& scores, std::int64_t layers, std::int64_t capacity,
          std::int64_t checkpoints);

  /// Takes back what the last undo_step() and undo_chunks() have left to do. Comes before sets or scores of a layer are
  /// read or written.
  void apply(std::int64_t layer);

  /// The open step is about to compute its chunks, all of them sparse, for a layer. They stay where they are until it ends.
  void open_layer(std::int64_t layer, std::span<const Chunk> chunks);

  /// Before and after MemorySets::build_head for the chunk that begins at `begin`; scores have not grown yet. Heads may
  /// come from several threads.
  void keep_set(std::int64_t layer, std::int64_t head, std::int64_t begin);
  void keep_scores(std::int64_t layer, std::int64_t head, std::int64_t begin);

  /// The open step has ended, with so many sparse chunks.
  void keep_step(std::int64_t chunks);
  /// The open step is aborted.
  void undo_step();
  /// The last sparse chunks of the kept steps are dropped: no more than have checkpoints.
  void undo_chunks(std::int64_t chunks) { checkpoints_ -= chunks; }
  /// No token is stored any more.
  void forget();

  /// The checkpoints of a log of the same sizes, between steps, with nothing left to take back.
  void copy(const UndoLog& from);

  [[nodiscard]] std::int64_t bytes() const {
    return positions_.bytes() + kept_scores_.bytes() + first_sets_.bytes() + before_.bytes() + heads_.bytes();
  }

 private:
  enum class Head : std::uint8_t { untouched, set_kept, scores_kept };
  enum class Step : std::uint8_t { none, open, aborted };
  struct Layer {
    Step step = Step::none;
    std::int64_t checkpoints = 0;  // those that its sets and scores contain
  };

  /// Slot of the checkpoint of the open step's chunk, or -1.
  [[nodiscard]] std::int64_t slot_of(std::int64_t begin) const;
  [[nodiscard]] std::int64_t most_kept(std::int64_t chunks) const { return std::min(chunks, ring_ / 2); }
  [[nodiscard]] std::int64_t index(std::int64_t slot, std::int64_t layer, std::int64_t head) const {
    return (slot * layers() + layer) * sets_.heads() + head;
  }
  [[nodiscard]] std::int64_t layers() const { return static_cast<std::int64_t>(layers_.size()); }
  [[nodiscard]] MemorySets::Layer& before(std::int64_t slot, std::int64_t layer) {
    return before_.data()[slot * layers() + layer];
  }
  [[nodiscard]] std::int32_t* positions(std::int64_t slot, std::int64_t layer, std::int64_t head) {
    return positions_.data() + index(slot, layer, head) * sets_.width();
  }
  [[nodiscard]] void* kept_scores(std::int64_t slot, std::int64_t layer, std::int64_t head) {
    return kept_scores_.data() + index(slot, layer, head) * sets_.width() * scores_.element_bytes();
  }
  [[nodiscard]] std::int32_t* first_set(std::int64_t layer, std::int64_t head) {
    return first_sets_.data() + index(0, layer, head) * sets_.width();
  }
  [[nodiscard]] Head& head_of(std::int64_t layer, std::int64_t head) {
    return heads_.data()[index(0, layer, head)];
  }
  void copy_set(std::int64_t slot, std::int64_t layer, std::int64_t head);
  void apply_step(std::int64_t layer);

  MemorySets& sets_;
  ScoreStore& scores_;
  std::int64_t ring_;              // slots of checkpoints; the one after them is that of the open step
  std::int64_t checkpoints_ = 0;   // made since the session was empty, those of dropped chunks not counted
  std::span<const Chunk> chunks_;  // of the open step
  std::vector<Layer> layers_;
  Buffer<Head> heads_;                 // [layers][heads] in the open step
  Buffer<MemorySets::Layer> before_;   // [slots][layers]
  Buffer<std::int32_t> positions_;     // [slots][layers][heads][width] the set before
  Buffer<unsigned char> kept_scores_;  // [slots][layers][heads][width] of the set that was built
  Buffer<std::int32_t> first_sets_;    // [layers][heads][width] that the open step built
};

}  // namespace headwater::core
