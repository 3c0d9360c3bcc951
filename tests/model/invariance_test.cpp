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

/// The logits after the prompt, and after one decoded token.
struct Arithmetic {
  Precision precision = Precision::f32;
  DType cache =
      DType::f16;  ///< BF16 beside BF16 products: rows of that type, and the engine that multiplies them
};

std::vector<float> run(const Arithmetic& arithmetic, const Setting& setting) {
  TransformerOptions chosen = options(kPrompt + 8, arithmetic.cache);
  if (arithmetic.cache == DType::bf16) chosen.engine = "cpu";
  chosen.attention.batch = setting.batch;
  chosen.attention.chunk = 96;
  chosen.attention.local = 24;
  chosen.attention.heavy = 24;
  chosen.attention.threads = setting.threads;
  chosen.attention.dense = setting.dense;
  Transformer transformer(bundled(arithmetic.precision), chosen);
  Conversation conversation(transformer, 24);
  conversation.feed(some_ids(kPrompt));
  std::vector<float> result(conversation.logits().begin(), conversation.logits().end());
  conversation.append(17);
  result.insert(result.end(), conversation.logits().begin(), conversation.logits().end());
  return result;
}

class Invariance : public ::testing::TestWithParam<Arithmetic> {
 protected:
  void SetUp() override {
    if (GetParam().precision == Precision::bf16 && native_precision() != Precision::bf16) {
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

INSTANTIATE_TEST_SUITE_P(Precisions, Invariance,
                         ::testing::Values(Arithmetic{Precision::f32, DType::f16},
                                           Arithmetic{Precision::bf16, DType::f16},
                                           Arithmetic{Precision::bf16, DType::bf16}),
                         [](const auto& one) {
                           return std::string(precision_name(one.param.precision)) + "Cache" +
                                  dtype_name(one.param.cache);
                         });

}  // namespace
}  // namespace headwater::runtime::testing
