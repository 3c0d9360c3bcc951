#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "cuda/layer.hpp"
#include "cuda/path/path.hpp"

namespace headwater::cuda {

/// Sparse prefill: the intra pass of all chunks of a window, then chunk by chunk memory set, column sums and outputs of
/// the inter pass.
///
/// A window is one chunk in the chunk-major schedule, up to a batch in the layer-major one. Phase 1 computes the intra
/// pass and the column sums of all its chunks, group by group; phase 2 walks them in order (SCHED-1): select, gather,
/// column sums; outputs of the inter pass follow. Tiles are cut from chunks, so that both schedules give the same bits
/// (SCHED-2).
class SparsePass {
 public:
  /// Of a session whose options are sparse. Takes all memory. Errors: out_of_memory, std::bad_alloc.
  explicit SparsePass(SessionData& data);

  void forget();
  /// Copies a layer's memory sets to the host and waits for them.
  [[nodiscard]] MemoryView memory(std::int64_t layer) const;
  /// All chunks of a window, whose rows are stored (WindowLaunches::after_store).
  void run(const Window& window, std::span<const Chunk> chunks);

 private:
  /// Of a layer's memory set, the same for all heads.
  struct SetState {
    std::int64_t count = 0;
    std::int64_t built_at = 0;
  };

  void take_rows();
  void take_states();
  [[nodiscard]] std::int32_t* sets(std::int64_t layer) const;
  [[nodiscard]] SetState& state(std::int64_t layer) { return states_[static_cast<std::size_t>(layer)]; }
  void build_memory(const Window& window, const Chunk& chunk, std::int64_t index);
  void gather(const Window& window, std::int64_t index);
  void report(const Window& window, const Chunk& chunk);

  SessionData& data_;
  std::vector<SetState> states_;         // by layer
  std::int32_t* sets_ = nullptr;         // [layers][Hq][set_width]
  std::int32_t* set_scratch_ = nullptr;  // [Hq][set_width]
  SparseStores stores_;

  // Host memory: what callers and observers look at.
  mutable core::Buffer<std::int32_t> shown_sets_;  // as sets_
  core::Buffer<float> shown_intra_;                // [Hq][window]
  core::Buffer<float> shown_inter_;                // [Hq][set_width]
};

}  // namespace headwater::cuda
