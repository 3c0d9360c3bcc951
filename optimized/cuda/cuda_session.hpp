#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.hpp"
#include "core/session_base.hpp"
#include "cuda/device/device.hpp"
#include "cuda/dispatch.hpp"
#include "cuda/kernels/params.hpp"
#include "cuda/kernels/sm90/raw_params.hpp"
#include "cuda/paths.hpp"
#include "cuda/tuning.hpp"
#include "cuda/window_launches.hpp"

namespace headwater::cuda {

/// Whose memory the rows of a session are. Of the device: on the caller's stream (a cudaStream_t; null: the default one).
struct RowPlace {
  bool on_device = false;
  void* stream = nullptr;
};

/// A session of the CUDA engine: the schedule of the kernels on one device.
///
/// Sparse steps work in windows of whole chunks of a batch: one chunk in the chunk-major schedule, up to a batch in the
/// layer-major one. Phase 1 computes the intra pass and the column sums of all chunks of a window at once, phase 2 walks
/// them in order (SCHED-1): select, gather, column sums; outputs of the inter pass follow. Tiles are cut from chunks, so that both schedules give
/// the same bits (SCHED-2).
///
/// Rows in device memory are read and written where they are, on the caller's stream: an attend() takes no memory and the
/// host waits for nothing. Rows in host memory go through pinned buffers, those of two windows at a time: while one is computed the
/// next is copied in. The host waits once for each window, whose outputs it hands back. An observer is shown copies, for which the host waits, too.
class CudaSession final : public core::SessionBase {
 public:
  /// `effective` is resolve(shape, options). Takes all memory. Errors: out_of_memory, std::bad_alloc.
  CudaSession(std::unique_ptr<Device> device, const Dispatch& dispatch, const Shape& shape,
              const Options& options, const EffectiveOptions& effective,
              Launching launching = Launching::replayed, const RowPlace& rows = {},
              const Sm90Switch& sm90_switch = {});

  [[nodiscard]] MemoryBytes memory_bytes() const override { return bytes_; }
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override;
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override;
  [[nodiscard]] const Device& device() const { return *device_; }
  /// Which kernels run in this session, and why.
  [[nodiscard]] std::string paths() const { return text_of(sm90_.paths, sm90_.refused_queries); }

 private:
  /// A window of a layer's call: rows of positions [begin, end) stand in q and out from row 0 on.
  struct Window {
    std::int64_t layer;
    std::int64_t begin;
    std::int64_t end;
    InputRows q;
    OutputRows out;
    DType unit;
    bool observed;
  };
  /// Of a layer's memory set, the same for all heads.
  struct SetState {
    std::int64_t count = 0;
    std::int64_t built_at = 0;
  };
  /// Rows on their way between the caller's memory and the device, [rows][heads][width] without gaps.
  struct Staging {
    unsigned char* pinned[2] = {};  // by side
    unsigned char* device[2] = {};
    std::int64_t heads = 0;
    std::int64_t width = 0;
  };
  /// Outputs on their way back: rows [first, first + n) of the call.
  struct Returning {
    int side = 0;
    std::int64_t first = 0;
    std::int64_t n = 0;
  };
  /// Rows of a memory set side by side, and the positions that they came from.
  struct GatheredRows {
    unsigned char* keys;
    unsigned char* values;
    std::int32_t* positions;
  };
  enum class Account : std::uint8_t { kv, scores, memory_sets, workspace };

  void check_rows(const headwater::Rows& q, const headwater::Rows& k, const headwater::Rows& v,
                  const MutableRows& out) const override;
  void run_layer(std::int64_t layer, const headwater::Rows& q, const headwater::Rows& k,
                 const headwater::Rows& v, const MutableRows& out) override;
  void forget() override;

  /// Floats of device memory.
  struct Sm90Scratch {
    std::int64_t lse2 = 0;
    std::int64_t partial_sums = 0;
  };

  // cuda_session.cpp
  template <class T>
  T* take(std::int64_t count, const char* what, Account account = Account::workspace);
  void take_memory(const Shape& shape, const Options& options);
  void take_staging(const Shape& shape);
  [[nodiscard]] WindowExtent window_extent() const;
  void take_states(const Shape& shape);
  void* score_row(std::int64_t layer) const;
  void read_row(const void* device_row, std::int64_t width, std::span<float> row) const;

