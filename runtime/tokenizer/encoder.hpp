#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.hpp"
#include "runtime/tokenizer/vocabulary.hpp"

namespace headwater::runtime {

/// What differs between the kinds of tokenizer: text without special tokens to ids, and an id to bytes.
class Encoder {
 public:
  Encoder() = default;
  virtual ~Encoder() = default;
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  /// Appends the ids of `text`, which is well-formed UTF-8 and not empty. after_special: it stands at the start of
  /// everything, or after a special token. Bytes without a token are left out; the answer is the place of the first.
  virtual std::optional<std::size_t> encode(std::string_view text, bool after_special,
                                            std::vector<std::int32_t>& ids) const = 0;
  /// Does a byte have no token of its own?
  [[nodiscard]] virtual bool lacks_bytes() const = 0;
  /// The bytes of a normal, unused or byte token.
  [[nodiscard]] virtual std::string piece(std::int32_t id) const = 0;
  /// Does add_special put BOS in front where the file does not say?
  [[nodiscard]] virtual bool adds_bos() const = 0;
  /// Does encode() put a space in front of a text?
  [[nodiscard]] virtual bool adds_space() const = 0;
};

/// `tokenizer.ggml.model` = "gpt2": bytes, cut into words, merged by rank. `vocabulary` must outlive it.
[[nodiscard]] std::unique_ptr<Encoder> make_byte_bpe(const GgufFile& file, const Vocabulary& vocabulary);
/// "llama": characters, merged by score, bytes for what has no token.
[[nodiscard]] std::unique_ptr<Encoder> make_sentence_bpe(const GgufFile& file, const Vocabulary& vocabulary);

}  // namespace headwater::runtime
