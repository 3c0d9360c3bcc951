#include <gtest/gtest.h>

#include <vector>

#include "core/chunk_plan.hpp"
#include "core/step_machine.hpp"
#include "headwater/error.hpp"

namespace headwater::core {
namespace {

TEST(ChunkPlan, PLAN_1_and_2_EqualTokenByTokenCutting) {
  for (std::int64_t chunk = 1; chunk <= 7; ++chunk) {
    for (std::int64_t batch = chunk; batch <= 16; ++batch) {
      for (std::int64_t n = 1; n <= 40; ++n) {
        for (const std::int64_t base : {0, 5}) {
          std::vector<Chunk> plan;
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

StepMachine machine(std::int64_t layers = 1, std::int64_t capacity = 100) {
  Shape shape;
  shape.n_layer = layers;
  shape.capacity = capacity;
  EffectiveOptions options;
  options.batch = 16;
  options.chunk = 8;
  options.local = 2;
  options.heavy = 2;
  options.sparse = true;
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
