#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/chunk_plan.hpp"
#include "core/config.hpp"
#include "core/step_machine.hpp"
#include "headwater/error.hpp"

namespace headwater::core {
namespace {

TEST(ChunkPlan, PLAN_1_and_2_EqualTokenByTokenCutting) {
  for (std::int64_t chunk = 1; chunk <= 7; ++chunk) {
    for (std::int64_t batch = chunk; batch <= 16; ++batch) {
      for (std::int64_t n = 1; n <= 40; ++n) {
        for (const std::int64_t base : {0, 5}) {
          List<Chunk> plan;
          append_sparse_chunks(base, n, batch, chunk, plan);
          std::vector<std::int64_t> starts;
          for (std::int64_t t = 0; t < n; ++t) {
            if (t % batch % chunk == 0) starts.push_back(base + t);
          }
          ASSERT_EQ(plan.size(), starts.size());
          for (std::size_t c = 0; c < plan.size(); ++c) {
            EXPECT_EQ(plan[c].begin, starts[c]);
            EXPECT_EQ(plan[c].end, c + 1 < starts.size() ? starts[c + 1] : base + n);
            EXPECT_EQ(plan[c].mode, ChunkMode::sparse);
          }
        }
      }
    }
  }
}

StepMachine machine(std::int64_t layers = 1, std::int64_t capacity = 100, std::int64_t dense_below = 0) {
  Shape shape;
  shape.n_layer = layers;
  shape.capacity = capacity;
  EffectiveOptions options;
  options.batch = 16;
  options.chunk = 8;
  options.local = 2;
  options.heavy = 2;
  options.sparse = true;
  options.dense_below = dense_below;
  return {shape, options};
}

void finish(StepMachine& steps) {
  steps.enter_layer(0);
  steps.end();
}

TEST(StepMachine, STATE_3_TurnModes) {
  StepMachine steps = machine();
  EXPECT_EQ(steps.state(), SessionState::empty);
  steps.begin(Step::prefill(3));
  EXPECT_EQ(steps.state(), SessionState::prefilling);
  EXPECT_EQ(steps.plan()[0].mode, ChunkMode::sparse);  // first turn of an empty session, however short
  EXPECT_EQ(steps.tokens(), 0);
  finish(steps);
  EXPECT_EQ(steps.tokens(), 3);
  steps.begin(Step::decode(2));
  EXPECT_EQ(steps.state(), SessionState::decoding);
  EXPECT_EQ(steps.plan()[0].mode, ChunkMode::decode);
  EXPECT_EQ(steps.plan()[0].begin, 3);
  EXPECT_EQ(steps.plan()[0].end, 5);
  finish(steps);
  steps.begin(Step::prefill(8));  // T = S: dense
  EXPECT_EQ(steps.plan()[0].mode, ChunkMode::dense);
  finish(steps);
  steps.begin(Step::prefill(20));  // the turn's mode stays
  EXPECT_EQ(steps.plan()[0].mode, ChunkMode::dense);
  EXPECT_EQ(steps.plan().size(), 1u);
  finish(steps);
  steps.begin(Step::decode());
  finish(steps);
  steps.begin(Step::prefill(4, 9));  // T > S: sparse although this call is short
  EXPECT_EQ(steps.plan()[0].mode, ChunkMode::sparse);
  finish(steps);
  steps.begin(Step::prefill(2, 9));  // may repeat the turn's length
  EXPECT_EQ(steps.plan()[0].mode, ChunkMode::sparse);
  finish(steps);
  EXPECT_THROW(steps.begin(Step::prefill(2, 10)), Error);
  steps.begin(Step::prefill(9));
  EXPECT_EQ(steps.plan().size(), 2u);
  finish(steps);
  steps.reset();
  EXPECT_EQ(steps.state(), SessionState::empty);
  steps.begin(Step::decode());
  finish(steps);
  steps.begin(Step::prefill(5));  // not the first turn of an empty session
  EXPECT_EQ(steps.plan()[0].mode, ChunkMode::dense);
}

/// The mode of a turn that a first call of n tokens opens, and the number of its chunks, in an empty session or after
/// three decoded tokens.
std::pair<ChunkMode, std::size_t> opened(std::int64_t dense_below, const Step& first, bool later) {
  StepMachine steps = machine(1, 100000, dense_below);
  if (later) {
    steps.begin(Step::decode(3));
    finish(steps);
  }
  steps.begin(first);
  const std::pair<ChunkMode, std::size_t> seen{steps.plan()[0].mode, steps.plan().size()};
  finish(steps);
  steps.begin(Step::prefill(40));  // the turn's mode stays
  EXPECT_EQ(steps.plan()[0].mode, seen.first);
  finish(steps);
  steps.reset();
  steps.begin(first);
  EXPECT_EQ(steps.plan()[0].mode,
            std::max(first.n, first.turn_length) < dense_below ? ChunkMode::dense : ChunkMode::sparse);
  return seen;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// STATE-5, STATE-8: the ways on are those that the session offers.
TEST(StepMachine, FailedStepsNameTheWayOn) {
  for (const bool undoes : {false, true}) {
    Shape shape;
    shape.n_layer = 2;
    shape.capacity = 100;
    EffectiveOptions options;
    options.batch = options.chunk = 8;
    const auto failures = {+[](StepMachine& steps) { steps.begin(Step::decode()); },
                           +[](StepMachine& steps) { steps.end(); },
                           +[](StepMachine& steps) { steps.enter_layer(0); }};
    for (const auto& fails : failures) {
      StepMachine steps(shape, options, undoes);
      steps.begin(Step::prefill(20));
      steps.enter_layer(0);
      const std::string first = refusal([&] { fails(steps); });
      const std::string later = refusal([&] { steps.require_open("attend()"); });
      EXPECT_TRUE(steps.failed());
      for (const std::string& text : {first, later}) {
        EXPECT_NE(text.find("reset()"), std::string::npos) << text;
        EXPECT_EQ(text.find("abort()") != std::string::npos, undoes) << text;
      }
      if (!undoes) continue;
      steps.abort();
      EXPECT_FALSE(steps.failed());
      EXPECT_TRUE(steps.chunks().empty());
      EXPECT_EQ(steps.state(), SessionState::empty);
    }
  }
}

// STATE-9: chunks, plan and turn of what is left.
TEST(StepMachine, TruncateKeepsTheTurn) {
  StepMachine steps = machine();  // rule h2o: B = 16, S = 8, E = 0
  steps.begin(Step::prefill(5, 30));
  finish(steps);
  steps.begin(Step::prefill(20));
  finish(steps);
  steps.begin(Step::decode(3));
  finish(steps);
  steps.begin(Step::prefill(6));
  finish(steps);
  EXPECT_EQ(steps.truncate(30), 0);  // inside the dense turn
  EXPECT_EQ(steps.chunks().back().end, 30);
  EXPECT_EQ(steps.plan().size(), 1U);
  EXPECT_NE(refusal([&] { steps.begin(Step::prefill(1, 30)); }).find("allowed: 0 or the turn's own 6"),
            std::string::npos);
  EXPECT_EQ(steps.truncate(27), 0);  // inside the decode step
  EXPECT_EQ(steps.state(), SessionState::decoding);
  EXPECT_EQ(steps.tokens(), 27);
  EXPECT_EQ(steps.truncate(25), 0);
  EXPECT_EQ(steps.state(), SessionState::prefilling);
  EXPECT_EQ(steps.plan().size(), 3U);
  EXPECT_EQ(steps.plan().front().begin, 5);
  EXPECT_EQ(
      refusal([&] { steps.truncate(5); }),
      "truncate to n = 5 tokens; allowed: 0, or 25 .. 25 but not inside a sparse chunk; nearest: 0 and 25");
  steps.begin(Step::prefill(4, 30));  // the first turn goes on
  EXPECT_EQ(steps.plan().front().mode, ChunkMode::sparse);
  finish(steps);
  EXPECT_EQ(steps.truncate(0), 5);
  EXPECT_EQ(steps.state(), SessionState::empty);
}

TEST(StepMachine, STATE_3_ShortTurnsAreDense) {
  using Seen = std::pair<ChunkMode, std::size_t>;
  const auto chunks = [](std::int64_t n) {  // of batches of 16
    return static_cast<std::size_t>(n / 16 * 2 + (n % 16 + 7) / 8);
  };
  for (const std::int64_t below : {1, 2, 8, 9, 10, 24, 4096, 70000}) {
    for (const std::int64_t length : {below - 1, below, below + 1}) {
      if (length < 1) continue;
      SCOPED_TRACE(::testing::Message() << length << " of " << below);
      const Seen dense{ChunkMode::dense, 1};
      const Seen sparse{ChunkMode::sparse, chunks(length)};
      const Seen first_chunk{ChunkMode::sparse, 1};
      EXPECT_EQ(opened(below, Step::prefill(length), false), length < below ? dense : sparse);
      EXPECT_EQ(opened(below, Step::prefill(1, length), false), length < below ? dense : first_chunk);
      // A later turn is longer than a chunk, too.
      const bool short_turn = length < below || length <= 8;
      EXPECT_EQ(opened(below, Step::prefill(length), true), short_turn ? dense : sparse);
      EXPECT_EQ(opened(below, Step::prefill(1, length), true), short_turn ? dense : first_chunk);
    }
  }
}

/// The line of the Error of resolve(), empty where there is none.
std::string refusal(const Shape& shape, const Options& options) {
  try {
    static_cast<void>(resolve(shape, options, 1));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return {};
}

TEST(Config, CFG_5_PinnedDenseBelowAndDenseLayers) {
  Shape shape;
  shape.n_layer = 36;
  shape.n_head = shape.n_head_kv = 2;
  shape.d_head = shape.d_value = 64;
  shape.capacity = 5000;
  Options options;
  options.heavy = 512;
  for (const std::int64_t pinned : {0, 1, 255, 256, 257, 511, 512}) {
    options.pinned = pinned;
    EXPECT_EQ(resolve(shape, options, 1).pinned, pinned);
  }
  options.pinned = 513;
  EXPECT_EQ(refusal(shape, options), "pinned is 513; allowed: 0 .. 512");
  options.pinned = -1;
  EXPECT_EQ(refusal(shape, options), "pinned is -1; allowed: 0 .. 512");
  options.pinned = 512;
  options.chunk = 400;  // CFG-3: H' = 399 - 256
  EXPECT_EQ(resolve(shape, options, 1).pinned, 143);
  options.dense = true;
  EXPECT_EQ(resolve(shape, options, 1).pinned, 0);
  options.dense = false;
  options.select = Select::blocks;
  EXPECT_EQ(resolve(shape, options, 1).pinned, 136);  // whole key blocks
  options.pinned = 20;
  EXPECT_EQ(refusal(shape, options), "pinned is 20; allowed: a multiple of key_block = 8");

  options = Options{};
  options.dense_below = 2147483647;
  options.dense_layers = {0, 7, 35};
  const EffectiveOptions effective = resolve(shape, options, 1);
  EXPECT_EQ(effective.dense_below, 2147483647);
  EXPECT_EQ(effective.dense_layers, options.dense_layers);
  options.dense_below = -1;
  EXPECT_EQ(refusal(shape, options), "dense_below is -1; allowed: 0 .. 2147483647");
  options.dense_below = 2147483648;
  EXPECT_EQ(refusal(shape, options), "dense_below is 2147483648; allowed: 0 .. 2147483647");
  options.dense_below = 0;
  options.dense_layers = {-1};
  EXPECT_EQ(refusal(shape, options), "dense_layers[0] is -1; allowed: 0 .. 35");
  options.dense_layers = {3, 36};
  EXPECT_EQ(refusal(shape, options), "dense_layers[1] is 36; allowed: 0 .. 35");
  options.dense_layers = {3, 3};
  EXPECT_EQ(refusal(shape, options), "dense_layers[1] is 3; allowed: more than 3, the one before");
  options.dense_layers = {3, 9, 4};
  EXPECT_EQ(refusal(shape, options), "dense_layers[2] is 4; allowed: more than 9, the one before");
}

TEST(Config, SEL_1_AnEngineWithoutTheRuleSaysSo) {
  Options options;
  options.pinned = 1;
  options.dense_below = 9;
  options.dense_layers = {0};
  for (const Select select : {Select::h2o, Select::blocks}) {
    options.select = select;
    EXPECT_NO_THROW(require_no_sketches(options, "some"));
  }
  options.select = Select::sketches;
  try {
    require_no_sketches(options, "some");
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "select is 2 (sketches); allowed: 0 (h2o), 1 (blocks): engine some has no other rule");
  }
}

TEST(StepMachine, STATE_5_RefusedCallsChangeNothing) {
  StepMachine steps = machine(1, 10);
  steps.begin(Step::prefill(6, 6));
  finish(steps);
  for (const Step& bad : {Step::prefill(5), Step::prefill(0), Step::prefill(-1), Step::prefill(1, -1),
                          Step::prefill(1, 7), Step::decode(5), Step::decode(0),
                          Step{Step::Kind::decode, 1, 1}, Step{static_cast<Step::Kind>(9), 1, 0}}) {
    EXPECT_THROW(steps.begin(bad), Error);
    EXPECT_EQ(steps.tokens(), 6);
    EXPECT_EQ(steps.state(), SessionState::prefilling);
    EXPECT_FALSE(steps.open());
    EXPECT_EQ(steps.plan().size(), 1u);
    EXPECT_EQ(steps.plan()[0].end, 6);
  }
  steps.begin(Step::prefill(4));
  finish(steps);
  EXPECT_EQ(steps.tokens(), 10);
}

TEST(StepMachine, STATE_5_BrokenProtocolAllowsOnlyReset) {
  const auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return static_cast<int>(error.code());
    }
    return 0;
  };
  const int wrong_state = static_cast<int>(ErrorCode::wrong_state);
  for (int fault = 0; fault < 4; ++fault) {
    StepMachine steps = machine(2);
    EXPECT_EQ(code_of([&] { steps.enter_layer(0); }), wrong_state);
    EXPECT_EQ(code_of([&] { steps.end(); }), wrong_state);
    steps.begin(Step::prefill(4));
    EXPECT_TRUE(steps.open());
    EXPECT_EQ(steps.step_tokens(), 4);
    EXPECT_EQ(code_of([&] { steps.enter_layer(2); }), static_cast<int>(ErrorCode::invalid_argument));
    EXPECT_EQ(code_of([&] { steps.enter_layer(-1); }), static_cast<int>(ErrorCode::invalid_argument));
    steps.enter_layer(1);
    EXPECT_TRUE(steps.attended(1));
    EXPECT_FALSE(steps.attended(0));
    if (fault == 0) {
      EXPECT_EQ(code_of([&] { steps.enter_layer(1); }), wrong_state);
    } else if (fault == 1) {
      EXPECT_EQ(code_of([&] { steps.end(); }), wrong_state);
    } else if (fault == 2) {
      EXPECT_EQ(code_of([&] { steps.begin(Step::prefill(1)); }), wrong_state);
    } else {
      steps.fail();
    }
    EXPECT_EQ(code_of([&] { steps.enter_layer(0); }), wrong_state);
    EXPECT_EQ(code_of([&] { steps.end(); }), wrong_state);
    EXPECT_EQ(code_of([&] { steps.begin(Step::prefill(1)); }), wrong_state);
    steps.reset();
    EXPECT_EQ(steps.tokens(), 0);
    EXPECT_EQ(steps.state(), SessionState::empty);
    EXPECT_FALSE(steps.open());
    EXPECT_TRUE(steps.plan().empty());
    steps.begin(Step::prefill(3));
    steps.enter_layer(1);
    steps.enter_layer(0);
    steps.end();
    EXPECT_EQ(steps.tokens(), 3);
    EXPECT_FALSE(steps.attended(0) && steps.open());
  }
}

}  // namespace
}  // namespace headwater::core
