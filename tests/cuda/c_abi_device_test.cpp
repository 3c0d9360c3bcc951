// The device of a session through the C ABI, on a machine of two emulated devices.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>

#include "bindings/c_abi_support.hpp"
#include "cuda/cuda_session.hpp"
#include "cuda/device/emulated_device.hpp"
#include "headwater/headwater.h"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

constexpr headwater_shape kShape{1, 1, 1, 16, 16, 64, HEADWATER_F32, 0};

headwater_options defaults() {
  headwater_options options;
  EXPECT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  return options;
}

/// The ordinal of the device of the session that these open; -1: they open none.
int opened_on(const headwater_options& options) {
  headwater_session* session = nullptr;
  const headwater_status status = headwater_open("cuda-emulated", &kShape, &options, &session);
  EXPECT_EQ(status == HEADWATER_OK, session != nullptr);
  if (session == nullptr) {
    EXPECT_EQ(status, HEADWATER_INVALID_ARGUMENT);
    return -1;
  }
  const int ordinal = dynamic_cast<const CudaSession&>(*session->session).device().info().ordinal;
  headwater_close(session);
  return ordinal;
}

TEST(CAbiDevice, ZeroIsTheCurrentOneAndNumbersCountFromOne) {
  headwater_options options = defaults();
  EXPECT_EQ(options.device_plus_1, 0);
  for (const int current : {1, 0}) {
    ASSERT_TRUE(set_emulated_current_device(current));
    options.device_plus_1 = 0;
    EXPECT_EQ(opened_on(options), current);
    for (const int ordinal : {0, 1}) {
      options.device_plus_1 = ordinal + 1;
      EXPECT_EQ(opened_on(options), ordinal);
      EXPECT_EQ(emulated_current_device(), current);
    }
    options.device_plus_1 = 3;
    EXPECT_EQ(opened_on(options), -1);
    EXPECT_THAT(headwater_last_error(), HasSubstr("device is 2; allowed: 0 .. 1"));
    EXPECT_EQ(emulated_current_device(), current);
  }
}

TEST(CAbiDevice, IsNotReadFromAStructureThatEndsBeforeIt) {
  headwater_options options = defaults();
  options.struct_size = offsetof(headwater_options, device_plus_1);
  options.device_plus_1 = 77;
  EXPECT_EQ(opened_on(options), 0);
}

TEST(CAbiDevice, AStreamOfAnotherDeviceIsRefused) {
  EmulationOptions emulation;
  emulation.ordinal = 1;
  const auto elsewhere = open_emulated_device({}, emulation);
  headwater_options options = defaults();
  options.row_memory = HEADWATER_DEVICE_MEMORY;
  options.stream = elsewhere->native_handle(elsewhere->stream());
  EXPECT_EQ(opened_on(options), -1);
  EXPECT_THAT(headwater_last_error(),
              HasSubstr("stream is one of another device; allowed: a stream of device 0"));
}

}  // namespace
}  // namespace headwater::cuda
