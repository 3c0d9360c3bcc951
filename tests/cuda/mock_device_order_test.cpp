// What waits for what in every window of a session, by what it enqueues on a mock of its device. Kernels do not run; what they compute
// is the emulation's to show.

#include <gmock/gmock.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda/session_on_mock.hpp"

namespace headwater::cuda {
namespace {

using ::testing::An;
using Operation = Timeline::Operation;
using OperationKind = Timeline::Kind;

Stage stage_of(const Kernel& kernel) {
  static const std::map<std::string, Stage> stages = [] {
    std::map<std::string, Stage> all;
    for (const KernelEntry& entry : on_host::entries()) all.emplace(entry.kernel.name, entry.stage);
    return all;
  }();
  return stages.at(kernel.name);
}

/// The launches and copies of one layer's attend(), launch by launch.
struct Layer {
  Layer(OnMock& on, std::int64_t layer) : timeline(on.device->timeline), first(timeline.operations.size()) {
    on.attend(layer);
  }
  template <class Look>
  void each(Stage stage, const Look& look) const {
    for (std::size_t i = first; i < timeline.operations.size(); ++i) {
      const Operation& operation = timeline.operations[i];
      if (operation.kind == OperationKind::launch && stage_of(*operation.kernel) == stage) look(i, operation);
    }
  }
  [[nodiscard]] int count(Stage stage) const {
    int sum = 0;
    each(stage, [&](std::size_t, const Operation&) { ++sum; });
    return sum;
  }

