#include "reference/turn.hpp"

#include <string>

#include "headwater/error.hpp"
#include "reference/arguments.hpp"

namespace headwater::reference {

// STATE-3
ChunkMode turn_mode(const EffectiveOptions& options, std::int64_t tokens, std::int64_t length) {
  if (!options.sparse) return ChunkMode::dense;  // CFG-2
  if (length < options.dense_below) return ChunkMode::dense;
  const bool first_turn = tokens == 0;
  if (first_turn) return ChunkMode::sparse;
  return length > options.chunk ? ChunkMode::sparse : ChunkMode::dense;
}

Turn next_turn(const Turn& turn, const Step& step, const EffectiveOptions& options, std::int64_t tokens,
               std::int64_t capacity) {
  if (step.kind != Step::Kind::prefill && step.kind != Step::Kind::decode) {
    reject("Step::kind", std::to_string(static_cast<int>(step.kind)), "0 (prefill) or 1 (decode)");
  }
  if (step.n < 1) reject("Step::n", std::to_string(step.n), "at least 1");
  const bool prefill = step.kind == Step::Kind::prefill;
  const bool opens_turn = turn.state != SessionState::prefilling;
  if (!prefill && step.turn_length != 0) {
    reject("Step::turn_length", std::to_string(step.turn_length), "0 in a decode step");
  }
  if (prefill && step.turn_length != 0) {
    if (opens_turn && step.turn_length < step.n) {
      reject("Step::turn_length", std::to_string(step.turn_length),
             "0 or at least n = " + std::to_string(step.n));
    }
    if (!opens_turn && step.turn_length != turn.length) {
      reject("Step::turn_length", std::to_string(step.turn_length),
             "0 or " + std::to_string(turn.length) + ", the length said when the turn was opened");
    }
  }
  // STATE-5
  if (step.n > capacity - tokens) {
    throw Error(ErrorCode::capacity_exceeded,
                "Step::n = " + std::to_string(step.n) + " on " + std::to_string(tokens) +
                    " stored tokens exceeds capacity = " + std::to_string(capacity));
  }

  // STATE-1, STATE-2
  if (!prefill) return Turn{SessionState::decoding, ChunkMode::decode, 0};
  if (!opens_turn) return turn;
  const std::int64_t length = step.turn_length == 0 ? step.n : step.turn_length;
  return Turn{SessionState::prefilling, turn_mode(options, tokens, length), length};
}

}  // namespace headwater::reference
