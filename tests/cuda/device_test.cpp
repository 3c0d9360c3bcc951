// The device as the session sees it, on its emulation.
#include "cuda/device/device.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/device/emulated_device.hpp"

namespace headwater::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

struct ScaleParams {
  float* x;
  int count;
  float factor;
};

/// x *= factor; with a negative count the fault that a test wants.
template <class Context>
HEADWATER_CUDA_FUNCTION void scale(Context& ctx, const ScaleParams& p) {
  if (p.count < 0) {
    auto s = ctx.template shared<float>(0, 1);
    const float x = s[0];
    p.x[0] = x;
  }
  const int i = ctx.block_x() * ctx.threads() + ctx.thread();
  if (i < p.count) p.x[i] *= p.factor;
}

struct SpinParams {
  int rounds;
};
template <class Context>
HEADWATER_CUDA_FUNCTION void spin(Context& ctx, const SpinParams& p) {
  for (int i = 0; i != p.rounds; ++i) ctx.warp_sync();
}

HEADWATER_CUDA_KERNEL(scale_64, ScaleParams, 64, 1, scale)
HEADWATER_CUDA_KERNEL(spin_32, SpinParams, 32, 1, spin)
const Kernel kKernels[] = {HEADWATER_CUDA_ROW(scale_64), HEADWATER_CUDA_ROW(spin_32)};
constexpr int kScale = 0;
constexpr int kSpin = 1;

std::unique_ptr<Device> opened(Progress progress = Progress::late, EmulationOptions options = {}) {
  options.progress = progress;
  return open_emulated_device(kKernels, options);
}

void expect_error(ErrorCode code, const std::string& part, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), AllOf(HasSubstr(part), HasSubstr("cuda: "), Not(HasSubstr("\n"))));
  }
}

float* floats(Device& device, int count) {
  return static_cast<float*>(device.allocate(count * static_cast<std::int64_t>(sizeof(float)), "floats"));
}

void fill(Device& device, Stream stream, float* to, std::vector<float> values) {
  device.copy(stream, to, values.data(), static_cast<std::int64_t>(values.size() * sizeof(float)),
              Direction::host_to_device);
}

std::vector<float> read(Device& device, Stream stream, const float* from, int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  device.copy(stream, values.data(), from, count * static_cast<std::int64_t>(sizeof(float)),
              Direction::device_to_host);
  return values;
}

void scale_by(Device& device, Stream stream, float* x, int count, float factor) {
  device.launch(stream, kScale, {static_cast<unsigned>((count + 63) / 64), 1, 1}, 0,
                ScaleParams{x, count, factor});
}

class EveryProgress : public ::testing::TestWithParam<Progress> {};
INSTANTIATE_TEST_SUITE_P(Device, EveryProgress, ::testing::Values(Progress::eager, Progress::late));

TEST_P(EveryProgress, RunsKernelsOfItsTable) {
  const auto device = opened(GetParam());
  const Stream stream = device->stream();
  float* x = floats(*device, 100);
  std::vector<float> values(100);
  std::iota(values.begin(), values.end(), 0.0f);
  fill(*device, stream, x, values);
  scale_by(*device, stream, x, 100, 3.0f);
  device->synchronize(stream);
  const auto got = read(*device, stream, x, 100);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(got[i], 3.0f * static_cast<float>(i));
}

TEST_P(EveryProgress, EventsOrderStreams) {
  const auto device = opened(GetParam());
  const Stream first = device->stream();
  const Stream second = device->stream(true);
  const Event ready = device->event();
  float* x = floats(*device, 64);
  fill(*device, first, x, std::vector<float>(64, 1.0f));
  scale_by(*device, first, x, 64, 5.0f);
  device->record(ready, first);
  device->wait(second, ready);
  scale_by(*device, second, x, 64, 2.0f);
  EXPECT_THAT(read(*device, second, x, 64), Each(10.0f));
}

TEST(EmulatedDevice, AForgottenWaitShows) {
  const auto device = opened();
  const Stream first = device->stream();
  const Stream second = device->stream();
  float* x = floats(*device, 64);
  fill(*device, second, x, std::vector<float>(64, 1.0f));
  device->synchronize(second);
  scale_by(*device, first, x, 64, 5.0f);
  scale_by(*device, second, x, 64, 2.0f);
  EXPECT_THAT(read(*device, second, x, 64), Each(2.0f));
}

