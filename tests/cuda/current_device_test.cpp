// The device of a session, the current device of its caller, and a caller's stream that is captured. On a machine of two emulated
// devices, which refuses an operation of a device that is not the current one.
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headwater/engine.hpp"
#include "headwater/error.hpp"
#include "tests/cuda/device_caller.hpp"

namespace headwater {
const Engine& cuda_emulated_engine();
const Engine& cuda_emulated_sm90_engine();
}  // namespace headwater

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

EmulationOptions on_device(int ordinal) {
  EmulationOptions emulation;
  emulation.ordinal = ordinal;
  return emulation;
}

/// The current device is one that no session uses, and 0 again after the test.
class CurrentDeviceTest : public ::testing::TestWithParam<int> {
 protected:
  CurrentDeviceTest() { EXPECT_TRUE(set_emulated_current_device(current())); }
  ~CurrentDeviceTest() override { EXPECT_TRUE(set_emulated_current_device(0)); }
  CurrentDeviceTest(const CurrentDeviceTest&) = delete;
  CurrentDeviceTest& operator=(const CurrentDeviceTest&) = delete;

  [[nodiscard]] static int current() { return GetParam(); }
  void expect_unchanged(const char* what) const {
    EXPECT_EQ(emulated_current_device(), current()) << "after " << what;
  }
};
INSTANTIATE_TEST_SUITE_P(Device, CurrentDeviceTest, ::testing::Values(0, 1));

void expect_refused(const std::string& part, const std::function<void()>& action,
                    ErrorCode code = ErrorCode::invalid_argument) {
  try {
    action();
    ADD_FAILURE() << "no error; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
  }
}

TEST_P(CurrentDeviceTest, StaysWhatItWasBehindEveryCall) {
  for (const int ordinal : {0, 1}) {
    for (const RowMemory memory : {RowMemory::host, RowMemory::device}) {
      for (const Launching launching : {Launching::replayed, Launching::one_by_one}) {
        {
          Caller caller(memory, DType::f32, on_device(ordinal), launching);
          expect_unchanged("open()");
          Session& session = *caller.session;
          for (const Step& step : steps()) {
            session.begin(step);
            for (std::int64_t layer = 0; layer < kLayers; ++layer) {
              caller.attend(layer);
              expect_unchanged("attend()");
            }
            session.end();
          }
          (void)session.scores(0);
          expect_unchanged("scores()");
          (void)session.memory(0);
          expect_unchanged("memory()");
          std::vector<float> row(kWidth);
          session.read_key(0, 0, 0, row);
          expect_unchanged("read_key()");
          session.read_value(0, 0, 0, row);
          expect_unchanged("read_value()");
          session.reset();
          expect_unchanged("reset()");
          int records = 0;
          session.set_observer([&](const ChunkRecord&) {
            ++records;
            expect_unchanged("the operations before an observer's call");
          });
          caller.run(steps().front());
          EXPECT_GT(records, 0);
          expect_unchanged("attend() with an observer");
        }
        expect_unchanged("the end of the session");
      }
    }
  }
}

TEST_P(CurrentDeviceTest, AnObserverMayChangeIt) {
  const int other = 1 - current();
  Caller watched(RowMemory::device, DType::f32, on_device(current()));
  Caller alone(RowMemory::device, DType::f32, on_device(current()));
  watched.session->set_observer([&](const ChunkRecord&) { EXPECT_TRUE(set_emulated_current_device(other)); });
  for (const Step& step : steps()) {
    EXPECT_EQ(watched.result(step), alone.result(step));
    EXPECT_EQ(emulated_current_device(), other);
    EXPECT_TRUE(set_emulated_current_device(current()));
  }
}

TEST_P(CurrentDeviceTest, StaysWhatItWasWhenACallThrows) {
  const int other = 1 - current();
  // Each allocation of open(), streams, events and graphs among them.
  const auto open = [&](std::int64_t refused) {
    auto device = open_emulated_device(dispatch().kernels(), on_device(other));
    device->refuse_allocation(refused);
    const auto session =
        session_on(std::move(device), DType::f32, Launching::replayed, RowPlace{true, nullptr});
    return session->device().counters().allocations;
  };
  const std::int64_t allocations = open(0);
  EXPECT_GT(allocations, 10);
  for (std::int64_t n = 1; n <= allocations; ++n) {
    EXPECT_THROW((void)open(n), Error);
    expect_unchanged("an open() that finds no memory");
  }
  Caller caller(RowMemory::device, DType::f32, on_device(other));
  caller.session->begin(Step::prefill(1));
  void* const right = std::exchange(caller.q, caller.on_host[0].data());
  expect_refused("q.data is host memory", [&] { caller.attend(0); });
  expect_unchanged("an attend() that is refused");
  caller.q = right;

  EmulationOptions emulation = on_device(other);
  emulation.most_operations = 10;  // no kernel ends within them
  for (const Progress progress : {Progress::late, Progress::eager}) {
    emulation.progress = progress;
    Caller failing(RowMemory::device, DType::f32, emulation);
    const auto fails = [&](const std::function<void()>& action, const char* what) {
      expect_refused("does not end", action, ErrorCode::internal);
      expect_unchanged(what);
    };
    if (progress == Progress::eager) {
      fails([&] { failing.run(Step::prefill(20)); }, "an attend() that finds a fault");
    } else {
      failing.run(Step::prefill(20));
      fails([&] { (void)failing.session->scores(0); }, "scores() that finds a fault");
    }
    fails([&] { failing.session->reset(); }, "reset() after a fault");
  }
  expect_unchanged("the end of a session after a fault");
}

