#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "conformance/session_checks.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"
#include "headwater/options.hpp"
#include "headwater/session.hpp"

namespace headwater::fuzz {

/// The code that a call must give; nothing is success.
using Code = std::optional<ErrorCode>;

/// What an interrupt answers (INTR-1).
enum class Answer { none, go_on, stop, throws };

/// What the spec says about a session's protocol (STATE-1..5, STATE-8..10), its chunk plan (PLAN-1) and which tokens may
/// have a score, and nothing about how anything is computed. Each call changes the model as it should change a session, and
/// says what the session must answer.
struct SessionModel {
  SessionModel() = default;
  SessionModel(const Shape& shape, const EffectiveOptions& options, const Claims& claims);

  Code begin(const Step& step);
  /// `rows`: all views are valid. A layer whose observer or interrupt throws fails with that exception, by convention
  /// `internal`.
  Code attend(std::int64_t layer, bool rows);
  Code end();
  Code abort();
  Code truncate(std::int64_t n);
  Code set_interrupt(Answer answer);
  /// The session is replaced by its fork, or by one that has loaded what it saved: without observer and interrupt.
  Code become_fork();
  Code become_loaded();
  void reset();

  /// The last sparse chunk of the finished steps, or of all where the layer was attended in the open one; empty where there
  /// is none.
  [[nodiscard]] Chunk last_sparse(std::int64_t layer) const;
  [[nodiscard]] std::vector<Chunk> chunks() const;
  /// Of the open step, or of the last one.
  [[nodiscard]] std::vector<Chunk> plan() const {
    return steps.empty() ? std::vector<Chunk>{} : steps.back().plan;
  }

  struct Taken {
    SessionState state = SessionState::empty;  ///< after it
    std::int64_t turn_length = 0;
    bool turn_sparse = false;
    std::vector<Chunk> plan;
  };

  Shape shape;
  EffectiveOptions options;
  Claims claims;
  std::int64_t tokens = 0;
  std::vector<Taken> steps;  ///< the open one included
  bool open = false;
  bool failed = false;
  std::int64_t step_tokens = 0;      ///< of the open step
  std::vector<bool> attended;        ///< per layer, in the open step
  std::vector<std::int64_t> epochs;  ///< per token, of the open step too: when its rows were drawn
  std::int64_t epoch = 0;            ///< steps begun so far
  bool observer_throws = false;      ///< these two survive reset() and abort()
  Answer interrupt = Answer::none;
  conformance::Lengths lengths;

  [[nodiscard]] SessionState state() const {
    return steps.empty() ? SessionState::empty : steps.back().state;
  }
  [[nodiscard]] std::int64_t turn_length() const { return steps.empty() ? 0 : steps.back().turn_length; }

 private:
  [[nodiscard]] std::vector<Chunk> cut(std::int64_t n, ChunkMode mode) const;
  void restore(SessionModel earlier);
  void forget_askers() {
    observer_throws = false;
    interrupt = Answer::none;
  }

  std::shared_ptr<const SessionModel> before_;  // the open step
};

}  // namespace headwater::fuzz
