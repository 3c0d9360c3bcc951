#pragma once

#include <cstdint>
#include <string>

#include "cuda/kernels/sm90/raw_params.hpp"
#include "cuda/kernels/sm90/tile_map.hpp"
#include "cuda/path/path.hpp"
#include "cuda/path/sm80.hpp"
#include "cuda/path/stages.hpp"

namespace headwater::cuda {

/// Kernels of sm_90a, stage by stage where they are taken (adr/0015); the others go to `sm80`. So do rows for which the
/// device has no tensor map.
class Sm90Path final : public KernelPath {
 public:
  /// Chooses the stages' kernels; takes no memory.
  Sm90Path(SessionData& data, Sm80Path& sm80, const Sm90Switch& sm90_switch, bool slopes);

  /// Errors: out_of_memory.
  void take_memory();
  /// Whether any stage has them, for rows of the KV type.
  [[nodiscard]] bool taken() const;
  /// Most launches of a group's forward passes.
  [[nodiscard]] std::int64_t intra_parts() const;
  /// Which kernels run in this session, and why.
  [[nodiscard]] std::string text() const { return text_of(stages_, refused_queries_); }

  void intra(const Window& window, const SparseStores& stores, std::int64_t group, std::int64_t begin,
             std::int64_t end) override;
  void inter_scores(const Window& window, const SparseStores& stores, const InterChunk& chunk) override;
  void inter_output(const Window& window, const SparseStores& stores, const InterChunk& chunk) override;
  void chosen_output(const Window& window, const SparseStores& stores, const QueryBlocks& at,
                     const ChosenSets& sets) override {
    sm80_.chosen_output(window, stores, at, sets);
  }
  void dense(const Window& window) override;

 private:
  [[nodiscard]] StageChoice& stage(PathStage stage) { return stages_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] bool takes(PathStage stage) const { return stages_[static_cast<std::size_t>(stage)].sm90; }
  [[nodiscard]] sm90::RowOutputs outputs(const Window& window) const;
  [[nodiscard]] sm90::TileMap query_map(const Window& window, std::int64_t begin, std::int64_t tokens,
                                        std::int64_t chunks, int rows) const;
  /// As many blocks as run at a time, no more than they have work.
  [[nodiscard]] Grid persistent(int items) const;
  bool encode(const sm90::TileMap& map, sm90::TensorMap& to, StageChoice& stage);
  bool encode_queries(const sm90::TileMap& map, sm90::TensorMap& to, StageChoice& stage);

  // These are false where the device has no tensor map for the rows: nothing was launched.
  /// Chunks of `chunk` tokens fill [begin, end); `of`: whose stage it is.
  bool try_intra(PathStage of, const WindowLaunches::IntraPlaces& places, const Window& window,
                 const SparseStores& stores, std::int64_t begin, std::int64_t end, std::int64_t chunk);
  bool try_scores(const Window& window, const SparseStores& stores, const InterChunk& inter);
  bool try_output(const Window& window, const SparseStores& stores, const InterChunk& inter);
  bool try_dense(const Window& window);

  SessionData& data_;
  Sm80Path& sm80_;
  StageChoices stages_;
  Choice causal_;
  Choice column_sums_;
  Choice scores_;
  Choice memory_;
  const char* refused_queries_ = nullptr;  // why those of the last window had no tensor map
  float* lse2_ = nullptr;                  // [Hq][chunks of a launch][whole tiles of a chunk]
  float* partial_sums_ = nullptr;          // [Hq][runs of queries of a chunk][memory keys]
};

}  // namespace headwater::cuda
