// STATE-1..STATE-6 and PLAN-2 as a caller sees them.

#include <limits>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kCapacity = 96;
constexpr std::int64_t kChunk = 8;

class StateOf : public EachEngine {
 protected:
  std::unique_ptr<Session> open() const { return engine().open(shape_, small_options()); }
  void step(Session& session, const Step& wanted) const {
    results_.out = run_step(session, wanted, input_, session.tokens());
  }
  /// Modes of the chunks of the last step.
  static std::vector<ChunkMode> modes(const Session& session) {
    std::vector<ChunkMode> all;
    for (const Chunk& chunk : session.plan()) all.push_back(chunk.mode);
    return all;
  }
  static std::vector<std::int64_t> boundaries(const Session& session) {
    std::vector<std::int64_t> all;
    for (const Chunk& chunk : session.plan()) {
      if (all.empty()) all.push_back(chunk.begin);
      EXPECT_EQ(all.back(), chunk.begin);
      all.push_back(chunk.end);
    }
    return all;
  }
  /// Attends one layer with zeroed rows.
  void attend(Session& session, std::int64_t layer, std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(n * shape_.n_head * shape_.d_value));
    session.attend(layer, rows_from(input_.q, 0, shape_.n_head, shape_.d_head),
                   rows_from(input_.k, 0, shape_.n_head_kv, shape_.d_head),
                   rows_from(input_.v, 0, shape_.n_head_kv, shape_.d_value),
                   MutableRows::token_major(out.data(), DType::f32, shape_.n_head, shape_.d_value));
  }
  /// Only reset() is legal, and the session works after it.
  void expect_failed(Session& session) {
    EXPECT_TRUE(session.failed());
    expect_error([&] { session.begin(Step::decode()); }, ErrorCode::wrong_state, {"reset"});
    expect_error([&] { session.end(); }, ErrorCode::wrong_state, {"reset"});
    expect_error([&] { attend(session, 0, 1); }, ErrorCode::wrong_state, {"reset"});
    session.reset();
    EXPECT_FALSE(session.failed());
    EXPECT_EQ(session.state(), SessionState::empty);
    EXPECT_EQ(session.tokens(), 0);
    step(session, Step::prefill(3));
    EXPECT_EQ(session.tokens(), 3);
  }

  const Shape shape_ = small_shape(kCapacity);
  const LayerInput input_ = random_input(shape_, kCapacity, 1);
  mutable Results results_;
};

// STATE-1
TEST_P(StateOf, MovesAsTheCallerSays) {
  const auto session = open();
  EXPECT_EQ(session->state(), SessionState::empty);
  step(*session, Step::prefill(9));
  EXPECT_EQ(session->state(), SessionState::prefilling);
  EXPECT_EQ(session->tokens(), 9);
  step(*session, Step::decode());
  EXPECT_EQ(session->state(), SessionState::decoding);
  EXPECT_EQ(session->tokens(), 10);
  step(*session, Step::prefill(5));
  EXPECT_EQ(session->state(), SessionState::prefilling);
  session->reset();
  EXPECT_EQ(session->state(), SessionState::empty);
  EXPECT_EQ(session->tokens(), 0);
  step(*session, Step::decode(2));
  EXPECT_EQ(session->state(), SessionState::decoding);
}

// STATE-2
TEST_P(StateOf, OneTokenOfPrefillIsNoDecode) {
  const auto session = open();
  step(*session, Step::prefill(2 * kChunk + 1));
  EXPECT_EQ(boundaries(*session), (std::vector<std::int64_t>{0, 8, 16, 17}));
  EXPECT_EQ(modes(*session), (std::vector<ChunkMode>(3, ChunkMode::sparse)));
  session->reset();
  step(*session, Step::prefill(1));
  EXPECT_EQ(modes(*session), std::vector<ChunkMode>{ChunkMode::sparse});
  step(*session, Step::decode(kChunk + 1));
  EXPECT_EQ(modes(*session), std::vector<ChunkMode>{ChunkMode::decode});
}

// PLAN-1: B = 20 is no multiple of S = 8, so chunks end at each batch's end.
TEST_P(StateOf, ChunksEndAtEveryBatch) {
  Options options = small_options();
  options.batch = 20;
  const auto session = engine().open(shape_, options);
  step(*session, Step::prefill(45));
  EXPECT_EQ(boundaries(*session), (std::vector<std::int64_t>{0, 8, 16, 20, 28, 36, 40, 45}));
}

