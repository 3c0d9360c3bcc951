// Generating a token takes no memory: allocations are counted while a model decodes.

#include <gtest/gtest.h>

#include <numeric>

#include "conformance/allocation_counter.hpp"
#include "runtime/generate/conversation.hpp"
#include "runtime/generate/sampler.hpp"

namespace headwater::runtime::testing {
namespace {

struct Case {
  Precision precision;
  DType cache;
  int threads;
};

class Decoding : public ::testing::TestWithParam<Case> {};

TEST_P(Decoding, TakesNoMemoryAfterTheFirstToken) {
  if (GetParam().precision == Precision::bf16 && native_precision() != Precision::bf16) {
    GTEST_SKIP() << "this processor does not multiply BF16";
  }
  ASSERT_TRUE(conformance::AllocationWatch::available());
  auto file = std::make_shared<const GgufFile>(GgufFile::open(MODELS "/headwater-tiny-f16.gguf"));
  const auto model = Model::load(file, {GetParam().precision, GetParam().threads});
  TransformerOptions options;
  options.attention.chunk = 64;
  options.attention.local = options.attention.heavy = 16;
  options.attention.threads = GetParam().threads;
  options.cache_type = GetParam().cache;
  options.capacity = 256;
  Transformer transformer(model, options);
  Conversation conversation(transformer, 10);
  Sampler sampler(SamplingOptions{}, model->config().vocabulary);
  std::vector<std::int32_t> ids(200);
  std::iota(ids.begin(), ids.end(), 100);
  conversation.feed(ids);
  conversation.append(sampler.draw(conversation.logits()));

  const conformance::AllocationWatch watch;
  for (int i = 0; i < 5; ++i) conversation.append(sampler.draw(conversation.logits()));
  EXPECT_EQ(watch.count(), 0);
}

INSTANTIATE_TEST_SUITE_P(Arithmetic, Decoding,
                         ::testing::Values(Case{Precision::f32, DType::f16, 1},
                                           Case{Precision::f32, DType::f16, 2},
                                           Case{Precision::bf16, DType::bf16, 2}));

// The counter counts at all.
TEST(Watch, CountsWhatIsTaken) {
  const conformance::AllocationWatch watch;
  const auto taken = std::make_unique<std::vector<int>>(1000);
  EXPECT_EQ(taken->size(), 1000U);
  EXPECT_GE(watch.count(), 2);
}

}  // namespace
}  // namespace headwater::runtime::testing
