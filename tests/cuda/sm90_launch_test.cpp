// Tensor maps and launches of kernels of sm_90a by a device, captured and not; what the device refuses.
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/numbers.hpp"
#include "cuda/device/emulated_device.hpp"
#include "cuda/dispatch.hpp"
#include "cuda/kernels/sm90/column_sums.hpp"
#include "cuda/kernels/sm90/forward.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kTokens = 200;
constexpr int kWidth = 64;
constexpr std::int64_t kElements = std::int64_t{kTokens} * kWidth;

const Dispatch& dispatch() {
  static const Dispatch dispatch(on_host::entries());
  return dispatch;
}

std::unique_ptr<Device> device(int compute_capability) {
  EmulationOptions options;
  options.compute_capability = compute_capability;
  return open_emulated_device(dispatch().kernels(), options);
}

sm90::TileMap rows_at(const void* rows) {
  return sm90::tile_map({rows, kWidth, kTokens, 1, 1, kWidth, kElements}, sm90::kTile);
}

/// One head, one chunk: queries that are keys and values, too.
class Launch {
 public:
  Launch() : device_(device(90)), stream_(device_->stream()) {
    std::vector<std::uint16_t> rows(kElements);
    for (std::int64_t i = 0; i < kElements; ++i) {
      rows[static_cast<std::size_t>(i)] =
          core::bf16_from_float(static_cast<float>(i * 7 % 13) * 0.25f - 1.5f);
    }
    auto* at = static_cast<std::uint16_t*>(device_->allocate(2 * kElements, "rows"));
    device_->copy(stream_, at, rows.data(), 2 * kElements, Direction::host_to_device);
    for (sm90::TensorMap* map : {&params_.q, &params_.k, &params_.v}) {
      EXPECT_EQ(device_->encode(rows_at(at), *map), nullptr);
    }
    params_.shape = {1, 1, 1, kTokens};
    params_.rule.factor = 0.18f;
    auto* state = static_cast<float*>(device_->allocate((3 * kTokens + kElements) * 4, "state"));
    params_.state = {state, state + kTokens, state + 2 * kTokens, state + 3 * kTokens, kTokens};
    params_.position = kTokens;  // rows stay unfinished
    params_.dv = kWidth;
    params_.lse2 = static_cast<float*>(device_->allocate(256 * 4, "lse"));
  }

  Device& device_of() { return *device_; }
  Stream stream() const { return stream_; }
  void forward() {
    const Choice kernel = dispatch().sm90(Stage::sm90_causal, DType::bf16, kWidth, kWidth, false);
    device_->launch(stream_, kernel.index, {2, 1, 1}, kernel.entry->shared_bytes, params_);
  }
  std::vector<float> take() {
    std::vector<float> state(3 * kTokens + kElements);
    device_->copy(stream_, state.data(), params_.state.max, static_cast<std::int64_t>(state.size()) * 4,
                  Direction::device_to_host);
    device_->set(stream_, params_.state.max, 0xFF, static_cast<std::int64_t>(state.size()) * 4);
    device_->synchronize(stream_);
    return state;
  }

 private:
  std::unique_ptr<Device> device_;
  Stream stream_;
  sm90::CausalForwardParams params_{};
};

TEST(Sm90Launch, ACapturedLaunchHoldsItsTensorMaps) {
  Launch launch;
  launch.forward();
  const std::vector<float> direct = launch.take();
  EXPECT_GT(direct[kTokens], 0.0f) << "a sum of weights";
  Device& device = launch.device_of();
  device.begin_capture(launch.stream());
  launch.forward();
  const Graph graph = device.end_capture(launch.stream());
  for (int replay = 0; replay < 2; ++replay) {
    device.replay(graph, launch.stream());
    EXPECT_EQ(launch.take(), direct);
  }
}

TEST(Sm90Launch, MapsCanBeMadeDuringACapture) {
  Launch launch;
  Device& device = launch.device_of();
  auto* rows = device.allocate(2 * kElements, "rows");
  device.begin_capture(launch.stream());
  sm90::TensorMap map;
  EXPECT_EQ(device.encode(rows_at(rows), map), nullptr);
  (void)device.end_capture(launch.stream());
}

TEST(Sm90Launch, ADeviceRefusesMapsWithAReason) {
  const auto old = device(80);
  auto* rows = static_cast<unsigned char*>(old->allocate(2 * kElements + 16, "rows"));
  sm90::TensorMap map;
  EXPECT_THAT(old->encode(rows_at(rows), map), HasSubstr("compute capability 9.0"));
  const auto owner = device(90);
  rows = static_cast<unsigned char*>(owner->allocate(2 * kElements + 16, "rows"));
  EXPECT_THAT(owner->encode(rows_at(rows + 8), map), HasSubstr("multiple of 16 bytes"));
  EXPECT_EQ(owner->encode(rows_at(rows + 16), map), nullptr);
}

/// The emulation's own check: a driver would take the map, and a copy would read past the memory.
TEST(Sm90Launch, AMapBehindItsAllocationIsTheDevicesEnd) {
  const auto owner = device(90);
  auto* rows = owner->allocate(2 * kElements - 2, "rows");
  sm90::TensorMap map;
  EXPECT_THROW((void)owner->encode(rows_at(rows), map), Error);
  EXPECT_TRUE(owner->failed());
}

TEST(Sm90Launch, ALaunchOfTheWrongSizeIsRefused) {
  Launch launch;
  const Choice sums = dispatch().sm90(Stage::sm90_column_sums, DType::bf16, kWidth, 0, false);
  EXPECT_THROW(launch.device_of().launch(launch.stream(), sums.index, {1, 1, 1}, sums.entry->shared_bytes,
                                         sm90::CausalForwardParams{}),
               Error);
}

}  // namespace
}  // namespace headwater::cuda