// STATE-3: the first turn is sparse whatever its length; a later one where T > S.
TEST_P(StateOf, LaterTurnIsSparseAboveAChunk) {
  struct Case {
    Step opens;
    ChunkMode mode;
  };
  const Case cases[] = {{Step::prefill(kChunk), ChunkMode::dense},
                        {Step::prefill(kChunk + 1), ChunkMode::sparse},
                        {Step::prefill(1, kChunk), ChunkMode::dense},
                        {Step::prefill(1, kChunk + 1), ChunkMode::sparse}};
  for (const Case& c : cases) {
    const auto session = open();
    step(*session, Step::prefill(1));
    EXPECT_EQ(modes(*session).at(0), ChunkMode::sparse);
    step(*session, Step::decode());
    step(*session, c.opens);
    EXPECT_EQ(modes(*session).at(0), c.mode);
    step(*session, Step::prefill(3));  // every call of a turn has the turn's mode
    EXPECT_EQ(modes(*session).at(0), c.mode);
    step(*session, Step::prefill(20));
    for (const ChunkMode mode : modes(*session)) EXPECT_EQ(mode, c.mode);
  }
}

// STATE-3: the length that opens a turn is said once.
TEST_P(StateOf, TurnLengthIsFixed) {
  const auto session = open();
  expect_error([&] { session->begin(Step::prefill(5, 4)); }, ErrorCode::invalid_argument,
               {"turn_length", "4"});
  expect_error([&] { session->begin(Step::prefill(5, -1)); }, ErrorCode::invalid_argument,
               {"turn_length", "-1"});
  step(*session, Step::prefill(5, 30));
  expect_error([&] { session->begin(Step::prefill(5, 31)); }, ErrorCode::invalid_argument,
               {"turn_length", "31", "30"});
  step(*session, Step::prefill(5, 30));
  step(*session, Step::prefill(5, 0));
  EXPECT_EQ(session->tokens(), 15);
  step(*session, Step::decode());
  step(*session, Step::prefill(5, 31));  // another turn
  EXPECT_EQ(session->tokens(), 21);
}

// CFG-2, STATE-3
TEST_P(StateOf, DenseSessionHasOneChunkACall) {
  Options options = small_options();
  options.dense = true;
  const auto session = engine().open(shape_, options);
  step(*session, Step::prefill(30));
  EXPECT_EQ(boundaries(*session), (std::vector<std::int64_t>{0, 30}));
  EXPECT_EQ(modes(*session), std::vector<ChunkMode>{ChunkMode::dense});
  const ScoreView scores = session->scores(1);
  for (std::int64_t h = 0; h < shape_.n_head; ++h) {
    for (std::int64_t p = 0; p < session->tokens(); ++p) {
      ASSERT_EQ(static_cast<const std::uint16_t*>(scores.data)[h * scores.head_stride + p], 0);
    }
  }
  EXPECT_EQ(session->memory(0).count, 0);
}

// STATE-4, MEM-5: what was decoded in between may be remembered, with score 0.
TEST_P(StateOf, LaterSparseTurnStartsAfterWhatIsStored) {
  const auto session = open();
  step(*session, Step::prefill(10));
  step(*session, Step::decode(2));
  EXPECT_EQ(session->memory(0).count, 5);  // built for [8, 10)
  step(*session, Step::prefill(20));
  EXPECT_EQ(boundaries(*session), (std::vector<std::int64_t>{12, 20, 28, 32}));
  const MemoryView memory = session->memory(0);  // built for [28, 32)
  EXPECT_EQ(memory.count, 5);
  EXPECT_EQ(memory.data[4], 27);
}

// STATE-5: what is refused before anything is written leaves no trace in later results.
TEST_P(StateOf, RefusedCallsChangeNothing) {
  Results clean, disturbed;
  const std::vector<Step> steps = {Step::prefill(21, 40), Step::prefill(19, 40), Step::decode(2)};
  const auto run_all = [&](Session& session, Results& results, bool disturb) {
    for (const Step& wanted : steps) {
      if (disturb) {
        expect_error([&] { session.begin(Step::prefill(0)); }, ErrorCode::invalid_argument, {"n"});
        expect_error([&] { session.begin(Step::decode(-7)); }, ErrorCode::invalid_argument, {"n", "-7"});
        expect_error([&] { session.begin(Step::prefill(kCapacity + 1 - session.tokens(), 0)); },
                     ErrorCode::capacity_exceeded, {"capacity", std::to_string(kCapacity)});
        expect_error([&] { session.begin(Step::decode(std::numeric_limits<std::int64_t>::max())); },
                     ErrorCode::capacity_exceeded, {"capacity"});
        expect_error([&] { session.end(); }, ErrorCode::wrong_state, {"begin"});
        expect_error([&] { attend(session, 0, 1); }, ErrorCode::wrong_state, {"begin"});
      }
      const auto out = run_step(session, wanted, input_, session.tokens());
      results.out.insert(results.out.end(), out.begin(), out.end());
    }
    append_contents(session, results);
  };
  run_all(*open(), clean, false);
  run_all(*open(), disturbed, true);
  EXPECT_TRUE(clean == disturbed);
}