TEST_P(CurrentDeviceTest, AStreamOfAnotherDeviceIsRefused) {
  for (const int ordinal : {0, 1}) {
    const auto elsewhere = open_emulated_device(dispatch().kernels(), on_device(1 - ordinal));
    void* const foreign = elsewhere->native_handle(elsewhere->stream());
    const auto open = [&](void* stream) {
      return session_on(open_emulated_device(dispatch().kernels(), on_device(ordinal)), DType::f32,
                        Launching::replayed, RowPlace{true, stream});
    };
    expect_refused("stream is one of another device; allowed: a stream of device " + std::to_string(ordinal),
                   [&] { (void)open(foreign); });
    expect_unchanged("an open() with another device's stream");
    EXPECT_NE(open(nullptr), nullptr) << "each device has a default stream";
  }
}

/// Outputs of a short prefill of host rows.
std::vector<float> outputs_of(Session& session) {
  constexpr std::int64_t kTokens = 40;
  const std::vector<float> q = numbers(kTokens * kHeads * kWidth, 1);
  const std::vector<float> kv = numbers(kTokens * kHeadsKv * kWidth, 2);
  std::vector<float> out(q.size());
  session.begin(Step::prefill(kTokens));
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const auto rows = headwater::Rows::token_major(kv.data(), DType::f32, kHeadsKv, kWidth);
    session.attend(layer, headwater::Rows::token_major(q.data(), DType::f32, kHeads, kWidth), rows, rows,
                   MutableRows::token_major(out.data(), DType::f32, kHeads, kWidth));
  }
  session.end();
  return out;
}

TEST_P(CurrentDeviceTest, OptionsSayWhichDevice) {
  for (const Engine* engine : {&cuda_emulated_engine(), &cuda_emulated_sm90_engine()}) {
    const auto open = [&](std::optional<int> device) {
      Options asked = options();
      asked.device = device;
      auto session = engine->open(shape(DType::f32), asked);
      expect_unchanged("the engine's open()");
      return session;
    };
    const auto device_of = [&](const Session& session) {
      return dynamic_cast<const CudaSession&>(session).device().info().ordinal;
    };
    EXPECT_EQ(device_of(*open({})), current());
    const auto first = open(0);
    const auto second = open(1);
    EXPECT_EQ(device_of(*first), 0);
    EXPECT_EQ(device_of(*second), 1);
    EXPECT_EQ(outputs_of(*first), outputs_of(*second));
    expect_unchanged("sessions of two devices");
    expect_refused("device is 2; allowed: 0 .. 1", [&] { (void)open(2); });
    expect_refused("device is -1; allowed: 0 .. 1", [&] { (void)open(-1); });
  }
}

class CapturedStream : public ::testing::TestWithParam<Launching> {};
INSTANTIATE_TEST_SUITE_P(Device, CapturedStream,
                         ::testing::Values(Launching::replayed, Launching::one_by_one));

TEST_P(CapturedStream, IsRefusedAndLeavesStepAndCaptureAsTheyWere) {
  Caller caller(RowMemory::device, DType::f32, {}, GetParam());
  Caller undisturbed(RowMemory::device, DType::f32, {}, GetParam());
  caller.run(steps().front());
  undisturbed.run(steps().front());

  CudaSession& session = *caller.session;
  const Step next = steps()[1];
  session.begin(next);
  const Counters before = caller.device->counters();
  caller.device->begin_capture(caller.stream);
  std::vector<float> row(kWidth);
  const std::function<void()> calls[] = {[&] { caller.attend(0); },
                                         [&] { (void)session.scores(0); },
                                         [&] { (void)session.memory(0); },
                                         [&] { session.read_key(0, 0, 0, row); },
                                         [&] { session.read_value(0, 0, 0, row); },
                                         [&] { session.reset(); }};
  for (const auto& call : calls) expect_refused("stream is being captured; allowed: one that is not", call);
  EXPECT_FALSE(session.failed());
  EXPECT_EQ(session.tokens(), kMostTokens);
  const Graph graph = caller.device->end_capture(caller.stream);
  EXPECT_EQ(caller.device->counters().launches, before.launches);
  EXPECT_EQ(caller.device->counters().replays, before.replays);
  EXPECT_EQ(waits_in(*caller.device, graph).size(), 0u) << "nothing was enqueued";

  for (std::int64_t layer = 0; layer < kLayers; ++layer) caller.attend(layer);
  session.end();
  undisturbed.run(next);
  EXPECT_EQ(caller.result(Step::decode(1)), undisturbed.result(Step::decode(1)));
}

TEST_P(CapturedStream, OpensNoSession) {
  auto device = open_emulated_device(dispatch().kernels());
  const Stream stream = device->stream();
  device->begin_capture(stream);
  const RowPlace place{true, device->native_handle(stream)};
  expect_refused("stream is being captured",
                 [&] { (void)session_on(std::move(device), DType::f32, GetParam(), place); });
}

TEST(CapturedElsewhere, DoesNotConcernASession) {
  Caller caller(RowMemory::device, DType::f32);
  Caller other(RowMemory::device, DType::f32);
  other.device->begin_capture(other.stream);
  const std::vector<unsigned char> result = caller.result(steps().front());
  (void)other.device->end_capture(other.stream);
  EXPECT_EQ(other.result(steps().front()), result);
}

}  // namespace
}  // namespace headwater::cuda