TEST_P(EveryProgress, GraphsForkJoinAndReplay) {
  const auto device = opened(GetParam());
  const Stream main = device->stream();
  const Stream side = device->stream();
  const Event forked = device->event();
  const Event joined = device->event();
  float* x = floats(*device, 64);
  float* y = floats(*device, 64);
  fill(*device, main, x, std::vector<float>(64, 1.0f));
  device->begin_capture(main);
  scale_by(*device, main, x, 64, 2.0f);
  device->record(forked, main);
  device->wait(side, forked);
  device->copy(side, y, x, 64 * sizeof(float), Direction::device_to_device);
  device->record(joined, side);
  device->wait(main, joined);
  scale_by(*device, main, x, 64, 3.0f);
  const Graph graph = device->end_capture(main);
  EXPECT_THAT(read(*device, main, x, 64), Each(1.0f)) << "a captured operation was done";
  const Counters before = device->counters();
  device->replay(graph, main);
  device->replay(graph, main);
  EXPECT_EQ(device->counters().replays - before.replays, 2);
  EXPECT_EQ(device->counters().allocations, before.allocations);
  EXPECT_EQ(device->counters().host_synchronisations, before.host_synchronisations);
  EXPECT_THAT(read(*device, main, x, 64), Each(36.0f));
  EXPECT_THAT(read(*device, main, y, 64), Each(12.0f));
  scale_by(*device, side, y, 64, 2.0f);  // no longer part of a capture
  EXPECT_THAT(read(*device, side, y, 64), Each(24.0f));
}

TEST_P(EveryProgress, LaunchesOfAGraphAreSetAnew) {
  const auto device = opened(GetParam());
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  fill(*device, stream, x, std::vector<float>(64, 1.0f));
  device->begin_capture(stream);
  scale_by(*device, stream, x, 64, 2.0f);
  scale_by(*device, stream, x, 64, 3.0f);
  const Graph graph = device->end_capture(stream);
  const Counters before = device->counters();
  const auto set = [&](int index, int count, float factor) {
    device->set_launch(graph, index, kScale, {1, 1, 1}, 0, ScaleParams{x, count, factor});
  };
  device->replay(graph, stream);  // 6
  set(1, 64, 5.0f);               // for later replays, though this one may not have begun
  device->replay(graph, stream);  // 60
  device->leave_out(graph, 0);
  device->replay(graph, stream);  // 300
  set(0, 32, 10.0f);              // takes part again
  device->leave_out(graph, 1);
  device->replay(graph, stream);
  EXPECT_EQ(device->counters().allocations, before.allocations);
  EXPECT_EQ(device->counters().host_synchronisations, before.host_synchronisations);
  const auto got = read(*device, stream, x, 64);
  EXPECT_EQ(got[0], 3000.0f);
  EXPECT_EQ(got[63], 300.0f);
  for (const int index : {-1, 2}) {
    expect_error(ErrorCode::invalid_argument, "in a graph of 2", [&] { set(index, 64, 1.0f); });
    expect_error(ErrorCode::invalid_argument, "in a graph of 2", [&] { device->leave_out(graph, index); });
  }
  expect_error(ErrorCode::invalid_argument, "no graph 7",
               [&] { device->leave_out(static_cast<Graph>(7), 0); });
  device->begin_capture(stream);
  expect_error(ErrorCode::wrong_state, "while a graph is captured", [&] { set(0, 64, 1.0f); });
  (void)device->end_capture(stream);
}

TEST(EmulatedDevice, AdoptsItsOwnStreamsAndTheDefaultOne) {
  const auto device = opened();
  const Stream stream = device->stream();
  EXPECT_EQ(device->adopt(device->native_handle(stream)), stream);
  EXPECT_EQ(device->adopt(nullptr), device->adopt(nullptr));
  EXPECT_NE(device->adopt(nullptr), stream);
}

TEST(EmulatedDevice, ACaptureMustBeJoined) {
  const auto device = opened();
  const Stream main = device->stream();
  const Stream side = device->stream();
  const Event forked = device->event();
  float* x = floats(*device, 64);
  device->begin_capture(main);
  device->record(forked, main);
  device->wait(side, forked);
  device->set(side, x, 0, 64);
  expect_error(ErrorCode::invalid_argument, "was not joined", [&] { (void)device->end_capture(main); });
  device->set(main, x, 0, 64);
  device->synchronize(main);
}

