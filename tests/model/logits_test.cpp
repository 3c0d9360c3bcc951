// Logits of the bundled model against those that PyTorch computed from the same weights in F32.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "headwater/error.hpp"
#include "runtime/generate/sampler.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

struct Agreement {
  double worst = 0;
  int best_tokens = 0;
};

Agreement compare(const std::vector<float>& logits, std::size_t vocabulary) {
  const ReferenceLogits& reference = reference_logits();
  Agreement agreement;
  for (std::size_t t = 0; t < reference.ids.size(); ++t) {
    const std::span row(logits.data() + t * vocabulary, vocabulary);
    agreement.best_tokens += best_token(row) == reference.top1[t] ? 1 : 0;
  }
  const std::size_t behind = logits.size() - reference.logits.size();
  for (std::size_t i = 0; i < reference.logits.size(); ++i) {
    agreement.worst =
        std::max(agreement.worst, std::fabs(static_cast<double>(logits[behind + i]) - reference.logits[i]));
  }
  return agreement;
}

Agreement run_dense(Precision precision, DType cache) {
  const auto model = bundled(precision);
  const auto& ids = reference_logits().ids;
  const auto n = static_cast<std::int64_t>(ids.size());
  TransformerOptions chosen = options(n, cache);
  chosen.attention.dense = true;
  Transformer transformer(model, chosen);
  transformer.run(Step::prefill(n), ids);
  const auto vocabulary = static_cast<std::size_t>(model->config().vocabulary);
  std::vector<float> logits(ids.size() * vocabulary);
  transformer.logits(0, n, logits);
  return compare(logits, vocabulary);
}

// The issue asks for 1e-2 with F32 projections; a cache in F16 is the default, and costs most of what is seen.
TEST(Logits, AgreeWithPyTorchInF32) {
  const Agreement exact = run_dense(Precision::f32, DType::f32);
  EXPECT_LE(exact.worst, 1e-3);
  EXPECT_EQ(exact.best_tokens, 512);
  const Agreement stored_f16 = run_dense(Precision::f32, DType::f16);
  EXPECT_LE(stored_f16.worst, 1e-2);
  EXPECT_GE(stored_f16.best_tokens, 507);  // 99 %
}

TEST(Logits, RankTheSameTokenFirstInBf16) {
  if (native_precision() != Precision::bf16) GTEST_SKIP() << "this processor does not multiply BF16";
  EXPECT_GE(run_dense(Precision::bf16, DType::f16).best_tokens, 507);  // 99 % of 512
  EXPECT_GE(run_dense(Precision::bf16, DType::bf16).best_tokens, 507);
}

// One row is computed in F32 from the weights as stored, whatever the other rows are computed in.
TEST(Logits, OfOneRowAreThoseOfManyInF32) {
  const auto model = bundled(Precision::f32);
  const auto ids = some_ids(40);
  Transformer transformer(model, options(40));
  transformer.run(Step::prefill(40), ids);
  const auto vocabulary = static_cast<std::size_t>(model->config().vocabulary);
  std::vector<float> all(40 * vocabulary);
  std::vector<float> one(vocabulary);
  transformer.logits(0, 40, all);
  for (const std::int64_t row : {0, 17, 39}) {
    transformer.logits(row, 1, one);
    for (std::size_t i = 0; i < vocabulary; ++i) {
      ASSERT_NEAR(one[i], all[static_cast<std::size_t>(row) * vocabulary + i], 2e-4) << row << ", " << i;
    }
  }
}

// A prompt in one prefill, and the same tokens one decode step at a time: other arithmetic, the same function.
TEST(Logits, OfDecodeStepsAreThoseOfAPrefill) {
  const auto model = bundled(Precision::f32);
  const auto ids = some_ids(48);
  const auto vocabulary = static_cast<std::size_t>(model->config().vocabulary);
  std::vector<float> prefilled(vocabulary);
  std::vector<float> decoded(vocabulary);
  Transformer first(model, options(48));
  first.run(Step::prefill(48), ids);
  first.logits(47, 1, prefilled);
  Transformer second(model, options(48));
  for (const std::int32_t id : ids) second.run(Step::decode(), {&id, 1});
  second.logits(0, 1, decoded);
  for (std::size_t i = 0; i < vocabulary; ++i) ASSERT_NEAR(decoded[i], prefilled[i], 5e-4) << i;
}

// What a decode step reads: every matrix once, and of the embedding one row where the head is another matrix.
TEST(Model, ATokenReadsEveryMatrixOnce) {
  const auto file = bundled_file();
  std::int64_t bytes = 0;
  for (const Tensor& tensor : file->tensors()) {
    const bool looked_up =
        tensor.name == "token_embd.weight" && file->find_tensor("output.weight") != nullptr;
    if (tensor.dims.size() == 2 && !looked_up) bytes += static_cast<std::int64_t>(tensor.data.size());
  }
  EXPECT_EQ(bundled(Precision::f32)->bytes_per_token(), bytes);
}

// Phases begin at nothing and are parts of what passed; none is charged to another that was not at work.
TEST(Transformer, PhasesArePartsOfTheTime) {
  TransformerOptions chosen = options(300);
  chosen.attention.chunk = 64;
  chosen.attention.local = chosen.attention.heavy = 16;
  Transformer transformer(bundled(Precision::f32), chosen);
  EXPECT_EQ(transformer.times().total(), 0.0);
  const auto begin = std::chrono::steady_clock::now();
  transformer.run(Step::prefill(256), some_ids(256));
  std::vector<float> logits(4096);
  transformer.logits(255, 1, logits);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  const PhaseTimes& times = transformer.times();
  EXPECT_GT(times.projections, 0.0);
  EXPECT_GT(times.attention, 0.0);
  EXPECT_GT(times.other, 0.0);
  EXPECT_TRUE(times.selection_apart);
  EXPECT_GT(times.selection, 0.0);
  EXPECT_LE(times.total(), passed.count());
  transformer.clear_times();
  EXPECT_EQ(transformer.times().total(), 0.0);
}

TEST(Logits, RefusalsNameWhatIsAllowed) {
  const auto model = bundled(Precision::f32);
  Transformer transformer(model, options(8));
  const std::vector<std::int32_t> bad = {0, 4096};
  EXPECT_THROW(transformer.run(Step::prefill(2), bad), Error);
  const auto ids = some_ids(9);
  EXPECT_THROW(transformer.run(Step::prefill(9), ids), Error);
  EXPECT_EQ(transformer.session().tokens(), 0);
  transformer.run(Step::prefill(4), std::span(ids).first(4));
  std::vector<float> logits(4096);
  EXPECT_THROW(transformer.logits(4, 1, logits), Error);
  EXPECT_THROW(transformer.logits(0, 2, logits), Error);
  EXPECT_NO_THROW(transformer.logits(3, 1, logits));
}

}  // namespace
}  // namespace headwater::runtime::testing
