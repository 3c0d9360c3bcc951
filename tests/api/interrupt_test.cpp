// INTR-1: a caller that asks a running call to stop.

#include <thread>

#include "tests/api/conversation.hpp"
#include "tests/api/hosts.hpp"

namespace headwater::api_test {
namespace {

class InterruptOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().interrupt) GTEST_SKIP() << engine().name() << " does not claim it";
  }
  /// Steps that are interrupted after those before them.
  static std::vector<std::vector<Step>> beginnings() {
    return {{Step::prefill(101)},                                    // sparse
            {Step::prefill(50), Step::decode(1)},                    // few rows
            {Step::prefill(50), Step::decode(), Step::prefill(39)},  // dense
            {Step::decode(9)}};                                      // first of all, in blocks
  }
  static Options small(Select select, int threads, ParallelFor host) {
    Options options = conversation_options(select, threads);
    options.chunk = 40, options.batch = 80, options.local = 8, options.heavy = 16;
    options.parallel_for = host;
    return options;
  }
  void expect_stopped_at_every_question(const Conversation& conversation, const Options& options,
                                        const std::vector<Step>& steps) const;
};

/// Asks that are answered with "stop" from number `stop_at` on, and what was seen of them.
struct Asked {
  std::int64_t stop_at = 0;  // 0: never
  std::int64_t times = 0;
  std::thread::id caller = std::this_thread::get_id();

  bool operator()() {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    return ++times == stop_at || (stop_at != 0 && times > stop_at);
  }
};

/// Runs all but the last step, then begins the last one and attends layer 0.
std::unique_ptr<Session> session_before(const Engine& engine, const Conversation& conversation,
                                        const Options& options, const std::vector<Step>& steps) {
  auto session = engine.open(conversation.shape, options);
  std::vector<float> out;
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) conversation.run(*session, steps[i], out);
  session->begin(steps.back());
  out.resize(
      static_cast<std::size_t>(steps.back().n * conversation.shape.n_head * conversation.shape.d_value));
  conversation.attend(*session, 0, out.data());
  return session;
}

// Layer 1 is stopped at its k-th question, for all k, until the call gets through; nobody is asked after that.
void InterruptOf::expect_stopped_at_every_question(const Conversation& conversation, const Options& options,
                                                   const std::vector<Step>& steps) const {
  const Shape& shape = conversation.shape;
  std::vector<float> expected(static_cast<std::size_t>(steps.back().n * shape.n_head * shape.d_value));
  std::vector<float> out(expected.size());
  auto session = session_before(engine(), conversation, options, steps);
  conversation.attend(*session, 1, expected.data());
  std::int64_t k = 1;
  for (;; ++k) {
    session = session_before(engine(), conversation, options, steps);
    Asked asked{k};
    session->set_interrupt(std::ref(asked));
    try {
      conversation.attend(*session, 1, out.data());
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::interrupted) << error.what();
      ASSERT_THAT(error.what(), testing::AllOf(testing::HasSubstr("layer 1"),
                                               testing::HasSubstr("allowed: abort() or reset()"),
                                               testing::Not(testing::HasSubstr("\n"))));
      ASSERT_EQ(asked.times, k) << "asked again after the answer";
      ASSERT_TRUE(session->failed());
    }
  }
  EXPECT_FALSE(session->failed());
  EXPECT_TRUE(out == expected);
  EXPECT_GT(k, 1);
}

TEST_P(InterruptOf, INTR_1_EveryQuestionCanStopTheCall) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const Select select : {Select::h2o, Select::blocks}) {
      for (const int threads : {1, 2}) {
        for (const std::vector<Step>& steps : beginnings())
          expect_stopped_at_every_question(conversation, small(select, threads, nullptr), steps);
      }
    }
  }
}

