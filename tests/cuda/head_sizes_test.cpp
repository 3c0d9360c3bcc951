// Which kernels a session of each head size launches: 16-bit rows on tensor cores, by the smallest kernel that holds them.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/session_support.hpp"

namespace headwater::cuda {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct HeadSize {
  std::int64_t d;
  std::int64_t dv;
  int forward;  ///< columns of keys, and of values, that its forward kernel has
  int sums;     ///< columns of keys that its kernel of column sums has
};
constexpr HeadSize kSizes[] = {{1, 1, 64, 64},       {16, 16, 64, 64},     {63, 64, 64, 64},
                               {64, 64, 64, 64},     {64, 65, 128, 64},    {65, 64, 128, 128},
                               {80, 80, 128, 128},   {96, 96, 128, 128},   {128, 128, 128, 128},
                               {128, 129, 256, 128}, {129, 128, 256, 256}, {192, 128, 256, 256},
                               {255, 256, 256, 256}, {256, 256, 256, 256}};
constexpr DType kTensorTypes[] = {DType::bf16, DType::f16};

const char* text(DType type) { return type == DType::bf16 ? "bf16" : type == DType::f16 ? "f16" : "f32"; }

/// Names of the kernels that a prefill of three chunks and a decode step launch, but for those that only move rows.
std::vector<std::string> kernels_of(HeadSize size, DType type) {
  Shape shape;
  shape.kv_type = type;
  shape.n_head = 2;
  shape.n_head_kv = 1;
  shape.d_head = size.d;
  shape.d_value = size.dv;
  shape.capacity = 40;
  Options options;
  options.batch = 32;
  options.chunk = 16;
  options.local = 4;
  options.heavy = 4;
  auto owned = open_emulated_device(dispatch().kernels());
  Device& device = *owned;
  CudaSession session(std::move(owned), dispatch(), shape, options, core::resolve(shape, options, 1),
                      Launching::one_by_one);  // launches of a graph are not timed singly
  device.profile(true);
  for (const Step& step : {Step::prefill(35), Step::decode(1)}) {
    const auto rows = [&](std::int64_t heads, std::int64_t width) {
      const std::int64_t count = step.n * heads * width;
      std::vector<float> values(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) * 0.25f - 0.5f;
      std::vector<std::uint32_t> narrowed(values.size());
      core::narrow(values.data(), count, type, narrowed.data());
      return narrowed;
    };
    const auto q = rows(2, size.d);
    const auto k = rows(1, size.d);
    const auto v = rows(1, size.dv);
    std::vector<float> out(static_cast<std::size_t>(step.n * 2 * size.dv));
    session.begin(step);
    session.attend(0, headwater::Rows::token_major(q.data(), type, 2, size.d),
                   headwater::Rows::token_major(k.data(), type, 1, size.d),
                   headwater::Rows::token_major(v.data(), type, 1, size.dv),
                   MutableRows::token_major(out.data(), DType::f32, 2, size.dv));
    session.end();
  }
  std::vector<std::string> names;
  for (const KernelTimes& kernel : device.take_profile()) {
    const std::string name = kernel.kernel;
    for (const char* stage : {"forward", "softmax", "column_sums"}) {
      if (name.starts_with(stage)) names.push_back(name);
    }
  }
  return names;
}

TEST(HeadSizes, SixteenBitRowsRunOnTensorCoresInTheSmallestKernelThatHoldsThem) {
  for (const DType type : kTensorTypes) {
    for (const HeadSize size : kSizes) {
      const auto part = [&](int width) {
        return std::string("_") + text(type) + "_" + std::to_string(width) + "_";
      };
      const auto forward = HasSubstr(part(size.forward));
      const auto sums = AllOf(StartsWith("column_sums"), HasSubstr(part(size.sums)));
      EXPECT_THAT(
          kernels_of(size, type),
          AllOf(Each(AnyOf(sums, AllOf(AnyOf(StartsWith("forward"), StartsWith("softmax")), forward))),
                Contains(StartsWith("forward")), Contains(StartsWith("softmax")), Contains(sums)))
          << size.d << "/" << size.dv;
    }
  }
}

TEST(HeadSizes, OtherRowsAreComputedInF32InSlicesWhereTheyAreWider) {
  for (const HeadSize size : kSizes) {
    const std::string width = std::max(size.d, size.dv) <= 16 ? "_f32_16_" : "_f32_64_";
    EXPECT_THAT(kernels_of(size, DType::f32), Each(AnyOf(HasSubstr(width), StartsWith("column_sums_f32_"))))
        << size.d << "/" << size.dv;
    EXPECT_EQ(dispatch().column_sums(DType::f32, size.d, 1000).entry->d, size.d <= 16 ? 16 : 64);
  }
}

TEST(HeadSizes, EachHasKernelsForFewRowsAndForMany) {
  for (const DType type : kTensorTypes) {
    for (const HeadSize size : kSizes) {
      for (const std::int64_t rows : {1, 32, 33, 1000}) {
        const KernelEntry& forward = *dispatch().forward(type, size.d, size.dv, rows).entry;
        EXPECT_EQ(forward.unit, type);
        EXPECT_EQ(forward.d, size.forward);
        EXPECT_EQ(forward.dv, size.forward);
        EXPECT_EQ(forward.rows, rows <= 32 ? 16 : 64);
        const KernelEntry& softmax = *dispatch().softmax(type, size.d, size.dv, rows).entry;
        EXPECT_EQ(softmax.unit, type);
        EXPECT_EQ(softmax.rows, forward.rows);
        EXPECT_EQ(softmax.keys, forward.keys) << "the same m and l";
        EXPECT_LT(softmax.shared_bytes, forward.shared_bytes);
        const KernelEntry& sums = *dispatch().column_sums(type, size.d, rows).entry;
        EXPECT_EQ(sums.unit, type);
        EXPECT_EQ(sums.d, size.sums);
        EXPECT_EQ(sums.rows, rows <= 32 ? 16 : 64);
      }
    }
  }
}

TEST(HeadSizes, StoredRowsArePaddedToVectorsOf16BytesAndNoMore) {
  constexpr std::int64_t kLess = std::int64_t{1} << 15;
  // Bytes of a token's score, log-sum-exp and chunk that the host is shown, and of where the chunk comes from.
  constexpr auto kShown = static_cast<std::int64_t>(2 + 4 + sizeof(Chunk) + 16);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const std::int64_t element = type == DType::f32 ? 4 : 2;
    for (const std::int64_t missing : {0, 1}) {
      const auto workspace = [&](std::int64_t capacity) {
        Shape shape;
        shape.kv_type = type;
        shape.d_head = 3 * 16 / element;
        shape.d_value = 16 / element - missing;
        shape.capacity = capacity;
        Options options;
        options.dense = true;
        const CudaSession session(open_emulated_device(dispatch().kernels()), dispatch(), shape, options,
                                  core::resolve(shape, options, 1), Launching::one_by_one);
        EXPECT_EQ(session.memory_bytes().kv, capacity * (shape.d_head + shape.d_value) * element);
        return session.memory_bytes().workspace;
      };
      // Both hold more than a window: what is left depends on the capacity alone.
      EXPECT_EQ(workspace(2 * kLess) - workspace(kLess), kLess * (kShown + missing * element)) << text(type);
    }
  }
}

}  // namespace
}  // namespace headwater::cuda