  // staging.cpp
  void require_memory(const char* name, const void* data, DType type) const;
  [[nodiscard]] static InputRows in_place(const Staging& staging, const headwater::Rows& rows,
                                          std::int64_t first);
  [[nodiscard]] static OutputRows out_in_place(const MutableRows& rows, std::int64_t first);
  InputRows stage_in(const Staging& staging, int side, const headwater::Rows& rows, std::int64_t first,
                     std::int64_t n);
  void await_staged(int side);
  [[nodiscard]] static OutputRows staged_out(const Staging& staging, int side, DType type);
  void stage_out(const Returning& outputs, DType type);
  void hand_back(const Returning& outputs, const MutableRows& rows);

  // passes.cpp
  void store_rows(const Window& window, const InputRows& k, const InputRows& v);
  void run_dense(const Window& window);
  void run_decode(const Window& window);
  void run_sparse(const Window& window, std::span<const Chunk> chunks);
  void intra_phase(const Window& window, std::int64_t group);
  void portable_intra(const WindowLaunches::IntraPlaces& places, const Window& window, std::int64_t begin,
                      std::int64_t end);
  void inter_scores(const Window& window, const Chunk& chunk, std::int64_t index);
  void inter_output(const Window& window, const Chunk& chunk, std::int64_t index);
  [[nodiscard]] GatheredRows gathered_rows(std::int64_t index) const;
  [[nodiscard]] StoredRows gathered_keys(std::int64_t index) const;
  [[nodiscard]] StoredRows gathered_values(std::int64_t index) const;
  [[nodiscard]] ForwardParams inter_params(const Window& window, const Chunk& chunk,
                                           std::int64_t index) const;
  void build_memory(const Window& window, const Chunk& chunk, std::int64_t index);
  void launch_forward(WindowLaunches::Place place, const ForwardParams& params, std::int64_t parts,
                      std::int64_t rows, DType unit);
  void launch_column_sums(WindowLaunches::Place place, const ColumnSumsParams& params, std::int64_t chunks,
                          std::int64_t keys, DType unit);
  [[nodiscard]] ForwardParams forward_params(const Window& window, std::int64_t begin,
                                             std::int64_t end) const;
  [[nodiscard]] ColumnSumsParams column_sums_params(const Window& window, std::int64_t begin,
                                                    std::int64_t end) const;
  [[nodiscard]] PassGeometry geometry(const Window& window, std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] StoredRows stored_keys(std::int64_t layer) const;
  [[nodiscard]] StoredRows stored_values(std::int64_t layer) const;
  [[nodiscard]] std::int32_t* sets(std::int64_t layer) const;
  [[nodiscard]] bool splits_decode(std::int64_t n) const;

