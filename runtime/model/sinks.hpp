#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/model/kernels/kernels.hpp"
#include "runtime/model/model.hpp"
#include "runtime/model/projection.hpp"
#include "runtime/model/routing.hpp"

namespace headwater::runtime {

/// out[row][column] = value (+ bias[column]).
class StoreSink final : public TileSink {
 public:
  StoreSink(float* out, std::int64_t width, const std::vector<float>& bias)
      : out_(out), width_(width), bias_(bias.empty() ? nullptr : bias.data()) {}
  void take(const Tile& tile) const override {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const float* const from = tile.values + r * tile.stride;
      float* const to = out_ + (tile.row + r) * width_ + tile.column;
      std::memcpy(to, from, static_cast<std::size_t>(tile.columns) * sizeof(float));
      if (bias_ == nullptr) continue;
      for (std::int64_t c = 0; c < tile.columns; ++c) to[c] += bias_[tile.column + c];
    }
  }

 private:
  float* out_;
  std::int64_t width_;
  const float* bias_;
};

/// out[row][column] += scale * (value + bias[column]): into the residual stream. `bias` may be empty.
class AddSink final : public TileSink {
 public:
  AddSink(float* out, std::int64_t width, const std::vector<float>& bias, float scale)
      : out_(out), width_(width), bias_(bias.empty() ? nullptr : bias.data()), scale_(scale) {}
  void take(const Tile& tile) const override {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      kernels().add_scaled(tile.values + r * tile.stride, bias_ == nullptr ? nullptr : bias_ + tile.column,
                           tile.columns, scale_, out_ + (tile.row + r) * width_ + tile.column);
    }
  }

 private:
  float* out_;
  std::int64_t width_;
  const float* bias_;
  float scale_;
};

/// out[visits[row].row][column] += scale * visits[row].weight * (value + bias[column]): an expert's rows, into the residual
/// stream. `bias` may be empty.
class VisitSink final : public TileSink {
 public:
  VisitSink(float* out, std::int64_t width, std::span<const Routing::Visit> visits,
            const std::vector<float>& bias, float scale)
      : out_(out),
        width_(width),
        visits_(visits),
        bias_(bias.empty() ? nullptr : bias.data()),
        scale_(scale) {}
  void take(const Tile& tile) const override {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const Routing::Visit& visit = visits_[static_cast<std::size_t>(tile.row + r)];
      kernels().add_scaled(tile.values + r * tile.stride, bias_ == nullptr ? nullptr : bias_ + tile.column,
                           tile.columns, scale_ * visit.weight, out_ + visit.row * width_ + tile.column);
    }
  }

 private:
  float* out_;
  std::int64_t width_;
  std::span<const Routing::Visit> visits_;
  const float* bias_;
  float scale_;
};

/// out[row][i] = silu(gate i) * up i, or what else `gate` says, of a projection whose rows are kGateRows of gate and as many of
/// up in turn. `bias`: of its columns, added first; may be empty. `rounded`: out is BF16, else F32. Tiles begin at multiples of
/// 2 * kGateRows; only the last pair may be shorter.
class GateSink final : public TileSink {
 public:
  GateSink(Gate gate, void* out, std::int64_t width, const std::vector<float>& bias, bool rounded)
      : out_(static_cast<std::byte*>(out)),
        width_(width),
        bias_(bias.empty() ? nullptr : bias.data()),
        rounded_(rounded) {
    const Kernels& loops = kernels();
    switch (gate) {
      case Gate::silu: loop_ = loops.swiglu, rounded_loop_ = loops.swiglu_bf16; break;
      case Gate::gelu: loop_ = loops.geglu, rounded_loop_ = loops.geglu_bf16; break;
      case Gate::clamped: loop_ = loops.clamped_glu, rounded_loop_ = loops.clamped_glu_bf16; break;
    }
  }
  void take(const Tile& tile) const override {
    assert(tile.columns <= Projection::kPanelWidth);
    float biased[Projection::kPanelWidth];
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const float* from = tile.values + r * tile.stride;
      if (bias_ != nullptr) {
        for (std::int64_t c = 0; c < tile.columns; ++c) biased[c] = from[c] + bias_[tile.column + c];
        from = biased;
      }
      const std::int64_t at = (tile.row + r) * width_ + tile.column / 2;
      if (rounded_) {
        rounded_loop_(from, tile.columns / 2, reinterpret_cast<std::uint16_t*>(out_) + at);
      } else {
        loop_(from, tile.columns / 2, reinterpret_cast<float*>(out_) + at);
      }
    }
  }

 private:
  decltype(Kernels::swiglu) loop_ = nullptr;
  decltype(Kernels::swiglu_bf16) rounded_loop_ = nullptr;
  std::byte* out_;
  std::int64_t width_;
  const float* bias_;
  bool rounded_;
};

}  // namespace headwater::runtime
