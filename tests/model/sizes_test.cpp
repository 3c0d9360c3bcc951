// The transformer at the sizes of models and prompts that people run, against the forward pass in double (transformer_oracle.hpp):
// widths, heads, layers and vocabularies, positions beyond 131072, turns after thousands of tokens.

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/generate/conversation.hpp"
#include "runtime/model/kernels/kernels.hpp"
#include "tests/model/made_model.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

std::vector<std::int32_t> made_ids(std::int64_t n, std::int64_t vocabulary) {
  std::mt19937 random(2);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocabulary)));
  }
  return ids;
}

std::vector<std::int64_t> all_of(std::int64_t n) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i);
  return tokens;
}

/// The residual rows of a prompt after the last layer.
std::vector<float> last_rows(const MadeModel& model, Precision precision, std::span<const std::int32_t> ids) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const bool bf16 = precision == Precision::bf16;
  TransformerOptions chosen = options(n, bf16 ? DType::bf16 : DType::f32);
  if (bf16) chosen.engine = "cpu";
  Transformer transformer(model.load(precision), chosen);
  std::vector<float> rows;
  transformer.set_observer(
      [&](const LayerView& view) { rows.assign(view.residual, view.residual + n * model.sizes().width); });
  transformer.run(Step::prefill(n), ids);
  return rows;
}

