#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tests/cuda/session_support.hpp"

/// Who calls a session of session_support.hpp, with rows of the host's or of the device's memory.
namespace headwater::cuda {

inline constexpr std::int64_t kMostTokens = 150;

/// A session, and what its caller holds: rows of q, of k and v, of out, `offset` elements after an aligned address.
struct Caller {
  Caller(RowMemory memory, DType row_type, const EmulationOptions& emulation = {},
         Launching launching = Launching::replayed, std::int64_t offset_elements = 0,
         std::optional<DType> outputs = std::nullopt, const Options& asked = options())
      : type(row_type), out_type(outputs.value_or(row_type)), offset(offset_elements) {
    auto opened = open_emulated_device(dispatch().kernels(), emulation);
    device = opened.get();
    stream = device->stream();
    RowPlace place;
    if (memory == RowMemory::device) place = {true, device->native_handle(stream)};
    session = session_on(std::move(opened), type, launching, place, asked);
    const auto take = [&](void*& rows, DType of) {
      const auto size = static_cast<std::int64_t>(dtype_size(of));
      const std::int64_t bytes = (kMostTokens * kHeads * kWidth + offset) * size;
      on_host.emplace_back(static_cast<std::size_t>(bytes), 0xFF);
      rows = memory == RowMemory::device ? device->allocate(bytes, "rows") : on_host.back().data();
      rows = static_cast<unsigned char*>(rows) + offset * size;
    };
    take(q, type);
    take(kv, type);
    take(out, out_type);
    fill(q, kHeads, 1);
    fill(kv, kHeadsKv, 2);
    device->synchronize(stream);
  }

  void fill(void* rows, std::int64_t heads, std::uint32_t seed) {
    const std::vector<unsigned char> source = elements(kMostTokens * heads * kWidth, type, seed);
    copy(rows, source.data(), static_cast<std::int64_t>(source.size()), Direction::host_to_device);
  }

  void copy(void* to, const void* from, std::int64_t bytes, Direction direction) {
    const void* rows = direction == Direction::host_to_device ? to : from;
    if (device->kind(rows) == PointerKind::device) {
      device->copy(stream, to, from, bytes, direction);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
  }

  void attend(std::int64_t layer) {
    session->attend(layer, headwater::Rows::token_major(q, type, kHeads, kWidth),
                    headwater::Rows::token_major(kv, type, kHeadsKv, kWidth),
                    headwater::Rows::token_major(kv, type, kHeadsKv, kWidth),
                    MutableRows::token_major(out, out_type, kHeads, kWidth));
  }

  void run(const Step& step) {
    session->begin(step);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) attend(layer);
    session->end();
  }

  /// The last layer's outputs and all scores, bit by bit.
  std::vector<unsigned char> result(const Step& step) {
    run(step);
    std::vector<unsigned char> bits(static_cast<std::size_t>(step.n * kHeads * kWidth) *
                                    dtype_size(out_type));
    copy(bits.data(), out, static_cast<std::int64_t>(bits.size()), Direction::device_to_host);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const ScoreView scores = session->scores(layer);
      for (std::int64_t head = 0; head < kHeads; ++head) {
        const auto* first = static_cast<const unsigned char*>(scores.data) + head * scores.head_stride * 2;
        bits.insert(bits.end(), first, first + session->tokens() * 2);
      }
    }
    return bits;
  }

  DType type, out_type;
  std::int64_t offset;
  Device* device = nullptr;
  Stream stream{};
  std::unique_ptr<CudaSession> session;
  std::vector<std::vector<unsigned char>> on_host;
  void* q = nullptr;
  void* kv = nullptr;
  void* out = nullptr;
};

inline const std::vector<Step>& steps() {
  static const std::vector<Step> steps{Step::prefill(kMostTokens), Step::prefill(20), Step::decode(1),
                                       Step::decode(3)};
  return steps;
}

}  // namespace headwater::cuda
