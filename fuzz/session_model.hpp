#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headwater/error.hpp"
#include "headwater/options.hpp"
#include "headwater/session.hpp"

namespace headwater::fuzz {

/// The code that a call must give; nothing is success.
using Code = std::optional<ErrorCode>;

/// What the spec says about a session's protocol (STATE-1..5), its chunk plan (PLAN-1) and which tokens may have a score,
/// and nothing about how anything is computed. Each call changes the model as it should change a session, and says what
/// the session must answer.
struct SessionModel {
  SessionModel() = default;
  SessionModel(const Shape& shape, const EffectiveOptions& options);

  Code begin(const Step& step);
  /// `rows`: all views are valid. A layer whose observer throws fails with that exception, by convention `internal`.
  Code attend(std::int64_t layer, bool rows);
  Code end();
  void reset();

  Shape shape;
  EffectiveOptions options;
  SessionState state = SessionState::empty;
  std::int64_t tokens = 0;
  std::int64_t turn_length = 0;
  bool turn_sparse = false;
  bool open = false;
  bool failed = false;
  std::int64_t step_tokens = 0;  ///< of the open step
  std::vector<bool> attended;    ///< per layer, in the open step
  std::vector<Chunk> plan;
  std::vector<std::int64_t> memory_count;  ///< per layer: entries of the set that was built last
  std::vector<bool> may_score;             ///< per stored token: was ever visible to a sparse chunk
  bool observer_throws = false;            ///< survives reset(), like the observer
  std::int64_t epoch = 0;                  ///< resets so far

 private:
  [[nodiscard]] std::vector<Chunk> cut(std::int64_t n, ChunkMode mode) const;
};

}  // namespace headwater::fuzz