/// Every stage of every layer of a short prompt and of two decode steps. In BF16 the prompt comes to nearly the same rows:
/// roundings of 2^-9 stay far below what a part of a row is.
void expect_small_run(const MadeSizes& sizes, std::int64_t n, const std::vector<std::int64_t>& tokens) {
  const MadeModel model(sizes);
  Transformer transformer(model.load(Precision::f32), options(n));
  StageCheck check(model, transformer, tokens);
  const auto ids = made_ids(n, sizes.vocabulary);
  transformer.run(Step::prefill(n - 2), std::span(ids).first(static_cast<std::size_t>(n - 2)));
  for (std::int64_t t = n - 2; t < n; ++t) {
    transformer.run(Step::decode(), {&ids[static_cast<std::size_t>(t)], 1});
  }
  check.expect_stages();
  check.expect_stored();
  check.expect_dense(tokens);
  if (native_precision() != Precision::bf16) return;
  const auto exact = last_rows(model, Precision::f32, ids);
  const auto rounded = last_rows(model, Precision::bf16, ids);
  double squares = 0;
  double difference = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    squares += std::pow(static_cast<double>(exact[i]), 2);
    difference += std::pow(static_cast<double>(exact[i] - rounded[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference), 0.02 * std::sqrt(squares));
}

TEST(TransformerSizes, SomeBiasesAlone) {
  for (const char* const biases : {"", "q", "k", "v", "o", "qk", "kv"}) {
    SCOPED_TRACE(biases);
    expect_small_run({.width = 64, .heads = 4, .heads_kv = 2, .d_value = 24, .biases = biases}, 20,
                     {0, 16, 19});
  }
}

// The first elements of a row are rotated, by angles of their own number; what follows them is not.
TEST(TransformerSizes, APartOfARowIsRotated) {
  for (const char* const architecture : {"llama", "qwen2", "qwen3"}) {
    for (const std::int64_t rotated : {2, 6, 32, 40}) {
      SCOPED_TRACE(architecture);
      expect_small_run({.architecture = architecture,
                        .width = 64,
                        .heads = 4,
                        .heads_kv = 2,
                        .d_head = 40,
                        .d_value = 24,
                        .rotated = rotated},
                       20, {0, 16, 19});
    }
  }
}

TEST(TransformerSizes, ARowOf2048) {
  expect_small_run({.width = 2048, .heads = 16, .heads_kv = 2, .d_head = 64, .feed_forward = 704}, 20,
                   {0, 15, 16, 17, 18, 19});
}

TEST(TransformerSizes, ARowOf12288) {
  expect_small_run({.width = 12288, .d_head = 8, .feed_forward = 32, .vocabulary = 40}, 20, {0, 16, 17, 19});
}

TEST(TransformerSizes, AHundredAndTwentyEightHeads) {
  for (const char* architecture : {"qwen3", "llama"}) {
    expect_small_run(
        {.architecture = architecture, .width = 64, .heads = 128, .heads_kv = 8, .d_head = 8, .d_value = 16},
        20, {0, 16, 17, 19});
  }
}

// Rows of 10240 columns with a bias, in F32, and rounded to BF16 for an engine that gets such rows.
TEST(TransformerSizes, SixtyFourHeadsOf128) {
  const MadeSizes sizes{.width = 64, .heads = 64, .heads_kv = 8, .d_head = 128};
  expect_small_run(sizes, 20, {0, 17, 19});
  if (native_precision() != Precision::bf16) GTEST_SKIP() << "this processor does not multiply BF16";
  const MadeModel model(sizes);
  const auto loaded = model.load(Precision::bf16);
  std::vector<std::uint16_t> bits[2];
  for (const DType cache : {DType::f32, DType::bf16}) {
    auto& result = bits[cache == DType::bf16 ? 1 : 0];
    TransformerOptions chosen = options(21, cache);
    chosen.engine = "cpu";
    Transformer transformer(loaded, chosen);
    transformer.set_observer([&](const LayerView& view) {
      if (view.stage != LayerView::Stage::attention) return;
      const std::pair<Rows, std::int64_t> all[] = {
          {view.q, sizes.heads}, {view.k, sizes.heads_kv}, {view.v, sizes.heads_kv}};
      for (const auto& [rows, heads] : all) {
        ASSERT_EQ(rows.type, cache);
        for (std::int64_t i = 0; i < view.n * heads; ++i) {
          const std::int64_t at = i / heads * rows.row_stride + i % heads * rows.head_stride;
          const std::size_t end = result.size();
          result.resize(end + static_cast<std::size_t>(sizes.d_head));
          if (cache == DType::f32) {
            kernels().to_bf16(static_cast<const float*>(rows.data) + at, sizes.d_head, &result[end]);
          } else {
            std::copy_n(static_cast<const std::uint16_t*>(rows.data) + at, sizes.d_head, &result[end]);
          }
        }
      }
    });
    transformer.run(Step::prefill(20), made_ids(20, sizes.vocabulary));
    transformer.run(Step::decode(), made_ids(1, sizes.vocabulary));
  }
  EXPECT_EQ(bits[0].size(), 21U * 10240);
  EXPECT_TRUE(bits[0] == bits[1]);
}

TEST(TransformerSizes, AFeedForwardOf53248) {
  expect_small_run({.width = 32, .d_head = 8, .feed_forward = 53248}, 20, {0, 17, 19});
}

TEST(TransformerSizes, EightyLayers) {
  expect_small_run({.layers = 80, .width = 16, .d_head = 8, .feed_forward = 32}, 10, all_of(10));
}

// Ids on each side of 2^15, 2^16, 2^17 and 2^18: rows of the embedding, and columns of the head in all of its products.
TEST(TransformerSizes, AVocabularyOf300000) {
  const MadeSizes sizes{.width = 8, .d_head = 8, .feed_forward = 32, .vocabulary = 300000};
  const MadeModel model(sizes);
  const std::vector<std::int32_t> ids = {0,     32767,  32768,  65535,  65536,  65537,  70000, 98304,
                                         98305, 131071, 131072, 262143, 262144, 299999, 4097};
  const auto n = static_cast<std::int64_t>(ids.size());
  Transformer transformer(model.load(Precision::f32), options(n));
  std::vector<float> embedded;
  std::vector<float> last;
  transformer.set_observer([&](const LayerView& view) {
    auto& to = view.stage == LayerView::Stage::input ? embedded : last;
    to.assign(view.residual, view.residual + n * sizes.width);
  });
  transformer.run(Step::prefill(n), ids);
  const auto width = static_cast<std::size_t>(sizes.width);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    for (std::size_t i = 0; i < width; ++i) {
      ASSERT_EQ(static_cast<double>(embedded[t * width + i]),
                model.embedding()[static_cast<std::size_t>(ids[t]) * width + i])
          << ids[t];
    }
  }
  const auto vocabulary = static_cast<std::size_t>(sizes.vocabulary);
  std::vector<BoundedRow> wanted;
  for (std::size_t t = ids.size() - 2; t < ids.size(); ++t) {
    BoundedRow residual;
    for (std::size_t i = 0; i < width; ++i) residual.push_back({last[t * width + i], 0.0});
    wanted.push_back(transformer_logits(model.shape(), residual, model.final_norm(), model.head()));
  }
  std::vector<float> logits(2 * vocabulary);
  float* const outs[] = {logits.data(), logits.data() + vocabulary};
  for (const bool asked : {false, true}) {
    for (const std::size_t rows : {1U, 2U}) {
      std::fill(logits.begin(), logits.end(), NAN);
      if (asked) {
        transformer.ask_logits(static_cast<std::int64_t>(rows));
        transformer.take_logits(std::span(outs).first(rows));
      } else {
        transformer.logits(n - static_cast<std::int64_t>(rows), static_cast<std::int64_t>(rows), logits);
      }
      for (std::size_t i = 0; i < rows * vocabulary; ++i) {
        const Bounded& one = wanted[2 - rows + i / vocabulary][i % vocabulary];
        ASSERT_NEAR(static_cast<double>(logits[i]), one.value, one.error)
            << i % vocabulary << " of row " << i / vocabulary << " of " << rows;
      }
    }
  }
}

