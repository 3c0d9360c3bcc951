// HOST-1 on oneTBB, a pool that programs with threads of their own have: nested in one of its tasks, too.

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include "tests/api/conversation.hpp"

namespace headwater::api_test {
namespace {

class TbbOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().host_threads) GTEST_SKIP() << engine().name() << " has no threads";
  }
};

void on_tbb(void* /*context*/, std::int64_t n, void (*body)(void*, std::int64_t), void* argument) {
  tbb::parallel_for(std::int64_t{0}, n, [&](std::int64_t index) { body(argument, index); });
}

TEST_P(TbbOf, HOST_1_BitsAreThoseOfOpenMP) {
  tbb::task_arena arena;
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const Select select : {Select::h2o, Select::blocks}) {
      for (const int threads : {1, 2, 3, 5}) {
        Options options = conversation_options(select, threads);
        const std::vector<unsigned char> expected = conversation.bits(engine(), options);
        options.parallel_for = on_tbb;
        EXPECT_TRUE(conversation.bits(engine(), options) == expected);
        // Two sessions at a time, each in a task of the pool that they share.
        arena.execute([&] {
          tbb::parallel_for(0, 2,
                            [&](int) { EXPECT_TRUE(conversation.bits(engine(), options) == expected); });
        });
      }
    }
  }
}

HEADWATER_EACH_ENGINE(TbbOf);

}  // namespace
}  // namespace headwater::api_test
