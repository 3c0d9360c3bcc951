// HOST-2: the large blocks of a session come from the host.

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "headwater/headwater.h"
#include "tests/api/conversation.hpp"

namespace headwater::api_test {
namespace {

/// Memory of a host: counts, refuses the call number `refused`, and hands out blocks that are aligned to what was asked and
/// no further, full of garbage, with canaries around them.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() { EXPECT_EQ(live_.size(), 0U) << "blocks were not given back"; }

  static void* allocate(void* context, std::size_t bytes, std::size_t alignment) {
    return static_cast<HostMemory*>(context)->take(bytes, alignment);
  }
  static void release(void* context, void* block, std::size_t bytes, std::size_t alignment) {
    static_cast<HostMemory*>(context)->give_back(block, bytes, alignment);
  }
  [[nodiscard]] Allocator allocator() { return {allocate, release, this}; }

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t calls() const { return calls_; }
  [[nodiscard]] std::int64_t blocks() const { return std::ssize(live_); }
  void refuse(std::int64_t call) { calls_ = 0, refused_ = call; }
  void misalign(bool on) { misaligned_ = on; }

 private:
  static constexpr std::size_t kCanary = 64;
  static constexpr int kGarbage = 0xa5;
  struct Block {
    std::size_t bytes, alignment;
    unsigned char* raw;
  };

  void* take(std::size_t bytes, std::size_t alignment) {
    const std::lock_guard lock(mutex_);
    EXPECT_GT(bytes, 0U);
    EXPECT_TRUE(alignment >= 64 && (alignment & (alignment - 1)) == 0) << alignment;
    if (calls_++ == refused_) return nullptr;
    const std::size_t room = 2 * alignment + kCanary;
    auto* raw = static_cast<unsigned char*>(
        std::aligned_alloc(2 * alignment, (bytes + 2 * room) / (2 * alignment) * (2 * alignment)));
    const std::size_t size = (bytes + 2 * room) / (2 * alignment) * (2 * alignment);
    std::memset(raw, kGarbage, size);
    unsigned char* block = raw + alignment + (misaligned_ ? 8 : 0);
    live_[block] = {bytes, alignment, raw};
    bytes_ += static_cast<std::int64_t>(bytes);
    return block;
  }
  void give_back(void* block, std::size_t bytes, std::size_t alignment) {
    const std::lock_guard lock(mutex_);
    const auto at = live_.find(block);
    if (at == live_.end()) {
      ADD_FAILURE() << "a block that was not taken, or given back before";
      return;
    }
    EXPECT_EQ(at->second.bytes, bytes);
    EXPECT_EQ(at->second.alignment, alignment);
    const auto* data = static_cast<const unsigned char*>(block);
    for (const unsigned char* byte = at->second.raw; byte < data; ++byte)
      ASSERT_EQ(*byte, kGarbage) << "before it";
    for (std::size_t i = 0; i < kCanary; ++i) ASSERT_EQ(data[bytes + i], kGarbage) << "after it";
    bytes_ -= static_cast<std::int64_t>(bytes);
    std::free(at->second.raw);
    live_.erase(at);
  }

  std::mutex mutex_;
  std::map<void*, Block> live_;
  std::int64_t bytes_ = 0;
  std::int64_t calls_ = 0;
  std::int64_t refused_ = -1;
  bool misaligned_ = false;
};

Options with(Options options, HostMemory& host) {
  options.allocator = host.allocator();
  return options;
}

class EachEngineHasMemory : public EachEngine {};

class AllocatorOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().host_memory) GTEST_SKIP() << engine().name() << " takes no memory of the host";
  }
};

TEST_P(AllocatorOf, HOST_2_BitsAreTheSameAndAllBytesAreTheHosts) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const Select select : {Select::h2o, Select::blocks}) {
      for (const int threads : {1, 3}) {
        Options options = conversation_options(select, threads);
        options.page = 256;
        options.checkpoints = 2;
        HostMemory host;
        EXPECT_TRUE(conversation.bits(engine(), with(options, host)) == conversation.bits(engine(), options));
        EXPECT_EQ(host.bytes(), 0);
        const auto session = engine().open(conversation.shape, with(options, host));
        EXPECT_EQ(host.bytes(), session->memory_bytes().total()) << "opened";
        const std::int64_t opened = host.blocks();
        std::vector<float> out;
        for (const Step& step : Conversation::steps()) {
          conversation.run(*session, step, out);
          EXPECT_EQ(host.bytes(), session->memory_bytes().total());
        }
        EXPECT_GT(host.blocks(), opened) << "pages";
        // A fork that forgets everything shares nothing any more.
        for (const bool truncates : {false, true}) {
          const auto fork = session->fork();
          truncates ? fork->truncate(0) : fork->reset();
          EXPECT_EQ(host.bytes(), session->memory_bytes().total() + fork->memory_bytes().total())
              << truncates;
        }
        session->reset();
        EXPECT_EQ(host.bytes(), session->memory_bytes().total()) << "reset";
      }
    }
  }
}

