// Small random models: llama and the Qwens with each scaling of the rotation against the forward pass of make_fixtures.py,
// which is written in numpy from the papers; the other architectures against transformers (make_architectures.py). Both on
// weights as they were before a converter put them into a file.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/support/safetensors.hpp"
#include "runtime/generate/conversation.hpp"
#include "runtime/generate/sampler.hpp"
#include "runtime/model/architecture/architecture.hpp"
#include "runtime/support/mapped_file.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

constexpr const char* kNames[] = {FIXTURES "/llama-linear",   FIXTURES "/llama3",
                                  FIXTURES "/mistral-yarn",   FIXTURES "/qwen2-yarn",
                                  FIXTURES "/qwen2-linear",   FIXTURES "/qwen3-plain",
                                  FIXTURES "/untyped-factor", FIXTURES "/old-factor",
                                  FIXTURES "/yarn-magnitude", FIXTURES "/none-with-factors"};
constexpr const char* kOfTransformers[] = {
    ARCHITECTURES "/gemma3",     ARCHITECTURES "/gemma3-linear", ARCHITECTURES "/gemma2",
    ARCHITECTURES "/smollm3",    ARCHITECTURES "/granite",       ARCHITECTURES "/glm4",
    ARCHITECTURES "/olmo2",      ARCHITECTURES "/phi3-window",   ARCHITECTURES "/phi3-long",
    ARCHITECTURES "/phi3-short", ARCHITECTURES "/qwen3moe",      ARCHITECTURES "/mixtral",
    ARCHITECTURES "/granitemoe", ARCHITECTURES "/gpt-oss",       ARCHITECTURES "/cohere2",
    ARCHITECTURES "/mistral3",   ARCHITECTURES "/qwen2moe",      ARCHITECTURES "/deepseek2"};

/// Another order of sums, and other roundings: so many times what numpy or transformers in float32 is off.
constexpr double kSlack = 8;

struct Golden {
  std::string text;
  std::vector<std::int32_t> ids, generated;
  double rounding = 0;
  double unscaled = 0;        ///< how far the logits are off without the scaling
  std::vector<float> logits;  ///< of the last positions
};

Golden golden(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string folder = path.substr(0, path.size() - name.size());
  std::ifstream file(folder + "golden.json");
  const auto json = nlohmann::json::parse(file).at(name);
  Golden result{json.at("text"),     json.at("ids"),      json.at("generated"),
                json.at("rounding"), json.at("unscaled"), {}};
  const runtime::MappedFile tensors(folder + "golden.safetensors");
  const cli::SafetensorsHeader header = cli::parse_safetensors(tensors.bytes());
  const cli::TensorInfo& info = header.tensors.at(name + ".logits");
  result.logits.resize((info.end - info.begin) / sizeof(float));
  std::memcpy(result.logits.data(), tensors.bytes().data() + info.begin, info.end - info.begin);
  return result;
}

std::shared_ptr<const GgufFile> file_of(const std::string& path) {
  return std::make_shared<const GgufFile>(GgufFile::open(path + ".gguf"));
}

class Architecture : public ::testing::TestWithParam<const char*> {};

TEST_P(Architecture, TheTokenizerReadsTheText) {
  const Golden wanted = golden(GetParam());
  const auto tokenizer = Tokenizer::from_gguf(*file_of(GetParam()));
  EXPECT_EQ(tokenizer->encode(wanted.text, true, false), wanted.ids);
}

TEST_P(Architecture, LogitsAreThoseOfNumpy) {
  const Golden wanted = golden(GetParam());
  const auto model = Model::load(file_of(GetParam()), {Precision::f32, 2});
  const auto n = static_cast<std::int64_t>(wanted.ids.size());
  const auto vocabulary = static_cast<std::size_t>(model->config().vocabulary);
  const auto rows = static_cast<std::int64_t>(wanted.logits.size() / vocabulary);
  ASSERT_EQ(wanted.logits.size() % vocabulary, 0U);
  Transformer transformer(model, options(n, DType::f32));
  std::vector<float> logits(wanted.logits.size());
  const auto worst = [&] {
    double most = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double difference =
          std::fabs(static_cast<double>(logits[i]) - static_cast<double>(wanted.logits[i]));
      most = difference <= most ? most : difference;  // a NaN stays
    }
    return most;
  };
  transformer.run(Step::prefill(n), wanted.ids);
  transformer.logits(n - rows, rows, logits);
  EXPECT_LE(worst(), kSlack * wanted.rounding) << "prefill";
  // The bound would see that the scaling was left out.
  if (wanted.unscaled > 0) {
    EXPECT_GT(wanted.unscaled, 1e3 * kSlack * wanted.rounding);
  }

  // Token by token, by the other path: weights as stored.
  transformer.reset();
  for (std::int64_t t = 0; t < n; ++t) {
    transformer.run(Step::decode(), {wanted.ids.data() + t, 1});
    if (t < n - rows) continue;
    transformer.logits(0, 1,
                       std::span(logits).subspan(static_cast<std::size_t>(t - (n - rows)) * vocabulary));
  }
  EXPECT_LE(worst(), kSlack * wanted.rounding) << "decode";
}

TEST_P(Architecture, GreedyGenerationSaysTheSame) {
  const Golden wanted = golden(GetParam());
  const auto model = Model::load(file_of(GetParam()), {Precision::f32, 2});
  const auto capacity = static_cast<std::int64_t>(wanted.ids.size() + wanted.generated.size());
  Transformer transformer(model, options(capacity));
  Conversation conversation(transformer, 0);
  conversation.feed(wanted.ids);
  std::vector<std::int32_t> said;
  while (said.size() < wanted.generated.size()) {
    said.push_back(best_token(conversation.logits()));
    conversation.append(said.back());
  }
  EXPECT_EQ(said, wanted.generated);
}

std::string test_name(const ::testing::TestParamInfo<const char*>& one) {
  std::string name = one.param;
  name.erase(0, name.rfind('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
// Names and models of docs/models.md, a row each.
TEST(Architectures, AreThoseOfTheDocument) {
  std::ifstream page(FIXTURES "/../../../docs/models.md");
  std::vector<std::string> rows;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| `")) rows.push_back(line.substr(0, line.find(" |", line.find(" | ") + 3)));
  }
  std::vector<std::string> wanted;
  for (const auto& one : architectures()) wanted.push_back(fmt::format("| `{}` | {}", one.name, one.models));
  EXPECT_EQ(rows, wanted);
}

INSTANTIATE_TEST_SUITE_P(Numpy, Architecture, ::testing::ValuesIn(kNames), test_name);
INSTANTIATE_TEST_SUITE_P(Transformers, Architecture, ::testing::ValuesIn(kOfTransformers), test_name);

}  // namespace
}  // namespace headwater::runtime::testing
