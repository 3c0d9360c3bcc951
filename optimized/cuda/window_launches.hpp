#pragma once

#include <cstdint>
#include <vector>

#include "cuda/dispatch.hpp"
#include "cuda/runtime/device.hpp"

namespace headwater::cuda {

enum class Launching : std::uint8_t {
  replayed,    ///< a window is one captured graph, replayed with new parameters
  one_by_one,  ///< its launches are enqueued in the same order; benchmarks time them so
};

/// The launches of a window of rows, and which of them waits for which:
///
///     store -> intra pass, group after group of chunks                             (beside)
///          \-> select, gather, inter forward, inter column sums, chunk after chunk (in line)
///
/// A chunk's selection waits for the column sums of the chunks before it, its inter pass for its own intra pass; the rest
/// runs side by side. Each launch has a place. Both orders, the dense and the sparse, are captured once, when the session
/// opens; a window gives its launches their kernels, grids and parameters, leaves out places that it has no use for, and
/// replays: no memory is taken and the host does not wait. While an observer looks, launches are enqueued one by one.
class WindowLaunches {
 public:
  enum class Order : std::uint8_t { dense, sparse };
  struct Place {
    int index;
    bool beside;
    const char* stage;  ///< as benchmarks report it
  };

  /// `in_line`: the session's stream. Sparse windows have at most `most_chunks` chunks; `together` of them are a group. Takes
  /// streams, events and graphs of the device. Errors: out_of_memory.
  WindowLaunches(Device& device, const Dispatch& dispatch, Launching launching, Stream in_line,
                 std::int64_t most_chunks, std::int64_t together);

  void begin(Order order, bool watched);
  template <class Params>
  void launch(Place place, const Choice& kernel, Grid grid, const Params& params) {
    if (!replays_) {
      device_.profile_stage(place.stage);
      device_.launch(place.beside ? beside_ : in_line_, kernel.index, grid, kernel.entry->shared_bytes,
                     params);
      return;
    }
    Captured& graph = graphs_[static_cast<std::size_t>(order_)];
    device_.set_launch(graph.graph, place.index, kernel.index, grid, kernel.entry->shared_bytes, params);
    graph.set[static_cast<std::size_t>(place.index)] = true;
  }
  void end();

  /// Host memory that the graphs hold, about: a device does not say. A launch keeps its parameters.
  [[nodiscard]] std::int64_t bytes() const;
  /// Groups of the first `chunks` chunks of a window.
  [[nodiscard]] std::int64_t groups(std::int64_t chunks) const {
    return (chunks + together_ - 1) / together_;
  }
  [[nodiscard]] std::int64_t together() const { return together_; }

  // Places, in the order of their capture.
  [[nodiscard]] static Place store() { return {0, false, "kv write"}; }
  [[nodiscard]] static Place dense_forward() { return {1, false, "dense forward"}; }
  [[nodiscard]] static Place combine() { return {2, false, "combine"}; }
  [[nodiscard]] static Place intra_forward(std::int64_t group) {
    return {static_cast<int>(1 + 2 * group), true, "intra forward"};
  }
  [[nodiscard]] static Place intra_column_sums(std::int64_t group) {
    return {static_cast<int>(2 + 2 * group), true, "intra column sums"};
  }
  [[nodiscard]] Place select(std::int64_t chunk) const { return in_chunk(chunk, 0, "selection"); }
  [[nodiscard]] Place gather(std::int64_t chunk) const { return in_chunk(chunk, 1, "gather"); }
  [[nodiscard]] Place inter_forward(std::int64_t chunk) const { return in_chunk(chunk, 2, "inter forward"); }
  [[nodiscard]] Place inter_column_sums(std::int64_t chunk) const { return in_chunk(chunk, 3, "inter column sums"); }

  // Waits of a sparse window; chunks are counted from its first.
  void after_store();
  void after_group(std::int64_t group);
  void before_select(std::int64_t chunk);
  void before_inter(std::int64_t chunk);

 private:
  struct Captured {
    Graph graph{};
    std::vector<bool> set;         // in this window, by place
    std::vector<bool> takes_part;  // in replays
  };
  [[nodiscard]] Place in_chunk(std::int64_t chunk, std::int64_t step, const char* stage) const {
    constexpr std::int64_t kSteps = 4;
    return {static_cast<int>(1 + 2 * groups(most_chunks_) + kSteps * chunk + step), false, stage};
  }
  [[nodiscard]] Captured capture(const Dispatch& dispatch, Order order);
  void capture_sparse(const Choice& any);
  void put(Place place, const Choice& any);

  Device& device_;
  Stream in_line_;
  Stream beside_;
  std::int64_t most_chunks_;
  std::int64_t together_;
  Event stored_;
  std::vector<Event> group_done_;
  std::vector<Captured> graphs_;  // by Order; empty: one by one
  Order order_ = Order::dense;
  bool replays_ = false;
};

}  // namespace headwater::cuda
