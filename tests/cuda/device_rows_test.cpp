// Rows that are the device's: nothing is taken, nothing is waited for, the bits are those of host rows, and memory of the other
// kind is refused. On the emulation, whose caller has a stream and memory of the session's device.
#include <gmock/gmock.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headwater/error.hpp"
#include "tests/cuda/device_caller.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

std::int64_t windows(const Step& step) { return (step.n + kBatch - 1) / kBatch; }

void require_no_memory_and_no_wait(const Options& asked) {
  Caller caller(RowMemory::device, DType::f32, {}, Launching::replayed, 0, std::nullopt, asked);
  for (int round = 0; round < 2; ++round) {
    for (const Step& step : steps()) {
      const Counters before = caller.device->counters();
      caller.run(step);
      const Counters& after = caller.device->counters();
      EXPECT_EQ(after.allocations, before.allocations);
      EXPECT_EQ(after.host_synchronisations, before.host_synchronisations);
      EXPECT_EQ(after.launches, before.launches) << "a window is one graph";
      EXPECT_EQ(after.replays - before.replays, kLayers * windows(step));
    }
    const Counters before = caller.device->counters();
    caller.session->reset();
    EXPECT_EQ(caller.device->counters().allocations, before.allocations);
    EXPECT_EQ(caller.device->counters().host_synchronisations, before.host_synchronisations);
  }
}

TEST(DeviceRows, NothingIsTakenAndTheHostDoesNotWait) {
  require_no_memory_and_no_wait(options());
  require_no_memory_and_no_wait(blocks_options());
}

TEST(DeviceRows, OneByOneTheHostDoesNotWaitEither) {
  Caller caller(RowMemory::device, DType::f32, {}, Launching::one_by_one);
  for (const Step& step : steps()) {
    const Counters before = caller.device->counters();
    caller.run(step);
    const Counters& after = caller.device->counters();
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.host_synchronisations, before.host_synchronisations);
    EXPECT_EQ(after.replays, before.replays);
    EXPECT_GT(after.launches, before.launches);
  }
}

TEST(DeviceRows, InTurnAllLaunchesLieOnTheCallersStream) {
  Caller beside(RowMemory::device, DType::f32, {}, Launching::one_by_one);
  Caller in_turn(RowMemory::device, DType::f32, {}, Launching::in_turn);
  EXPECT_EQ(beside.device->counters().allocations - in_turn.device->counters().allocations, 2)
      << "no streams of its own";
  for (const Step& step : steps()) EXPECT_EQ(in_turn.result(step), beside.result(step));
}

TEST(HostRows, TheHostWaitsForTheOutputsOfEachWindowOnly) {
  Caller caller(RowMemory::host, DType::f32);
  for (const Step& step : steps()) {
    const Counters before = caller.device->counters();
    caller.run(step);
    const Counters& after = caller.device->counters();
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.host_synchronisations - before.host_synchronisations, kLayers * windows(step));
  }
}

TEST(DeviceRows, TakeNoStaging) {
  const Caller on_device(RowMemory::device, DType::f32);
  const Caller on_host(RowMemory::host, DType::f32);
  EXPECT_LT(on_device.session->memory_bytes().workspace, on_host.session->memory_bytes().workspace);
  EXPECT_EQ(on_device.session->memory_bytes().kv, on_host.session->memory_bytes().kv);
}

void require_bits_of_host_rows(const Options& asked) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const auto results = [&](RowMemory memory, Progress progress, Launching launching, std::int64_t offset) {
      EmulationOptions emulation;
      emulation.progress = progress;
      Caller caller(memory, type, emulation, launching, offset, std::nullopt, asked);
      std::vector<std::vector<unsigned char>> all;
      for (const Step& step : steps()) all.push_back(caller.result(step));
      return all;
    };
    const auto expected = results(RowMemory::host, Progress::late, Launching::replayed, 0);
    for (const Progress progress : {Progress::late, Progress::eager}) {
      EXPECT_EQ(results(RowMemory::device, progress, Launching::replayed, 0), expected);
      EXPECT_EQ(results(RowMemory::device, progress, Launching::one_by_one, 0), expected);
    }
    // No vector can be loaded from there.
    EXPECT_EQ(results(RowMemory::device, Progress::late, Launching::replayed, 1), expected);
  }
}

TEST(DeviceRows, GiveTheBitsOfHostRows) {
  require_bits_of_host_rows(options());
  require_bits_of_host_rows(blocks_options());
}