  // sm90_passes.cpp
  /// A session's first chunk, chunks of full length, and a shorter one.
  static constexpr std::int64_t kSm90IntraParts = 3;
  void choose_paths(const Sm90Switch& sm90_switch, bool slopes);
  [[nodiscard]] Sm90Scratch sm90_scratch() const;
  [[nodiscard]] Path& path(PathStage stage) { return sm90_.paths[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] bool on_sm90(PathStage stage) const {
    return sm90_.paths[static_cast<std::size_t>(stage)].sm90;
  }
  [[nodiscard]] bool on_sm90(PathStage stage, const Window& window) const {
    return on_sm90(stage) && window.unit == shape().kv_type;
  }
  [[nodiscard]] sm90::RowOutputs sm90_outputs(const Window& window) const;
  [[nodiscard]] sm90::TileMap query_map(const Window& window, std::int64_t begin, std::int64_t tokens,
                                        std::int64_t chunks, int rows) const;
  /// As many blocks as run at a time, no more than they have work.
  [[nodiscard]] Grid persistent(int items) const;
  // These are false where the device has no tensor map for the rows: nothing was launched.
  /// Chunks of `chunk` tokens fill [begin, end); `stage`: whose path it is.
  bool sm90_intra(PathStage stage, const WindowLaunches::IntraPlaces& places, const Window& window,
                  std::int64_t begin, std::int64_t end, std::int64_t chunk);
  bool sm90_score(const Window& window, const Chunk& chunk, std::int64_t index);
  bool sm90_output(const Window& window, const Chunk& chunk, std::int64_t index);
  bool sm90_dense(const Window& window);
  bool encode(const sm90::TileMap& map, sm90::TensorMap& to, Path& path);
  bool encode_queries(const sm90::TileMap& map, sm90::TensorMap& to, Path& path);

  // report.cpp
  void report_sparse(const Window& window, const Chunk& chunk);
  void keep_lse(const Window& window, const Chunk& chunk);
  void report_dense(std::int64_t layer, const Chunk& chunk);

  /// Kernels of sm_90a, where they are taken.
  struct Sm90 {
    Paths paths;
    Choice causal;
    Choice column_sums;
    Choice scores;
    Choice memory;
    const char* refused_queries = nullptr;  // why those of the last window had no tensor map
    float* lse2 = nullptr;                  // [Hq][chunks of a launch][whole tiles of a chunk]
    float* partial_sums = nullptr;          // [Hq][runs of queries of a chunk][memory keys]
  };

  std::unique_ptr<Device> device_;
  const Dispatch& dispatch_;
  Sm90 sm90_;
  Stream stream_{};
  std::unique_ptr<WindowLaunches> launches_;
  bool device_rows_ = false;
  MemoryBytes bytes_;
  std::vector<SetState> set_states_;
  LogitRule rule_{};
  std::int64_t window_rows_ = 0;
  std::int64_t group_ = 1;
  std::int64_t key_width_ = 0;  // elements from one stored row to the next
  std::int64_t value_width_ = 0;
  std::int64_t set_width_ = 0;
  std::int64_t element_bytes_ = 0;  // of the KV type
  std::int64_t score_bytes_ = 0;
  std::int64_t decode_tokens_ = 0;  // of a step that is split along its keys

  // Device memory.
  unsigned char* keys_ = nullptr;               // [layers][Hkv][capacity][key_width]
  unsigned char* values_ = nullptr;             // [layers][Hkv][capacity][value_width]
  unsigned char* scores_ = nullptr;             // [layers][Hq][capacity]
  std::int32_t* sets_ = nullptr;                // [layers][Hq][set_width]
  std::int32_t* set_scratch_ = nullptr;         // [Hq][set_width]
  unsigned char* gathered_keys_ = nullptr;      // [slots][Hq][set_width][key_width]
  unsigned char* gathered_values_ = nullptr;    // [slots][Hq][set_width][value_width]
  std::int32_t* gathered_positions_ = nullptr;  // [slots][Hq][set_width]
  float* colsum_intra_ = nullptr;               // [Hq][window]
  float* colsum_inter_ = nullptr;               // [Hq][set_width]
  SoftmaxState intra_{};                        // [Hq][window]
  SoftmaxState inter_{};                        // [Hq][window], without outputs
  SoftmaxState parts_{};                        // [splits][Hq][decode tokens]
  float* lse_ = nullptr;                        // [Hq][window]
  float* slopes_ = nullptr;
  float* sinks_ = nullptr;
  int sides_ = 0;  // windows whose rows are staged at a time; 0: none are
  Stream inward_{};
  Stream outward_{};
  Event staged_[2] = {};  // by side
  Event computed_[2] = {};
  Event returned_[2] = {};
  Staging q_staging_;
  Staging k_staging_;
  Staging v_staging_;
  Staging out_staging_;

  // Host memory: what callers and observers look at.
  core::Buffer<unsigned char> shown_scores_;  // as scores_
  core::Buffer<std::int32_t> shown_sets_;     // as sets_
  core::Buffer<float> shown_intra_;           // [Hq][window]
  core::Buffer<float> shown_inter_;           // [Hq][set_width]
  core::Buffer<float> shown_lse_;             // [Hq][capacity]
  mutable core::Buffer<unsigned char> shown_row_;
};

}  // namespace headwater::cuda
