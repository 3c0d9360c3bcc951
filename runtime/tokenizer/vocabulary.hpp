#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/gguf/gguf.hpp"

namespace headwater::runtime {

/// What a token is; the numbers are those of `tokenizer.ggml.token_type`.
enum class TokenKind : std::uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,       ///< BOS, EOS, "<|im_start|>": never text
  user_defined = 4,  ///< text that is always one token
  unused = 5,
  byte = 6,  ///< "<0x0A>": one byte
};

struct Token {
  std::string text;  ///< as the file spells it
  TokenKind kind = TokenKind::normal;
  double score = 0.0;  ///< of a SentencePiece-style vocabulary: higher is merged first
};

/// The tokens of a file. Ids are positions.
class Vocabulary {
 public:
  /// Reads `tokenizer.ggml.tokens`, `token_type` and, `with_scores`, `scores`. Refuses lengths that differ, kinds that
  /// are not known, and two tokens of one text that are both in use. Where all of them but one are unused, the text is the
  /// one's; a warning says so.
  Vocabulary(const GgufFile& file, bool with_scores, std::vector<std::string>& warnings);

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  [[nodiscard]] const Token& operator[](std::int32_t id) const {
    return tokens_[static_cast<std::size_t>(id)];
  }
  /// -1 where no token has this text; of several the one in use, else the first.
  [[nodiscard]] std::int32_t find(std::string_view text) const;

 private:
  std::vector<Token> tokens_;
  std::unordered_map<std::string_view, std::int32_t> by_text_;
};

}  // namespace headwater::runtime
