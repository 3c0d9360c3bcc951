// Tokenizers with their n-th allocation refused, those of the regular expressions among them: read from a file, used on
// a text, and on a conversation.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/tokenizer/chat.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/allocation/refuse_each.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace headwater {
namespace {

using runtime::GgufFile;
using runtime::Tokenizer;
using runtime::testing::all_bytes;
using runtime::testing::kControl;
using runtime::testing::VocabularyBuilder;

VocabularyBuilder byte_level(const std::string& pre) {
  VocabularyBuilder b = all_bytes();
  b.pre = pre;
  b.add("th");
  b.merges = {"t h"};
  b.add("<|im_start|>", kControl);
  b.file.add<std::uint32_t>("tokenizer.ggml.bos_token_id", runtime::testing::kU32,
                            static_cast<std::uint32_t>(b.add("<|im_end|>", kControl)));
  return b;
}

VocabularyBuilder sentence() {
  VocabularyBuilder b;
  b.model = "llama";
  b.pre.clear();
  b.add("<unk>", runtime::testing::kUnknown);
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    b.add({'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'}, runtime::testing::kByte);
  }
  for (const char* const text : {"\xe2\x96\x81", "a", "b"}) b.add(text);
  b.add("ab", runtime::testing::kNormal, 1.0f);
  b.file.add<std::uint32_t>("tokenizer.ggml.bos_token_id", runtime::testing::kU32, 0);
  return b;
}

void expect_reading_fails_well(const VocabularyBuilder& vocabulary) {
  const std::vector<std::byte> bytes = vocabulary.bytes();
  const int refused = allocation::refuse_each([&] {
    if (Tokenizer::from_gguf(GgufFile::parse(bytes, "a file with a long name.gguf"))->size() < 256) {
      throw Error(ErrorCode::internal, "wrong result");
    }
  });
  EXPECT_GT(refused, 100);
}

TEST(RefusedAllocation, ByteLevelTokenizers) {
  for (const char* const pre : {"qwen2", "llama-bpe", "gpt-2", "default"}) {
    SCOPED_TRACE(pre);
    expect_reading_fails_well(byte_level(pre));
  }
}

TEST(RefusedAllocation, SentenceTokenizer) { expect_reading_fails_well(sentence()); }

TEST(RefusedAllocation, TextToTokensAndBack) {
  const std::string text =
      "that there, \xe2\x82\xac 12 <|im_end|> \xff and thus a longer text than any small buffer";
  for (const VocabularyBuilder& vocabulary : {byte_level("default"), sentence()}) {
    SCOPED_TRACE(vocabulary.model);
    const std::unique_ptr<Tokenizer> tokenizer = vocabulary.build();
    const std::string wanted = tokenizer->decode(tokenizer->encode(text, true, true));
    const int refused = allocation::refuse_each([&] {
      const std::vector<std::int32_t> ids = tokenizer->encode(text, true, true);
      runtime::StreamDecoder stream(*tokenizer);
      std::string streamed;
      for (const std::int32_t id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      if (tokenizer->decode(ids) != wanted || streamed.empty()) {
        throw Error(ErrorCode::internal, "wrong result");
      }
    });
    EXPECT_GT(refused, 10);
  }
}

TEST(RefusedAllocation, Conversation) {
  const std::vector<std::byte> raw = byte_level("qwen2").bytes();
  const runtime::GgufFile file = runtime::GgufFile::parse(raw, "m.gguf");
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::from_gguf(file);
  const std::vector<runtime::ChatMessage> messages = {{"system", "a text that takes memory of its own"},
                                                      {"user", "and another one, which is as long"}};
  const int refused = allocation::refuse_each([&] {
    if (runtime::ChatTemplate(file, *tokenizer).begin(messages).ids.size() < 50) {
      throw Error(ErrorCode::internal, "wrong result");
    }
  });
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace headwater
