// Which launches of a captured window wait for which: the scores of a chunk are all that the next chunk's memory set waits for.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/window_launches.hpp"
#include "tests/cuda/session_support.hpp"

namespace headwater::cuda {
namespace {

using Place = WindowLaunches::Place;

constexpr WindowExtent kMost{7, 2, 3};  // chunks, of a group, gathered at a time

/// The sparse window's graph.
struct Window {
  Window() : device(open_emulated_device(dispatch().kernels())) {
    const Stream stream = device->stream();
    launches = std::make_unique<WindowLaunches>(*device, dispatch(), Launching::replayed, stream, kMost);
    waits = waits_in(*device, static_cast<Graph>(WindowLaunches::Order::sparse));
  }
  [[nodiscard]] bool wait(Place later, Place earlier) const {
    return waits[static_cast<std::size_t>(later.index)][static_cast<std::size_t>(earlier.index)];
  }
  [[nodiscard]] std::int64_t group(std::int64_t chunk) const { return chunk / kMost.together; }

  std::unique_ptr<Device> device;
  std::unique_ptr<WindowLaunches> launches;
  std::vector<std::vector<bool>> waits;
};

TEST(SparseWindow, EveryLaunchWaitsForTheStoredRows) {
  const Window window;
  const auto store = static_cast<std::size_t>(WindowLaunches::store().index);
  ASSERT_EQ(window.waits.size(), static_cast<std::size_t>(1 + 2 * 4 + 5 * kMost.chunks));
  for (std::size_t launch = 0; launch < window.waits.size(); ++launch)
    EXPECT_EQ(window.waits[launch][store], launch != store) << launch;
}

TEST(SparseWindow, AMemorySetWaitsForScoresAndForNoOutputOfTheChunkBefore) {
  const Window window;
  const WindowLaunches& at = *window.launches;
  for (std::int64_t chunk = 1; chunk < kMost.chunks; ++chunk) {
    const Place select = at.select(chunk);
    EXPECT_TRUE(window.wait(select, at.inter_column_sums(chunk - 1)));
    EXPECT_TRUE(window.wait(select, at.intra(window.group(chunk - 1), 0).column_sums));
    for (std::int64_t before = 0; before < chunk; ++before) {
      // An output is waited for by the gather that takes its rows' place, and by what follows that.
      EXPECT_EQ(window.wait(select, at.inter_output(before)), before < chunk - kMost.gathered)
          << chunk << ", " << before;
    }
  }
}

TEST(SparseWindow, ScoresWaitForNoIntraPassOfLaterGroups) {
  const Window window;
  const WindowLaunches& at = *window.launches;
  for (std::int64_t chunk = 0; chunk < kMost.chunks; ++chunk) {
    for (std::int64_t group = 0; group < at.groups(kMost.chunks); ++group) {
      const bool before = chunk > 0 && group <= window.group(chunk - 1);
      EXPECT_EQ(window.wait(at.inter_column_sums(chunk), at.intra(group, 0).forward), before)
          << chunk << ", " << group;
    }
  }
}

TEST(SparseWindow, AnOutputWaitsForItsRowsAndItsIntraPassAndForNoScoresOfItsOwn) {
  const Window window;
  const WindowLaunches& at = *window.launches;
  for (std::int64_t chunk = 0; chunk < kMost.chunks; ++chunk) {
    const Place output = at.inter_output(chunk);
    EXPECT_TRUE(window.wait(output, at.gather(chunk)));
    EXPECT_TRUE(window.wait(output, at.intra(window.group(chunk), 0).forward));
    EXPECT_FALSE(window.wait(output, at.inter_softmax(chunk)));
    EXPECT_FALSE(window.wait(output, at.inter_column_sums(chunk)));
  }
}

TEST(SparseWindow, GatheredRowsAreOverwrittenBehindTheirOutput) {
  const Window window;
  const WindowLaunches& at = *window.launches;
  for (std::int64_t chunk = kMost.gathered; chunk < kMost.chunks; ++chunk) {
    EXPECT_EQ(at.slot(chunk), at.slot(chunk - kMost.gathered));
    EXPECT_TRUE(window.wait(at.gather(chunk), at.inter_output(chunk - kMost.gathered)));
  }
}

}  // namespace
}  // namespace headwater::cuda
