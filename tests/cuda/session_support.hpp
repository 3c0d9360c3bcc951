#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/numbers.hpp"
#include "cuda/cuda_session.hpp"
#include "cuda/device/emulated_device.hpp"

/// Small sessions on the emulated device, two layers of GQA with several chunks to a batch, and the rows that their tests give
/// them.
namespace headwater::cuda {

inline constexpr std::int64_t kHeads = 4;
inline constexpr std::int64_t kHeadsKv = 2;
inline constexpr std::int64_t kWidth = 16;
inline constexpr std::int64_t kLayers = 2;
inline constexpr std::int64_t kCapacity = 300;
inline constexpr std::int64_t kBatch = 64;

inline const Dispatch& dispatch() {
  static const Dispatch dispatch(on_host::entries());
  return dispatch;
}

inline Shape shape(DType kv_type) {
  Shape shape;
  shape.kv_type = kv_type;
  shape.n_layer = kLayers;
  shape.n_head = kHeads;
  shape.n_head_kv = kHeadsKv;
  shape.d_head = kWidth;
  shape.d_value = kWidth;
  shape.capacity = kCapacity;
  return shape;
}

inline Options options() {
  Options options;
  options.batch = kBatch;
  options.chunk = 32;
  options.local = 4;
  options.heavy = 5;
  return options;
}

/// Two query blocks to a chunk, of two pools each, and a second stage.
inline Options blocks_options() {
  Options asked = options();
  asked.select = Select::blocks;
  asked.heavy = 8;
  asked.key_block = 4;
  asked.query_block = 16;
  asked.pool = 8;
  asked.refine = 2;
  return asked;
}

inline std::unique_ptr<CudaSession> session_on(std::unique_ptr<Device> device, DType kv_type = DType::f32,
                                               Launching launching = Launching::replayed,
                                               const RowPlace& rows = {}, const Options& asked = options(),
                                               const Sm90Switch& sm90_switch = {}) {
  return std::make_unique<CudaSession>(std::move(device), dispatch(), shape(kv_type), asked,
                                       core::resolve(shape(kv_type), asked, 1), launching, rows, sm90_switch);
}

/// Numbers between -1 and 1 that depend on their place and the seed only.
inline std::vector<float> numbers(std::int64_t count, std::uint32_t seed = 1) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return values;
}

/// The same as elements of a type.
inline std::vector<unsigned char> elements(std::int64_t count, DType type, std::uint32_t seed = 1) {
  std::vector<unsigned char> narrowed(static_cast<std::size_t>(count) * dtype_size(type));
  core::narrow(numbers(count, seed).data(), count, type, narrowed.data());
  return narrowed;
}

}  // namespace headwater::cuda