  Timeline& timeline;
  std::size_t first;
};

// SCORE-2, SCORE-3 and MEM-1: the memory set of a chunk is chosen by the scores of every token before it, to which all column sums of
// earlier chunks were added; its keys are stored, and gathered once it is there. Chunks of 8: more of them than are kept
// gathered at a time.
TEST(MockedDevice, AMemorySetIsBuiltBehindTheScoresOfEveryChunkBeforeIt) {
  for (const std::int64_t chunk : {8, 32}) {
    SCOPED_TRACE(chunk);
    OnMock on(Launching::one_by_one, false, chunk);
    on.session->begin(Step::prefill(150));
    const Layer layer(on, 0);
    // All but the first have one; batches are of whole chunks.
    EXPECT_EQ(layer.count(Stage::select), (150 + chunk - 1) / chunk - 1);
    layer.each(Stage::select, [&](std::size_t at, const Operation& selection) {
      const std::int64_t end = selection.as<SelectParams>().end;
      layer.each(Stage::store_rows, [&](std::size_t i, const Operation& store) {
        if (store.as<StoreRowsParams>().position < end) {
          EXPECT_TRUE(selection.before.contains(i)) << end;
        }
      });
      int added = 0;
      layer.each(Stage::column_sums, [&](std::size_t i, const Operation& sums) {
        if (sums.as<ColumnSumsParams>().at.begin >= end) return;
        ++added;
        EXPECT_TRUE(selection.before.contains(i)) << "the set before " << end;
      });
      EXPECT_GE(added, 1);
      // It overwrites the set that earlier chunks read.
      layer.each(Stage::gather, [&](std::size_t i, const Operation&) {
        EXPECT_TRUE(i > at || selection.before.contains(i)) << end;
      });
    });
    // Rows are gathered after their set, and not over rows that an output still reads.
    std::vector<std::size_t> sets;
    layer.each(Stage::select, [&](std::size_t i, const Operation&) { sets.push_back(i); });
    std::size_t n = 0;
    layer.each(Stage::gather, [&](std::size_t at, const Operation& gather) {
      EXPECT_TRUE(gather.before.contains(sets.at(n++)));
      const void* const to = gather.as<GatherParams>().gathered_keys.raw();
      const auto reader = [&](std::size_t i, const Operation& pass, const void* keys) {
        if (keys != to) return;
        if (i < at) {
          EXPECT_TRUE(gather.before.contains(i)) << "rows that are read are overwritten";
        } else {
          EXPECT_TRUE(pass.before.contains(at)) << "rows are read before they are gathered";
        }
      };
      for (const Stage stage : {Stage::forward, Stage::softmax}) {
        layer.each(stage, [&](std::size_t i, const Operation& pass) {
          reader(i, pass, pass.as<ForwardParams>().keys.data.raw());
        });
      }
      layer.each(Stage::column_sums, [&](std::size_t i, const Operation& pass) {
        reader(i, pass, pass.as<ColumnSumsParams>().keys.data.raw());
      });
    });
    EXPECT_EQ(n, sets.size());
  }
}

// INTER-1 and FUSE-1: an output joins the passes of its own chunk, whose state is overwritten after it.
TEST(MockedDevice, AnOutputIsFusedBehindTheIntraPassOfItsChunk) {
  OnMock on(Launching::one_by_one);
  on.session->begin(Step::prefill(150));
  const Layer layer(on, 0);
  int fused = 0;
  layer.each(Stage::forward, [&](std::size_t at, const Operation& output) {
    const auto pass = output.as<ForwardParams>();
    if (pass.at.range != KeyRange::memory) return;
    ++fused;
    int own = 0;
    layer.each(Stage::forward, [&](std::size_t i, const Operation& other) {
      const auto intra = other.as<ForwardParams>();
      if (intra.at.range != KeyRange::chunk) return;
      if (i < at && intra.at.begin <= pass.at.begin && pass.at.end <= intra.at.end) {
        ++own;
        EXPECT_TRUE(output.before.contains(i));
      }
      if (i > at) {
        EXPECT_TRUE(other.before.contains(at)) << "the state is overwritten before it is read";
      }
    });
    EXPECT_EQ(own, 1);
  });
  EXPECT_EQ(fused, 4);
}

/// Copies in, launches or a replay, the copy out.
struct StagedWindow {
  std::vector<std::size_t> in;
  std::vector<std::size_t> work;
  std::vector<std::size_t> out;
};

std::vector<StagedWindow> windows_in(const Timeline& timeline, std::size_t first) {
  std::vector<StagedWindow> windows(1);
  for (std::size_t i = first; i < timeline.operations.size(); ++i) {
    const Operation& operation = timeline.operations[i];
    const bool copy = operation.kind == OperationKind::copy;
    const bool in = copy && operation.direction == Direction::host_to_device;
    if (in && !windows.back().work.empty()) windows.emplace_back();
    auto& list = in ? windows.back().in : copy ? windows.back().out : windows.back().work;
    list.push_back(i);
  }
  return windows;
}

// cuda_session.hpp: rows of two windows are staged at a time. They are there before their window is computed, are not overwritten
// before it is done, and outputs are the caller's when attend() returns.
TEST(MockedDevice, StagedRowsStayWhileTheirWindowIsComputed) {
  for (const Launching launching : {Launching::replayed, Launching::one_by_one}) {
    OnMock on(launching);
    const Timeline& timeline = on.device->timeline;
    const std::size_t opened = timeline.operations.size();
    std::size_t returned = opened;
    on.session->begin(Step::prefill(150));
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      on.attend(layer);
      for (; returned < timeline.operations.size(); ++returned) {
        EXPECT_TRUE(timeline.host().contains(returned)) << "attend() returned before operation " << returned;
      }
    }
    const std::vector<StagedWindow> windows = windows_in(timeline, opened);
    ASSERT_EQ(windows.size(), static_cast<std::size_t>(kLayers * 3));
    bool overwritten = false;
    for (std::size_t w = 0; w < windows.size(); ++w) {
      SCOPED_TRACE(w);
      ASSERT_EQ(windows[w].in.size(), 3u) << "q, k and v";
      ASSERT_EQ(windows[w].out.size(), 1u);
      for (const std::size_t work : windows[w].work) {
        for (const std::size_t in : windows[w].in) {
          EXPECT_TRUE(timeline.operations[work].before.contains(in)) << "rows that have not come";
        }
        EXPECT_TRUE(timeline.operations[windows[w].out[0]].before.contains(work))
            << "outputs that are not done";
      }
      for (std::size_t earlier = 0; earlier < w; ++earlier) {
        for (std::size_t i = 0; i < 3; ++i) {
          const Operation& copy = timeline.operations[windows[w].in[i]];
          if (copy.to != timeline.operations[windows[earlier].in[i]].to) continue;
          overwritten = true;
          for (const std::size_t work : windows[earlier].work) {
            EXPECT_TRUE(copy.before.contains(work)) << "rows of window " << earlier << " are overwritten";
          }
        }
      }
    }
    EXPECT_TRUE(overwritten) << "three windows and two sides";
  }
}

// session.hpp: with device rows attend() enqueues on Options::stream; inputs are there, and outputs are, when the stream has got so
// far. So its work is after what the caller enqueued before, and before what the caller enqueues next; the host waits for nothing.
TEST(MockedDevice, DeviceRowsStandInLineOnTheCallersStream) {
  for (const Launching launching : {Launching::replayed, Launching::one_by_one}) {
    OnMock on(launching, true);
    const Stream caller = on.device->adopted;
    Timeline& timeline = on.device->timeline;
    EXPECT_CALL(*on.device, do_synchronize(An<Stream>())).Times(0);
    EXPECT_CALL(*on.device, do_synchronize(An<Event>())).Times(0);
    EXPECT_CALL(*on.device, do_copy).Times(0);
    for (const Step& step : {Step::prefill(150), Step::decode(1)}) {
      on.session->begin(step);
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        const std::size_t inputs = timeline.add(caller, {});
        on.attend(layer);
        ASSERT_GT(timeline.operations.size(), inputs + 1);
        const Timeline::Before next = timeline.next_on(caller);
        for (std::size_t i = inputs + 1; i < timeline.operations.size(); ++i) {
          EXPECT_TRUE(timeline.operations[i].before.contains(inputs)) << "began before its inputs were there";
          EXPECT_TRUE(next.contains(i)) << "the caller goes on before operation " << i;
        }
      }
      on.session->end();
    }
  }
}

