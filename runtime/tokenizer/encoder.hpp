#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  /// everything, or after a special token. Bytes that no token stands for are left out; returns the offset of the first of
  /// them, or npos.
  virtual std::size_t encode(std::string_view text, bool after_special,
                             std::vector<std::int32_t>& ids) const = 0;
  static constexpr std::size_t npos = std::string_view::npos;
  /// Is there a token for each byte, so that nothing is ever left out?
  [[nodiscard]] virtual bool has_every_byte() const = 0;
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