TransformerOptions sparse(std::int64_t capacity) {
  TransformerOptions chosen = options(capacity);
  chosen.attention.batch = 4096;
  chosen.attention.chunk = 256;
  chosen.attention.local = 32;
  chosen.attention.heavy = 32;
  return chosen;
}

std::uint64_t triangle(std::uint64_t n) { return n * (n + 1) / 2; }

// Positions around every multiple of 4096 up to 135000, in steps of more than 65536: rotations, stored rows, logits, and
// what is counted.
TEST(TransformerSizes, PositionsBeyond131072) {
  constexpr std::int64_t kTokens = 135000;
  const MadeSizes sizes{.width = 16, .heads = 2, .heads_kv = 1, .d_head = 8, .feed_forward = 16};
  const MadeModel model(sizes);
  std::vector<std::int64_t> tokens;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    if ((t + 1) % 4096 < 3 || t % 4999 == 17) tokens.push_back(t);
  }
  tokens.push_back(kTokens);  // one decoded token
  TransformerOptions chosen = sparse(kTokens + 1);
  chosen.attention.batch = 67584;
  Transformer transformer(model.load(Precision::f32), chosen);
  Conversation conversation(transformer, 0);
  StageCheck check(model, transformer, tokens);
  conversation.set_layer_observer(check.observer());
  conversation.feed(made_ids(kTokens, sizes.vocabulary));
  check.expect_logits(67584);
  transformer.set_observer(check.observer());
  conversation.append(5);
  check.expect_stages();
  check.expect_stored();
  // Chunks of 256, with a set of 64 but for the first; a last one of what is left.
  constexpr std::uint64_t kChunks = kTokens / 256;
  constexpr std::uint64_t kRest = kTokens % 256;
  EXPECT_EQ(conversation.pairs().computed, kChunks * triangle(256) + triangle(kRest) +
                                               64 * (static_cast<std::uint64_t>(kTokens) - 256) + kTokens +
                                               1);
  EXPECT_EQ(conversation.pairs().dense, triangle(kTokens + 1));
  EXPECT_EQ(conversation.steps(), "p67584:135000,p67416,d1");
}

// A second turn after 5000 tokens: sparse with a dense tail, then a dense one, each token at its own position, over
// keys and values that stayed where they were.
TEST(TransformerSizes, TurnsAfter5000Tokens) {
  const MadeSizes sizes{.width = 32, .heads = 4, .heads_kv = 2, .d_head = 16, .feed_forward = 48};
  const MadeModel model(sizes);
  const std::vector<std::int64_t> tokens = {4095, 4096, 4999, 5000, 5001, 5002,
                                            5700, 5871, 5872, 5935, 5936, 6035};
  Transformer transformer(model.load(Precision::f32), sparse(7000));
  Conversation conversation(transformer, 64);
  StageCheck check(model, transformer, tokens);
  conversation.set_layer_observer(check.observer());
  conversation.feed(made_ids(5000, sizes.vocabulary));
  for (int i = 0; i < 2; ++i) {
    transformer.set_observer(check.observer());
    conversation.append(i);
  }
  conversation.feed(made_ids(934, sizes.vocabulary));
  conversation.feed(made_ids(100, sizes.vocabulary));
  EXPECT_EQ(conversation.steps(), "p4096:4936,p840,d64,d1,d1,p870,d64,p100");
  check.expect_stages();
  check.expect_stored();
  // The ends of the tails, a decoded token, the dense turn.
  check.expect_dense({4999, 5000, 5001, 5872, 5935, 5936, 6035});
}

