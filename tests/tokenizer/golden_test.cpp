// Ids of independent implementations: PyPI's tokenizers and sentencepiece, and what was delivered with the model.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/normal_form.hpp"
#include "runtime/tokenizer/pre_tokenizer.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace headwater::runtime::testing {
namespace {

using Ids = std::vector<std::int32_t>;

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return nlohmann::json::parse(file);
}

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

void expect_ids(const Tokenizer& tokenizer, const nlohmann::json& cases, bool parse_special) {
  ASSERT_GT(cases.size(), 100U);
  for (const auto& golden : cases) {
    const std::string text = bytes_of(golden.at("hex").get<std::string>());
    EXPECT_EQ(tokenizer.encode(text, false, parse_special), golden.at("ids").get<Ids>()) << quoted(text);
  }
}

class GoldenPreTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenPreTokenizer, IdsOfTokenizers) {
  const std::unique_ptr<Tokenizer> tokenizer = tiny_with(GetParam()).build();
  expect_ids(*tokenizer, read_json(FIXTURES "/tiny.json").at(GetParam()), true);
}

TEST_P(GoldenPreTokenizer, WordsOfTokenizers) {
  const std::unique_ptr<PreTokenizer> words = PreTokenizer::named(GetParam());
  const nlohmann::json cases = read_json(FIXTURES "/tiny.json").at(GetParam());
  for (const auto& golden : cases) {
    const std::string text = well_formed_utf8(bytes_of(golden.at("hex").get<std::string>()));
    std::vector<std::size_t> lengths;
    std::string all;
    for (const std::string_view word : words->split(text)) {
      lengths.push_back(word.size());
      all += word;
    }
    EXPECT_EQ(lengths, golden.at("words").get<std::vector<std::size_t>>()) << quoted(text);
    EXPECT_EQ(all, text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPreTokenizer,
                         ::testing::Values("qwen2", "llama-bpe", "gpt-2", "smollm", "gpt-4o", "tekken",
                                           "qwen35", "deepseek-v3", "default"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Golden, NormalFormsOfTokenizers) {
  std::size_t changed = 0;
  for (const auto& pair : read_json(FIXTURES "/normal_forms.json")) {
    const std::string text = bytes_of(pair.at(0).get<std::string>());
    const std::string normal = bytes_of(pair.at(1).get<std::string>());
    EXPECT_EQ(composed(text), text == normal ? std::nullopt : std::optional(normal)) << quoted(text);
    EXPECT_EQ(composed(normal), std::nullopt) << quoted(normal);
    changed += text == normal ? 0 : 1;
  }
  EXPECT_GT(changed, 200U);
}

// They differ on the golden texts, so that no pre-tokeniser passes for another.
TEST(Golden, PreTokenizersDiffer) {
  const nlohmann::json golden = read_json(FIXTURES "/tiny.json");
  for (const auto& [a, first] : golden.items()) {
    for (const auto& [b, second] : golden.items()) {
      EXPECT_TRUE(a == b || first != second) << a << " " << b;
    }
  }
}

TEST(Golden, IdsOfSentencePiece) {
  const GgufFile file = GgufFile::open(FIXTURES "/sentence.gguf");
  EXPECT_THAT(file.integers("tokenizer.ggml.token_type"), ::testing::Contains(kUnused));
  expect_ids(*Tokenizer::from_gguf(file), read_json(FIXTURES "/sentence.json"), false);
}

/// tokenizer-cases.json of the bundled model: made by the library that it was trained with, equal in llama.cpp.
const std::vector<std::pair<std::string, Ids>>& delivered() {
  static const std::vector<std::pair<std::string, Ids>> cases = {
      {"Hello world", {2478, 321, 2092, 1084}},
      {"def f(x):\n    return x**2\n", {514, 284, 879, 288, 258, 358, 583, 780, 17, 198}},
      {"  \t\n\n x", {256, 197, 300, 583}},
      {"na\xc3\xafve caf\xc3\xa9 \xe2\x80\x94 \xe6\x9d\xb1\xe4\xba\xac "
       "\xf0\x9f\x99\x82\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd",
       {77,  64,  127, 107, 412, 283, 1130, 127, 102, 220, 158, 222, 242, 220, 162, 251, 109,
        160, 118, 105, 220, 172, 253, 247,  224, 172, 253, 239, 235, 172, 253, 237, 121}},
      {"a\r\nb\rc", {64, 201, 198, 65, 201, 66}},
      {"don't WE'LL 123456", {67, 269, 815, 830, 36, 6, 2695, 220, 16, 17, 18, 19, 20, 21}},
      {"\xf0\x9d\x94\x98\xf0\x9d\x94\xab\xf0\x9d\x94\xa6 \xe2\x80\x8b\xc2\xa0 e\xcc\x81",
       {172, 251, 242, 246, 172, 251, 242, 104, 172, 251, 242,
        99,  220, 158, 222, 233, 126, 254, 312, 136, 223}},
      {"<|endoftext|>x<|im_end|>", {4093, 87, 4095}},
      {"", {}},
      {" ", {220}},
      {"\n\n\n\n", {300, 300}},
      {std::string(50, 'x'), Ids(25, 1502)},
      {"https://a.b/c?d=e&f=1", {1432, 82, 1431, 64, 866, 14, 66, 30, 67, 28, 68, 5, 69, 28, 16}},
      {"0xDEADBEEF_1e-10", {15, 87, 985, 1509, 33, 3480, 37, 62, 16, 68, 12, 16, 15}},
  };
  return cases;
}

TEST(Golden, IdsDeliveredWithTheModel) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(FIXTURES "/tiny.gguf");
  for (const auto& [text, ids] : delivered()) {
    EXPECT_EQ(tokenizer->encode(text, true, true), ids) << text;
    EXPECT_EQ(tokenizer->encode(text, false, true), ids) << text;
  }
}

// The fixture is the vocabulary of the model itself.
TEST(Golden, TheModelsOwnFile) {
  std::size_t models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MODELS)) {
    if (entry.path().extension() != ".gguf") continue;
    ++models;
    const GgufFile file = GgufFile::open(entry.path());
    const GgufFile fixture = GgufFile::open(FIXTURES "/tiny.gguf");
    EXPECT_EQ(file.texts("tokenizer.ggml.tokens"), fixture.texts("tokenizer.ggml.tokens"));
    EXPECT_EQ(file.texts("tokenizer.ggml.merges"), fixture.texts("tokenizer.ggml.merges"));
    const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::from_gguf(file);
    for (const auto& [text, ids] : delivered()) EXPECT_EQ(tokenizer->encode(text, true, true), ids) << text;
  }
  EXPECT_GT(models, 0U) << MODELS;
}

}  // namespace
}  // namespace headwater::runtime::testing
