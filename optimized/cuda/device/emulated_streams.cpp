#include "cuda/device/emulated_streams.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace headwater::cuda {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "cuda: " + what);
}

}  // namespace

Stream EmulatedStreams::stream() {
  queues_.emplace_back();
  taking_part_.push_back(false);
  return static_cast<Stream>(queues_.size() - 1);
}

Event EmulatedStreams::event() {
  events_.emplace_back();
  done_.push_back(0);
  return static_cast<Event>(events_.size() - 1);
}

int EmulatedStreams::index_of(Stream stream) const {
  const auto index = static_cast<int>(stream);
  if (index < 0 || static_cast<std::size_t>(index) >= queues_.size())
    refuse("no stream " + std::to_string(index));
  return index;
}

EmulatedStreams::EventState& EmulatedStreams::state_of(Event event) {
  const auto index = static_cast<int>(event);
  if (index < 0 || static_cast<std::size_t>(index) >= events_.size())
    refuse("no event " + std::to_string(index));
  return events_[static_cast<std::size_t>(index)];
}

void EmulatedStreams::add(int stream, Operation operation) {
  if (taking_part_[stream]) {
    capture_.queues[stream].push_back(std::move(operation));
    return;
  }
  queues_[stream].push_back(std::move(operation));
  if (progress_ == Progress::eager) run(queues_, stream, done_);
}

void EmulatedStreams::enqueue(Stream stream, std::function<void()> work) {
  add(index_of(stream), {Kind::work, std::move(work)});
}

void EmulatedStreams::enqueue_launch(Stream stream, std::function<void()> work) {
  const int index = index_of(stream);
  Operation operation{Kind::work, std::move(work)};
  if (taking_part_[index]) operation.launch = capture_.launches++;
  add(index, std::move(operation));
}

void EmulatedStreams::record(Event event, Stream stream) {
  EventState& state = state_of(event);
  const int recorder = index_of(stream);
  state.recorder = recorder;
  state.captured = taking_part_[recorder];
  state.of_graph = false;
  add(recorder, {Kind::record, {}, static_cast<int>(event), ++state.recorded});
}

void EmulatedStreams::wait(Stream stream, Event event) {
  const EventState& state = state_of(event);
  const int waiter = index_of(stream);
  if (state.recorded == 0) return;  // as the driver has it: nothing to wait for
  if (state.of_graph) refuse("a stream waits for an event that was last recorded in a capture");
  if (state.captured && !taking_part_[waiter]) {
    taking_part_[waiter] = true;
  } else if (!state.captured && taking_part_[waiter]) {
    refuse("a captured stream waits for an event that was recorded outside of the capture");
  }
  add(waiter, {Kind::wait, {}, static_cast<int>(event), state.recorded, state.recorder});
}

/// Does the first operation of a queue, and before it what it waits for. With `kept` only the order is followed, and the
/// operations move there.
void EmulatedStreams::run_next(Queues& queues, int stream, Done& done, Queues* kept) {
  Queue taken;
  taken.splice(taken.begin(), queues[stream], queues[stream].begin());
  const Operation& operation = taken.front();
  switch (operation.kind) {
    case Kind::work:
      if (kept == nullptr && operation.work) operation.work();
      break;
    case Kind::record: done[operation.event] = std::max(done[operation.event], operation.version); break;
    case Kind::wait:
      while (done[operation.event] < operation.version && !queues[operation.recorder].empty()) {
        run_next(queues, operation.recorder, done, kept);
      }
      break;
  }
  if (kept != nullptr) (*kept)[stream].splice((*kept)[stream].end(), taken);
}

void EmulatedStreams::run(Queues& queues, int stream, Done& done, Queues* kept) {
  while (!queues[stream].empty()) run_next(queues, stream, done, kept);
}

void EmulatedStreams::drain(Stream stream) { run(queues_, index_of(stream), done_); }

void EmulatedStreams::drain(Event event) {
  const EventState& state = state_of(event);
  if (state.captured || state.of_graph) refuse("the host waits for an event of a captured graph");
  const auto index = static_cast<std::size_t>(event);
  while (done_[index] < state.recorded) run_next(queues_, state.recorder, done_);
}

