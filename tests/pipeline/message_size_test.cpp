// The largest messages between ranks, and those that are one byte larger, over a transport that a script plays.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "headwater/error.hpp"
#include "runtime/pipeline/node.hpp"
#include "tests/pipeline/scripted_transport.hpp"

namespace headwater::pipeline {
namespace {

using Tag = Node::Tag;

constexpr int kMostControl = 16384;  // of node.cpp
constexpr int kControlHead = 8;
constexpr std::byte kHello{0};
constexpr std::byte kBeat{3};

Script& script() {
  static void* const object = ::dlopen(SCRIPTED_TRANSPORT, RTLD_NOW | RTLD_GLOBAL);
  return *reinterpret_cast<ScriptOf>(::dlsym(object, kScript))();
}

void come(Tag tag, int size, std::vector<std::byte> bytes = {}) {
  const std::lock_guard lock(script().mutex);
  script().coming[static_cast<std::size_t>(tag)].push_back({0, size, std::move(bytes)});
}

std::vector<std::size_t> sent(Tag tag) {
  const std::lock_guard lock(script().mutex);
  return script().sent[static_cast<std::size_t>(tag)];
}

NodeOptions options() {
  return {60, [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }};
}

/// Zeros that take no memory as long as they are only read.
class Zeros {
 public:
  explicit Zeros(std::size_t size)
      : bytes_(static_cast<std::byte*>(
                   ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
               size) {}
  ~Zeros() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  [[nodiscard]] std::span<const std::byte> first(std::size_t size) const { return bytes_.first(size); }

 private:
  std::span<const std::byte> bytes_;
};

/// The process ends by what follows, in a process of its own: a node's thread does not live on in a copy.
class MessageLimits : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(MessageLimits, LargerOnesAreNotSent) {
  const Zeros zeros(Node::kMostBytes);
  Node node(SCRIPTED_TRANSPORT, options());
  for (const std::size_t head : {std::size_t{1}, std::size_t{64}, Node::kMostBytes}) {
    try {
      node.send(0, Tag::stream, zeros.first(head), zeros.first(Node::kMostBytes + 1 - head));
      ADD_FAILURE() << "sent";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "a message of 1073741825 bytes to another rank; allowed: 1073741824; use a smaller -b");
    }
  }
  EXPECT_TRUE(sent(Tag::stream).empty());
}

TEST_F(MessageLimits, LargerOnesThatComeEndTheRank) {
  for (const Tag tag : {Tag::stream, Tag::answer}) {
    EXPECT_EXIT(
        {
          Node node(SCRIPTED_TRANSPORT, options());
          come(tag, (1 << 30) + 1);
          (void)node.receive(tag);
        },
        ::testing::ExitedWithCode(2),
        "rank 0 of 1 .*sent a message of 1073741825 bytes; allowed: 1073741824");
  }
}

TEST_F(MessageLimits, ControlMessagesThatComeAreSmall) {
  EXPECT_EXIT(
      {
        Node node(SCRIPTED_TRANSPORT, options());
        come(Tag::control, kMostControl, {kBeat});
        come(Tag::stream, 3);
        const std::size_t size = node.receive(Tag::stream).size();  // looked for after the other one
        std::fprintf(stderr, "went on with %zu\n", size);
        come(Tag::control, kMostControl + 1, {kBeat});
        come(Tag::stream, 3);
        (void)node.receive(Tag::stream);
      },
      ::testing::ExitedWithCode(2), "went on with 3\n.*sent a message of 16385 bytes; allowed: 16384");
}

/// Where rank 1 tells rank 0 more than a control message may have, that much of it is sent.
TEST_F(MessageLimits, ControlMessagesAreCut) {
  EXPECT_EXIT(
      {
        script().rank = 1;
        script().size = 2;
        come(Tag::control, kControlHead, {kHello});
        Node node(SCRIPTED_TRANSPORT, options());
        const int around = kControlHead + 3;  // a name of one letter, a tab, the line's end
        for (const int size : {kMostControl - 1, kMostControl, kMostControl + 1, 2 * kMostControl}) {
          (void)node.gather({{"f", std::string(static_cast<std::size_t>(size - around), 'x')}});
        }
        while (sent(Tag::control).size() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        for (const std::size_t size : sent(Tag::control)) std::fprintf(stderr, "%zu,", size);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "^[1-9][0-9]*,16383,16384,16384,16384,$");  // the first is its hello
}

TEST(MessageSizes, TheLargestOneIsSentAndReceived) {
  const Zeros zeros(Node::kMostBytes);
  Node node(SCRIPTED_TRANSPORT, options());
  node.send(0, Tag::stream, zeros.first(64), zeros.first(Node::kMostBytes - 64));
  while (sent(Tag::stream).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(sent(Tag::stream), std::vector<std::size_t>{Node::kMostBytes});
  come(Tag::stream, 1 << 30, {std::byte{1}, std::byte{2}});  // into the buffer of the one that was sent
  const Node::Bytes bytes = node.receive(Tag::stream);
  ASSERT_EQ(bytes.size(), std::size_t{1} << 30);
  EXPECT_EQ(bytes[1], std::byte{2});
}

}  // namespace
}  // namespace headwater::pipeline