// STATE-5
TEST_P(StateOf, RefusedArgumentsOfAttendChangeNothing) {
  Results clean, disturbed;
  clean.out = run_step(*open(), Step::prefill(20), input_, 0);
  const auto session = open();
  const auto n = static_cast<std::size_t>(20 * shape_.n_head * shape_.d_value);
  disturbed.out.resize(2 * n);
  session->begin(Step::prefill(20));
  const Rows q = rows_from(input_.q, 0, shape_.n_head, shape_.d_head);
  const Rows k = rows_from(input_.k, 0, shape_.n_head_kv, shape_.d_head);
  const Rows v = rows_from(input_.v, 0, shape_.n_head_kv, shape_.d_value);
  const Rows null{nullptr, DType::f32, 1, 1};
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const auto out = MutableRows::token_major(disturbed.out.data() + static_cast<std::size_t>(layer) * n,
                                              DType::f32, shape_.n_head, shape_.d_value);
    Rows bad_type = v;
    bad_type.type = static_cast<DType>(7);
    const auto invalid = ErrorCode::invalid_argument;
    expect_error([&] { session->attend(2, q, k, v, out); }, invalid, {"layer", "2"});
    expect_error([&] { session->attend(-1, q, k, v, out); }, invalid, {"layer", "-1"});
    expect_error([&] { session->attend(layer, null, k, v, out); }, invalid, {"q", "null"});
    expect_error([&] { session->attend(layer, q, null, v, out); }, invalid, {"k", "null"});
    expect_error([&] { session->attend(layer, q, k, null, out); }, invalid, {"v", "null"});
    expect_error([&] { session->attend(layer, q, k, v, MutableRows{}); }, invalid, {"out", "null"});
    expect_error([&] { session->attend(layer, q, k, bad_type, out); }, invalid, {"v.type", "7"});
    session->attend(layer, q, k, v, out);
  }
  session->end();
  EXPECT_TRUE(clean == disturbed);
}

// STATE-5: a broken protocol fails the step.
TEST_P(StateOf, LayerTwiceFailsTheStep) {
  const auto session = open();
  session->begin(Step::prefill(4));
  attend(*session, 1, 4);
  expect_error([&] { attend(*session, 1, 4); }, ErrorCode::wrong_state, {"layer"});
  expect_failed(*session);
}

TEST_P(StateOf, MissingLayerFailsTheStep) {
  const auto session = open();
  session->begin(Step::prefill(4));
  attend(*session, 1, 4);
  expect_error([&] { session->end(); }, ErrorCode::wrong_state, {"layer"});
  expect_failed(*session);
}

TEST_P(StateOf, BeginInAnOpenStepFailsIt) {
  const auto session = open();
  session->begin(Step::prefill(4));
  expect_error([&] { session->begin(Step::prefill(4)); }, ErrorCode::wrong_state, {"end"});
  expect_failed(*session);
}

// STATE-1, SCORE-1: nothing is left of what was before; also from inside an open step.
TEST_P(StateOf, ResetForgetsEverything) {
  const auto fresh = open();
  const auto used = open();
  const LayerInput other = random_input(shape_, kCapacity, 99);
  (void)run_step(*used, Step::prefill(70), other, 0);
  used->begin(Step::prefill(2));
  attend(*used, 0, 2);
  used->reset();
  EXPECT_EQ(used->memory(0).count, 0);
  Results a, b;
  for (const Step& wanted : {Step::prefill(30), Step::decode(), Step::prefill(12)}) {
    for (auto& [session, results] : {std::pair<Session&, Results&>(*fresh, a), {*used, b}}) {
      const auto out = run_step(session, wanted, input_, session.tokens());
      results.out.insert(results.out.end(), out.begin(), out.end());
    }
  }
  append_contents(*fresh, a);
  append_contents(*used, b);
  EXPECT_TRUE(a == b);
}

// STATE-5
TEST_P(StateOf, CapacityCanBeFilledToTheLastToken) {
  const auto session = open();
  step(*session, Step::prefill(kCapacity - 1));
  step(*session, Step::decode());
  EXPECT_EQ(session->tokens(), kCapacity);
  expect_error([&] { session->begin(Step::decode()); }, ErrorCode::capacity_exceeded, {"capacity"});
  EXPECT_EQ(session->tokens(), kCapacity);
}

HEADWATER_EACH_ENGINE(StateOf);

}  // namespace
}  // namespace headwater::api_test
