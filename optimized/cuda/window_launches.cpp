#include "cuda/window_launches.hpp"

#include <utility>

#include "cuda/kernels/params.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

WindowLaunches::WindowLaunches(Device& device, const Dispatch& dispatch, Launching launching, Stream in_line,
                               const WindowExtent& most)
    : device_(device),
      in_line_(in_line),
      beside_(launching == Launching::in_turn ? in_line : device.stream()),
      behind_(launching == Launching::in_turn ? in_line : device.stream()),
      most_(most),
      stored_(device.event()),
      gathered_(device.event()) {
  for (std::int64_t group = 0; group < groups(most.chunks); ++group) group_done_.push_back(device.event());
  for (std::int64_t chunk = 0; chunk < most.gathered; ++chunk) output_done_.push_back(device.event());
  if (launching != Launching::replayed) return;
  // A stream of the session's own: a caller's may be the default one, which cannot be captured.
  in_line_ = device.stream(true);
  for (const Order order : {Order::dense, Order::sparse}) graphs_.push_back(capture(dispatch, order));
  in_line_ = in_line;
}

std::int64_t WindowLaunches::bytes() const {
  constexpr std::int64_t kLaunchBytes = 600;
  std::int64_t places = 0;
  for (const Captured& graph : graphs_) places += static_cast<std::int64_t>(graph.set.size());
  return places * kLaunchBytes;
}

void WindowLaunches::put(Place place, const Choice& any) { launch(place, any, {1, 1, 1}, CombineParams{}); }

WindowLaunches::Place WindowLaunches::block_step(BlockStep step) const {
  constexpr const char* kStages[] = {"summaries",        "pools",       "region votes",
                                     "region selection", "block votes", "block selection",
                                     "token votes",      "sets",        "chosen output"};
  const auto number = static_cast<std::int64_t>(step);
  const std::int64_t first = 1 + 2 * most_.intra_parts * groups(most_.chunks);
  return {static_cast<int>(first + number), Branch::in_line, kStages[number]};
}

void WindowLaunches::capture_chosen(const Choice& any) {
  capture_intra(any);
  for (int step = 0; step < static_cast<int>(BlockStep::output); ++step)
    put(block_step(static_cast<BlockStep>(step)), any);
  join_intra(most_.chunks - 1);
  put(block_step(BlockStep::output), any);
}

void WindowLaunches::capture_intra(const Choice& any) {
  after_store();
  for (std::int64_t group = 0; group < groups(most_.chunks); ++group) {
    for (std::int64_t part = 0; part < most_.intra_parts; ++part) {
      put(intra(group, part).forward, any);
      put(intra(group, part).column_sums, any);
    }
    after_group(group);
  }
}

void WindowLaunches::capture_sparse(const Choice& any) {
  capture_intra(any);
  for (std::int64_t chunk = 0; chunk < most_.chunks; ++chunk) {
    before_select(chunk);
    put(select(chunk), any);
    before_gather(chunk);
    put(gather(chunk), any);
    after_gather();
    put(inter_softmax(chunk), any);
    put(inter_column_sums(chunk), any);
    before_output(chunk);
    put(inter_output(chunk), any);
    after_output(chunk);
  }
  join(most_.chunks - 1);
}

/// Any kernel stands in for those that a window sets.
WindowLaunches::Captured WindowLaunches::capture(const Dispatch& dispatch, Order order) {
  const Choice any = dispatch.only(Stage::combine);
  device_.begin_capture(in_line_);
  put(store(), any);
  int places = 0;
  if (order == Order::dense) {
    put(dense_forward(), any);
    put(combine(), any);
    if (most_.chooses) put(dense_summaries(), any);
    places = (most_.chooses ? dense_summaries() : combine()).index + 1;
  } else if (most_.chooses) {
    capture_chosen(any);
    places = block_step(BlockStep::output).index + 1;
  } else {
    capture_sparse(any);
    places = inter_output(most_.chunks - 1).index + 1;
  }
  Captured captured;
  captured.graph = device_.end_capture(in_line_);
  captured.set.assign(static_cast<std::size_t>(places), false);
  captured.takes_part.assign(static_cast<std::size_t>(places), true);
  return captured;
}

void WindowLaunches::begin(Order order, bool watched) {
  order_ = order;
  replays_ = !graphs_.empty() && !watched;
  if (!replays_) return;
  auto& set = graphs_[static_cast<std::size_t>(order)].set;
  set.assign(set.size(), false);
}

void WindowLaunches::end() {
  if (!replays_) return;
  Captured& graph = graphs_[static_cast<std::size_t>(order_)];
  for (std::size_t place = 0; place < graph.set.size(); ++place) {
    if (graph.set[place] || !graph.takes_part[place]) continue;
    if (!HEADWATER_SABOTAGE("cuda.graph.stale_launch"))
      device_.leave_out(graph.graph, static_cast<int>(place));
    graph.takes_part[place] = false;
  }
  device_.replay(graph.graph, in_line_);
}

// The captured graph has these waits already.

void WindowLaunches::after_store() {
  if (replays_) return;
  device_.record(stored_, in_line_);
  device_.wait(beside_, stored_);
}

void WindowLaunches::after_group(std::int64_t group) {
  if (!replays_) device_.record(group_done_[static_cast<std::size_t>(group)], beside_);
}

void WindowLaunches::before_select(std::int64_t chunk) {
  if (!replays_ && chunk > 0) device_.wait(in_line_, group_done(chunk - 1));
}

void WindowLaunches::before_gather(std::int64_t chunk) {
  if (replays_ || chunk < most_.gathered) return;
  device_.wait(in_line_, output_done_[static_cast<std::size_t>(slot(chunk))]);
}

void WindowLaunches::after_gather() {
  if (replays_) return;
  device_.record(gathered_, in_line_);
  device_.wait(behind_, gathered_);
}

void WindowLaunches::before_output(std::int64_t chunk) {
  if (!replays_) device_.wait(behind_, group_done(chunk));
}

void WindowLaunches::after_output(std::int64_t chunk) {
  if (!replays_) device_.record(output_done_[static_cast<std::size_t>(slot(chunk))], behind_);
}

void WindowLaunches::join_intra(std::int64_t chunk) {
  if (!replays_) device_.wait(in_line_, group_done(chunk));
}

void WindowLaunches::join(std::int64_t chunk) {
  if (replays_) return;
  join_intra(chunk);
  device_.wait(in_line_, output_done_[static_cast<std::size_t>(slot(chunk))]);
}

}  // namespace headwater::cuda
