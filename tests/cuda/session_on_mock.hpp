#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cuda/mock_device.hpp"
#include "tests/cuda/session_support.hpp"

namespace headwater::cuda {

/// A session, its device, and rows of its caller for up to `kCapacity` tokens.
struct OnMock {
  explicit OnMock(Launching launching, bool device_rows = false, std::int64_t chunk = options().chunk) {
    Options asked = options();
    asked.chunk = chunk;
    auto owned = std::make_unique<TracedDevice>(dispatch().kernels());
    device = owned.get();
    RowPlace place;
    if (device_rows) {
      place = {true, &caller_stream};
      EXPECT_CALL(*device, do_adopt(&caller_stream));
    }
    const std::int64_t bytes = kCapacity * kHeads * kWidth * static_cast<std::int64_t>(sizeof(float));
    for (void** const to : {&rows, &out}) {
      on_host.emplace_back(static_cast<std::size_t>(bytes));
      *to = device_rows ? device->take(bytes, false) : on_host.back().data();
    }
    session = session_on(std::move(owned), DType::f32, launching, place, asked);
  }

  void attend(std::int64_t layer) {
    session->attend(layer, headwater::Rows::token_major(rows, DType::f32, kHeads, kWidth),
                    headwater::Rows::token_major(rows, DType::f32, kHeadsKv, kWidth),
                    headwater::Rows::token_major(rows, DType::f32, kHeadsKv, kWidth),
                    MutableRows::token_major(out, DType::f32, kHeads, kWidth));
  }
  void run(const Step& step) {
    session->begin(step);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) attend(layer);
    session->end();
  }

  int caller_stream = 0;  // its address is the handle
  TracedDevice* device = nullptr;
  std::unique_ptr<CudaSession> session;
  std::vector<std::vector<unsigned char>> on_host;
  void* rows = nullptr;  // of q, k and v
  void* out = nullptr;
};

}  // namespace headwater::cuda