// Whichever is closed first, on whatever thread; a fork takes the memory of its parent's host.
TEST_P(AllocatorOf, HOST_2_ForksAndFiles) {
  const Conversation conversation(DType::f32);
  const std::string path =
      testing::TempDir() + "headwater_allocator_" + std::to_string(::getpid()) + ".safetensors";
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const bool parent_first : {true, false}) {
      HostMemory host;
      Options options = conversation_options(select, 2);
      options.page = 256;
      auto parent = engine().open(conversation.shape, with(options, host));
      std::vector<float> out;
      const std::vector<Step> steps = Conversation::steps();
      for (std::size_t s = 0; s < 4; ++s) conversation.run(*parent, steps[s], out);
      const std::int64_t before = host.bytes();
      auto fork = parent->fork();
      EXPECT_LT(host.bytes() - before, 4096) << "a fork takes lists alone before its first step";
      std::vector<float> of_fork, of_parent;
      std::thread other([&] { conversation.run(*fork, steps[4], of_fork); });
      conversation.run(*parent, steps[4], of_parent);
      other.join();
      EXPECT_EQ(of_fork, of_parent);
      save(*fork, path, "here");
      (parent_first ? parent : fork).reset();
      (parent_first ? fork : parent).reset();
      EXPECT_EQ(host.bytes(), 0);
      const auto loaded = load(engine(), conversation.shape, with(options, host), path, "here");
      EXPECT_EQ(host.bytes(), loaded->memory_bytes().total());
      EXPECT_GT(loaded->tokens(), 0);
    }
  }
  std::filesystem::remove(path);
}

// Null is out of memory at every call: one error, the session as before, and nothing lost.
TEST_P(AllocatorOf, HOST_2_EveryCallRefused) {
  const Conversation conversation(DType::bf16);
  const std::vector<Step> steps = Conversation::steps();
  for (const Select select : {Select::h2o, Select::blocks}) {
    Options options = conversation_options(select, 2);
    options.page = 256;
    options.checkpoints = select == Select::h2o ? 1 : 0;
    std::vector<float> wanted;
    {
      const auto plain = engine().open(conversation.shape, options);
      for (const Step& step : steps) conversation.run(*plain, step, wanted);
    }
    HostMemory host;
    const auto refused = [&](std::int64_t call, const auto& what) {
      host.refuse(call);
      try {
        what();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
        host.refuse(-1);
        return true;
      }
      EXPECT_LE(host.calls(), call);
      host.refuse(-1);
      return false;
    };
    std::unique_ptr<Session> session;
    std::int64_t opening = 0;
    while (refused(opening, [&] { session = engine().open(conversation.shape, with(options, host)); })) {
      EXPECT_EQ(host.bytes(), 0) << "call " << opening;
      ++opening;
    }
    EXPECT_GT(opening, 10);
    std::int64_t begins = 0;
    std::vector<float> got;
    const auto run_on = [&](Session& on, const Step& step) {
      const std::int64_t tokens = on.tokens();
      std::int64_t call = 0;
      while (refused(call, [&] { on.begin(step); })) {
        EXPECT_FALSE(on.failed());
        EXPECT_EQ(on.tokens(), tokens);
        EXPECT_THAT([&] { on.end(); }, testing::Throws<Error>()) << "no step is open";
        ++call, ++begins;
      }
      on.abort();
      conversation.run(on, step, got);
    };
    for (std::size_t s = 0; s < 5; ++s) run_on(*session, steps[s]);
    EXPECT_GT(begins, 3);
    // A fork copies what it shares; the rest of both has the bits of a session that was never refused.
    std::unique_ptr<Session> fork = session->fork();
    const std::vector<float> shared = got;
    for (std::size_t s = 5; s < steps.size(); ++s) run_on(*fork, steps[s]);
    EXPECT_EQ(got, wanted);
    got = shared;
    for (std::size_t s = 5; s < steps.size(); ++s) run_on(*session, steps[s]);
    EXPECT_EQ(got, wanted);
    // What takes tokens back may have to make its own what is shared.
    fork = session->fork();
    std::int64_t call = 0;
    while (refused(call, [&] { fork->truncate(0); })) {
      EXPECT_EQ(fork->tokens(), session->tokens());
      ++call;
    }
    EXPECT_EQ(fork->tokens(), 0);
    fork = session->fork();
    for (call = 0; refused(call, [&] { fork->reset(); }); ++call)
      EXPECT_EQ(fork->tokens(), session->tokens());
  }
}

