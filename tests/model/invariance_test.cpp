// The same prompt gives the same bits for every number of threads and every cut at multiples of the chunk.

#include <gtest/gtest.h>

#include "runtime/generate/conversation.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

constexpr std::int64_t kPrompt =
    620;  // chunks of 96: six and a ragged one; the tail of 24 is one decode step

struct Setting {
  std::int64_t batch = 4096;
  int threads = 2;
  bool dense = false;
};

/// The logits behind the prompt, and behind one decoded token.
std::vector<float> run(Precision precision, const Setting& setting) {
  TransformerOptions chosen = options(kPrompt + 8, DType::f16);
  chosen.attention.batch = setting.batch;
  chosen.attention.chunk = 96;
  chosen.attention.local = 24;
  chosen.attention.heavy = 24;
  chosen.attention.threads = setting.threads;
  chosen.attention.dense = setting.dense;
  Transformer transformer(bundled(precision), chosen);
  Conversation conversation(transformer, 24);
  conversation.feed(some_ids(kPrompt));
  std::vector<float> result(conversation.logits().begin(), conversation.logits().end());
  conversation.append(17);
  result.insert(result.end(), conversation.logits().begin(), conversation.logits().end());
  return result;
}

class Invariance : public ::testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    if (GetParam() == Precision::bf16 && native_precision() != Precision::bf16) {
      GTEST_SKIP() << "this processor does not multiply BF16";
    }
  }
};

TEST_P(Invariance, UnderTheNumberOfThreads) {
  const auto one = run(GetParam(), {.threads = 1});
  for (const int threads : {2, 3, 7}) EXPECT_EQ(run(GetParam(), {.threads = threads}), one) << threads;
}

TEST_P(Invariance, UnderTheCutIntoBatches) {
  const auto whole = run(GetParam(), {});
  for (const std::int64_t batch : {96, 192, 480})
    EXPECT_EQ(run(GetParam(), {.batch = batch}), whole) << batch;
}

TEST_P(Invariance, OfDenseRunsUnderTheNumberOfThreads) {
  EXPECT_EQ(run(GetParam(), {.threads = 3, .dense = true}), run(GetParam(), {.threads = 1, .dense = true}));
}

INSTANTIATE_TEST_SUITE_P(Precisions, Invariance, ::testing::Values(Precision::f32, Precision::bf16),
                         [](const auto& one) { return std::string(precision_name(one.param)); });

}  // namespace
}  // namespace headwater::runtime::testing
