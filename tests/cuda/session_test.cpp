// What a session asks of its device, by the device's own counters, and what it does when the device refuses or fails. On the
// emulation: the session is the same on a GPU.
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/numbers.hpp"
#include "cuda/cuda_session.hpp"
#include "cuda/runtime/emulated_device.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kHeadsKv = 2;
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kCapacity = 200;

const Dispatch& dispatch() {
  static const Dispatch dispatch(on_host::entries());
  return dispatch;
}

Shape shape(DType kv_type) {
  Shape shape;
  shape.kv_type = kv_type;
  shape.n_layer = 2;
  shape.n_head = kHeads;
  shape.n_head_kv = kHeadsKv;
  shape.d_head = kWidth;
  shape.d_value = kWidth;
  shape.capacity = kCapacity;
  return shape;
}

Options options() {
  Options options;
  options.batch = 64;
  options.chunk = 32;
  options.local = 4;
  options.heavy = 5;
  return options;
}

std::unique_ptr<CudaSession> session_on(std::unique_ptr<Device> device, DType kv_type = DType::f32,
                                        Launching launching = Launching::replayed,
                                        const Options& asked = options()) {
  return std::make_unique<CudaSession>(std::move(device), dispatch(), shape(kv_type), asked,
                                       core::resolve(shape(kv_type), asked, 1), launching);
}

std::unique_ptr<CudaSession> session_with(const EmulationOptions& emulation = {}, DType kv_type = DType::f32,
                                          Launching launching = Launching::replayed) {
  return session_on(open_emulated_device(dispatch().kernels(), emulation), kv_type, launching);
}

/// Numbers between -1 and 1 that depend on their place only.
std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  return values;
}

/// One step over both layers with rows of a type; the bits of the outputs of all layers.
template <class T>
std::vector<T> run_on(Session& session, const Step& step, DType type) {
  const auto rows = [&](std::int64_t heads) {
    std::vector<T> narrowed(static_cast<std::size_t>(step.n * heads * kWidth));
    core::narrow(numbers(step.n * heads * kWidth).data(), step.n * heads * kWidth, type, narrowed.data());
    return narrowed;
  };
  const std::vector<T> q = rows(kHeads);
  const std::vector<T> kv = rows(kHeadsKv);
  std::vector<T> out(static_cast<std::size_t>(2 * step.n * kHeads * kWidth));
  session.begin(step);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    session.attend(
        layer, headwater::Rows::token_major(q.data(), type, kHeads, kWidth),
        headwater::Rows::token_major(kv.data(), type, kHeadsKv, kWidth),
        headwater::Rows::token_major(kv.data(), type, kHeadsKv, kWidth),
        MutableRows::token_major(out.data() + layer * step.n * kHeads * kWidth, type, kHeads, kWidth));
  }
  session.end();
  return out;
}

std::vector<float> run(Session& session, const Step& step) {
  return run_on<float>(session, step, DType::f32);
}

TEST(HotPath, TakesNothingFromTheDeviceAfterOpen) {
  const auto session = session_with();
  const std::int64_t before = session->device().counters().allocations;
  EXPECT_GT(before, 0);
  (void)run(*session, Step::prefill(150));
  (void)run(*session, Step::prefill(20));
  (void)run(*session, Step::decode(1));
  session->reset();
  (void)run(*session, Step::prefill(100));
  EXPECT_EQ(session->device().counters().allocations, before);
}

TEST(HotPath, TheHostWaitsOnceForEachWindowOfRows) {
  const auto session = session_with();
  const auto waits = [&](const Step& step) {
    const std::int64_t before = session->device().counters().host_synchronisations;
    (void)run(*session, step);
    return session->device().counters().host_synchronisations - before;
  };
  // Two layers. A window is a batch of 64 rows that came from host memory and whose outputs go back there.
  EXPECT_EQ(waits(Step::prefill(150)), 2 * 3);
  EXPECT_EQ(waits(Step::decode(1)), 2);
}

template <class T>
void expect_one_result(DType type) {
  const auto outputs = [&](emulation::Order order, Progress progress,
                           Launching launching = Launching::replayed) {
    EmulationOptions emulation;
    emulation.order = order;
    emulation.progress = progress;
    const auto session = session_with(emulation, type, launching);
    std::vector<T> all = run_on<T>(*session, Step::prefill(150), type);
    const std::vector<T> decoded = run_on<T>(*session, Step::decode(1), type);
    all.insert(all.end(), decoded.begin(), decoded.end());
    return all;
  };
  const std::vector<T> expected = outputs(emulation::Order::ascending, Progress::late);
  EXPECT_EQ(outputs(emulation::Order::descending, Progress::late), expected);
  EXPECT_EQ(outputs(emulation::Order::ascending, Progress::eager), expected);
  EXPECT_EQ(outputs(emulation::Order::descending, Progress::eager), expected);
  for (const Progress progress : {Progress::eager, Progress::late}) {
    EXPECT_EQ(outputs(emulation::Order::ascending, progress, Launching::one_by_one), expected);
  }
}

TEST(Order, OfThreadsBlocksAndStreamsChangesNoBit) {
  expect_one_result<float>(DType::f32);
  expect_one_result<std::uint16_t>(DType::bf16);
  expect_one_result<std::uint16_t>(DType::f16);
}

/// Whatever open() takes of the device is refused in turn: memory of both kinds, streams, events, graphs.
TEST(Faults, EachRefusedAllocationIsAnErrorOfOpen) {
  const std::int64_t count = session_with()->device().counters().allocations;
  for (std::int64_t n = 1; n <= count; ++n) {
    auto device = open_emulated_device(dispatch().kernels());
    device->refuse_allocation(n);
    try {
      (void)session_on(std::move(device));
      ADD_FAILURE() << "allocation " << n << " of " << count << " was refused and open() did not say so";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_THAT(error.what(), HasSubstr("no memory for "));
    }
  }
}

TEST(Faults, ADeviceThatIsTooSmallIsAnErrorOfOpen) {
  EmulationOptions emulation;
  emulation.memory = 4096;
  try {
    (void)session_with(emulation);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
}

TEST(Faults, AFailedDeviceMakesTheSessionUnusableAndDestructible) {
  EmulationOptions emulation;
  emulation.most_operations = 10;  // no kernel ends within them
  const auto session = session_with(emulation);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      (void)run(*session, Step::prefill(40));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(attempt == 0 ? "does not end" : ""));
    }
  }
  EXPECT_TRUE(session->device().failed());
}

}  // namespace
}  // namespace headwater::cuda
