#pragma once

#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <vector>

#include "cuda/device/device.hpp"

namespace headwater::cuda {

/// A device whose session is what is tested.
class MockDevice : public Device {
 public:
  explicit MockDevice(std::span<const Kernel> kernels)
      : Device({"a mock", 0, 80, 4, 1 << 17, std::int64_t{1} << 32, false}, kernels) {}
  ~MockDevice() override {
    if (on_destruction) on_destruction();
  }
  std::function<void()> on_destruction;

  using Device::fail;

  MOCK_METHOD(PointerKind, kind, (const void* data), (override));
  MOCK_METHOD(void*, native_handle, (Stream stream), (override));
  MOCK_METHOD(float, milliseconds, (Event from, Event to), (override));
  MOCK_METHOD(void*, do_allocate, (std::int64_t bytes, bool pinned), (override));
  MOCK_METHOD(void, do_release, (void* data), (noexcept, override));
  MOCK_METHOD(void, do_copy,
              (Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes, std::int64_t count,
               Direction direction),
              (override));
  MOCK_METHOD(void, do_set, (Stream stream, void* to, unsigned char value, std::int64_t bytes), (override));
  MOCK_METHOD(Stream, do_stream, (bool urgent), (override));
  MOCK_METHOD(Stream, do_adopt, (void* native), (override));
  MOCK_METHOD(bool, do_captured, (Stream stream), (override));
  MOCK_METHOD(Event, do_event, (bool timed), (override));
  MOCK_METHOD(void, do_record, (Event event, Stream stream), (override));
  MOCK_METHOD(void, do_wait, (Stream stream, Event event), (override));
  MOCK_METHOD(void, do_synchronize, (Stream stream), (override));
  MOCK_METHOD(void, do_synchronize, (Event event), (override));
  MOCK_METHOD(void, do_launch,
              (Stream stream, const Kernel& kernel, Grid grid, int shared_bytes, const void* params),
              (override));
  MOCK_METHOD(const char*, do_encode, (const sm90::TileMap& map, sm90::TensorMap& to), (override));
  MOCK_METHOD(void, do_begin_capture, (Stream stream), (override));
  MOCK_METHOD(Graph, do_end_capture, (Stream stream), (override));
  MOCK_METHOD(void, do_replay, (Graph graph, Stream stream), (override));
  MOCK_METHOD(void, do_set_launch,
              (Graph graph, int index, const Kernel& kernel, Grid grid, int shared_bytes, const void* params),
              (override));
  MOCK_METHOD(void, do_leave_out, (Graph graph, int index), (override));
};

/// What was enqueued, and what of it each operation waits for: a stream is in order, a wait adds what its event recorded last, and
/// whatever the host has waited for is after everything that it enqueues later.
class Timeline {
 public:
  enum class Kind : std::uint8_t { launch, replay, copy, set };
  using Before = std::set<std::size_t>;
  struct Operation {
    Kind kind;
    const Kernel* kernel = nullptr;     ///< launch
    std::vector<unsigned char> params;  ///< launch
    const void* to = nullptr;           ///< copy, set
    Direction direction{};              ///< copy
    Before before;                      ///< operations that are done before this one begins

    template <class Params>
    [[nodiscard]] Params as() const {
      Params copy;
      EXPECT_EQ(params.size(), sizeof copy) << kernel->name;
      std::memcpy(&copy, params.data(), std::min(params.size(), sizeof copy));
      return copy;
    }
  };

  std::size_t add(Stream stream, Operation operation) {
    operation.before = next_on(stream);
    const std::size_t index = operations.size();
    streams_[stream] = operation.before;
    streams_[stream].insert(index);
    operations.push_back(std::move(operation));
    return index;
  }
  void record(Event event, Stream stream) { events_[event] = streams_[stream]; }
  void wait(Stream stream, Event event) { merge(streams_[stream], events_[event]); }
  void host_waits(Stream stream) { merge(host_, streams_[stream]); }
  void host_waits(Event event) { merge(host_, events_[event]); }
  /// What would be after: an operation enqueued now; the host's next instruction.
  [[nodiscard]] Before next_on(Stream stream) {
    Before before = streams_[stream];
    merge(before, host_);
    return before;
  }
  [[nodiscard]] const Before& host() const { return host_; }

  std::vector<Operation> operations;

 private:
  static void merge(Before& to, const Before& from) { to.insert(from.begin(), from.end()); }

  std::map<Stream, Before> streams_;
  std::map<Event, Before> events_;
  Before host_;
};

/// A device that takes memory, keeps a timeline and the launches of its graphs, and computes nothing: kernels do not run, copies
/// to the host write zeros.
class TracedDevice : public ::testing::NiceMock<MockDevice> {
 public:
  /// A captured launch: whether replays have it, and whether it was set since the last replay.
  struct Place {
    bool takes_part = true;
    bool set = false;
  };