TEST(EmulatedDevice, ACaptureTakesNothingThatWaitsOrAllocates) {
  const auto device = opened();
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  std::vector<float> host(64);
  device->begin_capture(stream);
  expect_error(ErrorCode::wrong_state, "an allocation while a graph",
               [&] { (void)device->allocate(64, "x"); });
  expect_error(ErrorCode::wrong_state, "an allocation while a graph", [&] { (void)device->event(); });
  expect_error(ErrorCode::wrong_state, "a wait of the host", [&] { device->synchronize(stream); });
  expect_error(ErrorCode::wrong_state, "pageable", [&] { fill(*device, stream, x, host); });
  expect_error(ErrorCode::wrong_state, "a capture while", [&] { device->begin_capture(stream); });
  (void)device->end_capture(stream);
  expect_error(ErrorCode::wrong_state, "not begun", [&] { (void)device->end_capture(stream); });
}

TEST(EmulatedDevice, AnEventFromOutsideIsNoPartOfACapture) {
  const auto device = opened();
  const Stream main = device->stream();
  const Stream other = device->stream();
  const Event outside = device->event();
  device->record(outside, other);
  device->begin_capture(main);
  expect_error(ErrorCode::invalid_argument, "outside of the capture", [&] { device->wait(main, outside); });
  (void)device->end_capture(main);
}

TEST_P(EveryProgress, AFaultOfAKernelIsSticky) {
  const auto device = opened(GetParam());
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  const auto fault = [&] {
    device->launch(stream, kScale, {1, 1, 1}, 16, ScaleParams{x, -1, 0.0f});
    device->synchronize(stream);
  };
  expect_error(ErrorCode::internal, "kernel scale_64, block (0, 0, 0), thread 0: uninitialised read", fault);
  EXPECT_TRUE(device->failed());
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { (void)device->allocate(1, "x"); }, [&] { device->synchronize(stream); },
           [&] { scale_by(*device, stream, x, 1, 1.0f); }, [&] { (void)device->stream(); },
           [&] { (void)device->event(); }, [&] { device->set(stream, x, 0, 4); },
           [&] { device->begin_capture(stream); }, [&] { (void)read(*device, stream, x, 1); },
           [&] { device->check(); }}) {
    expect_error(ErrorCode::internal, "uninitialised read", call);
  }
  device->release(x);
}

TEST(EmulatedDevice, AFaultThatNobodyWaitedForEndsQuietly) {
  const auto device = opened();
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  device->launch(stream, kScale, {1, 1, 1}, 16, ScaleParams{x, -1, 0.0f});
}

TEST(EmulatedDevice, ReleasingWaitsAndKeepsAFault) {
  const auto device = opened();
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  device->launch(stream, kScale, {1, 1, 1}, 16, ScaleParams{x, -1, 0.0f});
  device->release(x);
  expect_error(ErrorCode::internal, "uninitialised read", [&] { device->check(); });
}

#ifndef __SANITIZE_ADDRESS__  // which ends the program at the write itself
TEST_P(EveryProgress, AWriteBehindAnAllocationIsAFault) {
  const auto device = opened(GetParam());
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  fill(*device, stream, x, std::vector<float>(64, 1.0f));
  expect_error(ErrorCode::internal, "kernel scale_64: wrote outside of an allocation of 256 bytes", [&] {
    scale_by(*device, stream, x, 65, 2.0f);
    device->synchronize(stream);
  });
}
#endif

TEST(EmulatedDevice, AnEndlessKernelIsAFault) {
  EmulationOptions options;
  options.most_operations = 1000;
  const auto device = opened(Progress::late, options);
  const Stream stream = device->stream();
  device->launch(stream, kSpin, {1, 1, 1}, 0, SpinParams{-1});
  expect_error(ErrorCode::internal, "does not end", [&] { device->synchronize(stream); });
}

TEST(EmulatedDevice, MemoryIsNaNAlignedAndLimited) {
  EmulationOptions options;
  options.memory = 1000;
  const auto device = opened(Progress::late, options);
  float* x = floats(*device, 100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x) % 256, 0u);
  // The emulation has host memory; a copy of what nothing has written would be a fault.
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(std::isnan(x[i]));
  expect_error(ErrorCode::out_of_memory, "no memory for rows (601 bytes)",
               [&] { (void)device->allocate(601, "rows"); });
  device->release(x);
  device->release(nullptr);
  device->release(device->allocate(1000, "rows"));
  (void)device->allocate_pinned(2000, "staging");
  expect_error(ErrorCode::invalid_argument, "rows: 0 bytes", [&] { (void)device->allocate(0, "rows"); });
}

