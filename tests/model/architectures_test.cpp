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
#include "tests/gguf/builder.hpp"
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
    ARCHITECTURES "/mistral3",   ARCHITECTURES "/qwen2moe",      ARCHITECTURES "/deepseek2",
    ARCHITECTURES "/qwen35",     ARCHITECTURES "/qwen35-wide"};

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

/// Logits of all positions of the golden text.
std::vector<float> logits_of(std::shared_ptr<const GgufFile> file, const Golden& text) {
  const auto model = Model::load(std::move(file), {Precision::f32, 2});
  const auto n = static_cast<std::int64_t>(text.ids.size());
  Transformer transformer(model, options(n, DType::f32));
  transformer.run(Step::prefill(n), text.ids);
  std::vector<float> logits(text.ids.size() * static_cast<std::size_t>(model->config().vocabulary));
  transformer.logits(0, n, logits);
  return logits;
}

std::vector<std::byte> bytes_of(const std::string& path) {
  const MappedFile file(path + ".gguf");
  return {file.bytes().begin(), file.bytes().end()};
}

/// The file with these keys behind its head, by which its data move as far as they are aligned.
std::vector<std::byte> with_keys(std::vector<std::byte> bytes, Builder added) {
  constexpr std::size_t kHead = 24;  // magic, version, tensors, keys
  constexpr std::size_t kAlignment = 32;
  constexpr std::string_view kFiller = "general.filler";
  const std::size_t size = added.metadata.size() + 8 + kFiller.size() + 4 + 8;
  added.add_text(kFiller, std::string((kAlignment - size % kAlignment) % kAlignment, ' '));
  std::uint64_t keys = 0;
  std::memcpy(&keys, bytes.data() + kHead - sizeof keys, sizeof keys);
  keys += added.entries;
  std::memcpy(bytes.data() + kHead - sizeof keys, &keys, sizeof keys);
  bytes.insert(bytes.begin() + kHead, added.metadata.bytes().begin(), added.metadata.bytes().end());
  return bytes;
}

std::vector<float> logits_of(const std::vector<std::byte>& bytes, const Golden& text,
                             const std::vector<Replacement>& replacements = {}) {
  auto file = std::make_shared<GgufFile>(GgufFile::parse(bytes, "m.gguf"));
  for (const Replacement& one : replacements) file->replace(one);
  return logits_of(std::move(file), text);
}

// Of each fixture, whose logits are numpy's or transformers': with the keys of its scaling taken out of the file (renamed) and
// their values given beside it, its logits are the same bits, and without them others. Finds: a value that does not reach
// a layer; one that is read somewhere else than in the place of the file's.
TEST(RotationInPlaceOfTheFiles, GivesTheLogitsOfTheFixture) {
  const std::vector<std::pair<const char*, std::vector<Replacement>>> cases = {
      {FIXTURES "/llama-linear", {{"llama.rope.scaling.factor", 4.0F, "a"}}},
      {FIXTURES "/mistral-yarn",
       {{"llama.rope.scaling.type", "yarn", "a"},
        {"llama.rope.scaling.factor", 4.0F, "b"},
        {"llama.rope.scaling.original_context_length", std::int64_t{64}, "c"}}},
      {FIXTURES "/qwen2-yarn",
       {{"qwen2.rope.scaling.type", "yarn", "a"},
        {"qwen2.rope.scaling.factor", 2.0F, "b"},
        {"qwen2.rope.scaling.original_context_length", std::int64_t{32}, "c"}}},
      {FIXTURES "/yarn-magnitude",
       {{"llama.rope.scaling.type", "yarn", "a"},
        {"llama.rope.scaling.factor", 4.0F, "b"},
        {"llama.rope.scaling.original_context_length", std::int64_t{64}, "c"},
        {"llama.rope.scaling.attn_factor", 0.75F, "d"}}},
      {ARCHITECTURES "/gemma3-linear", {{"gemma3.rope.scaling.factor", 8.0F, "a"}}},
      {ARCHITECTURES "/gpt-oss",
       {{"gpt-oss.rope.scaling.type", "yarn", "a"},
        {"gpt-oss.rope.scaling.factor", 8.0F, "b"},
        {"gpt-oss.rope.scaling.original_context_length", std::int64_t{64}, "c"},
        {"gpt-oss.rope.scaling.yarn_beta_fast", 4.0F, "d"}}}};
  for (const auto& [path, replacements] : cases) {
    SCOPED_TRACE(path);
    const Golden text = golden(path);
    const std::vector<std::byte> whole = bytes_of(path);
    std::vector<std::byte> stripped = whole;
    const std::string_view scaling = ".rope.scaling.";
    const auto same = [](char c, std::byte b) { return static_cast<std::byte>(c) == b; };
    int keys = 0;
    for (auto at = stripped.begin();; ++keys) {
      at = std::search(at, stripped.end(), scaling.begin(), scaling.end(),
                       [&](std::byte b, char c) { return same(c, b); });
      if (at == stripped.end()) break;
      at[1] = static_cast<std::byte>('x');
    }
    EXPECT_GE(keys, 2);
    const std::vector<float> wanted = logits_of(whole, text);
    EXPECT_EQ(logits_of(stripped, text, replacements), wanted);
    EXPECT_NE(logits_of(stripped, text), wanted);
  }
}

// A model without a scaling, with each kind of it given beside the file and written into it.
TEST(RotationInPlaceOfTheFiles, IsThatOfAFileWithTheKeys) {
  const Golden text = golden(FIXTURES "/qwen3-plain");
  const std::vector<std::byte> plain = bytes_of(FIXTURES "/qwen3-plain");
  const std::string scaling = "qwen3.rope.scaling.";
  const std::vector<float> unscaled = logits_of(plain, text);
  for (const std::string kind : {"none", "linear", "yarn", "yarn in full"}) {
    SCOPED_TRACE(kind);
    Builder keys;
    std::vector<Replacement> given;
    const auto number = [&](const char* name, float value) {
      keys.add(scaling + name, kF32, value);
      given.push_back({scaling + name, value, name});
    };
    keys.add_text(scaling + "type", kind.substr(0, kind.find(' ')));
    given.push_back({scaling + "type", kind.substr(0, kind.find(' ')), "type"});
    if (kind != "none") number("factor", 3.7F);
    if (kind == "yarn in full") {
      number("attn_factor", 1.1F), number("yarn_beta_fast", 7.3F), number("yarn_beta_slow", 0.6F);
      keys.add(scaling + "original_context_length", kU32, 40U);
      given.push_back({scaling + "original_context_length", std::int64_t{40}, "original"});
    }
    const std::vector<float> wanted = logits_of(with_keys(plain, keys), text);
    EXPECT_EQ(logits_of(plain, text, given), wanted);
    EXPECT_EQ(wanted == unscaled, kind == "none");
  }
}

std::string test_name(const ::testing::TestParamInfo<const char*>& one) {
  std::string name = one.param;
  name.erase(0, name.rfind('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
// Names and models of docs/models.md, a row each.
TEST(Architectures, AreThoseOfTheDocument) {
  std::ifstream page(MODELS "/../docs/models.md");
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