  explicit TracedDevice(std::span<const Kernel> kernels) : NiceMock(kernels) {
    using ::testing::_;
    ON_CALL(*this, do_allocate).WillByDefault([this](std::int64_t bytes, bool pinned) {
      return take(bytes, pinned);
    });
    ON_CALL(*this, kind).WillByDefault([this](const void* data) {
      const auto* at = static_cast<const unsigned char*>(data);
      for (const Taken& taken : memory_) {
        const unsigned char* begin = taken.data.get();
        if (!std::less<>()(at, begin) && std::less<>()(at, begin + taken.bytes))
          return taken.pinned ? PointerKind::pinned : PointerKind::device;
      }
      return PointerKind::host;
    });
    ON_CALL(*this, do_copy)
        .WillByDefault([this](Stream stream, Rows<void> to, Rows<const void>, std::int64_t bytes,
                              std::int64_t count, Direction direction) {
          timeline.add(stream, {Timeline::Kind::copy, nullptr, {}, to.data, direction, {}});
          if (direction != Direction::device_to_host) return;
          for (std::int64_t row = 0; row < count; ++row) {
            std::memset(static_cast<unsigned char*>(to.data) + row * to.pitch, 0,
                        static_cast<std::size_t>(bytes));
          }
          // Pageable memory has been written when the call returns (CUDA, "API synchronization behavior").
          if (kind(to.data) == PointerKind::host) timeline.host_waits(stream);
        });
    ON_CALL(*this, do_set).WillByDefault([this](Stream stream, void* to, unsigned char, std::int64_t) {
      timeline.add(stream, {Timeline::Kind::set, nullptr, {}, to, {}, {}});
    });
    ON_CALL(*this, do_stream).WillByDefault([this] { return Stream{++streams_}; });
    ON_CALL(*this, do_adopt).WillByDefault([this] { return adopted = Stream{++streams_}; });
    ON_CALL(*this, do_event).WillByDefault([this] { return Event{++events_}; });
    ON_CALL(*this, do_record).WillByDefault([this](Event event, Stream stream) {
      timeline.record(event, stream);
    });
    ON_CALL(*this, do_wait).WillByDefault([this](Stream stream, Event event) {
      timeline.wait(stream, event);
    });
    ON_CALL(*this, do_synchronize(::testing::An<Stream>())).WillByDefault([this](Stream stream) {
      timeline.host_waits(stream);
    });
    ON_CALL(*this, do_synchronize(::testing::An<Event>())).WillByDefault([this](Event event) {
      timeline.host_waits(event);
    });
    ON_CALL(*this, do_launch)
        .WillByDefault([this](Stream stream, const Kernel& kernel, Grid, int, const void* params) {
          if (capturing()) {
            graphs.back().emplace_back();
            return;
          }
          const auto* bytes = static_cast<const unsigned char*>(params);
          timeline.add(
              stream,
              {Timeline::Kind::launch, &kernel, {bytes, bytes + kernel.params_bytes}, nullptr, {}, {}});
        });
    ON_CALL(*this, do_begin_capture).WillByDefault([this] { graphs.emplace_back(); });
    ON_CALL(*this, do_end_capture).WillByDefault([this] {
      return Graph{static_cast<int>(graphs.size()) - 1};
    });
    ON_CALL(*this, do_set_launch).WillByDefault([this](Graph graph, int index, auto&&...) {
      set_place(graph, index);
    });
    ON_CALL(*this, do_leave_out).WillByDefault([this](Graph graph, int index) {
      place(graph, index).takes_part = false;
    });
    ON_CALL(*this, do_replay).WillByDefault([this](Graph graph, Stream stream) {
      timeline.add(stream, {Timeline::Kind::replay, nullptr, {}, nullptr, {}, {}});
      for (Place& one : graphs[static_cast<std::size_t>(graph)]) {
        stale_launches += one.takes_part && !one.set ? 1 : 0;
        one.set = false;
      }
    });
  }

  void* take(std::int64_t bytes, bool pinned) {
    const auto size = static_cast<std::size_t>(bytes);
    memory_.push_back({Bytes(static_cast<unsigned char*>(::operator new(size, kAlign))), bytes, pinned});
    return memory_.back().data.get();
  }
  void set_place(Graph graph, int index) { place(graph, index) = {true, true}; }
  /// Forgets what was set and not replayed.
  void forget_set_launches() {
    for (auto& graph : graphs)
      for (Place& one : graph) one.set = false;
  }
  [[nodiscard]] std::size_t count(Timeline::Kind kind) const {
    std::size_t sum = 0;
    for (const Timeline::Operation& operation : timeline.operations) sum += operation.kind == kind ? 1 : 0;
    return sum;
  }

  Timeline timeline;
  std::vector<std::vector<Place>> graphs;
  Stream adopted{};        ///< the caller's
  int stale_launches = 0;  ///< replayed with what an earlier window had set

 private:
  static constexpr std::align_val_t kAlign{256};  // as device.hpp promises
  struct Free {
    void operator()(unsigned char* data) const { ::operator delete(data, kAlign); }
  };
  using Bytes = std::unique_ptr<unsigned char, Free>;
  struct Taken {
    Bytes data;
    std::int64_t bytes;
    bool pinned;
  };

  Place& place(Graph graph, int index) {
    return graphs[static_cast<std::size_t>(graph)].at(static_cast<std::size_t>(index));
  }

  std::vector<Taken> memory_;
  int streams_ = 0;
  int events_ = 0;
};

}  // namespace headwater::cuda