TEST_P(AllocatorOf, HOST_2_WhatIsNoAllocatorIsRefused) {
  const Shape shape = small_shape(64);
  HostMemory host;
  Options options = with(small_options(), host);
  options.allocator.release = nullptr;
  expect_error([&] { (void)engine().open(shape, options); }, ErrorCode::invalid_argument,
               {"allocator.release", "null", "allowed"});
  options = with(small_options(), host);
  options.allocator.allocate = nullptr;
  expect_error([&] { (void)engine().open(shape, options); }, ErrorCode::invalid_argument,
               {"allocator.allocate", "null", "allowed"});
  options = with(small_options(), host);
  host.misalign(true);
  expect_error([&] { (void)engine().open(shape, options); }, ErrorCode::internal,
               {"aligned", "64", "allowed"});
  host.misalign(false);
  const auto session = engine().open(shape, options);
  host.misalign(true);
  expect_error([&] { session->begin(Step::prefill(3)); }, ErrorCode::internal, {"aligned", "allowed"});
  host.misalign(false);
  EXPECT_FALSE(session->failed());
  session->begin(Step::prefill(3));
  session->abort();
  EXPECT_EQ(host.calls() > 0, true);
  // An estimate takes nothing.
  const std::int64_t calls = host.calls();
  EXPECT_EQ(engine().estimate(shape, options).opened.total(),
            engine().estimate(shape, small_options()).opened.total());
  EXPECT_EQ(host.calls(), calls);
}

// Engines that do not claim it refuse it by name.
TEST_P(EachEngineHasMemory, HOST_2_RefusedWhereItIsNotClaimed) {
  if (engine().claims().host_memory) GTEST_SKIP() << engine().name() << " claims it";
  HostMemory host;
  expect_error([&] { (void)engine().open(small_shape(64), with(small_options(), host)); },
               ErrorCode::unsupported, {"allocator", std::string(engine().name()), "allowed"});
  EXPECT_EQ(host.calls(), 0);
}

TEST(HostMemoryFromC, HOST_2_FieldsOfTheOptions) {
  HostMemory host;
  headwater_shape shape{2, 4, 2, 8, 6, 600, HEADWATER_F32, 0};
  headwater_options options;
  ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  EXPECT_EQ(options.allocate, nullptr);
  options.allocate = HostMemory::allocate;
  options.release = HostMemory::release;
  options.allocator_context = &host;
  headwater_session* session = nullptr;
  ASSERT_EQ(headwater_open("cpu-portable", &shape, &options, &session), HEADWATER_OK);
  headwater_memory_bytes held;
  ASSERT_EQ(headwater_session_memory_bytes(session, &held, sizeof held), HEADWATER_OK);
  EXPECT_EQ(host.bytes(), held.kv + held.scores + held.memory_sets + held.workspace);
  host.refuse(0);
  EXPECT_EQ(headwater_begin_prefill(session, 5, 0), HEADWATER_OUT_OF_MEMORY);
  EXPECT_THAT(headwater_last_error(), testing::HasSubstr("allowed"));
  EXPECT_EQ(headwater_begin_prefill(session, 5, 0), HEADWATER_OK);
  headwater_close(session);
  EXPECT_EQ(host.bytes(), 0);
  options.release = nullptr;
  EXPECT_EQ(headwater_open("cpu-portable", &shape, &options, &session), HEADWATER_INVALID_ARGUMENT);
  EXPECT_THAT(headwater_last_error(), testing::HasSubstr("release"));
}

HEADWATER_EACH_ENGINE(AllocatorOf);
HEADWATER_EACH_ENGINE(EachEngineHasMemory);

}  // namespace
}  // namespace headwater::api_test
