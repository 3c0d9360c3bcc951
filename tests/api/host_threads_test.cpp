// HOST-1: sessions on the threads of a host.

#include <xmmintrin.h>

#include <filesystem>

#include "tests/api/conversation.hpp"
#include "tests/api/hosts.hpp"

namespace headwater::api_test {
namespace {

class HostThreadsOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().host_threads) GTEST_SKIP() << engine().name() << " has no threads";
  }
};

Options on(Options options, ParallelFor parallel_for, void* context) {
  options.parallel_for = parallel_for;
  options.parallel_context = context;
  return options;
}

TEST_P(HostThreadsOf, HOST_1_BitsAreThoseOfOpenMP) {
  ThreadPool helped(2), alone(3, false);
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const Select select : {Select::h2o, Select::blocks}) {
      for (const int threads : {1, 2, 3, 5}) {
        SCOPED_TRACE(std::to_string(threads) + " threads, type " + std::to_string(static_cast<int>(type)) +
                     ", rule " + std::to_string(static_cast<int>(select)));
        Options options = conversation_options(select, threads);
        options.schedule = threads == 3 ? Schedule::chunk_major : Schedule::layer_major;
        const std::vector<unsigned char> expected = conversation.bits(engine(), options);
        const std::int64_t calls = helped.calls();
        for (ThreadPool* pool : {&helped, &alone})
          EXPECT_TRUE(conversation.bits(engine(), on(options, ThreadPool::parallel_for, pool)) == expected);
        EXPECT_GT(helped.calls(), calls);
        EXPECT_TRUE(conversation.bits(engine(), on(options, in_reverse, nullptr)) == expected);
      }
    }
  }
}

// Threads that round up and flush subnormals, as those of other programs may.
TEST_P(HostThreadsOf, HOST_1_BitsDoNotDependOnTheFloatControlsOfTheHost) {
  const ParallelFor host = [](void*, std::int64_t n, Body body, void* argument) {
    const unsigned own = _mm_getcsr();
    for (std::int64_t index = 0; index < n; ++index) {
      const unsigned others = own | _MM_ROUND_UP | _MM_FLUSH_ZERO_ON;
      _mm_setcsr(others);
      body(argument, index);
      EXPECT_EQ(_mm_getcsr(), others);
    }
    _mm_setcsr(own);
  };
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    const Options options = conversation_options(Select::h2o, 2);
    EXPECT_TRUE(conversation.bits(engine(), on(options, host, nullptr)) ==
                conversation.bits(engine(), options));
  }
}

