#pragma once

#include <cstdint>
#include <vector>

#include "cuda/device/device.hpp"
#include "cuda/dispatch.hpp"

namespace headwater::cuda {

enum class Launching : std::uint8_t {
  replayed,    ///< a window is one captured graph, replayed with new parameters
  one_by_one,  ///< its launches are enqueued in the same order
  in_turn,  ///< and on one stream: benchmarks time them so, as no launch then waits for room that another one has
};

/// The most that a sparse window has.
struct WindowExtent {
  std::int64_t chunks = 1;
  std::int64_t together = 1;     ///< chunks of a group
  std::int64_t gathered = 1;     ///< chunks whose gathered rows are kept at a time
  std::int64_t intra_parts = 1;  ///< launches of a group's forward pass, and as many of its column sums
  bool chooses = false;          ///< rule blocks
};

/// The launches of a window of rows, and which of them waits for which:
///
///     store -> intra pass, group after group of chunks                                    (beside)
///          \-> select, gather, softmax and column sums of memory sets, chunk after chunk  (in line)
///                         \-> output of the inter pass, chunk after chunk                 (behind)
///
/// With rule blocks (WindowExtent::chooses) the sets of all chunks are chosen beside their intra passes, in line, and one output
/// of all waits for both.
///
/// A chunk's selection waits for the column sums of the chunks before it, and for no output; its output waits for its gathered
/// rows and its own intra pass; gathering waits for the output that last needed the rows it overwrites. The rest runs side by
/// side. Each launch has a place. Both orders, the dense and the sparse, are captured once, when the session
/// opens; a window gives its launches their kernels, grids and parameters, leaves out places that it has no use for, and
/// replays: no memory is taken and the host does not wait. While an observer looks, launches are enqueued one by one.
class WindowLaunches {
 public:
  enum class Order : std::uint8_t { dense, sparse };
  enum class Branch : std::uint8_t { in_line, beside, behind };
  struct Place {
    int index;
    Branch branch;
    const char* stage;  ///< as benchmarks report it
  };
  struct IntraPlaces {
    Place forward;
    Place column_sums;
  };

  /// Launches of rule blocks, in this order.
  enum class BlockStep : std::uint8_t {
    summaries,
    pools,
    region_votes,
    regions,
    block_votes,
    blocks,
    token_votes,
    sets,
    output,
  };

  /// `in_line`: the session's stream. Takes streams, events and graphs of the device. Errors: out_of_memory.
  WindowLaunches(Device& device, const Dispatch& dispatch, Launching launching, Stream in_line,
                 const WindowExtent& most);

  void begin(Order order, bool watched);
  template <class Params>
  void launch(Place place, const Choice& kernel, Grid grid, const Params& params) {
    if (!replays_) {
      device_.profile_stage(place.stage);
      device_.launch(stream_of(place.branch), kernel.index, grid, kernel.entry->shared_bytes, params);
      return;
    }
    Captured& graph = graphs_[static_cast<std::size_t>(order_)];
    device_.set_launch(graph.graph, place.index, kernel.index, grid, kernel.entry->shared_bytes, params);
    graph.set[static_cast<std::size_t>(place.index)] = true;
    graph.takes_part[static_cast<std::size_t>(place.index)] = true;
  }
  void end();

  /// Host memory that the graphs hold, about: a device does not say. A launch keeps its parameters
  /// and what it waits for.
  [[nodiscard]] std::int64_t bytes() const;
  /// Groups of the first `chunks` chunks of a window.
  [[nodiscard]] std::int64_t groups(std::int64_t chunks) const {
    return (chunks + most_.together - 1) / most_.together;
  }
  [[nodiscard]] std::int64_t together() const { return most_.together; }
  /// Of the places for gathered rows, a chunk's.
  [[nodiscard]] std::int64_t slot(std::int64_t chunk) const { return chunk % most_.gathered; }

  // Places, in the order of their capture.
  [[nodiscard]] static Place store() { return {0, Branch::in_line, "kv write"}; }
  [[nodiscard]] static Place dense_forward() { return {1, Branch::in_line, "dense forward"}; }
  [[nodiscard]] static Place combine() { return {2, Branch::in_line, "combine"}; }
  /// With rule blocks, of either order.
  [[nodiscard]] Place summaries() const {
    return order_ == Order::dense ? dense_summaries() : block_step(BlockStep::summaries);
  }
  [[nodiscard]] IntraPlaces intra(std::int64_t group, std::int64_t part) const {
    const auto first = static_cast<int>(1 + 2 * (most_.intra_parts * group + part));
    return {{first, Branch::beside, "intra forward"}, {first + 1, Branch::beside, "intra column sums"}};
  }
  [[nodiscard]] Place select(std::int64_t chunk) const { return in_chunk(chunk, 0, "selection"); }
  [[nodiscard]] Place gather(std::int64_t chunk) const { return in_chunk(chunk, 1, "gather"); }
  [[nodiscard]] Place inter_softmax(std::int64_t chunk) const { return in_chunk(chunk, 2, "inter softmax"); }
  [[nodiscard]] Place inter_column_sums(std::int64_t chunk) const {
    return in_chunk(chunk, 3, "inter column sums");
  }
  [[nodiscard]] Place inter_output(std::int64_t chunk) const {
    return {in_chunk(chunk, 4, "").index, Branch::behind, "inter output"};
  }

  [[nodiscard]] Place block_step(BlockStep step) const;

  // Waits of a sparse window; chunks are counted from its first.
  void after_store();
  void after_group(std::int64_t group);
  void before_select(std::int64_t chunk);
  void before_gather(std::int64_t chunk);
  void after_gather();
  void before_output(std::int64_t chunk);
  void after_output(std::int64_t chunk);
  /// What follows in line waits for the chunk's intra pass.
  void join_intra(std::int64_t chunk);
  /// What follows in line waits for all of the chunk.
  void join(std::int64_t chunk);

 private:
  [[nodiscard]] static Place dense_summaries() { return {combine().index + 1, Branch::in_line, "summaries"}; }
  struct Captured {
    Graph graph{};
    std::vector<bool> set;         // in this window, by place
    std::vector<bool> takes_part;  // in replays, as the device has it
  };
  [[nodiscard]] Place in_chunk(std::int64_t chunk, std::int64_t step, const char* stage) const {
    constexpr std::int64_t kSteps = 5;
    const std::int64_t first = 1 + 2 * most_.intra_parts * groups(most_.chunks);
    return {static_cast<int>(first + kSteps * chunk + step), Branch::in_line, stage};
  }
  [[nodiscard]] Captured capture(const Dispatch& dispatch, Order order);
  void capture_sparse(const Choice& any);
  void capture_intra(const Choice& any);
  void capture_chosen(const Choice& any);
  void put(Place place, const Choice& any);
  [[nodiscard]] Stream stream_of(Branch branch) const {
    return branch == Branch::beside ? beside_ : branch == Branch::behind ? behind_ : in_line_;
  }
  [[nodiscard]] Event group_done(std::int64_t chunk) const {
    return group_done_[static_cast<std::size_t>(chunk / most_.together)];
  }

  Device& device_;
  Stream in_line_;
  Stream beside_;
  Stream behind_;
  WindowExtent most_;
  Event stored_;
  std::vector<Event> group_done_;
  Event gathered_;
  std::vector<Event> output_done_;  // by slot
  std::vector<Captured> graphs_;    // by Order; empty: one by one
  Order order_ = Order::dense;
  bool replays_ = false;
};

}  // namespace headwater::cuda
