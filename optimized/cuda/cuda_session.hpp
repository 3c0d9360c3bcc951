#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/buffer.hpp"
#include "core/session_base.hpp"
#include "cuda/layer.hpp"
#include "cuda/pass/blocks.hpp"
#include "cuda/pass/dense.hpp"
#include "cuda/pass/sparse.hpp"
#include "cuda/path/sm80.hpp"
#include "cuda/path/sm90.hpp"
#include "cuda/staging.hpp"

namespace headwater::cuda {

/// A session of the CUDA engine: its stores on one device, the passes over them, and the paths (families of kernels)
/// that a call may choose from.
///
/// A call is computed in windows of rows, sparse ones of whole chunks. Rows in device memory are read and written where
/// they are, on the caller's stream: an attend() takes no memory and the host waits for nothing. Rows in host memory are
/// staged (staging.hpp); the host waits once for each window, whose outputs it hands back. An observer is shown copies,
/// for which the host waits, too.
class CudaSession final : public core::SessionBase {
 public:
  /// `effective` is resolve(shape, options). Takes all memory. Errors: out_of_memory, std::bad_alloc.
  CudaSession(std::unique_ptr<Device> device, const Dispatch& dispatch, const Shape& shape,
              const Options& wished, const EffectiveOptions& effective,
              Launching launching = Launching::replayed, const RowPlace& rows = {},
              const Sm90Switch& sm90_switch = {});

  void attend_stored(std::int64_t /*layer*/, const headwater::Rows& /*q*/,
                     const headwater::StoredRows& /*rows*/, const headwater::MutableRows& /*out*/,
                     const LseOutput& /*lse*/) override {
    refuse("attend_stored()");  // whether a step is open or not
  }
  [[nodiscard]] MemoryBytes memory_bytes() const override { return data_.bytes; }
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override;
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override;
  [[nodiscard]] const Device& device() const { return *data_.device; }
  /// Which kernels run in this session, and why.
  [[nodiscard]] std::string paths() const { return sm90_.text(); }

 private:
  void check_rows(const headwater::SequenceCall& call) const override;
  void run_layer(const headwater::SequenceCall& call) override;
  void forget() override;

  /// Chunks of the plan that the window beginning with `first` holds.
  [[nodiscard]] std::size_t window_chunks(std::size_t first) const;
  void store_rows(const Window& window, const InputRows& k, const InputRows& v);
  void read_row(const StoredRows& rows, std::int64_t head_kv, std::int64_t position, std::span<float> row,
                std::int64_t width) const;

  SessionData data_;
  Sm80Path sm80_;
  Sm90Path sm90_;
  std::optional<SparsePass> sparse_;  // rule h2o; none: the session is dense or has another
  std::optional<BlocksPass> blocks_;  // rule blocks
  DensePass dense_;
  Staging staging_;
  std::optional<WindowLaunches> launches_;

  // Host memory: what callers look at.
  mutable core::Buffer<unsigned char> shown_scores_;  // [layers][Hq][capacity]
  mutable core::Buffer<unsigned char> shown_row_;
};

}  // namespace headwater::cuda
