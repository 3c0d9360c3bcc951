#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/buffer.hpp"
#include "cuda/device/device.hpp"
#include "cuda/dispatch.hpp"
#include "cuda/kernels/params.hpp"
#include "cuda/tuning.hpp"
#include "cuda/window_launches.hpp"
#include "headwater/session.hpp"

namespace headwater::cuda {

/// Whose memory the rows of a session are. Of the device: on the caller's stream (a cudaStream_t; null: the default one).
struct RowPlace {
  bool on_device = false;
  void* stream = nullptr;
};

inline constexpr std::int64_t kFloat = sizeof(float);

/// How many pieces of a size make a whole.
inline std::int64_t pieces(std::int64_t total, std::int64_t size) { return (total + size - 1) / size; }

inline Grid grid(std::int64_t x, std::int64_t y, std::int64_t z) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

/// Elements from one stored row of `width` elements to the next: whole vectors.
std::int64_t padded_width(std::int64_t width, DType type);

/// What a session stores on its device and what its options say: all that its passes and kernel paths share.
struct SessionData {
  enum class Account : std::uint8_t { kv, scores, memory_sets, workspace };

  /// `effective` is resolve(shape, options) and outlives this. Takes the memory of all stores. Errors: out_of_memory,
  /// std::bad_alloc; invalid_argument: the caller's stream is another device's, or is being captured.
  SessionData(std::unique_ptr<Device> opened, const Dispatch& kernels, const Shape& session_shape,
              const Options& wished, const EffectiveOptions& effective, const RowPlace& rows);

  /// Device memory of `count` elements, null for none; `what` names it in the error.
  template <class T>
  T* take(std::int64_t count, const char* what, Account account = Account::workspace) {
    const std::int64_t taken = core::checked_product(count, static_cast<std::int64_t>(sizeof(T)));
    if (taken == 0) return nullptr;
    std::int64_t* const accounts[] = {&bytes.kv, &bytes.scores, &bytes.memory_sets, &bytes.workspace};
    *accounts[static_cast<std::size_t>(account)] += taken;
    return static_cast<T*>(device->allocate(taken, what));
  }
  /// Cuts the first `count` floats off `next`.
  float* part(float*& next, std::int64_t count, const char* what) const;

  [[nodiscard]] StoredRows keys(std::int64_t layer) const;
  [[nodiscard]] StoredRows values(std::int64_t layer) const;
  /// [Hq][capacity] of a layer.
  [[nodiscard]] void* scores(std::int64_t layer) const;
  [[nodiscard]] bool scores_bf16() const { return options.score_type == ScoreType::bf16; }
  /// Of a sparse session: its longest chunk.
  [[nodiscard]] std::int64_t longest_chunk() const { return std::min(options.chunk, shape.capacity); }
  /// The most that a sparse window has, its intra passes launched at once.
  [[nodiscard]] WindowExtent extent() const;

  const std::unique_ptr<Device> device;
  const Dispatch& dispatch;
  const Shape shape;
  const EffectiveOptions& options;
  const bool device_rows;
  const Stream stream;
  const std::int64_t group;      ///< query heads of a key/value head
  const std::int64_t key_width;  ///< elements from one stored row to the next
  const std::int64_t value_width;
  const std::int64_t set_width;      ///< most entries of a memory set; 0: the session is dense
  const std::int64_t window_rows;    ///< most rows of a window
  const std::int64_t element_bytes;  ///< of the KV type
  const std::int64_t score_bytes;
  MemoryBytes bytes;  ///< of device and host memory that was taken
  LogitRule rule{};
  LogitRule vote_rule{};          ///< of estimates, whose products have the scale (SEL-5): no unit, no sinks
  float* lse = nullptr;           ///< device, [Hq][window]
  core::Buffer<float> shown_lse;  ///< host, [Hq][capacity]: what observers look at

 private:
  const float* upload(const std::vector<float>& values, double factor, const char* what);

  unsigned char* keys_ = nullptr;    // [layers][Hkv][capacity][key_width]
  unsigned char* values_ = nullptr;  // [layers][Hkv][capacity][value_width]
  unsigned char* scores_ = nullptr;  // [layers][Hq][capacity]
};

class KernelPath;

/// A window of a layer's call: rows of positions [begin, end) stand in q and out from row 0 on.
struct Window {
  WindowLaunches& launches;
  KernelPath& path;
  std::int64_t layer;
  std::int64_t begin;
  std::int64_t end;
  InputRows q;
  OutputRows out;
  DType unit;                ///< arithmetic of the products
  const Observer& observer;  ///< may be empty

  [[nodiscard]] bool observed() const { return static_cast<bool>(observer); }
};

}  // namespace headwater::cuda