void EmulatedStreams::drain_all() {
  for (std::size_t stream = 0; stream < queues_.size(); ++stream)
    run(queues_, static_cast<int>(stream), done_);
}

void EmulatedStreams::abandon() noexcept {
  for (auto& queue : queues_) queue.clear();
  for (std::size_t event = 0; event < events_.size(); ++event) done_[event] = events_[event].recorded;
}

// ---- graphs ------------------------------------------------------------------------------------------------------

void EmulatedStreams::begin_capture(Stream stream) {
  capture_.origin = index_of(stream);
  capture_.launches = 0;
  capture_.queues.assign(queues_.size(), {});
  taking_part_[capture_.origin] = true;
}

Graph EmulatedStreams::end_capture(Stream stream) {
  if (index_of(stream) != capture_.origin) refuse("a capture ends on the stream that it began on");
  taking_part_.assign(queues_.size(), false);
  for (EventState& event : events_) {
    if (event.captured) event = {event.recorded, event.recorded, event.recorder, false, true};
  }
  Done done(events_.size(), 0);
  Queues joined(capture_.queues.size());
  run(capture_.queues, capture_.origin, done, &joined);
  for (std::size_t other = 0; other < joined.size(); ++other) {
    if (!capture_.queues[other].empty()) {
      refuse("stream " + std::to_string(other) +
             " took part in a capture and was not joined to the stream that it began on");
    }
  }
  capture_.queues = std::move(joined);
  for (std::size_t event = 0; event < done.size(); ++event)
    done_[event] = std::max(done_[event], done[event]);
  graphs_.push_back(std::move(capture_));
  return static_cast<Graph>(graphs_.size() - 1);
}

EmulatedStreams::Captured& EmulatedStreams::captured(Graph graph) {
  const auto index = static_cast<std::size_t>(graph);
  if (index >= graphs_.size()) refuse("no graph " + std::to_string(static_cast<int>(graph)));
  return graphs_[index];
}

std::vector<std::vector<bool>> EmulatedStreams::waits(Graph graph) {
  Captured copy = captured(graph);
  const auto launches = static_cast<std::size_t>(copy.launches);
  using Launches = std::vector<bool>;
  std::vector<Launches> waits(launches, Launches(launches));
  std::vector<Launches> before(copy.queues.size(), Launches(launches));  // the next operation of a stream
  std::map<std::pair<int, std::int64_t>, Launches> recorded;             // by event and version
  const auto join = [](Launches& to, const Launches& more) {
    for (std::size_t launch = 0; launch < to.size(); ++launch) to[launch] = to[launch] || more[launch];
  };
  // Streams take turns until each has got as far as what it waits for.
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stream = 0; stream < copy.queues.size(); ++stream) {
      for (Queue& queue = copy.queues[stream]; !queue.empty(); queue.pop_front(), moved = true) {
        const Operation& operation = queue.front();
        if (operation.kind == Kind::wait) {
          const auto found = recorded.find({operation.event, operation.version});
          if (found == recorded.end()) break;
          join(before[stream], found->second);
        } else if (operation.kind == Kind::record) {
          recorded[{operation.event, operation.version}] = before[stream];
        } else if (operation.launch >= 0) {
          waits[static_cast<std::size_t>(operation.launch)] = before[stream];
          before[stream][static_cast<std::size_t>(operation.launch)] = true;
        }
      }
    }
  }
  return waits;
}

void EmulatedStreams::set_launch(Graph graph, int index, std::function<void()> work) {
  for (auto& queue : captured(graph).queues) {
    for (Operation& operation : queue) {
      if (index < 0 || operation.launch != index) continue;
      operation.work = std::move(work);
      return;
    }
  }
  refuse("no launch " + std::to_string(index) + " in a graph of " + std::to_string(captured(graph).launches));
}

void EmulatedStreams::replay(Graph graph, Stream stream) {
  // As it is now: later changes are for later replays.
  enqueue(stream, [this, queues = captured(graph).queues, origin = captured(graph).origin]() mutable {
    Done done(events_.size(), 0);
    if (progress_ == Progress::eager) {
      for (std::size_t other = 0; other < queues.size(); ++other) run(queues, static_cast<int>(other), done);
    }
    run(queues, origin, done);
  });
}

}  // namespace headwater::cuda
