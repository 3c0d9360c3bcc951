#include "reference/turn.hpp"

#include <cstdint>
#include <limits>
#include <utility>

#include "tests/reference/support.hpp"

/// Clauses: STATE-1, STATE-2, STATE-3, STATE-5, CFG-2.
namespace headwater::reference {
namespace {

using test::expect_error;

constexpr std::int64_t kCapacity = 100;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

EffectiveOptions chunk_of_4() {
  EffectiveOptions options;
  options.batch = 8;
  options.chunk = 4;
  options.local = 1;
  options.heavy = 1;
  options.sparse = true;
  return options;
}

Turn next(const Turn& turn, const Step& step, std::int64_t tokens) {
  return next_turn(turn, step, chunk_of_4(), tokens, kCapacity);
}

void expect_turn(const Turn& turn, SessionState state, ChunkMode mode, std::int64_t length) {
  EXPECT_EQ(turn.state, state);
  EXPECT_EQ(turn.mode, mode);
  EXPECT_EQ(turn.length, length);
}

TEST(Turn, STATE_3_FirstTurnOfAnEmptySessionIsSparse) {
  for (const std::int64_t length : {1, 3, 4, 5, 100}) {
    EXPECT_EQ(turn_mode(chunk_of_4(), 0, length), ChunkMode::sparse);
  }
}

TEST(Turn, STATE_3_LaterTurnsAreSparseWhenLongerThanAChunk) {
  for (const std::int64_t tokens : {1, 4, 50}) {
    EXPECT_EQ(turn_mode(chunk_of_4(), tokens, 1), ChunkMode::dense);
    EXPECT_EQ(turn_mode(chunk_of_4(), tokens, 3), ChunkMode::dense);
    EXPECT_EQ(turn_mode(chunk_of_4(), tokens, 4), ChunkMode::dense);
    EXPECT_EQ(turn_mode(chunk_of_4(), tokens, 5), ChunkMode::sparse);
    EXPECT_EQ(turn_mode(chunk_of_4(), tokens, 6), ChunkMode::sparse);
  }
}

TEST(Turn, STATE_3_ShortTurnsAreDense) {
  EffectiveOptions options = chunk_of_4();
  for (const std::int64_t below : {0, 1, 2, 3, 4, 5, 6, 9, 50}) {
    options.dense_below = below;
    for (const std::int64_t length :
         {std::int64_t{1}, std::int64_t{4}, std::int64_t{5}, below - 1, below, below + 1, kMax}) {
      if (length < 1) continue;
      SCOPED_TRACE(testing::Message() << length << " of " << below);
      EXPECT_EQ(turn_mode(options, 0, length), length < below ? ChunkMode::dense : ChunkMode::sparse);
      const bool later_dense = length < below || length <= 4;
      EXPECT_EQ(turn_mode(options, 3, length), later_dense ? ChunkMode::dense : ChunkMode::sparse);
    }
  }
  options.sparse = false;
  options.dense_below = 0;
  EXPECT_EQ(turn_mode(options, 0, 50), ChunkMode::dense);
}

TEST(Turn, STATE_3_TheSaidLengthIsCompared) {
  EffectiveOptions options = chunk_of_4();
  options.dense_below = 8;
  const auto opened = [&](const Turn& turn, const Step& step, std::int64_t tokens) {
    return next_turn(turn, step, options, tokens, kCapacity);
  };
  const Turn empty;
  const Turn decoding{SessionState::decoding, ChunkMode::decode, 0};
  for (const auto& [turn, tokens] : {std::pair{empty, 0}, std::pair{decoding, 10}}) {
    expect_turn(opened(turn, Step::prefill(7), tokens), SessionState::prefilling, ChunkMode::dense, 7);
    expect_turn(opened(turn, Step::prefill(8), tokens), SessionState::prefilling, ChunkMode::sparse, 8);
    expect_turn(opened(turn, Step::prefill(9), tokens), SessionState::prefilling, ChunkMode::sparse, 9);
    expect_turn(opened(turn, Step::prefill(2, 7), tokens), SessionState::prefilling, ChunkMode::dense, 7);
    const Turn sparse = opened(turn, Step::prefill(2, 8), tokens);
    expect_turn(sparse, SessionState::prefilling, ChunkMode::sparse, 8);
    // Short calls of a long turn, and a dense turn that grows long: the mode stays.
    expect_turn(opened(sparse, Step::prefill(1), tokens + 2), SessionState::prefilling, ChunkMode::sparse, 8);
    const Turn dense = opened(turn, Step::prefill(7), tokens);
    expect_turn(opened(dense, Step::prefill(50), tokens + 7), SessionState::prefilling, ChunkMode::dense, 7);
  }
}

TEST(Turn, CFG_2_WithoutMemoryEveryTurnIsDense) {
  EffectiveOptions options = chunk_of_4();
  options.local = 0;
  options.heavy = 0;
  options.sparse = false;
  EXPECT_EQ(turn_mode(options, 0, 3), ChunkMode::dense);
  EXPECT_EQ(turn_mode(options, 0, 50), ChunkMode::dense);
  EXPECT_EQ(turn_mode(options, 9, 50), ChunkMode::dense);
}

TEST(Turn, STATE_1_StatesFollowTheSteps) {
  const Turn empty;
  EXPECT_EQ(empty.state, SessionState::empty);
  const Turn prefill = next(empty, Step::prefill(9), 0);
  expect_turn(prefill, SessionState::prefilling, ChunkMode::sparse, 9);
  const Turn more = next(prefill, Step::prefill(2), 9);
  expect_turn(more, SessionState::prefilling, ChunkMode::sparse, 9);
  const Turn decode = next(more, Step::decode(), 11);
  expect_turn(decode, SessionState::decoding, ChunkMode::decode, 0);
  const Turn decode_again = next(decode, Step::decode(5), 12);
  expect_turn(decode_again, SessionState::decoding, ChunkMode::decode, 0);
  const Turn short_turn = next(decode_again, Step::prefill(4), 17);
  expect_turn(short_turn, SessionState::prefilling, ChunkMode::dense, 4);
  const Turn long_turn = next(decode_again, Step::prefill(5), 17);
  expect_turn(long_turn, SessionState::prefilling, ChunkMode::sparse, 5);
  const Turn decode_from_empty = next(empty, Step::decode(), 0);
  expect_turn(decode_from_empty, SessionState::decoding, ChunkMode::decode, 0);
  // A prefill after decoding from empty is a later turn: tokens are stored.
  expect_turn(next(decode_from_empty, Step::prefill(3), 1), SessionState::prefilling, ChunkMode::dense, 3);
}

TEST(Turn, STATE_3_TheOpeningCallFixesTheModeOfTheTurn) {
  const Turn decoding{SessionState::decoding, ChunkMode::decode, 0};
  const Turn sparse = next(decoding, Step::prefill(2, 5), 10);
  expect_turn(sparse, SessionState::prefilling, ChunkMode::sparse, 5);
  expect_turn(next(sparse, Step::prefill(1), 12), SessionState::prefilling, ChunkMode::sparse, 5);
  expect_turn(next(sparse, Step::prefill(1, 5), 12), SessionState::prefilling, ChunkMode::sparse, 5);
  const Turn dense = next(decoding, Step::prefill(2, 4), 10);
  expect_turn(dense, SessionState::prefilling, ChunkMode::dense, 4);
  // Longer than it said: the mode stays.
  expect_turn(next(dense, Step::prefill(50), 12), SessionState::prefilling, ChunkMode::dense, 4);
}

TEST(Turn, STATE_3_ErrorsOfTheTurnLength) {
  const Turn empty;
  expect_turn(next(empty, Step::prefill(5, 5), 0), SessionState::prefilling, ChunkMode::sparse, 5);
  expect_error(ErrorCode::invalid_argument, {"turn_length = 4", "at least n = 5"},
               [&] { static_cast<void>(next(empty, Step::prefill(5, 4), 0)); });
  expect_error(ErrorCode::invalid_argument, {"turn_length = -1"},
               [&] { static_cast<void>(next(empty, Step::prefill(5, -1), 0)); });
  const Turn prefilling{SessionState::prefilling, ChunkMode::sparse, 9};
  for (const std::int64_t length : {-9, 1, 8, 10}) {
    expect_error(ErrorCode::invalid_argument, {"turn_length = " + std::to_string(length), "0 or 9"},
                 [&] { static_cast<void>(next(prefilling, Step::prefill(1, length), 9)); });
  }
  for (const std::int64_t length : {-1, 1, 3}) {
    expect_error(ErrorCode::invalid_argument, {"turn_length = " + std::to_string(length), "decode"}, [&] {
      static_cast<void>(next(empty, Step{Step::Kind::decode, 1, length}, 9));
    });
  }
}

TEST(Turn, STATE_2_ErrorsOfTheStep) {
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-1}, -kMax}) {
    expect_error(ErrorCode::invalid_argument, {"n = " + std::to_string(n), "at least 1"},
                 [&] { static_cast<void>(next(Turn{}, Step::prefill(n), 0)); });
    expect_error(ErrorCode::invalid_argument, {"n = " + std::to_string(n), "at least 1"},
                 [&] { static_cast<void>(next(Turn{}, Step::decode(n), 0)); });
  }
  expect_error(ErrorCode::invalid_argument, {"kind = 2", "prefill", "decode"}, [&] {
    static_cast<void>(next(Turn{}, Step{static_cast<Step::Kind>(2), 1, 0}, 0));
  });
}

TEST(Turn, STATE_5_Capacity) {
  const Turn prefilling{SessionState::prefilling, ChunkMode::sparse, 9};
  EXPECT_NO_THROW(static_cast<void>(next(Turn{}, Step::prefill(kCapacity), 0)));
  EXPECT_NO_THROW(static_cast<void>(next(prefilling, Step::decode(1), kCapacity - 1)));
  expect_error(ErrorCode::capacity_exceeded, {"n = 101", "0 stored", "capacity = 100"},
               [&] { static_cast<void>(next(Turn{}, Step::prefill(kCapacity + 1), 0)); });
  expect_error(ErrorCode::capacity_exceeded, {"n = 1", "100 stored", "capacity = 100"},
               [&] { static_cast<void>(next(prefilling, Step::decode(1), kCapacity)); });
  expect_error(ErrorCode::capacity_exceeded, {"99 stored"},
               [&] { static_cast<void>(next(prefilling, Step::prefill(kMax), kCapacity - 1)); });
}

}  // namespace
}  // namespace headwater::reference
