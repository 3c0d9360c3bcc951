#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.hpp"

namespace headwater::runtime {

/// Text to token ids and back, as the model's GGUF file says (`tokenizer.ggml.*`). Immutable: may be shared by threads.
class Tokenizer {
 public:
  /// Byte-level BPE (`gpt2`) with a pre-tokeniser of PreTokenizer::names(); SentencePiece-style BPE
  /// (`llama`) with byte fallback. Anything else, and a vocabulary that contradicts itself, is an
  /// Error(invalid_argument) that names the key and what is supported. Copies what it needs of the file.
  [[nodiscard]] static std::unique_ptr<Tokenizer> from_gguf(const GgufFile& file);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of `text`. add_special: put BOS in front and EOS at the end where the file asks for it. parse_special: the
  /// texts of control tokens ("<|im_end|>") become those tokens; without it they are text like any other (what a user
  /// typed must not end a turn). Each maximal ill-formed subsequence of UTF-8 is read as U+FFFD; what lies between
  /// special tokens is brought into normal form C where the model's own tokenizer does so (Qwen's vocabulary, pre-tokenisers
  /// qwen2 and deepseek-r1-qwen). Bytes for which the vocabulary has no token are left out (first_without_token() says where).
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, bool add_special,
                                                 bool parse_special) const;
  /// Ids of a text that goes on after another one, its first token where it begins: without the tokens and the space
  /// that encode() may put in front of a text.
  [[nodiscard]] std::vector<std::int32_t> encode_more(std::string_view text, bool parse_special) const;
  /// Offset of the first character of `text` that encode() leaves out, wholly or in part; none if nothing is.
  [[nodiscard]] std::optional<std::size_t> first_without_token(std::string_view text) const;

  /// The first text of a control token or a user-defined one from `from` on, the longest of those that begin there.
  struct SpecialText {
    std::size_t begin = 0;
    std::size_t length = 0;  ///< 0 where there is none
    std::int32_t id = -1;
  };
  [[nodiscard]] SpecialText next_special(std::string_view text, std::size_t from) const;

  /// The bytes that a token stands for; not always whole UTF-8 characters. For a control token its text.
  /// Error(invalid_argument) for an id outside 0 .. size() - 1.
  [[nodiscard]] std::string piece(std::int32_t id) const;

  /// The inverse of encode(): pieces without control tokens, and without the space that a SentencePiece-style
  /// vocabulary puts in front of a text.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const;

  /// Is it a control token (BOS, EOS, "<|im_start|>"), never part of what a reader should see?
  [[nodiscard]] bool is_control(std::int32_t id) const;
  /// Does generation stop at this token: EOS, end of turn, end of message?
  [[nodiscard]] bool is_end(std::int32_t id) const;

  [[nodiscard]] std::int32_t size() const;
  /// -1 where the file names none.
  [[nodiscard]] std::int32_t bos() const;
  [[nodiscard]] std::int32_t eos() const;
  /// What is wrong in the file and was left out, since nothing needs it: ids of special tokens that are not in the
  /// vocabulary, unused tokens with a text that another one has. A line each, which names the file and the key.
  [[nodiscard]] const std::vector<std::string>& warnings() const;
  /// Does add_special put BOS in front?
  [[nodiscard]] bool adds_bos() const;
  /// The control or user-defined token with exactly this text.
  [[nodiscard]] std::optional<std::int32_t> find_special(std::string_view text) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);
  /// The place of the first byte that was left out, in the text with U+FFFD for what is ill-formed.
  std::optional<std::size_t> append(std::string_view clean, bool parse_special, bool after_special,
                                    std::vector<std::int32_t>& ids) const;
  std::unique_ptr<const State> state_;
};

/// Ids to text as they come. What push() and finish() return together is well-formed UTF-8 and never ends inside a
/// character: an incomplete one is held back; a maximal ill-formed subsequence becomes U+FFFD. Control tokens give
/// nothing. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  /// The characters that `id` completes; often empty.
  [[nodiscard]] std::string push(std::int32_t id);
  /// What was held back: U+FFFD, or nothing. The decoder is as new.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;  ///< the proper prefix of one character
};

}  // namespace headwater::runtime
