#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/grammar/matcher.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::runtime {

/// The texts of a vocabulary in order of their bytes, made when they are first asked for. May be shared by threads. The tokenizer
/// must outlive it.
class TokenTexts {
 public:
  explicit TokenTexts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  struct Token {
    std::string text;  ///< never empty
    std::int32_t id = 0;
    std::size_t shared = 0;  ///< bytes that it begins with like the one before
  };
  /// Without control tokens, which no grammar reads.
  [[nodiscard]] const std::vector<Token>& sorted() const;
  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  const Tokenizer& tokenizer_;
  mutable std::once_flag once_;
  mutable std::vector<Token> sorted_;
};

/// What an answer may be: a grammar over a vocabulary.
struct AnswerGrammar {
  std::shared_ptr<const Grammar> grammar;
  std::shared_ptr<const TokenTexts> texts;
};

/// Follows an answer, and tells which tokens may come next: those whose bytes go on with a text of the grammar, and where
/// the answer is complete, the tokens that end it. Errors of GrammarMatcher.
class TokenFilter {
 public:
  explicit TokenFilter(AnswerGrammar answer);

  [[nodiscard]] bool allows(std::int32_t id);
  /// Sets the logits of all tokens that are not allowed to minus infinity. Error(invalid_argument) where none is: the vocabulary
  /// has no token for what would have to come.
  void restrict_to_allowed(std::span<float> logits);
  /// `id`, which is allowed, is the answer's next token.
  void accept(std::int32_t id);

 private:
  class Walk;
  bool read(std::string_view text, GrammarMatcher::State& to);

  AnswerGrammar answer_;
  GrammarMatcher matcher_;
  GrammarMatcher::State state_;
  bool ended_ = false;
};

}  // namespace headwater::runtime
