// Vocabularies that contradict themselves.

#include <gmock/gmock.h>

#include <limits>

#include "tests/tokenizer/vocabularies.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(HostileVocabulary, KindsOfTokenizer) {
  VocabularyBuilder b = all_bytes();
  EXPECT_EQ(b.refusal_of(), "");
  b.model = "t5";
  EXPECT_THAT(b.refusal_of(),
              HasSubstr("'m.gguf': key 'tokenizer.ggml.model' is 't5'; supported: gpt2, llama"));
  b.model = "gpt2";
  b.pre = "viking";
  EXPECT_THAT(
      b.refusal_of(),
      AllOf(
          HasSubstr("key 'tokenizer.ggml.pre' is 'viking'; supported: qwen2, deepseek-r1-qwen, llama-bpe, "),
          HasSubstr(", gpt-4o, llama4, tekken, qwen35, deepseek-v3, "), HasSubstr(", minerva-7b, minerva")));
  b.pre = "";
  EXPECT_THAT(b.refusal_of(), HasSubstr("key 'tokenizer.ggml.pre' is missing"));
}

TEST(HostileVocabulary, MissingKeys) {
  const std::vector<std::byte> empty = Builder().build();
  EXPECT_THAT(refusal([&] { (void)Tokenizer::from_gguf(GgufFile::parse(empty, "m.gguf")); }),
              HasSubstr("key 'tokenizer.ggml.model' is missing"));
  Builder b;
  b.add_text("tokenizer.ggml.model", "gpt2").add_text("tokenizer.ggml.pre", "qwen2");
  EXPECT_THAT(refusal([bytes = b.build()] { (void)Tokenizer::from_gguf(GgufFile::parse(bytes, "m.gguf")); }),
              HasSubstr("key 'tokenizer.ggml.tokens' is missing"));
  b.add_texts("tokenizer.ggml.tokens", {"a"});
  EXPECT_THAT(refusal([bytes = b.build()] { (void)Tokenizer::from_gguf(GgufFile::parse(bytes, "m.gguf")); }),
              HasSubstr("key 'tokenizer.ggml.token_type' is missing"));
  b.add_array<std::int32_t>("tokenizer.ggml.token_type", kI32, {1});
  EXPECT_THAT(refusal([bytes = b.build()] { (void)Tokenizer::from_gguf(GgufFile::parse(bytes, "m.gguf")); }),
              HasSubstr("key 'tokenizer.ggml.merges' is missing"));
}

TEST(HostileVocabulary, LengthsAndKinds) {
  VocabularyBuilder b = all_bytes();
  b.kinds.pop_back();
  EXPECT_THAT(b.refusal_of(), HasSubstr("'tokenizer.ggml.token_type' has 255 elements for 256 tokens"));
  b = all_bytes();
  b.kinds[7] = 0;
  EXPECT_THAT(b.refusal_of(), HasSubstr("says 0 for token 7; allowed: 1 .. 6"));
  b.kinds[7] = 7;
  EXPECT_THAT(b.refusal_of(), HasSubstr("says 7 for token 7; allowed: 1 .. 6"));
  b = all_bytes();
  b.tokens[9] = b.tokens[5];
  EXPECT_THAT(b.refusal_of(), HasSubstr("key 'tokenizer.ggml.tokens': tokens 5 and 9 are both"));
  b.kinds[9] = kControl;
  EXPECT_THAT(b.refusal_of(), HasSubstr("tokens 5 and 9 are both"));
  b = VocabularyBuilder();
  EXPECT_THAT(b.refusal_of(), HasSubstr("has 0 elements; allowed: 1 .."));
}

TEST(HostileVocabulary, Merges) {
  for (const char* const merge : {"ab", "", " ", "a", "a ", " a", "a b c", "a  b", "a b ", "  b"}) {
    VocabularyBuilder b = all_bytes();
    b.merges = {"a b", merge};
    EXPECT_THAT(b.refusal_of(),
                HasSubstr("element 1 is '" + std::string(merge) + "'; it must be two symbols"))
        << merge;
  }
  VocabularyBuilder b = all_bytes();
  b.merges = {"a b", "a b", "nowhere either"};  // twice: the first counts; never reached: no harm
  EXPECT_EQ(b.refusal_of(), "");
}