TEST(EmulatedDevice, RefusesTheNthAllocation) {
  for (int n = 1; n <= 4; ++n) {
    const auto device = opened();
    device->refuse_allocation(n);
    int made = 0;
    expect_error(ErrorCode::out_of_memory, "no memory for ", [&] {
      (void)device->stream();
      ++made;
      (void)device->allocate(8, "x");
      ++made;
      (void)device->event();
      ++made;
      (void)device->allocate_pinned(8, "y");
    });
    EXPECT_EQ(made, n - 1);
    EXPECT_FALSE(device->failed());
    (void)device->allocate(8, "x");
  }
}

TEST(EmulatedDevice, KnowsPointers) {
  const auto device = opened();
  int on_host = 0;
  auto* on_device = static_cast<char*>(device->allocate(100, "x"));
  auto* pinned = static_cast<char*>(device->allocate_pinned(100, "y"));
  EXPECT_EQ(device->kind(&on_host), PointerKind::host);
  EXPECT_EQ(device->kind(on_device), PointerKind::device);
  EXPECT_EQ(device->kind(on_device + 99), PointerKind::device);
  EXPECT_EQ(device->kind(on_device + 100), PointerKind::host);
  EXPECT_EQ(device->kind(on_device - 1), PointerKind::host);
  EXPECT_EQ(device->kind(pinned + 50), PointerKind::pinned);
  device->release(on_device);
  EXPECT_EQ(device->kind(on_device), PointerKind::host);
}

TEST(EmulatedDevice, CopiesHoldToKindsAndAllocations) {
  const auto device = opened();
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  std::vector<float> host(64, 1.0f);
  const auto copy = [&](void* to, const void* from, std::int64_t bytes, Direction direction) {
    return [=, &device] { device->copy(stream, to, from, bytes, direction); };
  };
  expect_error(ErrorCode::invalid_argument, "the target is no device memory",
               copy(host.data(), x, 4, Direction::device_to_device));
  expect_error(ErrorCode::invalid_argument, "the source is device memory",
               copy(x, x, 4, Direction::host_to_device));
  expect_error(ErrorCode::invalid_argument, "the target does not lie in one allocation",
               copy(x + 1, host.data(), 256, Direction::host_to_device));
  expect_error(ErrorCode::invalid_argument, "copy of 1 rows of -4 bytes",
               copy(x, host.data(), -4, Direction::host_to_device));
  copy(x, host.data(), 0, Direction::host_to_device)();
  copy(x, host.data(), 256, Direction::host_to_device)();
}

TEST_P(EveryProgress, CopiesRows) {
  const auto device = opened(GetParam());
  const Stream stream = device->stream();
  float* x = floats(*device, 8);
  device->set(stream, x, 0, 32);
  const std::vector<float> host{1, 2, 3, 4, 5, 6};
  device->copy_rows(stream, {x + 1, 16}, {host.data(), 12}, 8, 2, Direction::host_to_device);
  EXPECT_THAT(read(*device, stream, x, 8), ::testing::ElementsAre(0, 1, 2, 0, 0, 4, 5, 0));
  expect_error(ErrorCode::invalid_argument, "rows that do not overlap", [&] {
    device->copy_rows(stream, {x, 4}, {host.data(), 12}, 8, 2, Direction::host_to_device);
  });
}

TEST(EmulatedDevice, PinnedMemoryIsReadWhenTheStreamGetsThere) {
  const auto device = opened();
  const Stream stream = device->stream();
  float* x = floats(*device, 1);
  auto* staging = static_cast<float*>(device->allocate_pinned(4, "staging"));
  *staging = 1.0f;
  const Counters before = device->counters();
  device->copy(stream, x, staging, 4, Direction::host_to_device);
  *staging = 2.0f;
  EXPECT_EQ(device->counters().host_synchronisations, before.host_synchronisations);
  EXPECT_THAT(read(*device, stream, x, 1), Each(2.0f));
  EXPECT_EQ(device->counters().host_synchronisations, before.host_synchronisations + 1);
  *staging = 3.0f;
  device->copy(stream, staging, x, 4, Direction::device_to_host);
  EXPECT_EQ(*staging, 3.0f) << "nobody has waited for the copy";
}

