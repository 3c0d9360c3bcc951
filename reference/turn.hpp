#pragma once

#include <cstdint>

#include "headwater/options.hpp"
#include "headwater/session.hpp"

/// Chapter 2 of the spec: turns and session states (STATE-1 .. STATE-4).
namespace headwater::reference {

/// Where a session stands.
struct Turn {
  SessionState state = SessionState::empty;
  ChunkMode mode = ChunkMode::sparse;  ///< how the chunks of the step that brought it here attend
  std::int64_t length = 0;             ///< T of the turn that runs; 0 unless prefilling
};

/// STATE-3: the mode of a turn of `length` tokens that opens on `tokens` stored ones.
[[nodiscard]] ChunkMode turn_mode(const EffectiveOptions& options, std::int64_t tokens, std::int64_t length);

/// STATE-1, STATE-3: where the session stands once `step` has begun on `tokens` stored ones.
/// Errors: invalid_argument (unknown kind; n < 1; turn_length of a decode step not 0, of an opening call
/// neither 0 nor at least n, of a call that continues a turn neither 0 nor the turn's own), capacity_exceeded
/// (STATE-5).
[[nodiscard]] Turn next_turn(const Turn& turn, const Step& step, const EffectiveOptions& options,
                             std::int64_t tokens, std::int64_t capacity);

}  // namespace headwater::reference