// session.hpp: a record is what was computed; its views are the host's. device.hpp: a copy is there when the host has waited for it.
TEST(MockedDevice, AnObserverIsShownWhatTheHostHasWaitedFor) {
  for (const bool device_rows : {false, true}) {
    for (const Step& first : {Step::prefill(150), Step::decode(3)}) {
      OnMock on(Launching::replayed, device_rows);
      const Timeline& timeline = on.device->timeline;
      std::size_t begun = 0;  // the layer's first operation
      int shown = 0;
      on.session->set_observer([&](const ChunkRecord& record) {
        ++shown;
        int copies = 0;
        for (std::size_t i = begun; i < timeline.operations.size(); ++i) {
          const Operation& operation = timeline.operations[i];
          if (operation.kind == OperationKind::copy && on.device->kind(operation.to) == PointerKind::host) {
            ++copies;
            EXPECT_TRUE(timeline.host().contains(i))
                << "a copy that may not be there, chunk " << record.chunk.begin;
          }
          if (operation.kind != OperationKind::launch) continue;
          const Stage stage = stage_of(*operation.kernel);
          const bool of_chunk =
              (stage == Stage::forward && operation.as<ForwardParams>().at.begin < record.chunk.end) ||
              (stage == Stage::column_sums && operation.as<ColumnSumsParams>().at.begin < record.chunk.end);
          if (of_chunk) {
            EXPECT_TRUE(timeline.host().contains(i)) << "not computed yet";
          }
        }
        EXPECT_GT(copies, 0);
      });
      on.session->begin(first);
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        begun = timeline.operations.size();
        on.attend(layer);
      }
      EXPECT_EQ(shown, kLayers * (first.kind == Step::Kind::prefill ? 5 : 1));
    }
  }
}

}  // namespace
}  // namespace headwater::cuda