TEST(EmulatedDevice, CountsWhatItDoes) {
  const auto device = opened();
  const Stream stream = device->stream();
  const Event event = device->event(true);
  float* x = floats(*device, 64);
  scale_by(*device, stream, x, 64, 1.0f);
  scale_by(*device, stream, x, 64, 1.0f);
  device->record(event, stream);
  device->synchronize(event);
  device->synchronize(stream);
  EXPECT_EQ(device->milliseconds(event, event), 0.0f);
  EXPECT_EQ(device->counters().allocations, 3);
  EXPECT_EQ(device->counters().launches, 2);
  EXPECT_EQ(device->counters().host_synchronisations, 2);
}

TEST_P(EveryProgress, ProfilesByStageAndKernel) {
  const auto device = opened(GetParam());
  const Stream stream = device->stream();
  float* x = floats(*device, 64);
  scale_by(*device, stream, x, 64, 1.0f);
  device->profile(true);
  scale_by(*device, stream, x, 64, 1.0f);
  device->launch(stream, kSpin, {1, 1, 1}, 0, SpinParams{1});
  scale_by(*device, stream, x, 64, 1.0f);
  device->profile_stage("scaled once more");
  scale_by(*device, stream, x, 64, 1.0f);
  device->profile(false);
  scale_by(*device, stream, x, 64, 1.0f);
  const auto times = device->take_profile();
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[0].kernel, "scale_64");
  EXPECT_EQ(times[0].milliseconds.size(), 2u);
  EXPECT_EQ(times[1].kernel, "spin_32");
  EXPECT_EQ(times[1].milliseconds.size(), 1u);
  EXPECT_EQ(times[2].stage, "scaled once more");
  EXPECT_TRUE(device->take_profile().empty());
  // Events are made once.
  const std::int64_t allocations = device->counters().allocations;
  device->profile(true);
  scale_by(*device, stream, x, 64, 1.0f);
  EXPECT_EQ(device->counters().allocations, allocations);
}

TEST(EmulatedDevice, LaunchesHoldToTheTable) {
  const auto device = opened();
  const Stream stream = device->stream();
  const ScaleParams params{nullptr, 0, 0.0f};
  const auto launch = [&](int kernel, Grid grid, int shared_bytes) {
    return [=, &device] { device->launch(stream, kernel, grid, shared_bytes, params); };
  };
  expect_error(ErrorCode::invalid_argument, "kernel 2; allowed: 0 .. 1", launch(2, {1, 1, 1}, 0));
  expect_error(ErrorCode::invalid_argument, "kernel -1; allowed: 0 .. 1", launch(-1, {1, 1, 1}, 0));
  expect_error(ErrorCode::invalid_argument, "kernel spin_32: 16 bytes of parameters; allowed: 4",
               launch(kSpin, {1, 1, 1}, 0));
  expect_error(ErrorCode::invalid_argument, "166913 bytes of shared memory",
               launch(kScale, {1, 1, 1}, 166'913));
  expect_error(ErrorCode::invalid_argument, "grid of 1 x 0 x 1", launch(kScale, {1, 0, 1}, 0));
  expect_error(ErrorCode::invalid_argument, "grid of 1 x 1 x 65536", launch(kScale, {1, 1, 65536}, 0));
  expect_error(ErrorCode::invalid_argument, "grid of 1 x 65536 x 1", launch(kScale, {1, 65536, 1}, 0));
  expect_error(ErrorCode::invalid_argument, "grid of 2147483648 x 1 x 1",
               launch(kScale, {1u << 31, 1, 1}, 0));
  launch(kScale, {1, 1, 1}, 166'912)();
  device->begin_capture(stream);  // the largest grid, which nobody wants to run
  launch(kScale, {0x7FFFFFFFu, 0xFFFFu, 0xFFFFu}, 0)();
  (void)device->end_capture(stream);
  expect_error(ErrorCode::invalid_argument, "no stream 7",
               [&] { device->synchronize(static_cast<Stream>(7)); });
  expect_error(ErrorCode::invalid_argument, "no event 7",
               [&] { device->record(static_cast<Event>(7), stream); });
  expect_error(ErrorCode::invalid_argument, "no graph 7",
               [&] { device->replay(static_cast<Graph>(7), stream); });
}

TEST(EmulatedDevice, NeedsAnEmulationOfEachKernel) {
  const Kernel without[] = {{"gpu_only", 32, 4, &kKernels, nullptr}};
  expect_error(ErrorCode::internal, "kernel gpu_only has no emulation",
               [&] { (void)open_emulated_device(without); });
}

}  // namespace
}  // namespace headwater::cuda