/// Steps of 4096 rows are the same bits as steps of 256, whose offsets are small: in F32, in BF16 with rows of that type, and
/// in bytes. Keys and values are those of the last layer.
void expect_sixteen_steps(MadeSizes sizes) {
  constexpr std::int64_t kTokens = 4500;
  for (const Precision precision : {Precision::f32, Precision::bf16, Precision::int8}) {
    if (!missing_for(precision).empty()) continue;
    SCOPED_TRACE(precision_name(precision));
    if (precision == Precision::int8) sizes.types = {TensorType::q8_0};
    const MadeModel model(sizes);
    const auto loaded = model.load(precision);
    std::vector<float> bits[2];
    for (const std::int64_t batch : {256, 4096}) {
      TransformerOptions chosen = sparse(kTokens);
      chosen.cache_type = precision == Precision::bf16 ? DType::bf16 : DType::f32;
      chosen.engine = precision == Precision::bf16 ? "cpu" : chosen.engine;
      chosen.attention.batch = batch;
      Transformer transformer(loaded, chosen);
      Conversation conversation(transformer, 0);
      conversation.feed(made_ids(kTokens, sizes.vocabulary));
      auto& result = bits[batch == 256 ? 0 : 1];
      result.assign(conversation.logits().begin(), conversation.logits().end());
      std::vector<float> row(static_cast<std::size_t>(sizes.d_head));
      for (std::int64_t t = 0; t < kTokens; ++t) {
        for (std::int64_t h = 0; h < sizes.heads_kv; ++h) {
          transformer.session().read_key(sizes.layers - 1, h, t, row);
          result.insert(result.end(), row.begin(), row.end());
          transformer.session().read_value(sizes.layers - 1, h, t, row);
          result.insert(result.end(), row.begin(), row.end());
        }
      }
    }
    EXPECT_TRUE(bits[0] == bits[1]);
  }
}

TEST(TransformerSizes, AStepOf4096RowsIsSixteenOf256) {
  expect_sixteen_steps({.width = 256, .heads = 16, .heads_kv = 4, .d_head = 64, .feed_forward = 512});
}

// Rows of a chunk that go to one expert are multiplied together, and those of other chunks apart.
TEST(TransformerSizes, AStepOf4096RowsAtManyExperts) {
  expect_sixteen_steps({.architecture = "qwen3moe",
                        .layers = 2,
                        .width = 128,
                        .heads = 4,
                        .heads_kv = 2,
                        .d_head = 32,
                        .feed_forward = 64,
                        .experts = 96,
                        .experts_used = 8});
}

// A question longer than a batch is several decode steps, each over everything before.
TEST(TransformerSizes, ADenseTailLongerThanABatch) {
  const MadeSizes sizes{.width = 16, .heads = 2, .heads_kv = 1, .d_head = 8, .feed_forward = 16};
  const MadeModel model(sizes);
  const std::vector<std::int64_t> tokens = {4499, 4500, 8595, 8596, 9499};
  Transformer transformer(model.load(Precision::f32), sparse(9500));
  Conversation conversation(transformer, 5000);
  StageCheck check(model, transformer, tokens);
  conversation.set_layer_observer(check.observer());
  conversation.feed(made_ids(9500, sizes.vocabulary));
  EXPECT_EQ(conversation.steps(), "p4096:4500,p404,d4096,d904");
  check.expect_stages();
  check.expect_stored();
  check.expect_dense({4500, 8595, 8596, 9499});
}

}  // namespace
}  // namespace headwater::runtime::testing
