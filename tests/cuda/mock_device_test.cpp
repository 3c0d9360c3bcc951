// The session over a mock of its device: what is left when the device refuses or fails at any call, and what an attend() may ask of
// a device at all.

#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headwater/error.hpp"
#include "tests/cuda/session_on_mock.hpp"

namespace headwater::cuda {
namespace {

using ::testing::_;
using ::testing::An;
using ::testing::HasSubstr;
using ::testing::MockFunction;
using OperationKind = Timeline::Kind;

template <class Call>
void expect_error(const Call& call, ErrorCode code, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error; wanted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

// ---- opening -------------------------------------------------------------------------------------------------------

// device.hpp: a device gives back what it gave when it ends. So a session that does not open must end it, once, and ask
// nothing of it any more.
TEST(MockedDevice, WhereMemoryIsRefusedTheDeviceEndsAndNothingFollows) {
  bool opened = false;
  int refusals = 0;
  for (int n = 1; !opened; ++n) {
    SCOPED_TRACE(n);
    auto owned = std::make_unique<TracedDevice>(dispatch().kernels());
    TracedDevice& device = *owned;
    int asked = 0;
    std::size_t before = 0;  // operations
    EXPECT_CALL(device, do_allocate).WillRepeatedly([&](std::int64_t bytes, bool pinned) -> void* {
      EXPECT_LE(++asked, n) << "memory was asked for after a refusal";
      if (asked < n) return device.take(bytes, pinned);
      before = device.timeline.operations.size();
      return nullptr;
    });
    MockFunction<void()> ended;
    EXPECT_CALL(ended, Call());
    device.on_destruction = [&] {
      if (asked >= n) {
        EXPECT_EQ(device.timeline.operations.size(), before) << "after a refusal";
      }
      ended.Call();
    };
    try {
      (void)session_on(std::move(owned));
      opened = true;
      EXPECT_LT(asked, n);
    } catch (const Error& error) {
      ++refusals;
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_THAT(error.what(), HasSubstr("no memory for "));
    }
  }
  EXPECT_GT(refusals, 5) << "memory of both kinds";
}

TEST(MockedDevice, WhatFailsWhileAGraphIsCapturedIsAnErrorOfOpen) {
  auto owned = std::make_unique<TracedDevice>(dispatch().kernels());
  TracedDevice& device = *owned;
  MockFunction<void()> ended;
  EXPECT_CALL(ended, Call());
  device.on_destruction = ended.AsStdFunction();
  EXPECT_CALL(device, do_end_capture(_)).WillOnce([&](Stream) -> Graph { device.fail("no graph"); });
  expect_error([&] { (void)session_on(std::move(owned)); }, ErrorCode::internal, "cuda: no graph");
}

// NUM-4, with all that the kit's own count of allocations leaves out: an observer, and whoever asks what the session holds.
TEST(MockedDevice, NothingIsTakenAfterOpen) {
  for (const Launching launching : {Launching::replayed, Launching::one_by_one}) {
    OnMock on(launching);
    EXPECT_CALL(*on.device, do_allocate).Times(0);
    EXPECT_CALL(*on.device, do_stream).Times(0);
    EXPECT_CALL(*on.device, do_adopt).Times(0);
    EXPECT_CALL(*on.device, do_event).Times(0);
    EXPECT_CALL(*on.device, do_begin_capture).Times(0);
    EXPECT_CALL(*on.device, do_end_capture).Times(0);
    for (const bool observed : {false, true}) {
      if (observed) on.session->set_observer([](const ChunkRecord&) {});
      on.run(Step::prefill(150));
      on.run(Step::decode(2));
      (void)on.session->scores(1);
      (void)on.session->memory(1);
      std::vector<float> row(kWidth);
      on.session->read_key(0, 0, 0, row);
      on.session->read_value(0, 0, 0, row);
      on.session->reset();
    }
  }
}

// ---- failures ------------------------------------------------------------------------------------------------------

/// After a failed step: every call but reset() is refused, and none reaches the device.
void expect_only_reset(OnMock& on) {
  EXPECT_TRUE(on.session->failed());
  const std::size_t before = on.device->timeline.operations.size();
  EXPECT_CALL(*on.device, do_set_launch).Times(0);
  EXPECT_CALL(*on.device, do_synchronize(An<Stream>())).Times(0);
  EXPECT_CALL(*on.device, do_synchronize(An<Event>())).Times(0);
  expect_error([&] { on.session->begin(Step::decode()); }, ErrorCode::wrong_state, "reset()");
  expect_error([&] { on.attend(1); }, ErrorCode::wrong_state, "reset()");
  expect_error([&] { on.session->end(); }, ErrorCode::wrong_state, "reset()");
  EXPECT_EQ(on.device->timeline.operations.size(), before) << "operations of a failed session";
  ::testing::Mock::VerifyAndClearExpectations(static_cast<MockDevice*>(on.device));
}

// device.hpp: a failure of the device is thrown by the call that notices it and by every later one, with the first text.
TEST(MockedDevice, AFaultOfAKernelIsInternalAndStays) {
  OnMock on(Launching::replayed);
  EXPECT_CALL(*on.device, do_replay).WillOnce([&](auto&&...) {
    on.device->fail("kernel x: illegal address");
  });
  expect_error([&] { on.run(Step::prefill(40)); }, ErrorCode::internal, "cuda: kernel x: illegal address");
  ::testing::Mock::VerifyAndClearExpectations(static_cast<MockDevice*>(on.device));
  expect_only_reset(on);
  const std::size_t replays = on.device->count(OperationKind::replay);
  expect_error([&] { on.session->reset(); }, ErrorCode::internal, "illegal address");
  expect_only_reset(on);  // a reset() that throws leaves the session as it was
  EXPECT_EQ(on.device->count(OperationKind::replay), replays);
}

TEST(MockedDevice, AWaitThatFailsFailsTheStep) {
  OnMock on(Launching::replayed);
  EXPECT_CALL(*on.device, do_synchronize(An<Event>())).WillOnce([&](Event) { on.device->fail("lost"); });
  expect_error([&] { on.run(Step::prefill(40)); }, ErrorCode::internal, "cuda: lost");
  ::testing::Mock::VerifyAndClearExpectations(static_cast<MockDevice*>(on.device));
  expect_only_reset(on);
}

// A window whose rows did not come is not computed.
TEST(MockedDevice, WhereACopyInIsRefusedNothingIsLaunched) {
  for (int failing = 1; failing <= 3; ++failing) {
    for (const Launching launching : {Launching::replayed, Launching::one_by_one}) {
      OnMock on(launching);
      int copies = 0;
      EXPECT_CALL(*on.device, do_copy).WillRepeatedly([&](auto&&...) {
        if (++copies == failing) throw Error(ErrorCode::out_of_memory, "no room to copy");
      });
      EXPECT_CALL(*on.device, do_replay).Times(0);
      EXPECT_CALL(*on.device, do_launch).Times(0);
      expect_error([&] { on.run(Step::prefill(40)); }, ErrorCode::out_of_memory, "no room to copy");
      ::testing::Mock::VerifyAndClearExpectations(static_cast<MockDevice*>(on.device));
      expect_only_reset(on);
    }
  }
}

// Whatever of a window is refused, nothing is enqueued after it: neither another launch nor the copy of its outputs.
TEST(MockedDevice, NothingFollowsALaunchThatIsRefused) {
  const auto refused_at = [](Launching launching, int failing) {
    OnMock on(launching);
    int calls = 0;
    std::size_t before = 0;  // operations
    const auto call = [&] {
      if (++calls != failing) return;
      before = on.device->timeline.operations.size();
      throw Error(ErrorCode::out_of_memory, "no memory for a launch");
    };
    EXPECT_CALL(*on.device, do_replay).WillRepeatedly([&](auto&&...) { call(); });
    EXPECT_CALL(*on.device, do_launch).WillRepeatedly([&](auto&&...) { call(); });
    on.session->begin(Step::prefill(kBatch));
    try {
      on.attend(0);
      EXPECT_LT(calls, failing) << "a refusal that attend() did not say";
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_STREQ(error.what(), "no memory for a launch");
      EXPECT_EQ(on.device->timeline.operations.size(), before);
      ::testing::Mock::VerifyAndClearExpectations(static_cast<MockDevice*>(on.device));
      expect_only_reset(on);
      return true;
    }
  };
  int replays = 0;
  while (refused_at(Launching::replayed, replays + 1)) ++replays;
  int launches = 0;
  while (refused_at(Launching::one_by_one, launches + 1)) ++launches;
  EXPECT_EQ(replays, 1) << "a window";
  EXPECT_GT(launches, 5);
}

// device.hpp: refused memory leaves the device as it was. Then reset() is the way on (STATE-5), and a replay has the launches of its
// own window alone, whichever launch of a longer window was the one that failed.
TEST(MockedDevice, AWindowThatFailedHalfWayLeavesNoLaunchBehind) {
  int launches = 0;
  {
    OnMock whole(Launching::replayed);
    EXPECT_CALL(*whole.device, do_set_launch).WillRepeatedly([&](auto&&...) { ++launches; });
    whole.session->begin(Step::prefill(kBatch));
    whole.attend(0);
  }
  ASSERT_GT(launches, 5);
  for (int failing = 1; failing <= launches; ++failing) {
    SCOPED_TRACE(failing);
    OnMock on(Launching::replayed);
    // A short window first: what a long one has beyond it is left out by then.
    on.run(Step::prefill(20));
    on.session->reset();
    int set = 0;
    EXPECT_CALL(*on.device, do_set_launch).WillRepeatedly([&](Graph graph, int index, auto&&...) {
      if (++set == failing) throw Error(ErrorCode::out_of_memory, "no memory for parameters");
      on.device->set_place(graph, index);
    });
    expect_error([&] { on.run(Step::prefill(kBatch)); }, ErrorCode::out_of_memory,
                 "no memory for parameters");
    ::testing::Mock::VerifyAndClearExpectations(static_cast<MockDevice*>(on.device));
    expect_only_reset(on);

    const std::size_t replays = on.device->count(OperationKind::replay);
    on.session->reset();
    on.device->forget_set_launches();
    on.run(Step::prefill(20));
    EXPECT_EQ(on.device->count(OperationKind::replay), replays + kLayers);
    EXPECT_EQ(on.device->stale_launches, 0);
  }
}

}  // namespace
}  // namespace headwater::cuda
