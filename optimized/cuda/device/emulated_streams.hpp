#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "cuda/device/device.hpp"
#include "cuda/device/emulated_device.hpp"

namespace headwater::cuda {

/// Streams, events and graphs of the emulation. An operation is done at once (Progress::eager) or when something waits
/// for it (Progress::late), so that an order that no event asks for does not come about by luck.
class EmulatedStreams {
 public:
  explicit EmulatedStreams(Progress progress) : progress_(progress) {}

  Stream stream();
  Event event();
  void enqueue(Stream stream, std::function<void()> work);
  /// The same; in a capture it is the graph's next launch.
  void enqueue_launch(Stream stream, std::function<void()> work);
  void record(Event event, Stream stream);
  void wait(Stream stream, Event event);
  /// Does what the stream has, and what that waits for. Errors of operations come out of here.
  void drain(Stream stream);
  void drain(Event event);
  void drain_all();
  /// Forgets what is not done.
  void abandon() noexcept;

  void begin_capture(Stream stream);
  [[nodiscard]] bool captured(Stream stream) const { return taking_part_[index_of(stream)]; }
  /// Throws Error(invalid_argument) if a stream that took part has not been joined.
  Graph end_capture(Stream stream);
  void replay(Graph graph, Stream stream);
  /// As waits_in() of emulated_device.hpp.
  [[nodiscard]] std::vector<std::vector<bool>> waits(Graph graph);
  /// Work of a launch in the replays from now on; empty: none.
  void set_launch(Graph graph, int index, std::function<void()> work);

 private:
  enum class Kind : std::uint8_t { work, record, wait };
  struct Operation {
    Kind kind = Kind::work;
    std::function<void()> work;
    int event = 0;
    std::int64_t version = 0;
    int recorder = -1;  // of a wait: the stream that records
    int launch = -1;    // index among the launches of a graph
  };
  using Queue = std::list<Operation>;
  using Queues = std::vector<Queue>;
  struct EventState {
    std::int64_t recorded = 0;  // versions enqueued
    std::int64_t done = 0;
    int recorder = -1;
    bool captured = false;  // the last version is part of the open capture
    bool of_graph = false;  // or of one that has ended
  };
  /// Operations by stream, and the stream that all others are joined to.
  struct Captured {
    Queues queues;
    int origin = 0;
    int launches = 0;
  };
  /// Versions of events done, for one pass over queues.
  using Done = std::vector<std::int64_t>;

  void add(int stream, Operation operation);
  void run_next(Queues& queues, int stream, Done& done, Queues* kept = nullptr);
  void run(Queues& queues, int stream, Done& done, Queues* kept = nullptr);
  [[nodiscard]] int index_of(Stream stream) const;
  [[nodiscard]] Captured& captured(Graph graph);
  [[nodiscard]] EventState& state_of(Event event);

  Progress progress_;
  Queues queues_;
  std::vector<EventState> events_;
  Done done_;
  std::vector<Captured> graphs_;
  Captured capture_;
  std::vector<bool> taking_part_;  // in the open capture, by stream
};

}  // namespace headwater::cuda
