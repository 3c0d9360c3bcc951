#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/session.hpp"

namespace headwater::core {

/// The session states and turn rules (STATE-1..5) and the chunk plan of the open step; no storage of rows.
class StepMachine {
 public:
  /// Takes all memory that the machine will ever need.
  StepMachine(const Shape& shape, const EffectiveOptions& options);

  /// Opens a step; see Session::begin for the errors. Nothing changes when it throws, except that begin() inside
  /// an open step fails that step.
  void begin(const Step& step);

  /// Throws wrong_state unless a step is open and has not failed; `call` is what the message names.
  void require_open(const char* call) const;

  /// Records that a layer was attended; throws like Session::attend.
  void enter_layer(std::int64_t layer);

  void end();
  void reset();

  /// Fails the open step: only reset() is legal from now on.
  void fail() { failed_ = true; }

  [[nodiscard]] bool failed() const;
  [[nodiscard]] SessionState state() const { return state_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::span<const Chunk> plan() const { return chunks().subspan(plan_begin_); }
  [[nodiscard]] std::span<const Chunk> chunks() const { return chunks_; }
  /// Of the memory that was taken for them.
  [[nodiscard]] std::int64_t chunk_bytes() const {
    return static_cast<std::int64_t>(chunks_.capacity() * sizeof(Chunk));
  }
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] std::int64_t step_tokens() const { return step_tokens_; }
  [[nodiscard]] bool attended(std::int64_t layer) const { return attended_[static_cast<std::size_t>(layer)]; }

 private:
  void require_not_failed() const;
  [[nodiscard]] bool opens_turn() const { return state_ != SessionState::prefilling; }
  [[nodiscard]] bool turn_is_sparse(std::int64_t turn_length) const;

  std::int64_t capacity_;
  std::int64_t batch_;
  std::int64_t chunk_;
  std::int64_t dense_below_;
  bool sparse_;

  SessionState state_ = SessionState::empty;
  std::int64_t tokens_ = 0;
  std::int64_t turn_length_ = 0;
  bool turn_sparse_ = false;
  bool open_ = false;
  bool failed_ = false;
  std::int64_t step_tokens_ = 0;
  std::int64_t layers_left_ = 0;
  std::vector<char> attended_;  // per layer, of the open step
  std::vector<Chunk> chunks_;   // of all steps since the session was empty
  std::size_t plan_begin_ = 0;  // those of the open step, or of the last one, begin here
};

}  // namespace headwater::core
