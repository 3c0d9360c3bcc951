// Random models: whole GGUF files that the runtime loads, the same on every run, with logits of a sensible size.

#include "cli/commands/bench/random_model.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "headwater/error.hpp"
#include "runtime/generate/conversation.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::bench {
namespace {

using runtime::TensorType;

ModelShape small(std::string_view architecture, bool tied) {
  return {"small", architecture, 2, 256, 4, 2, 64, 512, 300, 512, 1e4, tied};
}

std::vector<std::byte> file_bytes(const RandomModel& model, int threads) {
  std::vector<std::byte> bytes(model.bytes());
  model.write(bytes, threads);
  return bytes;
}

std::vector<float> logits_behind_a_prompt(const RandomModel& random) {
  const auto model = runtime::Model::load(in_memory(random, "random", 2), {runtime::native_precision(), 2});
  runtime::TransformerOptions options;
  options.attention.threads = 2;
  options.capacity = 64;
  runtime::Transformer transformer(model, options);
  runtime::Conversation conversation(transformer, 0);
  std::vector<std::int32_t> ids(40);
  std::iota(ids.begin(), ids.end(), 1);
  conversation.feed(ids);
  conversation.append(7);
  return {conversation.logits().begin(), conversation.logits().end()};
}

double deviation(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

TEST(RandomModel, IsAModelOfEveryTypeWithSensibleLogits) {
  for (const runtime::TensorTypeInfo& info : runtime::tensor_types()) {
    SCOPED_TRACE(info.name);
    const auto logits = logits_behind_a_prompt(RandomModel(small("qwen3", true), info.type, 1));
    EXPECT_GT(deviation(logits), 0.2);
    EXPECT_LT(deviation(logits), 5.0);
  }
}

TEST(RandomModel, IsAModelOfEveryArchitecture) {
  for (const char* architecture : {"qwen3", "qwen2", "llama", "qwen3moe", "gpt-oss", "gemma3"}) {
    SCOPED_TRACE(architecture);
    ModelShape shape = small(architecture, false);
    if (shape.architecture.ends_with("moe") || shape.architecture == "gpt-oss") {
      shape.experts = 8;
      shape.experts_used = 2;
    }
    if (shape.architecture == "gpt-oss" || shape.architecture == "gemma3") shape.window = 16;
    const auto logits = logits_behind_a_prompt(RandomModel(shape, TensorType::q8_0, 2));
    EXPECT_GT(deviation(logits), 0.2);
    EXPECT_LT(deviation(logits), 5.0);
  }
}

TEST(RandomModel, HasTheSameBytesForEveryNumberOfThreads) {
  const RandomModel model(small("qwen3", false), TensorType::q4_k, 3);
  const auto one = file_bytes(model, 1);
  EXPECT_EQ(file_bytes(model, 3), one);
  EXPECT_NE(file_bytes(RandomModel(small("qwen3", false), TensorType::q4_k, 4), 1), one);
}

// A mean adds up from layer to layer until every prompt has the same logits. OpenVINO GenAI stores a minimum of the Q4 types
// as a whole number of steps; one code of 16 is then zero.
TEST(RandomModel, HasWeightsWithoutAMeanAndMinimaOfWholeSteps) {
  for (const runtime::TensorTypeInfo& info : runtime::tensor_types()) {
    SCOPED_TRACE(info.name);
    const auto file = in_memory(RandomModel(small("qwen3", true), info.type, 1), "random", 2);
    const runtime::Tensor& tensor = file->tensor("token_embd.weight");
    std::vector<float> weights(256 * 300);
    for (std::int64_t r = 0; r < 300; ++r) {
      runtime::dequantize_row(info.type, tensor.row(r), 256, weights.data() + 256 * r);
    }
    const double mean = std::accumulate(weights.begin(), weights.end(), 0.0) / (256 * 300);
    EXPECT_LT(std::abs(mean), 0.06 * deviation(weights));
    if (info.name == "Q4_0" || info.name == "Q4_1" || info.name == "Q4_K") {
      EXPECT_GE(std::count(weights.begin(), weights.end(), 0.0F), 256 * 300 / 17);
    }
  }
}

// Keys that OpenVINO GenAI refuses a file without, and the file types as llama.cpp numbers them.
TEST(RandomModel, IsCompleteForOtherPrograms) {
  const std::map<TensorType, std::int64_t> file_types = {
      {TensorType::f32, 0},   {TensorType::f16, 1},   {TensorType::bf16, 32},   {TensorType::q8_0, 7},
      {TensorType::q4_0, 2},  {TensorType::q4_1, 3},  {TensorType::q5_0, 8},    {TensorType::q5_1, 9},
      {TensorType::q4_k, 14}, {TensorType::q5_k, 16}, {TensorType::q6_k, 18},   {TensorType::iq4_nl, 25},
      {TensorType::q2_k, 21}, {TensorType::q3_k, 11}, {TensorType::iq4_xs, 30}, {TensorType::mxfp4, 38}};
  for (const runtime::TensorTypeInfo& info : runtime::tensor_types()) {
    SCOPED_TRACE(info.name);
    const auto file = in_memory(RandomModel(small("qwen3", true), info.type, 1), "random", 2);
    EXPECT_EQ(file->integer("general.file_type", 0, 99), file_types.at(info.type));
    EXPECT_EQ(file->text("tokenizer.ggml.model"), "gpt2");
    EXPECT_EQ(file->text("tokenizer.ggml.pre"), "qwen2");
    EXPECT_EQ(file->array_length("tokenizer.ggml.tokens"), 300);
    EXPECT_EQ(file->array_length("tokenizer.ggml.token_type"), 300);
    EXPECT_GT(file->array_length("tokenizer.ggml.merges"), 0);
    EXPECT_TRUE(file->has("tokenizer.ggml.bos_token_id"));
    EXPECT_TRUE(file->has("tokenizer.ggml.eos_token_id"));
  }
}

TEST(RandomModel, HasATokenizerOfBytes) {
  for (const std::int64_t vocabulary : {258, 151936}) {
    SCOPED_TRACE(vocabulary);
    ModelShape shape = small("llama", true);
    shape.vocabulary = vocabulary;
    const auto tokenizer =
        runtime::Tokenizer::from_gguf(*in_memory(RandomModel(shape, TensorType::q8_0, 1), "random", 2));
    EXPECT_EQ(tokenizer->size(), vocabulary);
    EXPECT_THAT(tokenizer->warnings(), testing::IsEmpty());
    EXPECT_FALSE(tokenizer->adds_bos());
    EXPECT_TRUE(tokenizer->is_control(tokenizer->eos()));
    EXPECT_TRUE(tokenizer->is_end(tokenizer->eos()));
    const std::string text = "What's 12 + 3?\n\t\u00c4hm \u65e5\u672c [PAD300] <|endoftext|>";
    const auto ids = tokenizer->encode(text, true, false);
    EXPECT_EQ(ids.size(), text.size());
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_EQ(tokenizer->encode("to the", true, false).size(), 5);  // " t" is one token
    EXPECT_THAT(tokenizer->encode("<|endoftext|>", true, true), testing::ElementsAre(tokenizer->eos()));
  }
}

// The suite's own rows: fewer than the bytes, and none are written beyond the table of kinds.
TEST(RandomModel, HasNoTokenizerForFewerTokensThanItNeeds) {
  for (const std::int64_t vocabulary : {1, 64, 257}) {
    ModelShape shape = small("llama", true);
    shape.vocabulary = vocabulary;
    const auto file = in_memory(RandomModel(shape, TensorType::q8_0, 1), "random", 2);
    EXPECT_FALSE(file->has("tokenizer.ggml.tokens")) << vocabulary;
  }
}

// Beyond 2^17 rows: in 32 bytes at random no two of them are the same.
TEST(RandomModel, HasOtherWeightsInEveryRowOfALargeVocabulary) {
  ModelShape shape = small("llama", false);
  shape.layers = 1;
  shape.width = 8;
  shape.vocabulary = 140'000;
  const auto file = in_memory(RandomModel(shape, TensorType::f32, 5), "random", 2);
  std::unordered_set<std::string_view> rows;
  for (const char* name : {"token_embd.weight", "output.weight"}) {
    const runtime::Tensor& tensor = file->tensor(name);
    const auto bytes = static_cast<std::size_t>(runtime::row_bytes(tensor.type, shape.width));
    ASSERT_EQ(tensor.rows(), shape.vocabulary);
    for (std::int64_t r = 0; r < tensor.rows(); ++r) {
      const bool is_new = rows.emplace(reinterpret_cast<const char*>(tensor.row(r)), bytes).second;
      ASSERT_TRUE(is_new) << "row " << r << " of " << name;
    }
  }
}

TEST(RandomModel, RefusesRowsThatAreNoWholeBlocks) {
  ModelShape shape = small("llama", true);
  shape.feed_forward = 320;
  EXPECT_NO_THROW(RandomModel(shape, TensorType::q8_0, 1));
  try {
    const RandomModel model(shape, TensorType::q6_k, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "tensor 'blk.0.ffn_down.weight' has rows of 320; of type Q6_K a row must be a multiple of 256");
  }
}

TEST(ModelShapes, HaveSizesThatTheirNamesPromise) {
  for (const ModelShape& shape : model_shapes()) {
    SCOPED_TRACE(shape.name);
    EXPECT_EQ(find_shape(shape.name), &shape);
    EXPECT_EQ(shape.heads % shape.heads_kv, 0);
    const auto name = std::string(shape.name);
    const std::size_t dash = name.find("-a") == std::string::npos ? name.find_last_of('b') : name.find("b-a");
    const std::size_t begin = name.rfind('-', dash) + 1;
    const double billions = std::stod(name.substr(begin, dash - begin));
    // Q8_0 has 34 bytes for 32 weights; names round, and some leave the embedding out.
    const auto weights = static_cast<double>(RandomModel(shape, TensorType::q8_0, 1).bytes()) / 34 * 32;
    EXPECT_NEAR(weights * 1e-9, billions, 0.25 * billions);
  }
  EXPECT_EQ(find_shape("qwen3-0.6"), nullptr);
}

// The parameters that the models were published with, to the last one, by the architectures' definitions; and as many in the
// file that is made.
TEST(ModelShapes, HaveAsManyWeightsAsTheModels) {
  const std::map<std::string_view, std::int64_t> published = {
      {"qwen3-0.6b", 596049920},      {"qwen3-1.7b", 1720574976},      {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},       {"qwen3-14b", 14768307200},      {"qwen2.5-1.5b", 1543714304},
      {"qwen3-30b-a3b", 30532122624}, {"gpt-oss-20b", 20914757184},    {"qwen2.5-7b", 7615616512},
      {"llama-3.2-1b", 1235814400},   {"llama-3.2-3b", 3212749824},    {"llama-3.1-8b", 8030261248},
      {"llama-2-7b", 6738415616},     {"mistral-7b-v0.3", 7248023552}, {"gemma3-1b", 999885952}};
  ASSERT_EQ(model_shapes().size(), published.size());
  for (const ModelShape& shape : model_shapes()) {
    SCOPED_TRACE(shape.name);
    const std::int64_t queries = shape.heads * shape.d_head;
    const std::int64_t keys = shape.heads_kv * shape.d_head;
    const bool gemma = shape.architecture == "gemma3";
    const std::int64_t norms = gemma                                     ? 2 * shape.d_head + 2 * shape.width
                               : shape.architecture.starts_with("qwen3") ? 2 * shape.d_head
                                                                         : 0;
    const bool oss = shape.architecture == "gpt-oss";
    const std::int64_t biases = oss ? queries + 2 * keys + shape.width + shape.heads +
                                          shape.experts * (1 + 2 * shape.feed_forward + shape.width)
                                : shape.architecture == "qwen2" ? queries + 2 * keys
                                                                : 0;
    const std::int64_t layer =
        shape.width * (2 + 2 * queries + 2 * keys + shape.experts +
                       3 * shape.feed_forward * std::max<std::int64_t>(1, shape.experts)) +
        norms + biases;
    const std::int64_t all =
        (shape.tied ? 1 : 2) * shape.vocabulary * shape.width + shape.layers * layer + shape.width;
    EXPECT_EQ(all, published.at(shape.name));
    // What is not a weight is the header, of some bytes for each token and each tensor.
    const std::uint64_t bytes = RandomModel(shape, TensorType::f32, 1).bytes();
    EXPECT_GT(bytes, static_cast<std::uint64_t>(4 * all + 20 * shape.vocabulary));
    EXPECT_LT(bytes, static_cast<std::uint64_t>(4 * all + 23 * shape.vocabulary +
                                                shape.layers * (oss ? 20 : 12) * 128 + 4096));
  }
}

}  // namespace
}  // namespace headwater::bench
