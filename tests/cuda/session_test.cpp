// What a session asks of its device, by the device's own counters, and what it does when the device refuses or fails. On the
// emulation: the session is the same on a GPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda/tuning.hpp"
#include "headwater/error.hpp"
#include "tests/cuda/session_support.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<CudaSession> session_with(const EmulationOptions& emulation = {}, DType kv_type = DType::f32,
                                          Launching launching = Launching::replayed) {
  return session_on(open_emulated_device(dispatch().kernels(), emulation), kv_type, launching);
}

/// One step over both layers with rows of a type; the bits of the outputs of all layers.
std::vector<unsigned char> run(Session& session, const Step& step, DType type = DType::f32) {
  const std::vector<unsigned char> q = elements(step.n * kHeads * kWidth, type);
  const std::vector<unsigned char> kv = elements(step.n * kHeadsKv * kWidth, type);
  std::vector<unsigned char> out(kLayers * q.size());
  session.begin(step);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    session.attend(layer, headwater::Rows::token_major(q.data(), type, kHeads, kWidth),
                   headwater::Rows::token_major(kv.data(), type, kHeadsKv, kWidth),
                   headwater::Rows::token_major(kv.data(), type, kHeadsKv, kWidth),
                   MutableRows::token_major(out.data() + static_cast<std::size_t>(layer) * q.size(), type,
                                            kHeads, kWidth));
  }
  session.end();
  return out;
}

/// Outputs of n tokens of all layers, decoded `at_once` at a time after a prompt.
std::vector<float> decoded(std::int64_t prompt, std::int64_t n, std::int64_t at_once) {
  const auto session = session_with();
  (void)run(*session, Step::prefill(prompt));
  const std::vector<float> q = numbers(n * kHeads * kWidth, 7);
  const std::vector<float> kv = numbers(n * kHeadsKv * kWidth, 8);
  std::vector<float> out(kLayers * q.size());
  for (std::int64_t done = 0; done < n; done += at_once) {
    session->begin(Step::decode(at_once));
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const auto rows =
          headwater::Rows::token_major(kv.data() + done * kHeadsKv * kWidth, DType::f32, kHeadsKv, kWidth);
      float* to = out.data() + (layer * n + done) * kHeads * kWidth;
      session->attend(
          layer, headwater::Rows::token_major(q.data() + done * kHeads * kWidth, DType::f32, kHeads, kWidth),
          rows, rows, MutableRows::token_major(to, DType::f32, kHeads, kWidth));
    }
    session->end();
  }
  return out;
}

/// Up to 64 rows of a group are split along their keys, 256 at a time: the second split of the last step begins behind the first
/// eight tokens. A step of more tokens takes the kernels of a dense prefill.
TEST(CudaSession, DecodesAnyNumberOfTokensAsOneAfterAnother) {
  for (const auto& [prompt, n] :
       {std::pair{40, 32}, std::pair{40, 33}, std::pair{40, 70}, std::pair{244, 16}}) {
    const std::vector<float> together = decoded(prompt, n, n);
    const std::vector<float> apart = decoded(prompt, n, 1);
    for (std::size_t i = 0; i < apart.size(); ++i)
      ASSERT_NEAR(together[i], apart[i], 1e-5F) << prompt << " + " << n << ", " << i;
  }
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

TEST(HotPath, TheNextWindowIsEnqueuedBeforeTheHostWaitsForThisOne) {
  EmulationOptions emulation;
  emulation.most_operations = 10;  // no kernel ends within them: the first wait throws
  const auto session = session_with(emulation);
  EXPECT_THROW((void)run(*session, Step::prefill(150)), Error);
  EXPECT_EQ(session->device().counters().replays, 2);
}

void expect_one_result(DType type) {
  const auto outputs = [&](emulation::Order order, Progress progress,
                           Launching launching = Launching::replayed) {
    EmulationOptions emulation;
    emulation.order = order;
    emulation.progress = progress;
    const auto session = session_with(emulation, type, launching);
    std::vector<unsigned char> all = run(*session, Step::prefill(150), type);
    const std::vector<unsigned char> decoded = run(*session, Step::decode(1), type);
    all.insert(all.end(), decoded.begin(), decoded.end());
    return all;
  };
  const std::vector<unsigned char> expected = outputs(emulation::Order::ascending, Progress::late);
  EXPECT_EQ(outputs(emulation::Order::descending, Progress::late), expected);
  EXPECT_EQ(outputs(emulation::Order::ascending, Progress::eager), expected);
  EXPECT_EQ(outputs(emulation::Order::descending, Progress::eager), expected);
  for (const Progress progress : {Progress::eager, Progress::late}) {
    EXPECT_EQ(outputs(emulation::Order::ascending, progress, Launching::one_by_one), expected);
  }
}

TEST(Order, OfThreadsBlocksAndStreamsChangesNoBit) {
  expect_one_result(DType::f32);
  expect_one_result(DType::bf16);
  expect_one_result(DType::f16);
}

TEST(Order, OfMoreChunksToAWindowThanAreKeptGatheredChangesNoBit) {
  Options asked = options();
  asked.chunk = 8;
  static_assert(kBatch / 8 > kGatheredSets);
  const auto outputs = [&](Progress progress, Launching launching) {
    EmulationOptions emulation;
    emulation.progress = progress;
    const auto session =
        session_on(open_emulated_device(dispatch().kernels(), emulation), DType::bf16, launching, {}, asked);
    return run(*session, Step::prefill(kBatch), DType::bf16);
  };
  EXPECT_EQ(outputs(Progress::late, Launching::replayed), outputs(Progress::eager, Launching::one_by_one));
}

/// A decode step over several splits ends with a launch that a dense turn lacks.
TEST(Order, AReplayedStepLaunchesNothingOfTheOneBefore) {
  Options asked = options();
  asked.dense = true;
  const auto outputs = [&](Launching launching) {
    const auto session =
        session_on(open_emulated_device(dispatch().kernels()), DType::f32, launching, {}, asked);
    (void)run(*session, Step::prefill(258));
    (void)run(*session, Step::decode(1));
    return run(*session, Step::prefill(40));
  };
  EXPECT_EQ(outputs(Launching::replayed), outputs(Launching::one_by_one));
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

// What was under way to the host when a call failed does not come with a later one.
TEST(Faults, RowsOfAFailedCallAreNotHandedBackLater) {
  const auto session = session_with();
  std::int64_t seen = 0;
  session->set_observer([&](const ChunkRecord& record) {
    ++seen;
    if (record.chunk.begin >= 2 * kBatch) throw std::runtime_error("the third window");
  });
  EXPECT_THROW((void)run(*session, Step::prefill(3 * kBatch)), std::runtime_error);
  EXPECT_GT(seen, 2);
  session->set_observer({});
  session->reset();
  const std::vector<float> q = numbers(kBatch * kHeads * kWidth);
  std::vector<float> out(q.size(), 7.0f);
  session->begin(Step::prefill(10));
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const auto rows = headwater::Rows::token_major(q.data(), DType::f32, kHeadsKv, kWidth);
    session->attend(layer, headwater::Rows::token_major(q.data(), DType::f32, kHeads, kWidth), rows, rows,
                    MutableRows::token_major(out.data(), DType::f32, kHeads, kWidth));
  }
  session->end();
  const std::int64_t written = 10 * kHeads * kWidth;
  EXPECT_TRUE(std::all_of(out.begin() + written, out.end(), [](float x) { return x == 7.0f; }));
  EXPECT_TRUE(std::none_of(out.begin(), out.begin() + written, [](float x) { return x == 7.0f; }));
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
