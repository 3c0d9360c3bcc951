// The library on the team of the calling thread (HEADWATER_THREADS=team).

#include <xmmintrin.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "optimized/cpu/own_threads.hpp"
#include "tests/api/conversation.hpp"

namespace headwater::api_test {
namespace {

using cpu::OwnThreads;

class OwnTeamOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().host_threads) GTEST_SKIP() << engine().name() << " has no threads";
  }
};

void in_order(void* /*context*/, std::int64_t n, void (*body)(void*, std::int64_t), void* argument) {
  for (std::int64_t index = 0; index < n; ++index) body(argument, index);
}

TEST_P(OwnTeamOf, NUM_3_BitsAreThoseOfTheCallersThreadAlone) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const Select select : {Select::h2o, Select::blocks}) {
      Options options = conversation_options(select, 1);
      options.parallel_for = in_order;
      const std::vector<unsigned char> expected = conversation.bits(engine(), options);
      options.parallel_for = nullptr;
      for (const int threads : {1, 2, 3, 7, 64}) {
        options.threads = threads;
        EXPECT_TRUE(conversation.bits(engine(), options) == expected) << threads << " threads";
      }
      // Callers that have sessions of their own, all at once.
      std::array<std::thread, 4> callers;
      std::array<bool, 4> same{};
      for (std::size_t i = 0; i < callers.size(); ++i) {
        callers[i] = std::thread([&, i] {
          Options own = options;
          own.threads = 2 + static_cast<int>(i);
          same[i] = conversation.bits(engine(), own) == expected;
        });
      }
      for (std::thread& caller : callers) caller.join();
      EXPECT_EQ(same, (std::array{true, true, true, true}));
    }
  }
}

// A caller that rounds up: threads that were there before do as he does.
TEST_P(OwnTeamOf, NUM_3_ThreadsTakeOverTheFloatControlsOfTheCaller) {
  const Conversation conversation(DType::f32);
  const auto bits = [&](int threads) {
    return conversation.bits(engine(), conversation_options(Select::h2o, threads));
  };
  const std::vector<unsigned char> to_nearest = bits(3);
  const unsigned own = _mm_getcsr();
  _mm_setcsr(own | _MM_ROUND_UP);
  const std::vector<unsigned char> up = bits(3);
  const std::vector<unsigned char> alone = bits(1);
  _mm_setcsr(own);
  EXPECT_TRUE(up == alone);
  EXPECT_FALSE(up == to_nearest);
}

// NUM-4 is no promise: a call may start the threads of its caller.
TEST_P(OwnTeamOf, ClaimsThatItMayAllocate) { EXPECT_FALSE(engine().claims().no_allocation); }

HEADWATER_EACH_ENGINE(OwnTeamOf);

TEST(OwnTeam, EachShareRunsOnce) {
  for (const int threads : {1, 2, 3, 64, 512}) {
    OwnThreads own(threads);
    for (int round = 0; round < 20; ++round) {
      std::array<std::atomic<int>, 512> runs{};
      own.run(
          [](const void* argument, int thread, int of) {
            auto& all = *static_cast<std::array<std::atomic<int>, 512>*>(const_cast<void*>(argument));
            all[static_cast<std::size_t>(thread)] += of;
          },
          &runs);
      for (int i = 0; i < 512; ++i) ASSERT_EQ(runs[static_cast<std::size_t>(i)], i < threads ? threads : 0);
    }
  }
}

TEST(OwnTeam, ReadsTheNumberThatOpenMPReads) {
  const char* const before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before ? before : "";
  const auto count = [](const char* wished) {
    setenv("OMP_NUM_THREADS", wished, 1);
    return OwnThreads::default_count();
  };
  const int all = count("");
  EXPECT_GE(all, 1);
  EXPECT_EQ(count("3"), 3);
  EXPECT_EQ(count("5,2"), 5);
  for (const char* const wrong : {"0", "-2", "many", "3x", "99999999999", ",4"}) EXPECT_EQ(count(wrong), all);
  if (before) {
    setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  } else {
    unsetenv("OMP_NUM_THREADS");
  }
}

}  // namespace
}  // namespace headwater::api_test
