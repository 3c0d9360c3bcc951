// Global memory of the emulation: what a kernel or a copy may touch, and what has been written there. A fault names kernel,
// block, thread and buffer.
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/device/emulated_device.hpp"
#include "cuda/kernels/platform/global.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Access { element, vector, copy_async, store, store_vector, atomic };

struct TouchParams {
  Global<float> data;
  std::int64_t at;
  Access access;
  Global<float> to;
};

/// One access at element `at`, by thread 5 of block 1.
template <class Context>
HEADWATER_CUDA_FUNCTION void touch(Context& ctx, const TouchParams& p) {
  if (ctx.block_x() != 1 || ctx.thread() != 5) return;
  switch (p.access) {
    case Access::element: {
      const float value = p.data[p.at];
      p.to[0] = value;
      break;
    }
    case Access::vector: ctx.store16(p.to, ctx.load16(p.data + p.at)); break;
    case Access::copy_async:
      ctx.copy_async16(ctx.template shared<float>(0, 4), p.data + p.at, true);
      ctx.copy_commit();
      ctx.template copy_wait<0>();
      break;
    case Access::store: p.data[p.at] = 1.0f; break;
    case Access::store_vector: ctx.store16(p.data + p.at, Words4{}); break;
    case Access::atomic: (void)ctx.atomic_add(elements_of<std::uint32_t>(p.data) + p.at, 1); break;
  }
}

HEADWATER_CUDA_KERNEL(touch_32, TouchParams, 32, 1, touch)
const Kernel kKernels[] = {HEADWATER_CUDA_ROW(touch_32)};

constexpr std::int64_t kCount = 64;
constexpr std::int64_t kBytes = kCount * static_cast<std::int64_t>(sizeof(float));

class GlobalMemoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = open_emulated_device(kKernels);
  Stream stream_ = device_->stream();

  float* floats(const char* what) { return static_cast<float*>(device_->allocate(kBytes, what)); }
  void fill(float* to, std::int64_t count = kCount) {
    const std::vector<float> values(static_cast<std::size_t>(count), 2.0f);
    device_->copy(stream_, to, values.data(), count * static_cast<std::int64_t>(sizeof(float)),
                  Direction::host_to_device);
  }
  /// The text that a launch ends with, or "".
  std::string fault_of(float* data, std::int64_t at, Access access, float* to) {
    return fault_of([&] {
      device_->launch(stream_, 0, {2, 1, 1}, 64, TouchParams{data, at, access, to});
      device_->synchronize(stream_);
    });
  }
  static std::string fault_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

constexpr Access kAll[] = {Access::element, Access::vector,       Access::copy_async,
                           Access::store,   Access::store_vector, Access::atomic};

std::int64_t width_of(Access access) {
  return access == Access::element || access == Access::store || access == Access::atomic ? 1 : 4;
}

bool reads(Access access) { return access != Access::store && access != Access::store_vector; }

TEST_F(GlobalMemoryTest, EveryAccessIsHeldToItsBuffer) {
  for (const Access access : kAll) {
    const std::int64_t last = kCount - width_of(access);
    for (const std::int64_t outside : {kCount, std::int64_t{-4}, 100 * kCount}) {
      device_ = open_emulated_device(kKernels);
      stream_ = device_->stream();
      float* data = floats("scores");
      float* to = floats("other");
      fill(data);
      fill(to);
      EXPECT_EQ(fault_of(data, last, access, to), "");
      EXPECT_THAT(
          fault_of(data, outside, access, to),
          AllOf(HasSubstr("kernel touch_32, block (1, 0, 0), thread 5: "),
                HasSubstr("at byte " + std::to_string(4 * outside) + " of buffer 'scores', which has 256"),
                Not(HasSubstr("\n"))));
    }
  }
}

TEST_F(GlobalMemoryTest, WhatNothingHasWrittenIsNotRead) {
  for (const Access access : kAll) {
    device_ = open_emulated_device(kKernels);
    stream_ = device_->stream();
    float* data = floats("scores");
    float* to = floats("other");
    fill(data, 32);
    EXPECT_EQ(fault_of(data, 32 - width_of(access), access, to), "");
    const std::string fault = fault_of(data, 32, access, to);
    if (reads(access)) {
      EXPECT_THAT(fault, AllOf(HasSubstr("block (1, 0, 0), thread 5: "),
                               HasSubstr("at byte 128 of buffer 'scores', which nothing has written")));
    } else {
      EXPECT_EQ(fault, "");
      // What a kernel has written may be read.
      EXPECT_EQ(fault_of(data, 32, width_of(access) == 1 ? Access::element : Access::vector, to), "");
    }
  }
}

TEST_F(GlobalMemoryTest, AVectorOfWhichAnElementIsUnwritten) {
  float* data = floats("scores");
  fill(data, 31);
  EXPECT_THAT(fault_of(data, 28, Access::vector, floats("other")), HasSubstr("byte 112 of buffer 'scores'"));
}

TEST_F(GlobalMemoryTest, PartsOfAnAllocationAreBuffers) {
  float* both = floats("maxima and sums");
  device_->name_part(both, kBytes / 2, "maxima");
  device_->name_part(both + kCount / 2, kBytes / 2, "sums");
  fill(both);
  float* to = floats("other");
  EXPECT_EQ(fault_of(both, kCount / 2 - 1, Access::element, to), "");
  EXPECT_EQ(fault_of(both + kCount / 2, 0, Access::element, to), "");
  EXPECT_THAT(fault_of(both, kCount / 2, Access::element, to),
              HasSubstr("read of 4 bytes at byte 128 of buffer 'maxima', which has 128"));
}

TEST_F(GlobalMemoryTest, ReleasedMemoryIsNoBuffer) {
  float* data = floats("scores");
  fill(data);
  float* to = floats("other");
  device_->synchronize(stream_);
  device_->release(data);
  EXPECT_THAT(fault_of(data, 0, Access::element, to), HasSubstr("outside of every allocation"));
}

TEST_F(GlobalMemoryTest, CopiesCarryWhatHasBeenWritten) {
  float* data = floats("scores");
  float* copied = floats("copied");
  fill(data, 32);
  const auto copy = [&](void* to, const void* from, std::int64_t count, Direction direction) {
    return fault_of([&] {
      device_->copy(stream_, to, from, count * static_cast<std::int64_t>(sizeof(float)), direction);
      device_->synchronize(stream_);
    });
  };
  EXPECT_EQ(copy(copied, data, 32, Direction::device_to_device), "");
  EXPECT_EQ(fault_of(copied, 31, Access::element, data), "");
  device_->set(stream_, copied + 32, 0, kBytes / 4);
  std::vector<float> host(kCount);
  EXPECT_EQ(copy(host.data(), copied, 48, Direction::device_to_host), "");
  EXPECT_THAT(copy(host.data(), copied, 49, Direction::device_to_host),
              HasSubstr("copy of byte 192 of buffer 'copied', which nothing has written"));
}

}  // namespace
}  // namespace headwater::cuda