/// Outputs of another type than the queries', in a call of several windows.
TEST(DeviceRows, HaveTheStrideOfTheirOwnType) {
  for (const auto& [type, out_type] :
       {std::pair{DType::bf16, DType::f32}, std::pair{DType::f32, DType::f16}}) {
    const auto result = [&](RowMemory memory) {
      return Caller(memory, type, {}, Launching::replayed, 0, out_type).result(Step::prefill(kMostTokens));
    };
    EXPECT_EQ(result(RowMemory::device), result(RowMemory::host));
  }
}

TEST(DeviceRows, AnObserverIsShownChunksAndChangesNoBit) {
  Caller watched(RowMemory::device, DType::f32);
  Caller alone(RowMemory::device, DType::f32);
  std::int64_t records = 0;
  watched.session->set_observer([&](const ChunkRecord&) { ++records; });
  for (const Step& step : steps()) EXPECT_EQ(watched.result(step), alone.result(step));
  EXPECT_GT(records, 0);
}

/// attend() with *place changed to `wrong` is refused, and leaves a step that goes on as if nothing had been.
void expect_refused(Caller& caller, void** place, void* wrong, const char* part) {
  void* const right = std::exchange(*place, wrong);
  caller.session->begin(Step::prefill(1));
  try {
    caller.attend(0);
    ADD_FAILURE() << "no error: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  EXPECT_FALSE(caller.session->failed());
  *place = right;
  const std::int64_t before = caller.session->tokens();
  for (std::int64_t layer = 0; layer < kLayers; ++layer) caller.attend(layer);
  caller.session->end();
  EXPECT_EQ(caller.session->tokens(), before + 1);
}

TEST(WrongMemory, IsRefusedByNameInBothDirections) {
  for (const RowMemory memory : {RowMemory::host, RowMemory::device}) {
    Caller caller(memory, DType::f32);
    std::vector<float> on_host(kHeads * kWidth);
    void* on_device = caller.device->allocate(kHeads * kWidth * 4, "rows");
    void* wrong = memory == RowMemory::host ? on_device : on_host.data();
    const std::string text = memory == RowMemory::host
                                 ? ".data is device memory; allowed: host memory, as row_memory is 0"
                                 : ".data is host memory; allowed: device memory";
    const std::pair<const char*, void**> places[] = {
        {"q", &caller.q}, {"k", &caller.kv}, {"out", &caller.out}};
    for (const auto& [name, place] : places) {
      expect_refused(caller, place, wrong, (name + text).c_str());
    }
    caller.run(Step::prefill(40));
    EXPECT_EQ(caller.session->tokens(), 43);
  }
}

TEST(WrongMemory, PinnedRowsAreHostRows) {
  Caller on_device(RowMemory::device, DType::f32);
  expect_refused(on_device, &on_device.q, on_device.device->allocate_pinned(kHeads * kWidth * 4, "rows"),
                 "q.data is pinned host memory; allowed: device memory");
  Caller on_host(RowMemory::host, DType::f32);
  on_host.out = on_host.device->allocate_pinned(kMostTokens * kHeads * kWidth * 4, "rows");
  on_host.run(Step::prefill(kMostTokens));
}

TEST(WrongMemory, ElementsOfDeviceRowsAreAligned) {
  Caller caller(RowMemory::device, DType::f32);
  expect_refused(caller, &caller.q, static_cast<unsigned char*>(caller.q) + 2, "q.data is no multiple of 4");
}

TEST(Faults, AreReportedByALaterCallAndStay) {
  EmulationOptions emulation;
  emulation.most_operations = 10;  // no kernel ends within them
  Caller caller(RowMemory::device, DType::f32);
  Caller failing(RowMemory::device, DType::f32, emulation);
  failing.run(Step::prefill(kMostTokens));  // only enqueued
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      (void)failing.session->scores(0);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::internal);
      EXPECT_THAT(error.what(), HasSubstr("does not end"));
    }
  }
  failing.session->begin(Step::decode(1));
  EXPECT_THROW(failing.attend(0), Error);
  EXPECT_TRUE(failing.session->failed());
  EXPECT_THROW(failing.session->reset(), Error);
  caller.run(Step::prefill(kMostTokens));  // another device is none the worse
}

TEST(Faults, EachRefusedAllocationIsAnErrorOfOpen) {
  const auto open = [](std::unique_ptr<Device> device) {
    return session_on(std::move(device), DType::f32, Launching::replayed, RowPlace{true, nullptr})
        ->device()
        .counters()
        .allocations;
  };
  const std::int64_t count = open(open_emulated_device(dispatch().kernels()));
  for (std::int64_t n = 1; n <= count; ++n) {
    auto device = open_emulated_device(dispatch().kernels());
    device->refuse_allocation(n);
    try {
      (void)open(std::move(device));
      ADD_FAILURE() << "allocation " << n << " of " << count << " was refused and open() did not say so";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    }
  }
}

}  // namespace
}  // namespace headwater::cuda