// A caller that rounds up: OpenMP's threads, which were there before, do as he does.
TEST_P(HostThreadsOf, NUM_3_OpenMPThreadsTakeOverTheFloatControlsOfTheCaller) {
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

/// Threads of this process.
std::int64_t process_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// More threads than any session of this program asked OpenMP for: a region of its would have to make them.
TEST_P(HostThreadsOf, HOST_1_OpenMPMakesNoThread) {
  static int threads = 40;
  threads += 2;
  const Conversation conversation(DType::f32);
  const Options options = conversation_options(Select::h2o, threads);
  const std::int64_t before = process_threads();
  std::int64_t most = 0;
  const auto watch = [](void* context, std::int64_t n, Body body, void* argument) {
    auto& seen = *static_cast<std::int64_t*>(context);
    in_order(nullptr, n, body, argument);
    seen = std::max(seen, process_threads());
  };
  (void)conversation.bits(engine(), on(options, watch, &most));
  EXPECT_EQ(most, before);
  EXPECT_EQ(process_threads(), before);
  const auto session = engine().open(conversation.shape, options);
  EXPECT_GT(process_threads(), before) << "OpenMP's own threads are not seen";
}

/// A prefill on a host that breaks its contract must fail with this message, and work again after reset().
void expect_refused(const Engine& engine, FaultyHost host, int threads, const std::string& message) {
  SCOPED_TRACE(message);
  const Conversation conversation(DType::f32);
  const auto session = engine.open(
      conversation.shape, on(conversation_options(Select::h2o, threads), FaultyHost::parallel_for, &host));
  std::vector<float> out;
  expect_error([&] { conversation.run(*session, Step::prefill(320), out); }, ErrorCode::internal, {message});
  EXPECT_TRUE(session->failed());
  host.index = -1;  // none
  session->reset();
  out.clear();
  conversation.run(*session, Step::prefill(320), out);
  std::vector<float> expected;
  const auto other = engine.open(conversation.shape, conversation_options(Select::h2o, 1));
  conversation.run(*other, Step::prefill(320), expected);
  EXPECT_EQ(out, expected);
}

TEST_P(HostThreadsOf, HOST_1_AnIndexThatTheHostLosesOrRepeatsFailsTheStep) {
  using Fault = FaultyHost::Fault;
  for (const int threads : {1, 3}) {
    const std::string last = std::to_string(threads - 1);
    const std::string allowed = "allowed: each index 0 .. " + last + " once";
    for (const std::int64_t first_bad : {0, 3}) {
      expect_refused(engine(), {Fault::loses, threads - 1, first_bad}, threads,
                     "parallel_for returned without index " + last + "; " + allowed);
      expect_refused(engine(), {Fault::repeats, threads - 1, first_bad}, threads,
                     "parallel_for ran index " + last + " twice; " + allowed);
      expect_refused(engine(), {Fault::repeats_at_once, 0, first_bad}, threads,
                     "parallel_for ran index 0 twice; " + allowed);
      expect_refused(engine(), {Fault::out_of_range, threads - 1, first_bad}, threads,
                     "parallel_for ran index " + std::to_string(threads) + "; " + allowed);
    }
  }
}

HEADWATER_EACH_ENGINE(HostThreadsOf);

class HostThreadsSizes : public HostThreadsOf {};

TEST_P(HostThreadsSizes, HOST_1_TheLastOfTwelveIndexesIsLost) {
  expect_refused(engine(), {FaultyHost::Fault::loses, 11, 0}, 12, "without index 11");
}

// Regions of more tasks than small problems have.
TEST_P(HostThreadsSizes, HOST_1_EveryRowOfALongCallIsStored) {
  const Shape shape = small_shape(4099);
  const LayerInput input = random_input(shape, shape.capacity, 3);
  ThreadPool pool(1);
  const auto session = engine().open(shape, on(small_options(), ThreadPool::parallel_for, &pool));
  (void)run_step(*session, Step::prefill(shape.capacity), input, 0);
  std::vector<float> row(static_cast<std::size_t>(shape.d_head));
  for (std::int64_t position = 0; position < shape.capacity; ++position) {
    for (std::int64_t head = 0; head < shape.n_head_kv; ++head) {
      session->read_key(1, head, position, row);
      const float* expected = input.k.data() + (position * shape.n_head_kv + head) * shape.d_head;
      ASSERT_TRUE(std::equal(row.begin(), row.end(), expected)) << position;
    }
  }
}

// What a thread works in is its own, of twelve as of few; the thread sanitizer sees where two share it.
TEST_P(HostThreadsSizes, HOST_1_TwelveThreadsDecode) {
  constexpr std::int64_t kFirst = 2100;
  Shape shape = small_shape(kFirst + 9);
  shape.n_layer = 1;
  shape.n_head = shape.n_head_kv = 16;
  const LayerInput input = random_input(shape, shape.capacity, 3);
  std::vector<float> outputs[2];
  for (const int threads : {1, 12}) {
    ThreadPool pool(11);
    Options options = on(small_options(), ThreadPool::parallel_for, &pool);
    options.threads = threads;
    const auto session = engine().open(shape, options);
    (void)run_step(*session, Step::prefill(kFirst), input, 0);
    auto& out = outputs[threads == 1 ? 0 : 1];
    for (const std::int64_t n : {1, 3, 5}) {
      const auto some = run_step(*session, Step::decode(n), input, session->tokens());
      out.insert(out.end(), some.begin(), some.end());
    }
  }
  EXPECT_TRUE(outputs[0] == outputs[1]);
}

HEADWATER_EACH_ENGINE(HostThreadsSizes);

}  // namespace
}  // namespace headwater::api_test
