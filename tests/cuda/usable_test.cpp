#include "cuda/device/usable.hpp"

#include <gmock/gmock.h>

#include "cuda/device/emulated_device.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

Probe good() { return {13000, 13000, "", 2, 1, "NVIDIA H200", 90}; }

TEST(Usable, WhatIsThereAndNewEnough) {
  EXPECT_EQ(why_unusable(good()), "");
  Probe probe = good();
  probe.compute_capability = 80;
  probe.ordinal = 0;
  probe.driver_version = 13020;
  EXPECT_EQ(why_unusable(probe), "");
  probe.driver_version = 13000;
  probe.runtime_version = 13020;  // minor versions run on each other
  EXPECT_EQ(why_unusable(probe), "");
}

TEST(Usable, SaysWhatIsMissing) {
  const auto reason = [](auto change) {
    Probe probe = good();
    change(probe);
    const std::string why = why_unusable(probe);
    EXPECT_EQ(why.find('\n'), std::string::npos);
    return why;
  };
  EXPECT_THAT(reason([](Probe& p) { p.driver_version = 0; }), HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(reason([](Probe& p) { p.driver_version = 12080; }),
              HasSubstr("too old: it knows CUDA 12.8; needed: 13.0"));
  EXPECT_THAT(reason([](Probe& p) { p.devices = 0; }), HasSubstr("no device is there"));
  EXPECT_THAT(reason([](Probe& p) { p.error = "system not yet initialized"; }),
              HasSubstr("system not yet initialized"));
  EXPECT_THAT(reason([](Probe& p) { p.ordinal = 2; }), HasSubstr("no device 2; allowed: 0 .. 1"));
  EXPECT_THAT(reason([](Probe& p) { p.ordinal = -1; }), HasSubstr("no device -1"));
  EXPECT_THAT(reason([](Probe& p) { p.compute_capability = 75; }),
              HasSubstr("NVIDIA H200 has compute capability 7.5; needed: 8.0"));
}

TEST(Usable, AnEmulatedDeviceSaysWhichItPlays) {
  for (const int capability : {80, 90}) {
    EmulationOptions options;
    options.compute_capability = capability;
    const DeviceInfo info = open_emulated_device({}, options)->info();
    EXPECT_EQ(info.compute_capability, capability);
    EXPECT_EQ(info.shared_limit, capability == 90 ? kSharedLimitSm90 : kSharedLimitSm80);
  }
}

}  // namespace
}  // namespace headwater::cuda