TEST(HostileVocabulary, SpecialIds) {
  VocabularyBuilder b = all_bytes();
  // Where no text needs the token, a wrong id is a warning.
  for (const std::string name : {"bos", "eos", "eot", "eom", "unknown", "padding"}) {
    const std::string key = "tokenizer.ggml." + name + "_token_id";
    const auto expect_warning = [&](const std::string& problem) {
      const std::unique_ptr<Tokenizer> tokenizer = b.build();
      EXPECT_THAT(tokenizer->warnings(),
                  ElementsAre("'m.gguf': key '" + key + "' " + problem + "; it is taken for none"));
      EXPECT_EQ(tokenizer->bos(), -1);
      EXPECT_EQ(tokenizer->eos(), -1);
      for (std::int32_t id = 0; id < tokenizer->size(); ++id) EXPECT_FALSE(tokenizer->is_end(id)) << key;
      b = all_bytes();
    };
    b.file.add<std::int32_t>(key, kI32, -1);
    expect_warning("is -1; allowed: 0 .. 255");
    b.file.add<std::uint32_t>(key, kU32, 256);
    expect_warning("is 256; allowed: 0 .. 255");
    b.file.add<std::uint64_t>(key, kU64, ~std::uint64_t{0});
    expect_warning("is 18446744073709551615; allowed: below 2^63");
    b.file.add_text(key, "1");
    expect_warning("is of type STRING; it must be an integer");
    b.file.add<std::uint32_t>(key, kU32, 255);
    EXPECT_THAT(b.build()->warnings(), IsEmpty());
    b = all_bytes();
  }
  for (const std::string name : {"bos", "eos"}) {
    const std::string key = "tokenizer.ggml." + name + "_token_id";
    b.file.add<std::uint8_t>("tokenizer.ggml.add_" + name + "_token", kBool, 1);
    b.file.add<std::uint32_t>(key, kU32, 256);
    EXPECT_THAT(b.refusal_of(), HasSubstr("key '" + key + "' is 256; allowed: 0 .. 255"));
    b = all_bytes();
  }
  b = all_bytes();
  b.file.add<std::uint8_t>("tokenizer.ggml.add_bos_token", kBool, 1);
  EXPECT_THAT(b.refusal_of(),
              HasSubstr("key 'tokenizer.ggml.bos_token_id' is missing, though texts need that token"));
  b = all_bytes();
  b.file.add<std::uint32_t>("tokenizer.ggml.add_bos_token", kU32, 1);
  EXPECT_THAT(b.refusal_of(), HasSubstr("'tokenizer.ggml.add_bos_token' is of type UINT32; it must be BOOL"));
}

// Files name ids that mean nothing alike. Another token keeps the text, wherever it stands.
TEST(HostileVocabulary, EqualTextsOfUnusedTokens) {
  for (const bool first : {true, false}) {
    VocabularyBuilder b = all_bytes();
    const std::int32_t word = b.add("ab", first ? kUnused : kNormal);
    const std::int32_t other = b.add("ab", first ? kNormal : kUnused);
    b.merges = {"a b"};
    std::unique_ptr<Tokenizer> tokenizer = b.build();
    EXPECT_THAT(tokenizer->encode("ab", false, true), ElementsAre(first ? other : word));
    EXPECT_EQ(tokenizer->piece(word), "ab");
    EXPECT_EQ(tokenizer->piece(other), "ab");
    EXPECT_THAT(
        tokenizer->warnings(),
        ElementsAre("'m.gguf': key 'tokenizer.ggml.tokens': tokens 256 and 257 are both 'ab'; no text "
                    "becomes an unused one of them"));
    b.kinds[256] = first ? kUnused : kControl;
    b.kinds[257] = first ? kControl : kUnused;
    tokenizer = b.build();
    EXPECT_THAT(tokenizer->encode("ab", false, true), ElementsAre(first ? other : word));
    EXPECT_EQ(tokenizer->find_special("ab"), first ? other : word);
    VocabularyBuilder sentence = small_sentence();
    sentence.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
    const std::int32_t left = sentence.add("x", first ? kUnused : kNormal, -1);
    const std::int32_t right = sentence.add("x", first ? kNormal : kUnused, -2);
    EXPECT_THAT(sentence.build()->encode("x", false, false), ElementsAre(first ? right : left));
  }
  VocabularyBuilder b = all_bytes();
  for (int i = 0; i < 4; ++i) b.add("<pad>", kUnused);
  EXPECT_THAT(b.build()->warnings(),
              ElementsAre(HasSubstr("tokens 256 and 257 are both '<pad>', and 2 more are "
                                    "equal; no text becomes")));
}

TEST(HostileVocabulary, Sentences) {
  VocabularyBuilder b;
  b.model = "llama";
  b.pre = "";
  b.add("a", kNormal);
  b.add("<0xGG>", kByte);
  EXPECT_THAT(b.refusal_of(), HasSubstr("key 'tokenizer.ggml.tokens': token 1 is a byte called '<0xGG>'"));
  for (const char* name : {"<0x1G>", "<0xG1>", "<0x1>", "<0x001>", "<0y01>", "<0x01)", "<0x+1>", "<0x 1>"}) {
    b.tokens[1] = name;
    EXPECT_THAT(b.refusal_of(), HasSubstr(std::string("token 1 is a byte called '") + name + "'"));
  }
  b.scores[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(b.refusal_of(), HasSubstr("'tokenizer.ggml.scores' holds nan; it must be finite"));
  b.scores = {0.0f};
  EXPECT_THAT(b.refusal_of(), HasSubstr("'tokenizer.ggml.scores' has 1 elements for 2 tokens"));
  b = VocabularyBuilder();
  b.model = "llama";
  b.add("a");
  b.file.add<std::uint8_t>("tokenizer.ggml.remove_extra_whitespaces", kBool, 1);
  EXPECT_THAT(b.refusal_of(), HasSubstr("remove_extra_whitespaces' is true, which is not supported"));
}

// Tokens that are not UTF-8, or empty, or very long, are accepted.
TEST(HostileVocabulary, OddTexts) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t broken = b.add("\xff\xfe");
  const std::int32_t empty = b.add("");
  b.add("", kControl);
  const std::int32_t longest = b.add(std::string(100000, 'z'), kControl);
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_EQ(tokenizer->piece(broken), "\xff\xfe");
  EXPECT_EQ(tokenizer->piece(empty), "");
  EXPECT_EQ(tokenizer->encode(std::string(100001, 'z'), false, true),
            (std::vector<std::int32_t>{longest, 'z'}));
}

}  // namespace
}  // namespace headwater::runtime::testing