// All indexes of a host run on the calling thread, in two phases where there are five: the first to stop is the last.
TEST_P(InterruptOf, INTR_1_EveryQuestionCanStopTheCallOnAHost) {
  if (!engine().claims().host_threads) GTEST_SKIP() << engine().name() << " has no threads";
  const Conversation conversation(DType::f32);
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const int threads : {2, 5}) {
      for (const std::vector<Step>& steps : beginnings())
        expect_stopped_at_every_question(conversation, small(select, threads, in_reverse), steps);
    }
  }
}

// More heads than a chunk has stages.
TEST_P(InterruptOf, INTR_1_IsAskedForEveryChunkAndKeyValueHead) {
  Conversation conversation(DType::f32);
  conversation.shape = {
      .n_layer = 2, .n_head = 32, .n_head_kv = 32, .d_head = 4, .d_value = 4, .capacity = 300};
  conversation.set_rows(random_input(conversation.shape, 300, 5));
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const ParallelFor host : {ParallelFor{nullptr}, ParallelFor{in_order}}) {
      if (host && !engine().claims().host_threads) continue;
      for (const std::vector<Step>& steps : beginnings()) {
        // The calling thread works on all chunks and heads.
        const auto session = session_before(engine(), conversation, small(select, host ? 5 : 1, host), steps);
        Asked asked;
        session->set_interrupt(std::ref(asked));
        std::vector<float> out(static_cast<std::size_t>(steps.back().n * 32 * 4));
        conversation.attend(*session, 1, out.data());
        EXPECT_GE(asked.times, 1 + std::ssize(session->plan()) * 32);
      }
    }
  }
}

TEST_P(InterruptOf, INTR_1_AnAnswerToGoOnChangesNothing) {
  const Conversation conversation(DType::f32);
  const Options options = conversation_options(Select::h2o, 2);
  const auto plain = engine().open(conversation.shape, options);
  const auto asking = engine().open(conversation.shape, options);
  Asked asked;
  asking->set_interrupt(std::ref(asked));
  std::vector<float> expected, out;
  Results expected_contents, contents;
  for (const Step& step : Conversation::steps()) {
    conversation.run(*plain, step, expected);
    const std::int64_t before = asked.times;
    conversation.run(*asking, step, out);
    EXPECT_GE(asked.times, before + 2);  // in each layer
  }
  EXPECT_EQ(out, expected);
  append_contents(*plain, expected_contents);
  append_contents(*asking, contents);
  EXPECT_EQ(contents, expected_contents);
}

TEST_P(InterruptOf, INTR_1_AnExceptionOfTheQuestionIsPassedOn) {
  struct Stop {
    int number;
  };
  const Conversation conversation(DType::f32);
  for (const int threads : {1, 2}) {
    const auto session = engine().open(conversation.shape, small(Select::h2o, threads, nullptr));
    for (const int k : {1, 2, 5}) {
      int times = 0;
      session->set_interrupt([&] {
        if (++times >= k) throw Stop{times};
        return false;
      });
      std::vector<float> out;
      try {
        conversation.run(*session, Step::prefill(421), out);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Stop& stop) {
        EXPECT_EQ(stop.number, k);
      }
      EXPECT_TRUE(session->failed());
      session->reset();
    }
  }
}

TEST_P(InterruptOf, INTR_1_SurvivesResetUntilItIsSwitchedOff) {
  const Conversation conversation(DType::f32);
  const auto session = engine().open(conversation.shape, conversation_options(Select::h2o, 2));
  std::vector<float> out, expected;
  conversation.run(*session, Step::prefill(321), expected);
  session->reset();
  session->set_interrupt([] { return true; });
  for (int round = 0; round < 2; ++round) {
    expect_error([&] { conversation.run(*session, Step::prefill(321), out); }, ErrorCode::interrupted,
                 {"layer 0", "allowed: abort() or reset()"});
    session->reset();
  }
  session->set_interrupt({});
  out.clear();
  conversation.run(*session, Step::prefill(321), out);
  EXPECT_EQ(out, expected);
}

HEADWATER_EACH_ENGINE(InterruptOf);

}  // namespace
}  // namespace headwater::api_test
