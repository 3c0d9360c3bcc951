#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.hpp"
#include "headwater/session.hpp"
#include "headwater/state.hpp"

namespace headwater::core {

/// The session states and turn rules (STATE-1..5, STATE-8..10) and the chunks of all steps; no storage of rows.
class StepMachine {
 public:
  /// Takes all memory that the machine will ever need; a copy takes it when it begins its first step. `undoes`: the session offers abort(); messages then name it.
  StepMachine(const Shape& shape, EffectiveOptions options, bool undoes = false);

  /// Opens a step; see Session::begin for the errors, and std::bad_alloc. Nothing changes when it throws, except that begin() inside
  /// an open step fails that step.
  void begin(const Step& step);

  /// Throws wrong_state unless a step is open and has not failed; `call` is what the message names.
  void require_open(const char* call) const;
  /// Throws wrong_state where a step is open or has failed.
  void require_closed(const char* call) const;

  /// What enter_layer() would refuse of an open step.
  void check_layer(std::int64_t layer) const;
  /// Records that a layer was attended; throws like Session::attend.
  void enter_layer(std::int64_t layer);
  /// The layer could not be attended: its rows may be missing. Fails the step.
  void fail_layer(std::int64_t layer);

  void end();
  void reset();

  /// STATE-8: the state before the open step, whether it has failed or not. Errors: wrong_state.
  void abort();

  /// STATE-9 and STATE-10. Returns how many sparse chunks were dropped. Nothing changes when it throws; see
  /// Session::truncate for the errors.
  std::int64_t truncate(std::int64_t n);

  /// STATE-12: `chunks` and `steps` of the archive. Loading into an empty machine: the steps are gone through again, and
  /// must cut into those chunks; then all sparse chunks of rule h2o are settled. Errors: invalid_argument; the machine may
  /// then hold a part.
  void exchange(StateArchive& archive);

  /// Fails the open step: only abort() and reset() are legal from now on.
  void fail() { failed_ = true; }

  [[nodiscard]] const EffectiveOptions& options() const { return options_; }
  [[nodiscard]] bool failed() const;
  [[nodiscard]] SessionState state() const { return state_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::span<const Chunk> plan() const { return chunks().subspan(plan_begin_); }
  [[nodiscard]] std::span<const Chunk> chunks() const { return chunks_; }
  /// Of the memory that was taken for them.
  [[nodiscard]] std::int64_t chunk_bytes() const {
    const auto listed = [&](std::size_t taken) {
      return counted_ ? capacity_ : static_cast<std::int64_t>(taken);
    };
    return listed(chunks_.capacity()) * std::int64_t{sizeof(Chunk)} +
           listed(origins_.capacity()) * std::int64_t{sizeof(Origin)};
  }
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] std::int64_t step_tokens() const { return step_tokens_; }
  [[nodiscard]] bool attended(std::int64_t layer) const { return attended_[static_cast<std::size_t>(layer)]; }

 private:
  /// Where a chunk comes from: what is left of its step and turn when it becomes the last one.
  struct Origin {
    std::int64_t turn_length;  ///< of the turn
    std::int32_t step_begin;   ///< index of the first chunk of the step
    std::int32_t sparse;       ///< sparse chunks up to this one, itself included
  };

  void require_not_failed() const;
  void take_memory();
  [[nodiscard]] const char* way_on() const { return undoes_ ? "abort() or reset()" : "reset()"; }
  void append_origins();
  void replay(std::span<const Chunk> chunks, std::int64_t turn_length);
  /// State, turn and plan are those of the last chunk that is left.
  void resume();
  void settle();
  void require_possible(std::int64_t n, const Chunk& last) const;
  [[nodiscard]] bool opens_turn() const { return state_ != SessionState::prefilling; }
  [[nodiscard]] bool turn_is_sparse(std::int64_t turn_length) const;

  EffectiveOptions options_;
  std::int64_t capacity_;
  bool undoes_;
  bool counted_ = false;  // the memory of the lists was only counted (NUM-5)
  bool settles_;          // chunks change what was before them: rule h2o

  SessionState state_ = SessionState::empty;
  std::int64_t tokens_ = 0;
  std::int64_t turn_length_ = 0;
  bool turn_sparse_ = false;
  bool open_ = false;
  bool failed_ = false;
  std::int64_t step_tokens_ = 0;
  std::int64_t layers_left_ = 0;
  std::vector<char> attended_;    // per layer, of the open step
  List<Chunk> chunks_;            // of all steps since the session was empty
  List<Origin> origins_;          // of each chunk
  std::size_t plan_begin_ = 0;    // those of the open step, or of the last one, begin here
  std::int64_t settled_end_ = 0;  // end of the last settled chunk (STATE-10)
};

}  // namespace headwater::core
