#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/gguf/builder.hpp"

namespace headwater::runtime::testing {

enum : std::int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

/// A vocabulary made by hand: a GGUF file without tensors.
struct VocabularyBuilder {
  std::string model = "gpt2";
  std::string pre = "qwen2";  ///< empty: no key
  std::vector<std::string> tokens;
  std::vector<std::int32_t> kinds;
  std::vector<float> scores;
  std::vector<std::string> merges;
  Builder file;  ///< more keys

  std::int32_t add(const std::string& text, std::int32_t kind = kNormal, float score = 0.0f) {
    tokens.push_back(text);
    kinds.push_back(kind);
    scores.push_back(score);
    return static_cast<std::int32_t>(tokens.size()) - 1;
  }

  [[nodiscard]] std::vector<std::byte> bytes() const {
    Builder b = file;
    b.add_text("tokenizer.ggml.model", model);
    if (!pre.empty()) b.add_text("tokenizer.ggml.pre", pre);
    b.add_texts("tokenizer.ggml.tokens", tokens);
    b.add_array("tokenizer.ggml.token_type", kI32, kinds);
    if (model == "llama") b.add_array("tokenizer.ggml.scores", kF32, scores);
    if (model != "llama") b.add_texts("tokenizer.ggml.merges", merges);
    return b.build();
  }
  [[nodiscard]] std::unique_ptr<Tokenizer> build() const {
    const std::vector<std::byte> raw = bytes();
    return Tokenizer::from_gguf(GgufFile::parse(raw, "m.gguf"));
  }
  [[nodiscard]] std::string refusal_of() const {
    return refusal([&] { (void)build(); });
  }
};

inline std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  return Tokenizer::from_gguf(GgufFile::open(path));
}

/// The vocabulary of the bundled model with another pre-tokeniser.
inline VocabularyBuilder tiny_with(const std::string& pre) {
  const GgufFile file = GgufFile::open(FIXTURES "/tiny.gguf");
  VocabularyBuilder b;
  b.pre = pre;
  const std::vector<std::int64_t> kinds = file.integers("tokenizer.ggml.token_type");
  for (const std::string_view text : file.texts("tokenizer.ggml.tokens")) {
    b.add(std::string(text), static_cast<std::int32_t>(kinds[b.tokens.size()]));
  }
  for (const std::string_view merge : file.texts("tokenizer.ggml.merges")) b.merges.emplace_back(merge);
  b.file.add<std::uint32_t>("tokenizer.ggml.eos_token_id", kU32, 4093);
  b.file.add<std::uint32_t>("tokenizer.ggml.bos_token_id", kU32, 4093);
  return b;
}

/// 256 bytes in the byte alphabet, in their order; ids are bytes.
inline VocabularyBuilder all_bytes() {
  VocabularyBuilder b;
  int other = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int c = itself ? byte : other++;
    b.add(utf8_of(static_cast<char32_t>(c)));
  }
  return b;
}

/// A sentence vocabulary of three special tokens and the 256 byte tokens after them.
inline VocabularyBuilder small_sentence() {
  VocabularyBuilder b;
  b.model = "llama";
  b.pre = "";
  b.add("<unk>", kUnknown);
  b.add("<s>", kControl);
  b.add("</s>", kControl);
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) b.add({'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'}, kByte);
  b.file.add<std::uint32_t>("tokenizer.ggml.bos_token_id", kU32, 1);
  b.file.add<std::uint32_t>("tokenizer.ggml.eos_token_id", kU32, 2);
  return b;
}

}  // namespace headwater::runtime::testing
